"""Prefetching: weights are loaded where a service's next replicas will go, before they come (SPEC F1).

A turn: read what is wished (PodTemplates) and what runs (the pods made of them); ask placement where the next replicas
would go; begin loads, end those that are over, and say how each wish stands. What a node has is told by its agent,
never believed of a pod that ended well.

What runs stands in the cluster alone: a pod's name is made from its template and node, so it cannot be made twice, and
it goes with its template. A pod that failed stays for ``rest_s``: it is the memory that its node is to be passed over.
Refuses to know how models are loaded: that is the user's container.
"""

from __future__ import annotations

from collections import Counter as Counted
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from cardwise.adapters import wire
from cardwise.adapters.kube.events import about_pod
from cardwise.adapters.kube.port import LoadingPort
from cardwise.adapters.kube_objects import Node, Pod
from cardwise.adapters.prefetches import DISK, PodTemplate, pod_for, wish_of
from cardwise.adapters.quantity import parse_mib
from cardwise.adapters.selecting import lets
from cardwise.adapters.watching import Watching
from cardwise.controller import metrics
from cardwise.controller.preemption.seeing import Seen, condition
from cardwise.controller.telling import tell
from cardwise.controller.turns import take_turns
from cardwise.core.claim import Claim
from cardwise.core.fleet.prefetch import Because, Disk, Load, PrefetchPolicy, Wish, prefetch
from cardwise.core.fleet.room import Room
from cardwise.core.ledger import Ledger
from cardwise.errors import ClusterError, ConflictError, NotFoundError
from cardwise.said import Said

log = structlog.get_logger()

PERIOD_S = 10.0
AGAIN_S = 900.0
TELL_S = 180.0
"""So long an agent is given to tell of a model that was loaded: it looks once a minute."""


class PrefetchSettings(msgspec.Struct, forbid_unknown_fields=True, rename="kebab", frozen=True):
    """``[prefetch]`` of the controller's settings. rest_s: so long a node is passed over where a load failed.

    pending_s: so long a load may wait for its node. The rest: see :class:`PrefetchPolicy`.
    """

    enabled: bool = True
    at_once: int = 2
    mib_s: float = 50.0
    patience: float = 3.0
    least_s: float = 600.0
    disk_share: float = 0.8
    rest_s: float = 900.0
    pending_s: float = 300.0

    @property
    def policy(self) -> PrefetchPolicy:
        """As the rules take it. Raises ValueError for numbers that cannot work."""
        return PrefetchPolicy(self.at_once, self.mib_s, self.patience, self.least_s, self.disk_share)


