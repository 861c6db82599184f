"""What a series of ours is called, says and is told apart by: written once, and read twice.

Programs make their metrics from these, and the reference page lists them, so neither can differ from the other. Every
label is in one vocabulary, so that card, slice, pod and service join by the same words everywhere. Refuses a label that
is not in it: one whose values whoever sends a request can choose would fill Prometheus.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily


class Kind(enum.Enum):
    """Types of Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Label:
    """What a label's values are, and how many there may be at most."""

    meaning: str
    most: str


LABELS = {
    "uuid": Label("card, or MIG instance, as the driver names it", "cards of the node, or 7 instances of each"),
    "node": Label("node, as Kubernetes names it", "1 per agent"),
    "namespace": Label("of the pod", "namespaces with such pods"),
    "pod": Label("pod that holds the slice, or serves the service", "slots of the node; replicas of the service"),
    "container": Label("container that holds the slice", "slots of the node"),
    "service": Label("service, as the gateway's settings or annotations name it", "services of the gateway"),
    "replica": Label("address of a replica", "replicas of the service, those that drain among them"),
    "model": Label("card's model", "1 per card"),
    "model_name": Label("model of the emulated engine", "1 per engine"),
    "index": Label("card's number on its node", "1 per card"),
    "mode": Label("isolation mode of the card", "modes of isolation"),
    "xid": Label("number of the driver's error", "Xids that the driver reported"),
    "call": Label("call of the kubelet", "calls of its device plugin API"),
    "kind": Label("kind of alarm", "kinds of agent/isolating.py"),
    "step": Label("step of a procedure", "the procedure's steps"),
    "verb": Label("what was asked of the scheduler", "doors of its server"),
    "result": Label("how it ended", "bound, refused"),
    "reason": Label("why not: a code of the pages of reasons or answers, or a condition's reason", "their codes"),
    "status": Label("HTTP status of an answer", "statuses that replicas answer with"),
    "failure": Label("how a try failed", "failures of core/queue/retry.py, and shape"),
    "why": Label("what decided", "values of one enumeration"),
    "because": Label("why a pod stays", "values of one enumeration"),
    "state": Label("how a wish stands", "values of one enumeration"),
    "outcome": Label("how a write ended", "applied, conflict, failed"),
    "policy": Label("ServicePolicy", "ServicePolicies"),
}
"""The vocabulary."""
_UNITS = {
    "_mib": "MiB",
    "_percent": "%",
    "_celsius": "°C",
    "_watts": "W",
    "_mhz": "MHz",
    "_kib_per_second": "KiB/s",
    "_seconds": "s",
    "_cards": "cards",
}


@dataclass(frozen=True, slots=True)
class Series:
    """One family of series.

    name: as queries write it, a counter's with ``_total``. only: when it is not there always.
    """

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()
    only: str = ""

    def __post_init__(self) -> None:
        """Raises ValueError if the name or a label is not as ours are."""
        if unknown := [label for label in self.labels if label not in LABELS]:
            raise ValueError(f"{self.name}: {', '.join(unknown)}: not in LABELS; add it with how many there are")
        if (self.kind is Kind.COUNTER) != self.name.endswith("_total"):
            raise ValueError(f"{self.name}: a counter's name ends in _total, and no other's does")

    @property
    def unit(self) -> str:
        """By the name; "" for a count or a state."""
        return next((unit for end, unit in _UNITS.items() if self.name.removesuffix("_total").endswith(end)), "")

    def counts(self) -> CounterMetricFamily:
        """A family to be filled when Prometheus asks."""
        self._must_be(Kind.COUNTER)
        return CounterMetricFamily(self.name, self.meaning, labels=self.labels)

    def values(self) -> GaugeMetricFamily:
        """The same of a gauge."""
        self._must_be(Kind.GAUGE)
        return GaugeMetricFamily(self.name, self.meaning, labels=self.labels)

    def buckets(self) -> HistogramMetricFamily:
        """The same of a histogram."""
        self._must_be(Kind.HISTOGRAM)
        return HistogramMetricFamily(self.name, self.meaning, labels=self.labels)

    def counter(self, registry: CollectorRegistry) -> Counter:
        """A counter that keeps its own count."""
        self._must_be(Kind.COUNTER)
        return Counter(self.name, self.meaning, self.labels, registry=registry)

    def gauge(self, registry: CollectorRegistry) -> Gauge:
        """The same of a gauge."""
        self._must_be(Kind.GAUGE)
        return Gauge(self.name, self.meaning, self.labels, registry=registry)

    def histogram(self, registry: CollectorRegistry, bounds: Sequence[float]) -> Histogram:
        """The same of a histogram."""
        self._must_be(Kind.HISTOGRAM)
        return Histogram(self.name, self.meaning, self.labels, buckets=bounds, registry=registry)

    def _must_be(self, kind: Kind) -> None:
        if self.kind is not kind:
            raise ValueError(f"{self.name} is a {self.kind.value}, not a {kind.value}")


def counter(name: str, meaning: str, *labels: str, only: str = "") -> Series:
    """A counter of ours; ``_total`` is added."""
    return Series(f"{name}_total", Kind.COUNTER, meaning, labels, only)


def gauge(name: str, meaning: str, *labels: str, only: str = "") -> Series:
    """A gauge of ours."""
    return Series(name, Kind.GAUGE, meaning, labels, only)


def histogram(name: str, meaning: str, *labels: str, only: str = "") -> Series:
    """A histogram of ours; queries write ``_bucket``, ``_sum`` and ``_count`` after its name."""
    return Series(name, Kind.HISTOGRAM, meaning, labels, only)
