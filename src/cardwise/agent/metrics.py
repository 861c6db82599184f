"""What Prometheus is told. Collected when it asks: nothing is counted twice, and what is gone is gone at once.

Names say the unit; a card is its UUID, a slice its namespace, pod and container, so that both join. Refuses to repeat
what DCGM's exporter tells of cards where it is there: health, grants, limits and slices are ours alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cardwise.adapters.claims import MODE_NAMES
from cardwise.adapters.journal import Journal, Row
from cardwise.agent.inventory import Inventory
from cardwise.agent.isolating import Isolating
from cardwise.agent.preparing import Preparing
from cardwise.agent.publishing import Publishing
from cardwise.agent.registering import Registering
from cardwise.agent.using import Using
from cardwise.agent.wellness import Wellness
from cardwise.core.card.facts import CardSample
from cardwise.core.card.health import State
from cardwise.core.card.isolation import Hold
from cardwise.core.request import Isolation

BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0, 10.0)
CARD, SLICE = ["uuid"], ["uuid", "namespace", "pod", "container"]
_STATES = {State.HEALTHY: 0, State.DEGRADED: 1, State.FENCED: 2}
_HOLDS = {Hold.NONE: 0, Hold.ASKS: 1, Hold.BINDS: 2}
_SAMPLED: tuple[tuple[str, str, str], ...] = (
    ("cardwise_card_utilization_percent", "Time in which any kernel ran.", "gpu_util_pct"),
    ("cardwise_card_memory_used_mib", "Memory in use, by all.", "memory_used_mib"),
    ("cardwise_card_temperature_celsius", "Temperature.", "temperature_c"),
    ("cardwise_card_slowdown_margin_celsius", "Degrees to the nearest slowdown.", "margin_c"),
    ("cardwise_card_power_watts", "Power.", "power_w"),
    ("cardwise_card_sm_clock_mhz", "Clock of the SMs.", "sm_clock_mhz"),
    ("cardwise_card_memory_clock_mhz", "Clock of the memory.", "memory_clock_mhz"),
    ("cardwise_card_pcie_sent_kib_per_second", "PCIe, sent.", "pcie_tx_kib_s"),
    ("cardwise_card_pcie_received_kib_per_second", "PCIe, received.", "pcie_rx_kib_s"),
)


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
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    seconds: Histogram = field(init=False)

    def __post_init__(self) -> None:
        """Have the registry ask us."""
        self.seconds = Histogram(
            "cardwise_agent_call_seconds",
            "Time to answer the kubelet.",
            ["call"],
            buckets=BUCKETS,
            registry=self.registry,
        )
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
        yield from self._of_agent()

    # ---------------------------------------------------------------- cards

    def _of_cards(self) -> Iterable[Metric]:
        yield self._card_info()
        yield self._gauge(
            "cardwise_card_memory_allocatable_mib",
            "Memory that may be handed out.",
            {uuid: unit.allocatable_mib for uuid, unit in self.inventory.cards.items()},
        )
        yield self._gauge(
            "cardwise_card_health",
            "0 healthy, 1 degraded, 2 fenced.",
            {uuid: _STATES[self.wellness.state(uuid)] for uuid in self.inventory.cards},
        )
        sick = self.inventory.sick
        yield self._gauge(
            "cardwise_card_takes_slices",
            "1 while new slices may start on the card.",
            {uuid: int(uuid not in sick) for uuid in self.inventory.cards},
        )
        yield self._gauge(
            "cardwise_card_events_heard",
            "1 while the driver's events of the card are heard, its Xids among them.",
            {card.uuid: int(card.uuid not in self.using.deaf) for card in self.inventory.facts.cards},
        )
        yield from self._guarantees()
        yield from self._sampled()
        xids = CounterMetricFamily("cardwise_card_xids", "Xids that the driver reported.", labels=[*CARD, "xid"])
        for (uuid, xid), count in self.wellness.xids.items():
            xids.add_metric([uuid, str(xid)], count)
        yield xids

    def _card_info(self) -> Metric:
        info = GaugeMetricFamily("cardwise_card_info", "Always 1.", labels=[*CARD, "model", "index", "mode"])
        for card in self.inventory.facts.cards:
            mode = MODE_NAMES[self.inventory.modes.get(card.uuid, Isolation.ANY)]
            for uuid in self.inventory.all_of(card.uuid):
                info.add_metric([uuid, card.model, str(card.index), mode], 1)
        return info

    def _guarantees(self) -> Iterable[Metric]:
        text = "How firmly slices are held to their {}: 0 not, 1 if they do not try, 2 in any case."
        for what in ("memory", "compute", "faults"):
            yield self._gauge(
                f"cardwise_card_holds_{what}",
                text.format(what),
                {
                    uuid: _HOLDS[getattr(standing.guarantee, what)]
                    for uuid, standing in self.isolating.standings.items()
                },
            )

    def _sampled(self) -> Iterable[Metric]:
        samples = {uuid: state.sample for uuid, state in self.using.cards.states().items() if state.sample}
        for name, text, field_name in _SAMPLED:
            yield self._gauge(
                name,
                text,
                {uuid: value for uuid, sample in samples.items() if (value := _value(sample, field_name)) is not None},
            )

    def _gauge(self, name: str, text: str, values: dict[str, float]) -> Metric:
        gauge = GaugeMetricFamily(name, text, labels=CARD)
        for uuid, value in values.items():
            gauge.add_metric([uuid], value)
        return gauge

    # ---------------------------------------------------------------- slices

    def _of_slices(self) -> Iterable[Metric]:
        memory = GaugeMetricFamily("cardwise_slice_memory_granted_mib", "Memory that was granted.", labels=SLICE)
        compute = GaugeMetricFamily("cardwise_slice_compute_granted_percent", "Compute that was granted.", labels=SLICE)
        for row in self.journal.rows:
            for grant in row.grants:
                memory.add_metric(_slice(grant.uuid, row), grant.memory_mib)
                compute.add_metric(_slice(grant.uuid, row), grant.compute_pct)
        yield from (memory, compute, *self._used())

    def _used(self) -> Iterable[Metric]:
        memory = GaugeMetricFamily("cardwise_slice_memory_used_mib", "Memory in use.", labels=SLICE)
        over = GaugeMetricFamily("cardwise_slice_memory_over_mib", "Memory beyond the grant.", labels=SLICE)
        compute = GaugeMetricFamily("cardwise_slice_sm_percent", "Time of SMs, of the card.", labels=SLICE)
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
        refused = CounterMetricFamily("cardwise_agent_mismatches", "Starts refused, by reason.", labels=["reason"])
        for code, count in self.preparing.mismatches.items():
            refused.add_metric([code.value], count)
        alarms = CounterMetricFamily("cardwise_agent_mps_alarms", "Alarms of MPS.", labels=["kind"])
        for kind, count in self.isolating.alarms.items():
            alarms.add_metric([kind], count)
        yield from (refused, alarms)
        for name, text, value in (
            ("cardwise_agent_registered", "1 while the kubelet knows the agent.", int(self.registering.registered)),
            ("cardwise_agent_registrations", "Registrations with the kubelet.", self.registering.registrations),
            ("cardwise_agent_bypasses", "Processes that run beside MPS.", len(self.using.bypassing)),
            ("cardwise_agent_strangers", "Processes on cards that were not granted.", len(self.using.strangers)),
            ("cardwise_agent_publish_failures", "Writes to the API server that failed.", self.publishing.failures),
            ("cardwise_agent_events_lost", "Events for which there was no room.", self.wellness.teller.lost),
        ):
            yield GaugeMetricFamily(name, text, value=value)


def _slice(uuid: str, row: Row) -> list[str]:
    return [uuid, row.namespace, row.pod, row.container]


def _value(sample: CardSample, field_name: str) -> float | None:
    value: float | None = getattr(sample, field_name)
    return value
