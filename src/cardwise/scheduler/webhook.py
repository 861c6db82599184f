"""Admission: the names that users write become cardwise's own, or the pod is denied with what to write instead.

Pure: an AdmissionReview in, one out, whatever comes in: who gets none in return cannot tell a user why. The chart sends
only pods that name a card or something of ours, so that pods without are started whether or not we live (case C45).
Refuses to repair: what is ambiguous is denied, never guessed.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from cardwise.adapters import wire
from cardwise.adapters.asks import GpuAsk, gpu_ask
from cardwise.adapters.claims import read_faulty
from cardwise.adapters.faults import Faults
from cardwise.adapters.kube.shallow import DEEPEST, decode_object
from cardwise.adapters.kube_objects import Container, Pod
from cardwise.core.claim import Claim
from cardwise.errors import UserError
from cardwise.files import seen
from cardwise.scheduler.engines import SHARE_ENV, SHARE_PATH, Rules, Told, tell_engine
from cardwise.scheduler.hami import unread_wishes

JSON_PATCH = "JSONPatch"
KINDS = ("initContainers", "containers")
Patch = list[dict[str, Any]]
_ALLOC_PATH = f"metadata.annotations['{wire.ANNOTATION_ALLOC}']"
_ALLOC_ENV = {"name": wire.ENV_ALLOC, "valueFrom": {"fieldRef": {"fieldPath": _ALLOC_PATH}}}
_OWN_ENV = {wire.ENV_ALLOC: _ALLOC_PATH, wire.ENV_ENGINE_SHARE: SHARE_PATH}
"""Variables that cardwise alone sets, and the annotation of each."""
_TAKEN_OUT = wire.READ_RESOURCES | wire.IGNORED_RESOURCES
"""Resources of a container with cards that give way to ours: a pod that kept one that no node offers would wait."""
MOST_WARNING = 256
"""Characters of a warning; clients cut longer ones. Source: Kubernetes, "Dynamic Admission Control"."""


class _FieldRef(msgspec.Struct, rename="camel"):
    field_path: str = ""


class _ValueFrom(msgspec.Struct, rename="camel"):
    field_ref: _FieldRef | None = None


class _Env(msgspec.Struct, rename="camel"):
    name: str = ""
    value: str | None = None
    value_from: _ValueFrom | None = None

    @property
    def is_forged(self) -> bool:
        """True for a variable of ours that is not as we write it; the API server may have added something to it."""
        from_field = self.value_from.field_ref if self.value_from else None
        ours = from_field is not None and from_field.field_path == _OWN_ENV.get(self.name) and not self.value
        return self.name in _OWN_ENV and not ours


class _Request(msgspec.Struct):
    uid: str = ""
    object: dict[str, Any] | None = None


class _Review(msgspec.Struct):
    request: _Request


@dataclass(frozen=True, slots=True)
class Admitted:
    """The changes that make a pod ours, and what whoever created it should know."""

    patch: Patch
    warnings: tuple[str, ...] = ()


_UNTOLD = Rules()


def review(body: bytes, rules: Rules = _UNTOLD) -> bytes:
    """Answer an ``admission.k8s.io/v1`` AdmissionReview of a pod; what is none of a pod is denied."""
    response: dict[str, Any] = {"uid": "", "allowed": False}
    try:
        request = _request(body)
        response["uid"] = request.uid
        admitted = _admitted(request, rules)
    except UserError as error:
        response["status"] = {"code": 400, "reason": "Invalid", "message": f"cardwise: {error}"}
    else:
        response["allowed"] = True
        if admitted.warnings:
            response["warnings"] = [f"cardwise: {each}"[:MOST_WARNING] for each in admitted.warnings]
        if admitted.patch:
            encoded = base64.b64encode(msgspec.json.encode(admitted.patch)).decode()
            response |= {"patchType": JSON_PATCH, "patch": encoded}
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})


def _request(body: bytes) -> _Request:
    try:
        return decode_object(body, _Review).request
    except msgspec.DecodeError as exc:
        raise UserError(f"not an AdmissionReview of a pod: {exc}") from exc


def _admitted(request: _Request, rules: Rules) -> Admitted:
    raw = _without_nulls(request.object)
    try:
        pod = msgspec.convert(raw, Pod)
    except msgspec.ValidationError as exc:
        raise UserError(f"not an AdmissionReview of a pod: {exc}") from exc
    return admit_with(pod, raw, rules)


def _without_nulls(value: Any, levels: int = DEEPEST) -> Any:  # noqa: ANN401 - whatever was sent
    """The API server writes null for lists and objects that are not there. In a list null stays: it has a place.

    levels: so many are looked at. What is read lies above, and users nest the rest as deep as they please.
    """
    if not levels:
        return value
    if isinstance(value, dict):
        return {key: _without_nulls(each, levels - 1) for key, each in value.items() if each is not None}
    return [_without_nulls(each, levels - 1) for each in value] if isinstance(value, list) else value


def admit(pod: Pod, raw: Mapping[str, Any]) -> Patch:
    """As :func:`admit_with`, where neither rules nor warnings matter."""
    return admit_with(pod, raw, _UNTOLD).patch


def admit_with(pod: Pod, raw: Mapping[str, Any], rules: Rules) -> Admitted:
    """The changes that make a pod ours; none for a pod without an ask. Raises UserError that tells every fault."""
    faults = Faults()
    claim = read_faulty(pod, faults)
    _tell_forbidden(pod, raw, claim, faults)
    engine = tell_engine(claim, pod.metadata.annotations, _spec(raw).get("containers") or (), rules, faults)
    if told := faults.lines():
        raise UserError("; ".join(told))
    if not claim.asks:
        return Admitted([])
    patch: Patch = []
    if pod.spec.scheduler_name in {"", wire.DEFAULT_SCHEDULER}:
        patch.append({"op": "add", "path": "/spec/schedulerName", "value": wire.SCHEDULER_NAME})
    for kind in KINDS:
        for i, container in enumerate(_spec(raw).get(kind) or ()):
            ours = engine if engine and kind == "containers" and container.get("name") == engine.container else None
            patch += _container_patch(f"/spec/{kind}/{i}", container, ours)
    unread = tuple(unread_wishes(pod))
    if engine is None:
        return Admitted(patch, unread)
    if engine.before:
        path = f"/metadata/annotations/{wire.ANNOTATION_ENGINE_BEFORE.replace('/', '~1')}"
        patch.append({"op": "add", "path": path, "value": engine.before})
    return Admitted(patch, (*engine.warnings, *unread))


_OF_THE_CONTROLLER = (
    wire.ANNOTATION_NOMINATED,
    wire.ANNOTATION_PREEMPTED_FOR,
    wire.ANNOTATION_PREEMPTED_BY,
    wire.ANNOTATION_MOVING,
    wire.ANNOTATION_STAYS,
)


def _tell_forbidden(pod: Pod, raw: Mapping[str, Any], claim: Claim, faults: Faults) -> None:
    """What nobody but cardwise may write, and what takes the decision out of its hands."""
    for key in (wire.ANNOTATION_ALLOC, wire.ANNOTATION_ENGINE_SHARE):
        if key in pod.metadata.annotations:
            faults.add(f"annotation {key}: is written by the scheduler alone; remove it")
    for key in _OF_THE_CONTROLLER:
        if key in pod.metadata.annotations:
            faults.add(f"annotation {key}: is written by the controller alone; remove it")
    if not claim.asks:
        return
    if pod.spec.node_name:
        faults.add("spec.nodeName: a pod that asks for cards is bound by cardwise; use spec.nodeSelector instead")
    if pod.spec.scheduler_name not in {"", wire.DEFAULT_SCHEDULER, wire.SCHEDULER_NAME}:
        faults.add(
            f"spec.schedulerName: {seen(pod.spec.scheduler_name)} knows nothing of card slices; write "
            f"{wire.SCHEDULER_NAME}, or leave it out"
        )
    faults.add_each([each for kind in KINDS for each in _spec(raw).get(kind) or () if _env_fault(each)], _env_fault)


def _env_fault(container: Mapping[str, Any]) -> str:
    """What is wrong with a container's variables; empty if nothing is."""
    try:
        env = msgspec.convert(container.get("env") or [], list[_Env])
    except msgspec.ValidationError as exc:
        return f"container {container.get('name')}: env: {exc}; write a list of names with their values"
    forged = " and ".join(dict.fromkeys(each.name for each in env if each.is_forged))
    return f"container {container.get('name')}: env {forged} is set by cardwise; remove it" if forged else ""


