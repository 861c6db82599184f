"""What this node offers at the moment: its cards with their memory, mode and health, and what pods hold of them.

A card with MIG on is offered as its instances, each a card of its own; what troubles the card troubles them. One object
that everything else of the agent reads. Refuses to measure: others tell it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cardwise.adapters.allocations import bound_pod
from cardwise.adapters.claims import read_claim
from cardwise.adapters.journal import Standing
from cardwise.adapters.kube_objects import LocalPod
from cardwise.core.allocation import Allocation, Hold, holds
from cardwise.core.card.facts import NodeFacts, Unit, links_of, units
from cardwise.core.card.handover import Offered
from cardwise.core.claim import LatencyClass
from cardwise.core.inventory import CardSpec
from cardwise.core.request import Isolation


@dataclass(slots=True)
class Inventory:
    """facts: the driver's. modes: by UUID. binds: what holds its slices to their memory in any case.

    troubles: why a card takes no new slices, by who says so and UUID. They are of the cards that the driver tells;
    all else is of what is offered. left: of these those for which what runs on the card should go.
    """

    facts: NodeFacts
    modes: dict[str, Isolation] = field(default_factory=dict)
    binds: frozenset[str] = frozenset()
    troubles: dict[tuple[str, str], str] = field(default_factory=dict)
    left: set[tuple[str, str]] = field(default_factory=set)

    def report(self, source: str, uuid: str, why: str, *, leave: bool = False) -> bool:
        """``source`` says why a card takes no new slices, or nothing if it does; True if that is news to the card.

        leave: what runs on it should go, too.
        """
        before = self._is_troubled(uuid)
        (self.left.add if why and leave else self.left.discard)((source, uuid))
        if why:
            self.troubles[source, uuid] = why
        else:
            self.troubles.pop((source, uuid), None)
        return before != self._is_troubled(uuid)

    def _is_troubled(self, uuid: str) -> bool:
        return any(troubled == uuid for _, troubled in self.troubles)

    @property
    def sick(self) -> dict[str, str]:
        """What takes no new slices, and why."""
        texts: dict[str, str] = {}
        for (_, uuid), text in sorted(self.troubles.items()):
            texts[uuid] = f"{texts[uuid]}; {text}" if uuid in texts else text
        return {unit.uuid: texts[unit.card.uuid] for unit in self.units if unit.card.uuid in texts}

    @property
    def units(self) -> tuple[Unit, ...]:
        """What is offered, in the driver's order."""
        return units(self.facts.cards)

    @property
    def cards(self) -> Mapping[str, Unit]:
        """What is offered, by UUID."""
        return {unit.uuid: unit for unit in self.units}

    def whole_of(self, uuid: str) -> str:
        """UUID of the card that has this one: an instance's, else the same."""
        unit = self.cards.get(uuid)
        return uuid if unit is None else unit.card.uuid

    def all_of(self, uuid: str) -> frozenset[str]:
        """UUIDs under which a card is handed out: its own and its instances'."""
        return frozenset([uuid, *(unit.uuid for unit in self.units if unit.card.uuid == uuid)])

    def offered(self) -> dict[str, Offered]:
        """The cards as a start of a container sees them."""
        sick = self.sick
        return {
            unit.uuid: Offered(
                unit.uuid,
                unit.allocatable_mib,
                self.mode_of(unit),
                sick.get(unit.uuid, ""),
                unit.uuid in self.binds,
            )
            for unit in self.units
        }

    def specs(self) -> list[CardSpec]:
        """The cards as the scheduler is told."""
        sick, offered = self.sick, self.units
        left = {uuid for _, uuid in self.left}
        return [
            CardSpec(
                unit.uuid,
                unit.card.model,
                unit.allocatable_mib,
                self.mode_of(unit),
                unit.uuid not in sick,
                links_of(unit, offered, self.facts.cards),
                unit.uuid in self.binds,
                stays=unit.uuid in sick and unit.card.uuid not in left,
            )
            for unit in offered
        ]

    def mode_of(self, unit: Unit) -> Isolation:
        """How it is shared; an instance is shared by nobody, whatever was wished for its card."""
        return Isolation.MIG if unit.instance else self.modes.get(unit.uuid, Isolation.ANY)


RESTART_STEP_S = 30.0
"""Times to start again are told in steps: which of two pods took a second less says nothing."""


def standing_of(pod: LocalPod) -> Standing:
    """Who the pod is when memory must come back."""
    claim, _faults = read_claim(pod)  # whatever is wrong with it, it runs
    made = pod.metadata.creation_timestamp
    return Standing(
        claim.latency is LatencyClass.BEST_EFFORT,
        pod.spec.priority or 0,
        made.timestamp() if made else 0.0,
        claim.service,
    )


def restart_s(pod: LocalPod) -> float:
    """How long starting the pod again is expected to take: as long as it took, from its node to ready. 0: not known."""
    since = {each.type: each.last_transition_time for each in pod.status.conditions if each.status == "True"}
    placed, ready = since.get("PodScheduled"), since.get("Ready")
    if placed is None or ready is None or any(each.restart_count for each in pod.status.container_statuses):
        return 0.0
    return max((ready - placed).total_seconds(), 0.0) // RESTART_STEP_S * RESTART_STEP_S


def allocation_of(pod: LocalPod) -> Allocation | None:
    """The pod's allocation; None without one that can be read: a start is refused with the reason, later."""
    try:
        return bound_pod(pod).allocation
    except ValueError:
        return None


def pod_holds(pod: LocalPod) -> tuple[Hold, ...]:
    """What a pod takes of each card; nothing without an allocation. Raises ValueError if that is unreadable."""
    bound = bound_pod(pod)
    if bound.allocation is None:
        return ()
    return tuple(holds(bound.claim, bound.allocation, initialized=bound.initialized))
