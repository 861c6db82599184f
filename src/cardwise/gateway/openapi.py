"""What a gateway with these settings takes and answers, as an OpenAPI 3.1 document.

Made from the settings and from the table of refusals, so it cannot name a path, a header or a word that is not there.
What a replica answers by itself is the replica's to describe: here it is ``default``. Refuses to list Services that opt
in while the gateway runs: no file knows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from cardwise import __version__
from cardwise.adapters.http1.faults import REASON, Fault
from cardwise.core.queue.backlog import Reason
from cardwise.gateway.refusals import MEANINGS, Why
from cardwise.gateway.routes import MODELS, route_of
from cardwise.gateway.settings import ServiceSettings, Settings
from cardwise.gateway.tries import DEADLINE

Json = dict[str, Any]

_HTTP = tuple(fault.word for fault in Fault if fault.status)
_PASSED = (
    Why.DRAINING, Why.NO_REPLICA, Why.DEADLINE, Why.UNREACHABLE, Why.LOST, Why.TIMEOUT, Why.STATUS, Reason.FULL
)  # fmt: skip
_QUEUED = (*_PASSED, Reason.SHARE, Reason.LATE, Reason.DISPLACED, Reason.EXPIRED)
_BATCHED = (*_QUEUED, Reason.SIZE, Why.WRONG, Why.SHAPE)
_AGAIN = (429, 503)
"""Statuses with a time to come again."""
_DAY_MS = 86_400_000
_TYPES = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BF16",
    "BYTES",
)  # fmt: skip


def document(settings: Settings) -> Json:
    """The document. Of two services at one path, told apart by hosts, the first is described, with all hosts."""
    paths: Json = {}
    for service in settings.services:
        for path, operations in _paths_of(service):
            item = paths.setdefault(path, operations)
            if service.hosts:
                urls = [{"url": f"http://{host}:{settings.port}"} for host in service.hosts]
                item["servers"] = item.get("servers", []) + urls
    if any(service.kind == "oip" for service in settings.services):
        paths |= _health_paths()
    admin = [{"url": f"http://localhost:{settings.admin_port}", "description": "the admin port"}]
    paths |= {path: {"servers": admin, **item} for path, item in _admin_paths()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "cardwise gateway", "version": __version__, "description": _ABOUT},
        "servers": [{"url": f"http://localhost:{settings.port}"}],
        "paths": paths,
        "components": {"schemas": _SCHEMAS, "headers": _HEADERS},
    }


_ABOUT = (
    "Requests are queued, batched or limited before they enter a replica. An error with `x-cardwise-reason` is the "
    "gateway's own, one without it the replica's. What is not listed is answered with 404 and `no-service`; Services "
    "that opt in by annotation are not listed."
)


# ---------------------------------------------------------------- paths


def _paths_of(service: ServiceSettings) -> Iterator[tuple[str, Json]]:
    makers = {"oip": _oip_paths, "openai": _openai_paths, "list": _list_paths, "pass": _pass_paths}
    yield from makers[service.kind](service)


def _oip_paths(service: ServiceSettings) -> Iterator[tuple[str, Json]]:
    model = f"{MODELS}{service.model or '{model}'}"
    given = [] if service.model else [_of_path("model", "its name")]
    for path, more in ((model, given), (f"{model}/versions/{{version}}", [*given, _of_path("version", "its version")])):
        told = _operation(service, "what the model takes and answers", _PASSED, more)
        yield path, {"get": _answering(told, _json("Metadata"))}
        told = _operation(service, "whether a replica of the model is ready", _PASSED, more)
        yield f"{path}/ready", {"get": _answering(told, {"description": "it is"})}
        words = _BATCHED if service.batches else _QUEUED
        how = "along the first dimension, requests that are alike share a batch" if service.batches else "goes alone"
        told = _operation(service, f"infer; {how}", words, more, reads="InferRequest")
        yield f"{path}/infer", {"post": _answering(told, _json("InferAnswer"))}


def _openai_paths(service: ServiceSettings) -> Iterator[tuple[str, Json]]:
    base = route_of(service).base
    told = _operation(service, "the models", _PASSED)
    yield f"{base}/models", {"get": _answering(told, _json({"type": "object", "required": ["data"]}))}
    for path, asked, what in (
        ("completions", "Completion", "complete a prompt"),
        ("chat/completions", "Chat", "answer a chat"),
    ):
        told = _operation(service, f"{what}; streamed through as it comes", _QUEUED, reads=asked)
        whole = {"schema": {"type": "object", "required": ["choices"]}}
        content = {"application/json": whole, "text/event-stream": {"schema": {"type": "string"}}}
        yield f"{base}/{path}", {"post": _answering(told, {"description": "the answer", "content": content})}


def _list_paths(service: ServiceSettings) -> Iterator[tuple[str, Json]]:
    words = _BATCHED if service.batches else _QUEUED
    asked = _below(service.items_key, {"type": "array", "minItems": 1})
    answered = _below(service.answers_key, {"type": "array"})
    told = _operation(service, "an answer for each item of a list", words, reads=asked)
    yield service.path, {"post": _answering(told, _json(answered))}


def _pass_paths(service: ServiceSettings) -> Iterator[tuple[str, Json]]:
    base = route_of(service).base
    what = "queued, limited and passed on as it came; so is every other method, and all below this path"
    yield base or "/", {method: _operation(service, what, _QUEUED, name=method) for method in ("get", "post")}


def _below(key: str, schema: Json) -> Json:
    return {"type": "object", "required": [key], "properties": {key: schema}} if key else schema


def _health_paths() -> Json:
    def answers(key: str) -> Json:
        return _json({"type": "object", "required": [key], "properties": {key: {"type": "boolean"}}})

    ready = _responses((Why.NO_REPLICA, Why.DRAINING, Why.NOT_READY), _json_content({"type": "object"}))
    return {
        "/v2/health/live": {"get": {"summary": "whether the gateway runs", "responses": {"200": answers("live")}}},
        "/v2/health/ready": {
            "get": {
                "summary": "whether any service of the inference protocol has a replica",
                "responses": {**ready, "200": answers("ready")},
            }
        },
    }


def _admin_paths() -> Iterator[tuple[str, Json]]:
    text = {"text/plain": {"schema": {"type": "string"}}}
    for path, what, words in (
        ("/healthz", "whether the process runs", ()),
        ("/readyz", "whether any service has a replica", (Why.NO_REPLICA, Why.DRAINING, Why.NOT_READY)),
        ("/metrics", "Prometheus' text", ()),
    ):
        answers = {**_responses(words, text), "200": {"description": "yes", "content": text}}
        yield path, {"get": {"summary": what, "responses": answers}}


# ---------------------------------------------------------------- operations


def _operation(
    service: ServiceSettings,
    what: str,
    words: Iterable[Why | Reason],
    parameters: Iterable[Json] = (),
    *,
    reads: str | Json = "",
    name: str = "",
) -> Json:
    """What is common to all that goes to a replica. reads: the schema of its body; name: where one path has several."""
    errors = _told(_responses(words, _json_content("Error")))
    told: Json = {
        "tags": [service.name],
        "summary": f"{name.upper()}: {what}" if name else what,
        "parameters": [*parameters, *_parameters_of(service)],
        "responses": {**errors, "default": {"description": "what the replica answers"}},
    }
    if reads:
        told["requestBody"] = {"required": True, "content": _json_content(reads)}
    return told


def _answering(told: Json, answer: Json) -> Json:
    return {**told, "responses": {**told["responses"], **_told({"200": answer})}}


def _told(responses: Json) -> Json:
    """With the headers that say what happened."""
    happened = _refs("x-cardwise-")
    return {status: {**each, "headers": {**happened, **each.get("headers", {})}} for status, each in responses.items()}


def _parameters_of(service: ServiceSettings) -> list[Json]:
    limit = {"type": "number", "exclusiveMinimum": 0, "maximum": _DAY_MS}
    told = [_header(DEADLINE.decode(), limit, "after so many ms an answer is of no use")]
    told.append(_header("idempotency-key", {"type": "string"}, "the client allows that this is done twice"))
    if service.priority_header:
        levels = {"enum": ["urgent", "normal", "bulk", "0", "1", "2"]}
        told.append(_header(service.priority_header, levels, "who goes first; any other value is normal"))
    if service.tenant_header:
        told.append(_header(service.tenant_header, {"type": "string"}, "whose request it is"))
    return told


def _responses(words: Iterable[Why | Reason], content: Json) -> Json:
    """By status, those of the gateway's own answers that may come here."""
    by_status: dict[int, list[str]] = {}
    for word in (*(each.value for each in words), *_HTTP):
        for status in MEANINGS[word].statuses.split(", "):
            by_status.setdefault(int(status), []).append(word)
    return {str(status): _response(status, told, content) for status, told in sorted(by_status.items())}


