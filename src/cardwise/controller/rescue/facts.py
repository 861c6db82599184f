"""What rescuing decides on, read from pods, nodes and the ledger: bad grounds, who is there, and how each may leave.

Refuses to decide, and to take a node for lost that does not say how it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import structlog

from cardwise.adapters import wire
from cardwise.adapters.dump import service_of
from cardwise.adapters.kube_objects import Owner, Pod
from cardwise.adapters.moves import Moving, moving_of
from cardwise.adapters.selecting import lets
from cardwise.adapters.watching import Watching
from cardwise.controller.preemption.seeing import Seen, condition, is_well
from cardwise.core.claim import LatencyClass
from cardwise.core.fleet.grounds import BAD, Ground, Why
from cardwise.core.fleet.rescue import Freed, Replica, Way
from cardwise.core.ledger import Ledger
from cardwise.core.request import Isolation

log = structlog.get_logger()

PER_NODE = frozenset({"DaemonSet", "Node"})
"""Kinds of owners that would make a pod anew on the same node, or not at all."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The cluster as it is told now."""

    ledger: Ledger
    watching: Watching
    seen: Seen

    def grounds(self) -> set[Ground]:
        """What is bad now, for however long."""
        found = set[Ground]()
        for name, node in self.seen.nodes.items():
            cards = self.ledger.nodes[name].cards if name in self.ledger.nodes else ()
            if condition(node, "Ready") not in {"True", None}:
                found.add(Ground(name, "", Why.LOST))
            mps_down = condition(node, wire.CONDITION_MPS) == "False"
            found |= {Ground(name, card.uuid, Why.FENCED) for card in cards if not card.healthy and not card.stays}
            found |= {
                Ground(name, card.uuid, Why.MPS)
                for card in cards
                if mps_down and (card.healthy or card.stays) and card.isolation is Isolation.MPS
            }
        return found

    def replicas(self, ripe: Collection[Ground], movers: Collection[str] = ()) -> list[Replica]:
        """All pods with cards of the services of which one is on bad ground, was released, or is a mover.

        movers: UIDs of pods that are well where they are, and stand in somebody's way.
        """
        if (
            not ripe
            and not movers
            and not any(wire.ANNOTATION_MOVING in pod.metadata.annotations for pod in self.seen.pods.values())
        ):
            return []
        listed = [self._replica(pod, ripe, movers) for pod in self.seen.pods.values() if self._has_cards(pod)]
        services = {each.service for each in listed if each.ground or each.freed}
        return [each for each in listed if each.service in services]

    def is_open(self, uid: str, node: str) -> bool:
        """Whether kube-scheduler's own rules, as far as they are read, and the node's state let a successor on it."""
        told, pod = self.seen.nodes.get(node), self.seen.pods.get(uid)
        if told is None or pod is None or node in self.watching.inconsistent:
            return False
        return is_well(told) and lets(told, pod)

    def _has_cards(self, pod: Pod) -> bool:
        uid = pod.metadata.uid
        held = self.ledger.pods.get(uid)
        claim = held.claim if held else self.watching.pending.get(uid)
        return claim is not None and bool(claim.asks)

    def _replica(self, pod: Pod, ripe: Collection[Ground], movers: Collection[str]) -> Replica:
        meta, moving = pod.metadata, released(pod)
        in_the_way = Why.WAY if (moving.aside if moving else meta.uid in movers) else None
        held = self.ledger.pods.get(meta.uid)
        claim = held.claim if held else self.watching.pending[meta.uid]
        return Replica(
            meta.uid,
            pod.name,
            moving.service if moving else service_of(pod) or pod.name,
            pod.spec.node_name,
            Way.BESIDE if moving else way_of(pod),
            pod.ready,
            sensitive=claim.latency is LatencyClass.SENSITIVE,
            priority=claim.priority,
            ground=next(self._under(meta.uid, ripe), in_the_way),
            going=meta.deletion_timestamp is not None or meta.uid in self.seen.told,
            freed=Freed(moving.at_s, moving.ready) if moving else None,
        )

    def _under(self, uid: str, ripe: Collection[Ground]) -> Iterator[Why]:
        """What is wrong where a pod is, the worst first."""
        held = self.ledger.pods.get(uid)
        if held is None:
            return
        cards = {share.uuid for share in held.allocation.shares} if held.allocation else set()
        for why in BAD:
            for ground in ripe:
                if ground.why is why and ground.node == held.node and (not ground.uuid or ground.uuid in cards):
                    yield why
                    return


def released(pod: Pod) -> Moving | None:
    """The pod's mark of a release; a mark that cannot be true is none, so that nobody is evicted for it.

    It is an annotation, which whose pod it is may write or copy into a template: a pod that was released has no
    controller, and was of a service of its own namespace.
    """
    try:
        moving = moving_of(pod)
    except ValueError:  # said by Seen
        return None
    if moving is None or controller_of(pod) is not None:
        return None
    return moving if moving.service.partition("/")[0] == pod.metadata.namespace else None


def controller_of(pod: Pod) -> Owner | None:
    """Who would make the pod anew."""
    return next((owner for owner in pod.metadata.owner_references if owner.controller), None)


def way_of(pod: Pod) -> Way:
    """How a pod can be replaced.

    Beside only where the hash of a Deployment is what makes it its ReplicaSet's: its Service does not select by that.
    That of an Argo Rollout does.
    """
    owner = controller_of(pod)
    if owner is None or owner.kind in PER_NODE:
        return Way.NEVER
    pod_hash = pod.metadata.labels.get(wire.LABEL_POD_HASHES[0], "")
    if owner.kind == "ReplicaSet" and owner.uid and pod_hash and owner.name.endswith(f"-{pod_hash}"):
        return Way.BESIDE
    return Way.INSTEAD


def complete(replicas: Iterable[Replica]) -> set[str]:
    """Services of which every pod that was not released serves."""
    listed = list(replicas)
    return {each.service for each in listed} - {
        each.service for each in listed if not each.freed and not each.going and not each.serves
    }
