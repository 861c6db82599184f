"""Kueue's objects from a quota file, and what is in the cluster beside them.

Names of fields are those of ``kueue.x-k8s.io/v1beta2`` (Kueue 0.15 and newer). Objects are written by server-side apply
under one field manager: what somebody else set in them is a conflict that is told, never taken. Refuses to touch what
carries no mark of ours, and to delete anything at all but what does.

Amounts count in cardwise's own resource names: totals over a container's cards, which the webhook writes, so that two
cards of 1024 MiB are charged 2 and 2048 (case C44).
Source: apis/kueue/v1beta2 and apis/config/v1beta2 in sigs.k8s.io/kueue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias
from urllib.parse import quote

import msgspec

from cardwise.adapters import wire
from cardwise.adapters.kube.port import Requests
from cardwise.adapters.quantity import NotAQuantityError, parse_quantity
from cardwise.adapters.quota_file import CardTable, QuotaFile, TeamTable
from cardwise.core.claim import LatencyClass
from cardwise.core.fleet.quota import Amounts, Limits, left_over
from cardwise.errors import ClusterError, ConflictError, NotFoundError, UserError

Raw: TypeAlias = dict[str, Any]
"""An object as JSON has it."""
GROUP_VERSION = "kueue.x-k8s.io/v1beta2"
APIS = f"/apis/{GROUP_VERSION}"
FIELD_MANAGER = "cardwise-quota"
APPLY_PATCH = "application/apply-patch+yaml"
"""JSON is YAML. Source: Kubernetes, "Server-Side Apply"."""
MANAGED_BY = ("app.kubernetes.io/managed-by", "cardwise")
PLURALS = {
    "ResourceFlavor": "resourceflavors",
    "WorkloadPriorityClass": "workloadpriorityclasses",
    "Cohort": "cohorts",
    "ClusterQueue": "clusterqueues",
    "LocalQueue": "localqueues",
}
"""Kinds in the order in which they are written; deleted in the other."""
_RESOURCES = (wire.OWN_COUNT, wire.OWN_MEMORY, wire.OWN_CORES)
"""Of each dimension of :class:`Amounts`."""
PRIORITIES = {LatencyClass.SENSITIVE: 1000, LatencyClass.BEST_EFFORT: 0}
"""Of the WorkloadPriorityClasses, called ``cardwise-`` and the class: within a queue, the latency-sensitive first."""
READ_TIMEOUT_S = 10.0
_QUANTITIES = frozenset({"nominalQuota", "borrowingLimit", "lendingLimit", "weight"})


# ---------------------------------------------------------------- what the file means


def objects(told: QuotaFile, window: int | None = None) -> list[Raw]:
    """Everything that the file asks for while a window holds (by its number; None: outside of all)."""
    limits = told.limits_in(window)
    shared = {card: left_over(limits, card, has) for card, has in told.capacity.items()}
    return [
        *(_flavor(card, told) for card in told.cards),
        *(_priority(latency, told) for latency in PRIORITIES),
        _cohort(told, shared),
        *(_cluster_queue(team, limits[team.name], told) for team in told.teams),
        *(_local_queue(team, namespace, told) for team in told.teams for namespace in team.namespaces),
    ]


def _object(kind: str, name: str, told: QuotaFile, body: Mapping[str, Any], namespace: str = "") -> Raw:
    labels = {MANAGED_BY[0]: MANAGED_BY[1], wire.LABEL_COHORT: told.cohort}
    metadata = {"name": name, "labels": labels} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": GROUP_VERSION, "kind": kind, "metadata": metadata, **body}


def _flavor(card: CardTable, told: QuotaFile) -> Raw:
    spec: Raw = {"nodeLabels": dict(card.labels)} if card.labels else {}
    if card.taints:
        spec["nodeTaints"] = [_taint(each.key, each.value, each.effect) for each in card.taints]
    if card.taints and card.tolerate:
        spec["tolerations"] = [
            {**_taint(each.key, each.value, each.effect), "operator": "Equal" if each.value else "Exists"}
            for each in card.taints
        ]
    return _object("ResourceFlavor", card.flavor, told, {"spec": spec})


def _taint(key: str, value: str, effect: str) -> Raw:
    return {"key": key, "effect": effect} | ({"value": value} if value else {})


def _priority(latency: LatencyClass, told: QuotaFile) -> Raw:
    body = {"value": PRIORITIES[latency], "description": f"Pods of cardwise's class {latency.value}."}
    return _object("WorkloadPriorityClass", f"cardwise-{latency.value}", told, body)


def _cohort(told: QuotaFile, shared: Mapping[str, Amounts]) -> Raw:
    """What is guaranteed to nobody is the cohort's: everyone who may borrow can have it."""
    flavors = [{"name": card.flavor, "resources": _quotas(shared[card.model], card, told)} for card in told.cards]
    return _object("Cohort", told.cohort, told, {"spec": {"resourceGroups": _groups(flavors, told)}})


