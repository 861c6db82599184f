"""What Prometheus is told. Collected when it asks: nothing is counted twice, and what is gone is gone at once.

Names say the unit; a card is its UUID, a slice its namespace, pod and container, so that both join. Refuses to repeat
what DCGM's exporter tells of cards where it is there: health, grants, limits and slices are ours alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from cardwise.adapters.claims import MODE_NAMES
from cardwise.adapters.journal import Journal, Row
from cardwise.agent.inventory import Inventory
from cardwise.agent.isolating import Isolating
from cardwise.agent.preparing import Preparing
from cardwise.agent.publishing import Publishing
from cardwise.agent.reclaiming import Reclaiming
from cardwise.agent.registering import Registering
from cardwise.agent.using import Using
from cardwise.agent.wellness import Wellness
from cardwise.core.card.facts import CardSample
from cardwise.core.card.health_record import State
from cardwise.core.card.isolation import Hold
from cardwise.core.card.watermark import Level
from cardwise.core.request import Isolation
from cardwise.series import Series, counter, gauge, histogram

BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0, 10.0)
CARD, SLICE = ("uuid",), ("uuid", "namespace", "pod", "container")
CALL_SECONDS = histogram("cardwise_agent_call_seconds", "Time to answer the kubelet.", "call")
CARD_INFO = gauge("cardwise_card_info", "Always 1: what a card is and where.", "uuid", "node", "model", "index", "mode")
ALLOCATABLE = gauge("cardwise_card_memory_allocatable_mib", "Memory that may be handed out.", *CARD)
HEALTH = gauge("cardwise_card_health", "0 healthy, 1 degraded, 2 fenced.", *CARD)
TAKES_SLICES = gauge("cardwise_card_takes_slices", "1 while new slices may start on the card.", *CARD)
EVENTS_HEARD = gauge(
    "cardwise_card_events_heard", "1 while the driver's events of the card are heard, its Xids among them.", *CARD
)
HOLDS = {
    what: gauge(
        f"cardwise_card_holds_{what}",
        f"How firmly slices are held to their {what}: 0 not, 1 if they do not try, 2 in any case.",
        *CARD,
    )
    for what in ("memory", "compute", "faults")
}
_TOLD = "where the driver tells it"
SAMPLED = {
    "gpu_util_pct": gauge("cardwise_card_utilization_percent", "Time in which any kernel ran.", *CARD, only=_TOLD),
    "memory_util_pct": gauge(
        "cardwise_card_memory_busy_percent", "Time in which memory was read or written.", *CARD, only=_TOLD
    ),
    "memory_used_mib": gauge("cardwise_card_memory_used_mib", "Memory in use, by all.", *CARD, only=_TOLD),
    "temperature_c": gauge("cardwise_card_temperature_celsius", "Temperature.", *CARD, only=_TOLD),
    "margin_c": gauge("cardwise_card_slowdown_margin_celsius", "Degrees to the nearest slowdown.", *CARD, only=_TOLD),
    "power_w": gauge("cardwise_card_power_watts", "Power.", *CARD, only=_TOLD),
    "power_limit_w": gauge("cardwise_card_power_limit_watts", "Most of it.", *CARD, only=_TOLD),
    "sm_clock_mhz": gauge("cardwise_card_sm_clock_mhz", "Clock of the SMs.", *CARD, only=_TOLD),
    "memory_clock_mhz": gauge("cardwise_card_memory_clock_mhz", "Clock of the memory.", *CARD, only=_TOLD),
    "pcie_tx_kib_s": gauge("cardwise_card_pcie_sent_kib_per_second", "PCIe, sent.", *CARD, only=_TOLD),
    "pcie_rx_kib_s": gauge("cardwise_card_pcie_received_kib_per_second", "PCIe, received.", *CARD, only=_TOLD),
}
"""By the field of a sample."""
XIDS = counter("cardwise_card_xids", "Xids that the driver reported.", *CARD, "xid")
LEVEL = gauge(
    "cardwise_card_memory_level", "0 calm, 1 wary: nothing more is lent, 2 reclaim: memory is taken back.", *CARD
)
LENDABLE = gauge("cardwise_card_memory_lendable_mib", "Memory that may be lent beyond the card.", *CARD)
LENT = gauge("cardwise_card_memory_lent_mib", "Memory that is lent beyond the card.", *CARD)
SHORT = gauge(
    "cardwise_card_memory_short_mib",
    "Memory that would have to come back, and no best-effort slice can give.",
    *CARD,
)
RECLAIMS = counter(
    "cardwise_agent_reclaims",
    "Pods that had to give memory back (begun), were signalled (term, kill), or did not go (given-up).",
    "step",
)
MEMORY_GRANTED = gauge("cardwise_slice_memory_granted_mib", "Memory that was granted.", *SLICE)
COMPUTE_GRANTED = gauge("cardwise_slice_compute_granted_percent", "Compute that was granted.", *SLICE)
MEMORY_USED = gauge("cardwise_slice_memory_used_mib", "Memory in use.", *SLICE, only=_TOLD)
MEMORY_OVER = gauge("cardwise_slice_memory_over_mib", "Memory beyond the grant.", *SLICE, only=_TOLD)
SM = gauge("cardwise_slice_sm_percent", "Time of SMs, of the card.", *SLICE, only=_TOLD)
MISMATCHES = counter("cardwise_agent_mismatches", "Starts refused, by reason.", "reason")
MPS_ALARMS = counter("cardwise_agent_mps_alarms", "Alarms of MPS.", "kind")
REGISTERED = gauge("cardwise_agent_registered", "1 while the kubelet knows the agent.")
REGISTRATIONS = counter("cardwise_agent_registrations", "Registrations with the kubelet.")
BYPASSES = gauge("cardwise_agent_bypasses", "Processes that run beside MPS.")
STRANGERS = gauge("cardwise_agent_strangers", "Processes on cards that were not granted.")
PUBLISH_FAILURES = counter("cardwise_agent_publish_failures", "Writes to the API server that failed.")
EVENTS_LOST = counter("cardwise_agent_events_lost", "Events for which there was no room.")
SERIES: tuple[Series, ...] = (
    CARD_INFO,
    ALLOCATABLE,
    HEALTH,
    TAKES_SLICES,
    EVENTS_HEARD,
    *HOLDS.values(),
    *SAMPLED.values(),
    XIDS,
    LEVEL,
    LENDABLE,
    LENT,
    SHORT,
    RECLAIMS,
    MEMORY_GRANTED,
    COMPUTE_GRANTED,
    MEMORY_USED,
    MEMORY_OVER,
    SM,
    MISMATCHES,
    MPS_ALARMS,
    REGISTERED,
    REGISTRATIONS,
    BYPASSES,
    STRANGERS,
    PUBLISH_FAILURES,
    EVENTS_LOST,
    CALL_SECONDS,
)
_STATES = {State.HEALTHY: 0, State.DEGRADED: 1, State.FENCED: 2}
_HOLDS = {Hold.NONE: 0, Hold.ASKS: 1, Hold.BINDS: 2}
_LEVELS = {Level.CALM: 0, Level.WARY: 1, Level.RECLAIM: 2}


@dataclass(slots=True, eq=False)
class Metrics(Collector):
    """All parts that have something to tell."""

    inventory: Inventory
    journal: Journal
    preparing: Preparing
    registering: Registering
    isolating: Isolating
    wellness: Wellness
    using: Using
    publishing: Publishing
    reclaiming: Reclaiming
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    seconds: Histogram = field(init=False)

    def __post_init__(self) -> None:
        """Have the registry ask us."""
        self.seconds = CALL_SECONDS.histogram(self.registry, BUCKETS)
        self.registry.register(self)

    def took(self, call: str, seconds: float) -> None:
        """One call of the kubelet was answered."""
        self.seconds.labels(call).observe(seconds)

    def text(self) -> bytes:
        """In Prometheus's text format."""
        return generate_latest(self.registry)

    def collect(self) -> Iterable[Metric]:
        """Everything, as it is now."""
        yield from self._of_cards()
        yield from self._of_slices()
        yield from self._of_lending()
        yield from self._of_agent()

    # ---------------------------------------------------------------- cards

    def _of_cards(self) -> Iterable[Metric]:
        yield self._card_info()
        inventory, using = self.inventory, self.using
        yield _of(ALLOCATABLE, {uuid: unit.allocatable_mib for uuid, unit in inventory.cards.items()})
        yield _of(HEALTH, {uuid: _STATES[self.wellness.state(uuid)] for uuid in inventory.cards})
        sick = inventory.sick
        yield _of(TAKES_SLICES, {uuid: int(uuid not in sick) for uuid in inventory.cards})
        yield _of(EVENTS_HEARD, {card.uuid: int(card.uuid not in using.deaf) for card in inventory.facts.cards})
        yield from self._guarantees()
        yield from self._sampled()
        xids = XIDS.counts()
        for (uuid, xid), count in self.wellness.xids.items():
            xids.add_metric([uuid, str(xid)], count)
        yield xids

    def _card_info(self) -> Metric:
        info, node = CARD_INFO.values(), self.preparing.node
        for card in self.inventory.facts.cards:
            mode = MODE_NAMES[self.inventory.modes.get(card.uuid, Isolation.ANY)]
            for uuid in self.inventory.all_of(card.uuid):
                info.add_metric([uuid, node, card.model, str(card.index), mode], 1)
        return info

    def _guarantees(self) -> Iterable[Metric]:
        standings = self.isolating.standings
        for what, series in HOLDS.items():
            yield _of(series, {uuid: _HOLDS[getattr(each.guarantee, what)] for uuid, each in standings.items()})

    def _sampled(self) -> Iterable[Metric]:
        samples = {uuid: state.sample for uuid, state in self.using.cards.states().items() if state.sample}
        for field_name, series in SAMPLED.items():
            told = {uuid: _value(sample, field_name) for uuid, sample in samples.items()}
            yield _of(series, {uuid: value for uuid, value in told.items() if value is not None})

    # ---------------------------------------------------------------- lending

    def _of_lending(self) -> Iterable[Metric]:
        uses, lendable = self.reclaiming.marking.uses, self.reclaiming.marking.lendable()
        cards = [card.uuid for card in self.inventory.facts.cards]
        yield _of(LEVEL, {uuid: _LEVELS[use.reading.level] for uuid, use in uses.items()})
        yield _of(LENDABLE, {uuid: lendable.get(uuid, 0) for uuid in cards})
        yield _of(LENT, {uuid: sum(pod.lent_mib for pod in use.pods) for uuid, use in uses.items()})
        yield _of(SHORT, {uuid: self.reclaiming.shorts.get(uuid, 0) for uuid in cards})
        acts = RECLAIMS.counts()
        for step, count in self.reclaiming.counts.items():
            acts.add_metric([step], count)
        yield acts

    # ---------------------------------------------------------------- slices

    def _of_slices(self) -> Iterable[Metric]:
        memory, compute = MEMORY_GRANTED.values(), COMPUTE_GRANTED.values()
        for row in self.journal.rows:
            for grant in row.grants:
                memory.add_metric(_slice(grant.uuid, row), grant.memory_mib)
                compute.add_metric(_slice(grant.uuid, row), grant.compute_pct)
        yield from (memory, compute, *self._used())

    def _used(self) -> Iterable[Metric]:
        memory, over, compute = MEMORY_USED.values(), MEMORY_OVER.values(), SM.values()
        for use in self.using.slices:
            row = self.journal.get(*use.container)
            if row is None:
                continue
            labels = _slice(use.uuid, row)
            if use.memory_mib is not None:
                memory.add_metric(labels, use.memory_mib)
                over.add_metric(labels, use.over_mib)
            if use.sm_pct is not None:
                compute.add_metric(labels, use.sm_pct)
        return memory, over, compute

    # ---------------------------------------------------------------- the agent itself

    def _of_agent(self) -> Iterable[Metric]:
        refused, alarms = MISMATCHES.counts(), MPS_ALARMS.counts()
        for code, count in self.preparing.mismatches.items():
            refused.add_metric([code.value], count)
        for kind, count in self.isolating.alarms.items():
            alarms.add_metric([kind], count)
        yield from (refused, alarms)
        for told, now in (
            (REGISTERED, int(self.registering.registered)),
            (BYPASSES, len(self.using.bypassing)),
            (STRANGERS, len(self.using.strangers)),
        ):
            values = told.values()
            values.add_metric([], now)
            yield values
        for told, so_far in (
            (REGISTRATIONS, self.registering.registrations),
            (PUBLISH_FAILURES, self.publishing.failures),
            (EVENTS_LOST, self.wellness.teller.lost),
        ):
            counts = told.counts()
            counts.add_metric([], so_far)
            yield counts


def _of(series: Series, values: Mapping[str, float]) -> Metric:
    """A gauge by card."""
    family = series.values()
    for uuid, value in values.items():
        family.add_metric([uuid], value)
    return family


def _slice(uuid: str, row: Row) -> list[str]:
    return [uuid, row.namespace, row.pod, row.container]


def _value(sample: CardSample, field_name: str) -> float | None:
    value: float | None = getattr(sample, field_name)
    return value
