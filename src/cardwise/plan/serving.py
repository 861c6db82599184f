"""How each inference engine is started and asked whether it lives: image, command, port, paths, and a first request.

The image is a proposal, to be pinned by whoever runs it. Liveness never asks for inference: a slow answer is no reason
to kill (SPEC F1). Where an engine is no server of its own there is a place to fill in, and ``open`` says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

from cardwise.core.capacity.shape import Kind

COMPLETIONS = "/v1/completions"
PLACEHOLDER = "example.invalid"
"""A name that no registry has (RFC 2606): an image that the user must replace."""


@dataclass(frozen=True, slots=True)
class Serving:
    """command, args: what starts it, before the flags. model: how it is told the model, with ``{}``; "" if it is not.

    warm_up, body: path and content of a first request; "" for none. ``open``: what the user has to fill in; "" for
    nothing.
    """

    image: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    model: str
    port: int
    alive: str
    ready: str
    warm_up: str = ""
    body: str = ""
    open: str = ""


def serving(engine: str, name: str, kind: Kind) -> Serving:
    """For an engine, serving a model under a name. Sources: the engines' own documents on their servers.

    A first request asks for what the model does: it would fail with another, and the pod would never start.
    """
    found = _SERVERS.get(engine, _unknown)(name)
    if kind is Kind.GENERATOR or not found.warm_up:
        return found
    if kind is Kind.ENCODER and found.warm_up == COMPLETIONS:
        flags = ("--is-embedding",) if engine == "sglang" else ()
        body = json.dumps({"model": name, "input": "hello"})
        return replace(found, args=(*found.args, *flags), warm_up="/v1/embeddings", body=body)
    return replace(
        found, warm_up="", body="", open="a first request in the startup probe: this model needs sound for it"
    )


def _openai(name: str) -> str:
    return json.dumps({"model": name, "prompt": "hello", "max_tokens": 1})


def _vllm(name: str) -> Serving:
    return Serving(
        image="vllm/vllm-openai:v0.29.0",
        command=("vllm", "serve"),
        args=(f"--served-model-name={name}", "--port=8000"),
        model="{}",
        port=8000,
        alive="/health",
        ready="/health",
        warm_up=COMPLETIONS,
        body=_openai(name),
    )


def _sglang(name: str) -> Serving:
    return Serving(
        image="lmsysorg/sglang:v0.5.23",
        command=("python3", "-m", "sglang.launch_server"),
        args=(f"--served-model-name={name}", "--host=0.0.0.0", "--port=30000"),
        model="--model-path={}",
        port=30000,
        alive="/health",
        ready="/health",
        warm_up=COMPLETIONS,
        body=_openai(name),
    )


def _tgi(_name: str) -> Serving:
    return Serving(
        image="ghcr.io/huggingface/text-generation-inference:3.3.5",
        command=("text-generation-launcher",),
        args=("--port=8080",),
        model="--model-id={}",
        port=8080,
        alive="/health",
        ready="/health",
        warm_up="/generate",
        body=json.dumps({"inputs": "hello", "parameters": {"max_new_tokens": 1}}),
    )


def _tensorrt_llm(name: str) -> Serving:
    return Serving(
        image=f"{PLACEHOLDER}/{name}:1",
        command=("trtllm-serve", "serve"),
        args=("--host=0.0.0.0", "--port=8000"),
        model="{}",
        port=8000,
        alive="/health",
        ready="/health",
        warm_up=COMPLETIONS,
        body=_openai(name),
        open="the image, and what of the flags belongs into the engine's own file",
    )


def _triton(name: str) -> Serving:
    return Serving(
        image=f"{PLACEHOLDER}/{name}:1",
        command=("tritonserver",),
        args=("--model-repository=/models",),
        model="",
        port=8000,
        alive="/v2/health/live",
        ready="/v2/health/ready",
        open="the image with its model repository; warm-up stands in config.pbtxt, model_warmup",
    )


def _unknown(name: str) -> Serving:
    return Serving(
        image=f"{PLACEHOLDER}/{name}:1",
        command=(),
        args=(),
        model="",
        port=8000,
        alive="/healthz",
        ready="/readyz",
        open="the image, its command and its probes' paths; /readyz must not answer before a first request has been",
    )


_SERVERS: dict[str, Callable[[str], Serving]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "tgi": _tgi,
    "tensorrt-llm": _tensorrt_llm,
    "triton": _triton,
}