def _response(status: int, words: list[str], content: Json) -> Json:
    told = {REASON.decode(): {"schema": {"type": "string", "enum": words}}}
    return {
        "description": "; ".join(f"`{word}`: {MEANINGS[word].meaning}" for word in words),
        "headers": {**told, **(_refs("retry-after") if status in _AGAIN else {})},
        "content": content,
    }


def _json_content(schema: str | Json) -> Json:
    named = {"$ref": f"#/components/schemas/{schema}"} if isinstance(schema, str) else schema
    return {"application/json": {"schema": named}}


def _json(schema: str | Json) -> Json:
    return {"description": "the answer", "content": _json_content(schema)}


def _of_path(name: str, what: str) -> Json:
    schema = {"type": "string", "minLength": 1, "pattern": "^[A-Za-z0-9_-]+$"}
    return {"name": name, "in": "path", "required": True, "description": what, "schema": schema}


def _header(name: str, schema: Json, what: str) -> Json:
    return {"name": name, "in": "header", "description": what, "schema": schema}


def _refs(prefix: str) -> Json:
    names = [name for name in _HEADERS if name.startswith(prefix)]
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


# ---------------------------------------------------------------- components

_HEADERS: Json = {
    "x-cardwise-queue-ms": {"description": "from its head to when a replica took it", "schema": {"type": "number"}},
    "x-cardwise-batch-size": {"description": "rows of the batch it was in", "schema": {"type": "integer"}},
    "x-cardwise-attempts": {"description": "tries it took", "schema": {"type": "integer"}},
    "retry-after": {"description": "when to come again, in whole seconds", "schema": {"type": "integer"}},
    "retry-after-ms": {"description": "when to come again", "schema": {"type": "integer"}},
}

