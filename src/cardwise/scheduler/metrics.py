"""What the scheduler tells Prometheus: how it answers, who waits and why not, and what it has given away.

The stock is what the ledger decides by, so it is there where no agent answers, too. Refuses a label per pod or node:
those are the agents', and ``/explain`` has the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from cardwise.core.ledger import Ledger
from cardwise.scheduler.extender import Extender
from cardwise.series import Series, counter, gauge, histogram
from cardwise.units import MILLI_PER_CARD

BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0)

REQUEST_SECONDS = histogram("cardwise_scheduler_request_seconds", "Time to answer.", "verb")
ANSWERS = counter("cardwise_scheduler_answers", "Answers.", "verb", "result")
REFUSALS = counter(
    "cardwise_scheduler_refusals",
    "Times that no node took a pod, by the reason that most nodes gave.",
    "reason",
    only="reasons that were given",
)
WAITING = gauge("cardwise_scheduler_pods_waiting", "Pods that no node took at their last filter.")
CONFLICTS = gauge("cardwise_scheduler_conflicts", "Pods whose allocation contradicts their node's cards.")
UNDER_WAY = gauge("cardwise_scheduler_bindings_under_way", "Holds whose write is not answered yet.")
LEADER = gauge("cardwise_scheduler_leader", "1 if this replica binds.")
NODES = gauge("cardwise_scheduler_nodes", "Nodes with cards that it knows.")
NODES_FENCED = gauge("cardwise_scheduler_nodes_fenced", "Of these those that take no pods.")
CARDS = gauge("cardwise_scheduler_cards", "Cards of these nodes, or MIG instances.")
CARDS_SICK = gauge("cardwise_scheduler_cards_sick", "Of these those that take no slices.")
MEMORY = gauge("cardwise_scheduler_memory_allocatable_mib", "Memory of these cards that may be handed out.")
MEMORY_FREE = gauge("cardwise_scheduler_memory_free_mib", "What of it is not handed out.")
COMPUTE_FREE = gauge("cardwise_scheduler_compute_free_cards", "Compute that is not handed out, in whole cards.")
SERIES: tuple[Series, ...] = (
    REQUEST_SECONDS,
    ANSWERS,
    REFUSALS,
    WAITING,
    CONFLICTS,
    UNDER_WAY,
    LEADER,
    NODES,
    NODES_FENCED,
    CARDS,
    CARDS_SICK,
    MEMORY,
    MEMORY_FREE,
    COMPUTE_FREE,
)


@dataclass(slots=True, eq=False)
class Metrics(Collector):
    """Read when Prometheus asks. leads: whether this replica binds."""

    ledger: Ledger
    extender: Extender
    leads: Callable[[], bool]
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    seconds: Histogram = field(init=False)
    answers: Counter = field(init=False)

    def __post_init__(self) -> None:
        """Have the registry ask us."""
        self.seconds = REQUEST_SECONDS.histogram(self.registry, BUCKETS)
        self.answers = ANSWERS.counter(self.registry)
        self.registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Everything else, as it is now."""
        refusals = REFUSALS.counts()
        for code, count in self.extender.refusals.items():
            refusals.add_metric([code.value], count)
        yield refusals
        now = (
            (WAITING, len(self.extender.waiting)),
            (CONFLICTS, len(self.ledger.conflicts)),
            (UNDER_WAY, len(self.ledger.under_way)),
            (LEADER, int(self.leads())),
            *self._stock(),
        )
        for series, value in now:
            family = series.values()
            family.add_metric([], value)
            yield family

    def _stock(self) -> Iterable[tuple[Series, float]]:
        """As the last decision had it: what came since is in it after the next one."""
        cluster = self.ledger.cluster
        there = cluster.card_exists
        has_cards = there.any(axis=1)
        return (
            (NODES, int(has_cards.sum())),
            (NODES_FENCED, int((has_cards & cluster.node_fenced).sum())),
            (CARDS, int(there.sum())),
            (CARDS_SICK, int((there & ~cluster.card_healthy).sum())),
            (MEMORY, int(cluster.memory_total_mib[there].sum())),
            (MEMORY_FREE, int(cluster.memory_free_mib[there].sum())),
            (COMPUTE_FREE, int(cluster.compute_free_milli[there].sum()) / MILLI_PER_CARD),
        )