@dataclass(slots=True)
class Prefetching:
    """The loop. watching: with ``seen`` among those who also hear. now_s: a steady clock. leads: whether we work now.

    _since_s: since when a pod of ours is in the phase that it is in, as seen from here, by UID.
    """

    port: LoadingPort
    ledger: Ledger
    watching: Watching
    seen: Seen
    now_s: Callable[[], float]
    leads: Callable[[], bool]
    settings: PrefetchSettings = field(default_factory=PrefetchSettings)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    begun: Counter = field(init=False)
    failed: Counter = field(init=False)
    wishes: Gauge = field(init=False)
    _since_s: dict[str, tuple[str, float]] = field(default_factory=dict)
    _said: Said = field(init=False)
    _failed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Make the metrics, and remember what is said."""
        self.begun = metrics.PREFETCH_LOADS.counter(self.registry)
        self.failed = metrics.PREFETCH_FAILURES.counter(self.registry)
        self.wishes = metrics.PREFETCH_WISHES.gauge(self.registry)
        self._said = Said(self.now_s, AGAIN_S)

    async def run(self) -> None:
        """A turn every ten seconds, until cancelled."""
        said = "prefetching could not go on, it does with the next turn"
        await take_turns(self.turn, self._may_act, PERIOD_S, said)

    def _may_act(self) -> bool:
        return self.settings.enabled and self.leads() and self.watching.synced

    async def turn(self) -> None:
        """One look at what is wished and what runs, and what follows from it."""
        if self.ledger.outdated:
            self.ledger.rebuild()
        templates = {each.name: each for each in await self.port.list_templates()}
        wishes = {name: wish for name, each in templates.items() if (wish := await self._wish(each)) is not None}
        running, rests = await self._loads(await self.port.list_loads(), templates, wishes)
        disks = self._disks() if wishes else {}
        plan = prefetch(
            [wish for name, wish in wishes.items() if self._claim(templates[name].service) is not None],
            disks,
            lambda wish, shut: self._next(templates[wish.key], wish, shut),
            running,
            rests,
            self.settings.policy,
        )
        for load in plan.loads:
            await self._begin(templates[load.key], wishes[load.key], load)
        for name in wishes:
            await self._say(templates[name], plan.standing.get(name))
        for because in Because:
            self.wishes.labels(because.name.lower()).set(sum(each is because for each in plan.standing.values()))

    # ---------------------------------------------------------------- what there is

    async def _wish(self, template: PodTemplate) -> Wish | None:
        try:
            return wish_of(template)
        except ValueError as exc:
            await self._tell(template, "CardwiseWishUnreadable", f"nothing is loaded by it: it {exc}")
            return None

    def _claim(self, service: str) -> Claim | None:
        """What a replica of the service asks for, by one that is there or waits; None without any."""
        claims = [held.claim for held in self.ledger.pods.values() if held.claim.service == service]
        claims += [claim for claim in self.watching.pending.values() if claim.service == service]
        return min((claim for claim in claims if claim.asks), key=lambda claim: claim.name, default=None)

    def _next(self, template: PodTemplate, wish: Wish, shut: Collection[str]) -> list[str]:
        """Where so many more replicas would go, one after the other, each on another node."""
        claim = self._claim(template.service)
        if claim is None:
            return []
        like, found = claim.uid, dict[str, None]()
        room = Room(self.ledger, lambda uid, node: node not in shut and node not in found and self._is_open(uid, node))
        for i in range(wish.nodes):
            node = room.place(replace(claim, uid=f"{like}+{i}", model_key=wish.model), like)
            if node is None:
                break
            found[node] = None
        return list(found)

    def _is_open(self, uid: str, node: str) -> bool:
        told, pod = self.seen.nodes.get(node), self.seen.pods.get(uid)
        if told is None or pod is None or node in self.watching.inconsistent:
            return False
        return lets(told, pod) and condition(told, "Ready") in {"True", None}

    def _disks(self) -> dict[str, Disk]:
        asked_mib = self._asked_mib()
        return {name: self._disk(node, asked_mib.get(name, 0)) for name, node in self.seen.nodes.items()}

    def _disk(self, node: Node, asked_mib: int) -> Disk:
        spec = self.ledger.nodes.get(node.metadata.name)
        told = node.status.allocatable.get(DISK)
        free_mib = None if told is None else parse_mib(told, up=False) - asked_mib
        return Disk(spec.cached_models if spec else frozenset(), free_mib, condition(node, "DiskPressure") == "True")

    def _asked_mib(self) -> Mapping[str, int]:
        """Disk that pods have asked for, by node."""
        asked: Counted[str] = Counted()
        for pod in self.seen.pods.values():
            amounts = (each.resources.requests.get(DISK) for each in pod.spec.containers)
            asked[pod.spec.node_name] += sum(parse_mib(amount, up=True) for amount in amounts if amount is not None)
        return asked

    # ---------------------------------------------------------------- loads

    async def _loads(
        self, pods: Iterable[Pod], templates: dict[str, PodTemplate], wishes: dict[str, Wish]
    ) -> tuple[list[Load], set[tuple[str, str]]]:
        """Those that run, and where one failed of late. What is over is removed."""
        running, rests, known = list[Load](), set[tuple[str, str]](), dict[str, tuple[str, float]]()
        for pod in pods:
            uid, phase, now_s = pod.metadata.uid, pod.status.phase, self.now_s()
            before, at_s = self._since_s.get(uid, ("", now_s))
            known[uid] = (phase, at_s if before == phase else now_s)
            for_s = now_s - known[uid][1]
            load = _load(pod)
            if pod.metadata.deletion_timestamp is not None:
                continue
            if load.key not in wishes or self._is_over(pod, wishes[load.key], load.node, for_s):
                await self._end(pod)
            elif self._has_failed(pod, for_s):
                rests.add((load.key, load.node))
                await self._fail(pod, templates[load.key], load.node)
            else:
                running.append(load)
        self._since_s = known
        self._failed &= known.keys()
        return running, rests

    async def _fail(self, pod: Pod, template: PodTemplate, node: str) -> None:
        if pod.metadata.uid not in self._failed:
            self._failed.add(pod.metadata.uid)
            self.failed.inc()
            await self._tell(template, "CardwiseLoadFailed", self._failure(pod, node))

    def _is_over(self, pod: Pod, wish: Wish, node: str, for_s: float) -> bool:
        """Whether nothing more is to be learned from a pod: its node tells of the model, or it has rested."""
        spec = self.ledger.nodes.get(node)
        if spec is None or wish.model in spec.cached_models:
            return spec is None or pod.ended
        return for_s >= self.settings.rest_s and self._has_failed(pod, for_s)

    def _has_failed(self, pod: Pod, for_s: float) -> bool:
        """It failed; or ended well, and its agent still does not tell of the model; or never found its node."""
        waits = {"Failed": 0.0, "Succeeded": TELL_S, "Pending": self.settings.pending_s}
        return for_s >= waits.get(pod.status.phase, float("inf"))

    def _failure(self, pod: Pod, node: str) -> str:
        match pod.status.phase:
            case "Succeeded":
                why = "ended well, and the node's agent does not tell of the model; compare its folders and the name"
            case "Pending":
                why = "found no place there; see its events"
            case _:
                why = "failed; see its log"
        return (
            f"the load on {node}: pod {pod.metadata.name} {why}. {node} is passed over for {self.settings.rest_s:g} s"
        )

    async def _begin(self, template: PodTemplate, wish: Wish, load: Load) -> None:
        try:
            await self.port.create_pod(template.metadata.namespace, pod_for(template, wish, load))
        except ConflictError:  # it is there, and the list was older
            return
        except ClusterError as exc:
            await self._tell(template, "CardwiseLoadFailed", f"the load on {load.node} could not be begun: {exc}")
            return
        self.begun.inc()
        text = f"{wish.model} is loaded on {load.node}, for the next replicas of {template.service}"
        log.info("weights are loaded", template=template.name, node=load.node, model=wish.model)
        await self._post(template, "CardwiseLoading", text, warning=False)

    async def _end(self, pod: Pod) -> None:
        try:
            await self.port.delete_pod(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid)
        except (NotFoundError, ConflictError):
            return
        except ClusterError as exc:
            if self._said.is_news(("load", pod.metadata.uid), str(exc)):
                log.warning("a load that is over could not be removed", pod=pod.name, why=str(exc))

    # ---------------------------------------------------------------- saying

    async def _say(self, template: PodTemplate, standing: Because | None) -> None:
        if standing is None:
            text = (
                f"no pod of {template.service} with an ask for cards is there, so where the next would go is not known"
            )
            await self._tell(template, "CardwiseNotLoading", text)
        elif standing is Because.NO_NODE:
            await self._tell(template, "CardwiseNotLoading", standing.value)

    async def _tell(self, template: PodTemplate, reason: str, text: str) -> None:
        """Once, and again only when it is another or a while has passed."""
        if not self._said.is_news(template.name, text):
            return
        log.warning("a wish for weights is not carried out", template=template.name, why=text)
        await self._post(template, reason, text)

    async def _post(self, template: PodTemplate, reason: str, text: str, *, warning: bool = True) -> None:
        meta = template.metadata
        about = {**about_pod(meta.namespace, meta.name, meta.uid), "kind": "PodTemplate"}
        await tell(self.port, about, reason, text, warning=warning, template=template.name)


def _load(pod: Pod) -> Load:
    """What a pod of ours loads, and where."""
    owner = next((each.name for each in pod.metadata.owner_references if each.kind == "PodTemplate"), "")
    node = pod.metadata.annotations.get(wire.ANNOTATION_PREFETCH_NODE, "")
    return Load(f"{pod.metadata.namespace}/{owner}", node)