def _spec(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    return raw.get("spec") or {}


def _container_patch(path: str, container: Mapping[str, Any], engine: Told | None) -> Patch:
    """Users' names out, cardwise's in, as limits and requests alike; and the allocation for the container to see.

    engine: what the container's engine is told.
    """
    typed = msgspec.convert(container, Container)
    ask = gpu_ask(typed.resources)
    if not ask.cards:
        return []
    own = own_resources(ask)
    resources = {**(container.get("resources") or {})}
    for part in ("limits", "requests"):
        others = {name: amount for name, amount in (resources.get(part) or {}).items() if name not in _TAKEN_OUT}
        resources[part] = {**others, **own}
    env = [each for each in container.get("env") or () if each.get("name") not in _OWN_ENV]
    changed = {"resources": resources, "env": [*env, _ALLOC_ENV]}
    if engine is not None:
        changed |= {"env": [SHARE_ENV, *env, _ALLOC_ENV], **engine.parts}  # first: the user's own may refer to it
    return [{"op": "add", "path": f"{path}/{key}", "value": value} for key, value in changed.items()]


def own_resources(ask: GpuAsk) -> dict[str, str]:
    """An ask in cardwise's own names: totals over the container's cards, so that quota adds up (case C44)."""
    own = {wire.OWN_COUNT: ask.cards}
    if ask.whole:
        own[wire.OWN_MEMORY_PCT] = own[wire.OWN_CORES] = 100 * ask.cards
    else:
        own[wire.OWN_MEMORY] = ask.memory_mib * ask.cards
        own[wire.OWN_MEMORY_PCT] = ask.memory_pct * ask.cards
        own[wire.OWN_CORES] = ask.cores_pct * ask.cards
    return {name: str(amount) for name, amount in own.items() if amount}