def _cluster_queue(team: TeamTable, limits: Mapping[str, Limits], told: QuotaFile) -> Raw:
    """A queue. Who borrows can be made to give back, so a latency-sensitive queue borrows nothing and is no victim."""
    flavors = [
        {"name": card.flavor, "resources": _limited(limits[card.model], card, told)}
        for card in told.cards
        if card.model in limits
    ]
    yields = team.latency is LatencyClass.BEST_EFFORT
    spec = {
        "cohortName": told.cohort,
        "queueingStrategy": "BestEffortFIFO",
        "namespaceSelector": {
            "matchExpressions": [
                {"key": "kubernetes.io/metadata.name", "operator": "In", "values": sorted(team.namespaces)}
            ]
        }
        if team.namespaces
        else None,
        "preemption": {
            "reclaimWithinCohort": "Any",
            "withinClusterQueue": "LowerPriority" if yields else "Never",
        },
        "fairSharing": {"weight": _plain(team.weight)},
        "resourceGroups": _groups(flavors, told) if flavors else None,
    }
    return _object(
        "ClusterQueue", team.name, told, {"spec": {key: value for key, value in spec.items() if value is not None}}
    )


def _local_queue(team: TeamTable, namespace: str, told: QuotaFile) -> Raw:
    return _object("LocalQueue", team.name, told, {"spec": {"clusterQueue": team.name}}, namespace)


def _groups(flavors: Sequence[Raw], told: QuotaFile) -> list[Raw]:
    return [{"coveredResources": list(_covered(told)), "flavors": list(flavors)}]


def _covered(told: QuotaFile) -> tuple[str, ...]:
    return _RESOURCES if percent_mib(told) else (*_RESOURCES, wire.OWN_MEMORY_PCT)


def percent_mib(told: QuotaFile) -> Fraction | None:
    """MiB of a percent of a card's memory, if all cards have the same; None if that depends on the card.

    Then Kueue turns percent into MiB. Else percent has a quota of its own, as large as that of MiB is: in a pod's card
    both are the same memory, and Kueue does not know.
    """
    sizes = {card.memory_mib for card in told.cards}
    return Fraction(sizes.pop(), 100) if len(sizes) == 1 else None


def _columns(amounts: Amounts, card: CardTable, told: QuotaFile) -> dict[str, int]:
    columns = dict(zip(_RESOURCES, amounts, strict=True))
    if percent_mib(told) is None:
        columns[wire.OWN_MEMORY_PCT] = amounts.memory_mib * 100 // card.memory_mib
    return columns


def _quotas(amounts: Amounts, card: CardTable, told: QuotaFile) -> list[Raw]:
    return [{"name": name, "nominalQuota": str(amount)} for name, amount in _columns(amounts, card, told).items()]


def _limited(limits: Limits, card: CardTable, told: QuotaFile) -> list[Raw]:
    more, lent = _columns(limits.borrowable, card, told), _columns(limits.lent, card, told)
    return [
        {**each, "borrowingLimit": str(more[each["name"]]), "lendingLimit": str(lent[each["name"]])}
        for each in _quotas(limits.guaranteed, card, told)
    ]


def _plain(number: float) -> str:
    """A quantity: thousandths are as fine as weights need to be."""
    milli = max(1, round(1000 * number))
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli}m"


