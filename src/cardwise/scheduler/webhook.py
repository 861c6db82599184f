"""Admission: the names that users write become cardwise's own, or the pod is denied with what to write instead.

Pure: an AdmissionReview in, one out. The chart sends only pods that name a card or something of ours, so that pods
without are started whether or not we live (case C45). Refuses to repair: what is ambiguous is denied, never guessed.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from cardwise.adapters import wire
from cardwise.adapters.asks import GpuAsk, gpu_ask
from cardwise.adapters.claims import read_claim, stages
from cardwise.adapters.kube_objects import Container, Pod
from cardwise.core.claim import Claim
from cardwise.errors import UserError
from cardwise.files import decode_json, seen

JSON_PATCH = "JSONPatch"
Patch = list[dict[str, Any]]
_ALLOC_PATH = f"metadata.annotations['{wire.ANNOTATION_ALLOC}']"
_ALLOC_ENV = {"name": wire.ENV_ALLOC, "valueFrom": {"fieldRef": {"fieldPath": _ALLOC_PATH}}}


def review(body: bytes) -> bytes:
    """Answer an ``admission.k8s.io/v1`` AdmissionReview of a pod. Raises UserError if it is none."""
    try:
        told = decode_json(body, dict[str, Any])
        request = told["request"]
        pod, raw = msgspec.convert(request["object"], Pod), request["object"]
    except (msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError) as exc:
        raise UserError(f"not an AdmissionReview of a pod: {exc}") from exc
    response: dict[str, Any] = {"uid": request.get("uid", ""), "allowed": True}
    try:
        patch = admit(pod, raw)
    except UserError as error:
        response |= {"allowed": False, "status": {"code": 400, "reason": "Invalid", "message": f"cardwise: {error}"}}
    else:
        if patch:
            encoded = base64.b64encode(msgspec.json.encode(patch)).decode()
            response |= {"patchType": JSON_PATCH, "patch": encoded}
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})


def admit(pod: Pod, raw: Mapping[str, Any]) -> Patch:
    """The changes that make a pod ours; none for a pod without an ask. Raises UserError that tells every fault."""
    claim, faults = read_claim(pod)
    faults += _forbidden(pod, raw, claim)
    if faults:
        raise UserError("; ".join(dict.fromkeys(faults)))
    if not claim.asks:
        return []
    patch: Patch = []
    if pod.spec.scheduler_name in {"", wire.DEFAULT_SCHEDULER}:
        patch.append({"op": "add", "path": "/spec/schedulerName", "value": wire.SCHEDULER_NAME})
    for kind in ("initContainers", "containers"):
        for i, container in enumerate(raw["spec"].get(kind) or ()):
            patch += _container_patch(f"/spec/{kind}/{i}", container)
    return patch


def _forbidden(pod: Pod, raw: Mapping[str, Any], claim: Claim) -> list[str]:
    """What nobody but cardwise may write, and what takes the decision out of its hands."""
    faults = [f"annotation {wire.ANNOTATION_ALLOC}: is written by the scheduler alone; remove it"] * (
        wire.ANNOTATION_ALLOC in pod.metadata.annotations
    )
    for container, _ in stages(pod):
        faults += _card_memory_faults(container)
    if not claim.asks:
        return faults
    if pod.spec.node_name:
        faults.append("spec.nodeName: a pod that asks for cards is bound by cardwise; use spec.nodeSelector instead")
    if pod.spec.scheduler_name not in {"", wire.DEFAULT_SCHEDULER, wire.SCHEDULER_NAME}:
        faults.append(
            f"spec.schedulerName: {seen(pod.spec.scheduler_name)} knows nothing of card slices; write "
            f"{wire.SCHEDULER_NAME}, or leave it out"
        )
    for told in _raw_containers(raw):
        if any(each.get("name") == wire.ENV_ALLOC and not _is_ours(each) for each in told.get("env") or ()):
            faults.append(f"container {told.get('name')}: env {wire.ENV_ALLOC} is set by cardwise; remove it")
    return faults


def _card_memory_faults(container: Container) -> Iterable[str]:
    """An ask for no memory at all: read leniently it would be an ask for the whole card."""
    asked = {**container.resources.requests, **container.resources.limits}
    for name in (wire.USER_MEMORY, wire.HAMI_MEMORY):
        if str(asked.get(name, "")) == "0":
            yield f"container {container.name}: {name}: '0' is no slice; write 4096 (MiB), 4096Mi, 4Gi or 4G"


def _is_ours(env: Mapping[str, Any]) -> bool:
    """True for the variable as we write it, with what the API server adds: the pod was admitted before."""
    path = ((env.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath")
    return path == _ALLOC_PATH and not env.get("value")


def _raw_containers(raw: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    spec = raw["spec"]
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def _container_patch(path: str, container: Mapping[str, Any]) -> Patch:
    """Users' names out, cardwise's in, as limits and requests alike; and the allocation for the container to see."""
    typed = msgspec.convert(container, Container)
    ask = gpu_ask(typed.resources)
    if not ask.cards:
        return []
    own = own_resources(ask)
    resources = {**(container.get("resources") or {})}
    for part in ("limits", "requests"):
        others = {
            name: amount for name, amount in (resources.get(part) or {}).items() if name not in wire.READ_RESOURCES
        }
        resources[part] = {**others, **own}
    env = [each for each in container.get("env") or () if each.get("name") != wire.ENV_ALLOC]
    return [
        {"op": "add", "path": f"{path}/resources", "value": resources},
        {"op": "add", "path": f"{path}/env", "value": [*env, _ALLOC_ENV]},
    ]


def own_resources(ask: GpuAsk) -> dict[str, str]:
    """An ask in cardwise's own names: totals over the container's cards, so that quota adds up (case C44)."""
    own = {wire.OWN_COUNT: ask.cards}
    if ask.whole:
        own[wire.OWN_CORES] = 100 * ask.cards
    else:
        own[wire.OWN_MEMORY] = ask.memory_mib * ask.cards
        own[wire.OWN_MEMORY_PCT] = ask.memory_pct * ask.cards
        own[wire.OWN_CORES] = ask.cores_pct * ask.cards
    return {name: str(amount) for name, amount in own.items() if amount}
