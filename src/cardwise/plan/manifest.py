"""A plan as a Deployment and a Service that can be applied: the slice, the engine's flags, probes, warm-up, spread.

It asks with the names that users write (SPEC A1). Refuses to write a manifest for a slice that does not hold the model.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from cardwise.adapters import wire
from cardwise.core.capacity.memory import WEIGHTS
from cardwise.errors import UserError
from cardwise.files import plain
from cardwise.plan.planner import PREPARED, Plan
from cardwise.plan.serving import Serving, serving

STARTUP = {"initialDelaySeconds": 10, "periodSeconds": 10, "failureThreshold": 30}
"""Source: SPEC F1."""
GRACE_S, DRAIN_S = 60, 10
"""Until a replica must have ended; and before it is told to, so that no new request reaches it."""
CPU, HOST_MEMORY = "2", "8Gi"
HOSTNAME = "kubernetes.io/hostname"
START_BYTES_PER_S = 1_000_000_000
"""What a start reads its weights with where nothing is cached, cautiously: local NVMe reads three times as fast."""


def manifest(plan: Plan) -> str:
    """YAML of both objects, with what has to be known as comments. Raises UserError if the slice does not hold it."""
    if plan.refused:
        raise UserError(refusal_of(plan))
    name = service_name(plan.model.name)
    how = serving(plan.engine.name, name, plan.model.shape.kind)
    objects = [_deployment(plan, name, how), _service(name)]
    comments = "".join(f"# {plain(line)}\n" for line in _comments(plan, how))
    return comments + yaml.safe_dump_all(objects, sort_keys=False, width=120, allow_unicode=True)


def refusal_of(plan: Plan) -> str:
    """Why there is no manifest, with the option that said so."""
    return plan.refusal if plan.wish.slice_mib is None else f"--slice-mib {plan.slice_mib}: {plan.refusal}"


def service_name(text: str) -> str:
    """A name that Kubernetes takes for a Service: at most 63 lower-case letters, digits and '-', first a letter."""
    cleaned = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:50].strip("-")
    return cleaned if cleaned[:1].isalpha() else f"model-{cleaned}".strip("-")


def _comments(plan: Plan, how: Serving) -> list[str]:
    lines = [
        f"{plan.model.name}: {plan.slice_mib} MiB of each of {plan.load.tp} card(s) by `cardwise plan`,",
        f"for {plan.load.sequences} sequences of {plan.load.context} tokens with {plan.engine.name}.",
    ]
    if plan.card is not None:
        lines.append(
            f"Flags and compute are for card {plan.card.name}: annotation {wire.ANNOTATION_GPU_MODEL} holds it"
        )
        lines.append("to that model.")
    if not plan.cores.known:
        lines.append(f"Percent of compute: {plan.cores.why}.")
    if not plan.replicas.known:
        lines.append(f"Replicas: {plan.replicas.why}.")
    if plan.wish.measured is not None:
        lines += [f"Replicas: {note}." for note in plan.wish.measured.notes]
    if plan.form.name in PREPARED and plan.model.shape.quantization != plan.form.name:
        lines.append(f"Fill in: a checkpoint of the model that was prepared in {plan.form.name}.")
    if how.open:
        lines.append(f"Fill in: {how.open}.")
    if plan.memory.of(WEIGHTS) * plan.load.tp > START_BYTES_PER_S * _startup_s():
        lines.append("Weights may take longer to read than the startup probe waits: raise its failureThreshold.")
    if plan.settings.snippet:
        lines += ["For the engine's own file or program:", *plan.settings.snippet.splitlines()]
    return lines


def _startup_s() -> int:
    return STARTUP["initialDelaySeconds"] + STARTUP["periodSeconds"] * STARTUP["failureThreshold"]


def _deployment(plan: Plan, name: str, how: Serving) -> dict[str, Any]:
    count = plan.replicas.count
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "replicas": count,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}, "annotations": _annotations(plan)},
                "spec": {
                    "terminationGracePeriodSeconds": GRACE_S,
                    **({"topologySpreadConstraints": _spread(name, count)} if count > 1 else {}),
                    "containers": [_container(plan, how)],
                    **_volumes(plan),
                },
            },
        },
    }


def _annotations(plan: Plan) -> dict[str, str]:
    """For the scheduler: the engine, so that its share follows the card; the weights; what was asked of the card."""
    told = {wire.ANNOTATION_ENGINE: plan.engine.name, wire.ANNOTATION_MODEL: _place(plan)}
    if plan.wish.isolation is not None:
        told[wire.ANNOTATION_ISOLATION] = plan.wish.isolation
    return told


def _spread(name: str, count: int) -> list[dict[str, Any]]:
    """Not all on one node, whatever happens; and else as evenly as there is room (SPEC B5)."""
    selector = {"matchLabels": {"app": name}}
    return [
        {
            "maxSkew": count - 1,
            "minDomains": 2,
            "topologyKey": HOSTNAME,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": selector,
        },
        {
            "maxSkew": 1,
            "topologyKey": HOSTNAME,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"app": name}},
        },
    ]


def _container(plan: Plan, how: Serving) -> dict[str, Any]:
    args = [*([how.model.format(_place(plan))] if how.model else []), *how.args, *plan.settings.args]
    return {
        "name": "server",
        "image": how.image,
        **({"command": list(how.command)} if how.command else {}),
        **({"args": args} if args else {}),
        **({"env": [{"name": key, "value": value} for key, value in plan.settings.env]} if plan.settings.env else {}),
        "ports": [{"name": "http", "containerPort": how.port}],
        "startupProbe": _startup(how),
        "livenessProbe": {**_get(how.alive), "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
        "readinessProbe": {**_get(how.ready), "periodSeconds": 5, "timeoutSeconds": 3},
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(DRAIN_S)]}}},
        "resources": {
            "requests": {"cpu": CPU, "memory": HOST_MEMORY},
            "limits": {
                wire.GPU: plan.load.tp,
                wire.USER_MEMORY: plan.slice_mib,
                wire.USER_CORES: plan.cores.pct,
            },
        },
        **_mounts(plan),
    }


def _get(path: str) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": "http"}}


def _startup(how: Serving) -> dict[str, Any]:
    """Passes once a first request has been answered, so that warm-up precedes readiness (SPEC F1)."""
    if not how.warm_up:
        return {**_get(how.ready), **STARTUP, "timeoutSeconds": 5}
    script = (
        "import urllib.request as r; r.urlopen(r.Request("
        f"'http://127.0.0.1:{how.port}{how.warm_up}', {how.body.encode()!r}, "
        "{'content-type': 'application/json'}), timeout=9).read()"
    )
    return {"exec": {"command": ["python3", "-c", script]}, **STARTUP, "timeoutSeconds": 10}


def _place(plan: Plan) -> str:
    """Where the engine finds the model: its repository if that is known, else a folder of the volume."""
    return plan.model.repository or f"/models/{plan.model.name}"


def _mounts(plan: Plan) -> dict[str, Any]:
    mounts: list[dict[str, Any]] = []
    if not plan.model.repository:
        mounts.append({"name": "models", "mountPath": "/models", "readOnly": True})
    if plan.load.tp > 1:  # NCCL's ranks share memory there; a container has 64 MiB of it unless told
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108 - the path that NCCL uses
    return {"volumeMounts": mounts} if mounts else {}


def _volumes(plan: Plan) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = []
    if not plan.model.repository:
        volumes.append({"name": "models", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}})
    if plan.load.tp > 1:
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}})
    return {"volumes": volumes} if volumes else {}


def _service(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "selector": {"app": name},
            "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
        },
    }