def configuration(told: QuotaFile) -> Raw:
    """What Kueue's own Configuration needs for these objects: resources that it leaves alone, percent, fair sharing.

    waitForPodsReady: Kueue admits by sums; a pod that fits no single card is put back, and others go first.
    """
    resources: Raw = {"excludeResourcePrefixes": ["cpu", "memory", "ephemeral-storage", "hugepages-"]}
    share = percent_mib(told)
    if share is not None:
        mib = str(share) if share.denominator == 1 else f"{round(share * 1000)}m"
        transformation = {"input": wire.OWN_MEMORY_PCT, "strategy": "Replace", "outputs": {wire.OWN_MEMORY: mib}}
        resources["transformations"] = [transformation]
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "resources": resources,
        "fairSharing": {"preemptionStrategies": ["LessThanOrEqualToFinalShare", "LessThanInitialShare"]},
        "waitForPodsReady": {
            "timeout": "10m",
            "blockAdmission": False,
            "requeuingStrategy": {"timestamp": "Eviction", "backoffBaseSeconds": 60, "backoffMaxSeconds": 3600},
        },
    }


# ---------------------------------------------------------------- what is in the cluster


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of one object. action: create, change, same, delete, or refused with ``why``.

    lines: fields, as they are and as they would be.
    """

    kind: str
    name: str
    action: str
    lines: tuple[str, ...] = ()
    why: str = ""


def called(raw: Mapping[str, Any]) -> str:
    """Name, with the namespace if it has one."""
    metadata = raw["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") else str(metadata["name"])


def is_ours(raw: Mapping[str, Any]) -> bool:
    """Whether it carries our mark."""
    labels = raw["metadata"].get("labels") or {}
    return labels.get(MANAGED_BY[0]) == MANAGED_BY[1] and wire.LABEL_COHORT in labels


def path_of(raw: Mapping[str, Any]) -> str:
    """Where an object is."""
    metadata = raw["metadata"]
    within = f"/namespaces/{quote(metadata['namespace'], safe='')}" if metadata.get("namespace") else ""
    return f"{APIS}{within}/{PLURALS[raw['kind']]}/{quote(metadata['name'], safe='')}"


@dataclass(frozen=True, slots=True)
class Kueue:
    """Kueue's objects behind an API server."""

    api: Requests

    async def find(self, wanted: Mapping[str, Any]) -> Raw | None:
        """The object as it is, or None."""
        try:
            return _raw(await self.api.request("GET", path_of(wanted), timeout_s=READ_TIMEOUT_S))
        except NotFoundError:
            return None

    async def apply(self, wanted: Mapping[str, Any], *, dry_run: bool = False, force: bool = False) -> Raw:
        """Write it, and what it is then. Raises ConflictError with the fields that others own.

        force: take those fields.
        """
        params = {"fieldManager": FIELD_MANAGER, "force": str(force).lower()} | ({"dryRun": "All"} if dry_run else {})
        return _raw(await self.api.request("PATCH", path_of(wanted), wanted, APPLY_PATCH, params=params))

    async def delete(self, found: Mapping[str, Any]) -> None:
        """Delete this very object. Raises ValueError if it is not ours."""
        if not is_ours(found):
            raise ValueError(f"{found['kind']} {called(found)} was not made by cardwise")
        only = {"uid": found["metadata"]["uid"]}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": only}
        await self.api.request("DELETE", path_of(found), body)

    async def ours(self, cohort: str) -> list[Raw]:
        """All objects that carry the mark of this cohort's file. Raises UserError if Kueue is not there."""
        selector = {"labelSelector": f"{MANAGED_BY[0]}={MANAGED_BY[1]},{wire.LABEL_COHORT}={cohort}"}
        found: list[Raw] = []
        for kind, plural in PLURALS.items():
            try:
                answer = await self.api.request("GET", f"{APIS}/{plural}", params=selector, timeout_s=READ_TIMEOUT_S)
            except NotFoundError as exc:
                raise UserError(
                    f"the cluster has no {GROUP_VERSION} {plural}: install Kueue 0.15 or newer, then try again"
                ) from exc
            found += [{**each, "apiVersion": GROUP_VERSION, "kind": kind} for each in _raw(answer)["items"]]
        return found

    async def changes(self, wanted: Sequence[Raw], cohort: str, *, prune: bool, force: bool = False) -> list[Change]:
        """What applying would do, asked of the API server; nothing is written."""
        ours = await self.ours(cohort)
        changes = [await self._change(each, force=force) for each in wanted]
        names = {(each["kind"], called(each)) for each in wanted}
        gone = [each for each in reversed(ours) if (each["kind"], called(each)) not in names]
        return [*changes, *(Change(each["kind"], called(each), "delete") for each in gone if prune)]

    async def _change(self, wanted: Raw, *, force: bool) -> Change:
        kind, name = wanted["kind"], called(wanted)
        found = await self.find(wanted)
        if found is not None and not is_ours(found) and not force:
            why = "is there, and cardwise did not make it; rename the team, or pass --force to take it over"
            return Change(kind, name, "refused", why=why)
        try:
            after = await self.apply(wanted, dry_run=True, force=force)
        except ConflictError as exc:
            return Change(kind, name, "refused", why=f"{exc}; pass --force to take the fields over")
        except ClusterError as exc:
            if exc.retry:
                raise
            return Change(kind, name, "refused", why=str(exc))
        if found is None:
            return Change(kind, name, "create", tuple(differences({}, _said(after, wanted))))
        lines = tuple(differences(_said(found, wanted), _said(after, wanted)))
        return Change(kind, name, "change" if lines else "same", lines)