_TENSOR: Json = {
    "type": "object",
    "required": ["name", "shape", "datatype"],
    "properties": {
        "name": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0, "exclusiveMaximum": 2**31}},
        "datatype": {"type": "string"},
        "data": {"type": "array", "description": "row-major: flat, or nested as the shape"},
        "parameters": {"type": "object"},
    },
}

_SCHEMAS: Json = {
    "Tensor": _TENSOR,
    "InputTensor": {
        **_TENSOR,
        "properties": {**_TENSOR["properties"], "datatype": {"enum": list(_TYPES)}},
        "description": "The first dimension is the batch. A tensor without data (the binary extension) goes alone.",
    },
    "InferRequest": {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": ["string", "null"]},
            "inputs": {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/InputTensor"}},
            "outputs": {"type": "array", "items": {"type": "object", "required": ["name"]}},
            "parameters": {"type": "object"},
        },
        "examples": [
            {"id": "1", "inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]},
            {"inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [[1, 2], [3, 4]]}]},
        ],
    },
    "InferAnswer": {
        "type": "object",
        "required": ["outputs"],
        "properties": {
            "id": {"type": "string"},
            "model_name": {"type": "string"},
            "model_version": {"type": "string"},
            "outputs": {"type": "array", "items": {"$ref": "#/components/schemas/Tensor"}},
            "parameters": {"type": "object"},
        },
    },
    "Metadata": {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string"}, "versions": {"type": "array"}, "platform": {"type": "string"}},
    },
    "Completion": {
        "type": "object",
        "required": ["model", "prompt"],
        "properties": {
            "model": {"type": "string"},
            "prompt": {"type": ["string", "array"]},
            "stream": {"type": "boolean"},
            "max_tokens": {"type": "integer", "minimum": 1},
        },
    },
    "Chat": {
        "type": "object",
        "required": ["model", "messages"],
        "properties": {
            "model": {"type": "string"},
            "messages": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["role"]}},
            "stream": {"type": "boolean"},
            "max_tokens": {"type": "integer", "minimum": 1},
        },
    },
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "description": "text; below /v1/, where OpenAI's clients ask, an object",
                "anyOf": [
                    {"type": "string"},
                    {
                        "type": "object",
                        "required": ["message", "type", "code"],
                        "properties": {"message": {"type": "string"}, "type": {"type": "string"}},
                    },
                ],
            }
        },
    },
}
