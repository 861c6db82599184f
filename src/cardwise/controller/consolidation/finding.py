"""What consolidation decides on: which nodes might take a pod that waits, and what runs there, as it may move or not.

Refuses to decide, and to act.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from cardwise.adapters import wire
from cardwise.adapters.dump import service_of
from cardwise.adapters.kube_objects import Pod
from cardwise.adapters.moves import moves_of
from cardwise.controller.preemption.snapshot import Snapshot
from cardwise.controller.rescue.facts import released, way_of
from cardwise.core.claim import Claim
from cardwise.core.fleet.consolidate import Replica, lacks
from cardwise.core.fleet.guard import age_s
from cardwise.core.fleet.preempt import Running
from cardwise.core.fleet.rescue import Moved, Way
from cardwise.core.request import WorkloadClass


@dataclass(slots=True)
class Finding:
    """Of one snapshot. rest_s: how long a service of which one moved is left alone. utc_s: now, seconds since 1970."""

    snapshot: Snapshot
    utc_s: float
    rest_s: float
    _homes: dict[str, dict[str, str]] = field(default_factory=dict)
    _moves: dict[str, tuple[Moved, ...]] = field(default_factory=dict)
    _resting: dict[str, set[str]] = field(default_factory=dict)
    _closed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Read where services serve, and who moved of late."""
        for uid, pod in self.snapshot.seen.pods.items():
            if pod.spec.node_name and pod.ready and pod.metadata.deletion_timestamp is None:
                self._homes.setdefault(_service(pod), {})[uid] = pod.spec.node_name
        for name, node in self.snapshot.seen.nodes.items():
            try:
                self._moves[name] = moves_of(node)
            except ValueError:  # said by those who move
                self._closed.add(name)
        for each in (each for moves in self._moves.values() for each in moves):
            if age_s(each.at_s, self.utc_s) < self.rest_s:
                self._resting.setdefault(each.service, set()).add(each.uid)
        for uid in self.snapshot.going:  # chosen, and not noted on its node yet
            if (chosen := self.snapshot.seen.pods.get(uid)) is not None:
                self._resting.setdefault(_service(chosen), set()).add(uid)

    def nodes(self, claim: Claim, pod: Pod) -> list[str]:
        """Nodes that would take the pod but for cards, those that lack least first."""
        ledger, open_to = self.snapshot.ledger, self.snapshot.open_to(pod)
        lacking = lacks(ledger.cluster, ledger.policy(claim).granted(claim.lead).shape)
        order = np.argsort(lacking, kind="stable").tolist()
        names = ledger.cluster.node_names
        return [names[i] for i in order if names[i] in open_to and np.isfinite(lacking[i])]

    def on_each(self, nodes: Iterable[str]) -> Iterator[tuple[str, list[Replica]]]:
        """What runs on each, one after the other as it is asked for."""
        return ((node, self.replicas(node)) for node in nodes)

    def replicas(self, node: str, spared: Collection[str] = ()) -> list[Replica]:
        """What runs on a node. spared: of these (UIDs) it is known that they were chosen; that is held against none.

        That another of its service moves is: who wrote down that it was chosen is not known.
        """
        listed = list[Replica]()
        for uid, running in self.snapshot.nodes.get(node, {}).items():
            pod, held = self.snapshot.seen.pods.get(uid), self.snapshot.ledger.pods.get(uid)
            if pod is None or held is None:
                continue
            made = self._replica(pod, held.claim, running, spared)
            listed.append(_unchosen(made, pod) if uid in spared else made)
        return listed

    def moves_since(self, node: str, at_s: float) -> list[Moved]:
        """Who left a node since then, as far as it can be read; by a clock that may have been set back a little."""
        age = age_s(at_s, self.utc_s)
        return [each for each in self._moves.get(node, ()) if age_s(each.at_s, self.utc_s) <= age]

    def _replica(self, pod: Pod, claim: Claim, running: Running, spared: Collection[str]) -> Replica:
        service, node = _service(pod), pod.spec.node_name
        others = frozenset(at for uid, at in self._homes.get(service, {}).items() if uid != pod.metadata.uid)
        claims = any(each.persistent_volume_claim is not None for each in pod.spec.volumes)
        notes: Mapping[str, str] = pod.metadata.annotations
        return Replica(
            running,
            service,
            beside=way_of(pod) is Way.BESIDE,
            protected=notes.get(wire.ANNOTATION_PREEMPTIBLE) == "false",
            training=claim.workload is WorkloadClass.TRAINING,
            has_volume=claims and not others - {node},  # a claim that two nodes use already is no hindrance
            rests=node in self._closed or bool(self._resting.get(service, set()).difference(spared)),
            beside_it=others,
        )


def _service(pod: Pod) -> str:
    return service_of(pod) or pod.name


def _unchosen(replica: Replica, pod: Pod) -> Replica:
    """The same as if it had not been chosen: what the choice itself made true is no reason against it.

    Budgets are asked when it goes.
    """
    going = pod.metadata.deletion_timestamp is not None
    running = replace(replica.pod, going=going, budgets=frozenset(), starting=not pod.ready)
    return replace(replica, pod=running, beside=replica.beside or released(pod) is not None)