def _said(raw: Mapping[str, Any], wanted: Mapping[str, Any]) -> Raw:
    """The parts of an object that are ours to say, without who and when."""
    parts = {key: raw[key] for key in wanted if key in raw and key not in {"apiVersion", "kind", "metadata"}}
    labels = raw["metadata"].get("labels") or {}
    return {"labels": {key: labels[key] for key in wanted["metadata"]["labels"] if key in labels}, **parts}


def differs(found: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> list[str]:
    """Fields in which an object is not as wanted; what nobody wants of it does not count."""
    asked = _said(wanted, wanted)
    return list(differences(_only(_said(found, wanted), asked) if found else {}, asked))


def _only(found: Any, asked: Any) -> Any:  # noqa: ANN401 - any part of an object
    """What of ``found`` has a place in ``asked``."""
    if isinstance(found, Mapping) and isinstance(asked, Mapping):
        return {key: _only(each, asked[key]) for key, each in found.items() if key in asked}
    return found


def differences(old: Any, new: Any, path: str = "", key: str = "") -> Iterator[str]:  # noqa: ANN401 - as above
    """Lines such as ``spec.cohortName: a → b``. Lists of named things are compared by name, quantities by amount."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in dict.fromkeys([*old, *new]):
            yield from differences(old.get(name), new.get(name), f"{path}.{name}" if path else name, name)
    elif _named(old) and _named(new):
        olds, news = ({each["name"]: each for each in side} for side in (old, new))
        for name in dict.fromkeys([*olds, *news]):
            yield from differences(olds.get(name), news.get(name), f"{path}[{name}]")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new) == 1:
        yield from differences(old[0], new[0], path)
    elif not _equal(old, new, key):
        yield f"{path}: {_shown(old)} → {_shown(new)}"


def _named(side: object) -> bool:
    return isinstance(side, list) and bool(side) and all(isinstance(each, dict) and "name" in each for each in side)


def _equal(old: object, new: object, key: str) -> bool:
    if key in _QUANTITIES and isinstance(old, str | int) and isinstance(new, str | int):
        try:
            return parse_quantity(old) == parse_quantity(new)
        except NotAQuantityError:
            return old == new
    return old == new


def _shown(value: object) -> str:
    return "nothing" if value is None else msgspec.json.encode(value).decode() if not isinstance(value, str) else value


def _raw(answer: bytes) -> Raw:
    try:
        found: Raw = msgspec.json.decode(answer, type=dict[str, Any])
    except msgspec.DecodeError as exc:
        raise ClusterError(f"the API server's answer is no object: {exc}", retry=True) from exc
    return found
