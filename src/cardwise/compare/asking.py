"""From Prometheus' history to a window: what is asked, and how it is put together.

Every query is over ranges that lie end to end, each a part of the window, so that parts share no sample; counters are
read by ``increase``, for they begin anew with their process. Refuses windows too short for parts of four samples. Our
names are written out, so that queries can be copied from here. Sources: docs/reference/generated/metrics.md of this
project; kube-state-metrics docs/metrics/workload/pod-metrics.md for restarts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

import numpy as np

from cardwise.adapters.prometheus import Prometheus, Series
from cardwise.compare.window import Parts, Service, Window, parts_of
from cardwise.core.arrays import FloatArray
from cardwise.core.comparison.bootstrap import FEWEST_BLOCKS
from cardwise.errors import ClusterError, UserError

MOST_PARTS = 32
FEWEST_SAMPLES = 4
"""Of each series in a part: ``increase`` needs two, and a scrape may fail."""

_LATENCY = "cardwise_gateway_latency_seconds"
_REQUESTS = "cardwise_gateway_requests_total"
_HUNG_UP = "cardwise_gateway_hung_up_total"
_GRANTED = "cardwise_slice_memory_granted_mib"
_RESTARTS = "kube_pod_container_status_restarts_total"
_ALLOCATABLE = "max by (uuid) (cardwise_card_memory_allocatable_mib)"
_CARD = "node, index, model"
_Counts = Callable[[str], bool]
"""Whether a status is of these."""


async def ask(
    prometheus: Prometheus, source: str, span: tuple[datetime, datetime], chosen: Sequence[str], alerts: str
) -> Window:
    """A window. chosen: services, or none for all. alerts: a regular expression of the names that count.

    Raises ClusterError if Prometheus cannot be asked, UserError if it knows no gateway then or the window is too short.
    """
    asking = _Asking(prometheus, span, chosen)
    scrape_s = await asking.scrape_s(source)
    asking.cut(scrape_s)
    bounds_s, services = await asking.services()
    return Window(
        source=source,
        begin=span[0],
        end=span[1],
        step_s=asking.step_s,
        scrape_s=scrape_s,
        chosen=list(chosen),
        bounds_s=bounds_s,
        services=services,
        cards=await asking.cards(),
        memory_granted_mib=parts_of(await asking.total(f"sum({asking.granted()})")),
        busy_cards=parts_of(await asking.total(f"sum({asking.busy()}) / 100")),
        cards_with_slices=parts_of(await asking.total(f"count({asking.busy()})")),
        events=await asking.events(),
        alerts=await asking.alerts(alerts),
        warnings=sorted(asking.warnings),
    )


class _Asking:
    """One window's questions."""

    def __init__(self, prometheus: Prometheus, span: tuple[datetime, datetime], chosen: Sequence[str]) -> None:
        self.prometheus, self.span = prometheus, span
        self.length_s = (span[1] - span[0]).total_seconds()
        self.parts, self.step_s = 0, 0.0
        self.is_chosen = bool(chosen)
        self.chosen = "|".join(re.escape(each) for each in chosen)
        self.select = f"{{service=~{_quoted(self.chosen)}}}" if chosen else ""
        self.warnings: set[str] = set()

    async def scrape_s(self, source: str) -> float:
        """Between two samples of the gateway. Of halves of the window, for a gateway may be replaced within it."""
        half_s = self.length_s / 2
        query = f"max(count_over_time(cardwise_gateway_queue_depth{self.select}[{_duration(half_s)}]))"
        past = self.span[1] + timedelta(seconds=half_s / 4)  # as in :meth:`range`
        found = await self._asked(query, self.span[0] + timedelta(seconds=half_s), past, half_s / 2)
        counts = np.array([each.values for each in found])
        if not np.nansum(counts) > 0:
            whose = f" of {self.select}" if self.select else ""
            raise UserError(
                f"{source} knows no cardwise_gateway_ series{whose} from {self.span[0]:%Y-%m-%dT%H:%M:%SZ} to "
                f"{self.span[1]:%Y-%m-%dT%H:%M:%SZ}; give a window in which it scraped the gateway"
            )
        return half_s / float(np.nanmax(counts))

    def cut(self, scrape_s: float) -> None:
        """Decide how many parts there are."""
        self.parts = min(MOST_PARTS, int(self.length_s / (FEWEST_SAMPLES * scrape_s) + 0.01))
        if self.parts < FEWEST_BLOCKS:
            least_s = FEWEST_BLOCKS * FEWEST_SAMPLES * scrape_s
            raise UserError(
                f"{self.length_s:g} s are too short a window: the gateway has a sample every {scrape_s:.3g} s, "
                f"and {FEWEST_BLOCKS} parts of {FEWEST_SAMPLES} samples are the least; give {least_s:.0f} s or more"
            )
        self.step_s = self.length_s / self.parts
        self.step_s -= self.step_s % (1.0 if self.step_s >= 10 else 0.01)  # as PromQL and the API write it exactly

    # ---------------------------------------------------------------- services

    async def services(self) -> tuple[list[float], dict[str, Service]]:
        """Bounds of the buckets, and what callers saw."""
        buckets = await self.range(f"sum by (service, le) (increase({_LATENCY}_bucket{self.select}[{self.step}]))")
        sums = _by(
            await self.range(f"sum by (service) (increase({_LATENCY}_sum{self.select}[{self.step}]))"), "service"
        )
        answers = await self.range(f"sum by (service, status) (increase({_REQUESTS}{self.select}[{self.step}]))")
        left = _by(await self.range(f"sum by (service) (increase({_HUNG_UP}{self.select}[{self.step}]))"), "service")
        bounds_s = sorted({bound for each in buckets if math.isfinite(bound := _bound(each))})
        if not bounds_s:
            raise ClusterError(f"{_LATENCY}_bucket has no buckets: the gateway's histogram is needed", retry=False)
        of_buckets, of_answers = _by_service(buckets), _by_service(answers)
        return bounds_s, {
            name: self._service(
                bounds_s,
                of_buckets.get(name, []),
                sums.get(name, self.nothing),
                of_answers.get(name, []),
                left.get(name, self.nothing),
            )
            for name in sorted(of_buckets.keys() | of_answers.keys())
        }

    def _service(
        self,
        bounds_s: Sequence[float],
        buckets: Sequence[Series],
        sums: FloatArray,
        answers: Sequence[Series],
        left: FloatArray,
    ) -> Service:
        by_bound = {_bound(each): each.values for each in buckets}
        cumulated = np.array([by_bound.get(bound, self.nothing) for bound in (*bounds_s, float("inf"))]).T
        counts = np.maximum(np.diff(cumulated, axis=1, prepend=0.0), 0.0)
        by_status = {each.labels.get("status", ""): each.values for each in answers}
        return Service(
            latency_counts=[row.tolist() if np.isfinite(row).all() else None for row in counts],
            latency_sum_s=parts_of(sums),
            answers=self._answers(by_status, lambda _status: True),
            good=self._answers(by_status, lambda status: status[:1] in {"2", "3"}),
            refused=self._answers(by_status, lambda status: status in {"429", "503"}),
            failed=self._answers(by_status, lambda status: status[:1] == "5" and status != "503"),
            hung_up=parts_of(left),
        )

    def _answers(self, by_status: Mapping[str, FloatArray], counts: _Counts) -> Parts:
        """Their sum: a status that is not told of was not answered, but of a part without any nothing is known."""
        known = np.array([np.isfinite(each) for each in by_status.values()])
        told = np.array([np.nan_to_num(each) for status, each in by_status.items() if counts(status)])
        total = told.sum(axis=0) if len(told) else np.zeros(self.parts)
        return parts_of(np.where(known.any(axis=0) if len(known) else False, total, np.nan))

    # ---------------------------------------------------------------- cards

    async def cards(self) -> dict[str, Parts]:
        """By model. A MIG instance counts as its card, but is a share of it where services were chosen."""
        if self.is_chosen:
            memory = f"{self.granted()} / on (uuid) group_left () {_ALLOCATABLE}"
            compute = self.granted(series="cardwise_slice_compute_granted_percent")
            share = f"(({memory}) >= ({compute} / 100)) or ({compute} / 100)"
            model = "group_left (model) max by (uuid, model) (cardwise_card_info)"
            query = f"sum by (model) (({share}) * on (uuid) {model})"
        else:
            held = f"cardwise_card_info and on (uuid) {_GRANTED}"
            query = f"count by (model) (max by ({_CARD}) ({held}))"
        found = _by(await self.range(query), "model")
        return {model: parts_of(values) for model, values in sorted(found.items())}

    def granted(self, by: str = "uuid, namespace, pod, container", series: str = _GRANTED) -> str:
        """What slices were granted."""
        return f"max by ({by}) ({series}{self._of_pods()})"

    def busy(self) -> str:
        """How busy each card with such slices is, in percent."""
        held = f"avg_over_time(cardwise_card_utilization_percent[{self.step}]) and on (uuid) ({self.granted('uuid')})"
        return f"max by (uuid) ({held})"

    def _of_pods(self) -> str:
        if not self.is_chosen:
            return ""
        return f" and on (namespace, pod) cardwise_gateway_replica_info{self.select}"

    # ---------------------------------------------------------------- events

    async def events(self) -> dict[str, Parts]:
        """Restarts of containers of such pods, and times that no node took a pod."""
        pods = f"max_over_time(cardwise_gateway_replica_info{self.select}[{self.step}])"
        if not self.is_chosen:
            pods = f"({pods} or max_over_time({_GRANTED}[{self.step}]))"
        there = f"0 * sum(max_over_time(cardwise_scheduler_leader[{self.step}]))"
        queries = {
            "restarts": f"sum(increase({_RESTARTS}[{self.step}]) and on (namespace, pod) {pods})",
            "failed-scheduling": f"sum(increase(cardwise_scheduler_refusals_total[{self.step}])) or ({there})",
        }
        found = {name: await self.total(query) for name, query in queries.items()}
        return {name: parts_of(values) for name, values in found.items() if np.isfinite(values).any()}

    async def alerts(self, names: str) -> list[str] | None:
        """Names of those that fired, and of which service. Of services that were not chosen they are left out."""
        of_chosen = f", service=~{_quoted(f'|{self.chosen}')}" if self.is_chosen else ""
        told = f"ALERTS{{alertname=~{_quoted(names)}{of_chosen}}}"
        found = await self.range(f"count by (alertname, alertstate, service) (count_over_time({told}[{self.step}]))")
        if not found:
            return None
        return sorted({_alert(each) for each in found if each.labels.get("alertstate") == "firing"})

    # ---------------------------------------------------------------- asking

    @property
    def step(self) -> str:
        """A part's length, as PromQL writes it."""
        return _duration(self.step_s)

    @property
    def nothing(self) -> FloatArray:
        """Of no part anything is known."""
        return np.full(self.parts, np.nan)

    async def total(self, query: str) -> FloatArray:
        """The one series of a query, float64 [parts]."""
        found = await self.range(query)
        if len(found) > 1:
            raise ClusterError(f"{query}: {len(found)} series where one was asked for", retry=False)
        return found[0].values if found else self.nothing

    async def range(self, query: str) -> list[Series]:
        """A value per part, at its end; the last part ends with the window."""
        first = self.span[1] - timedelta(seconds=self.step_s * (self.parts - 1))
        past = self.span[1] + timedelta(seconds=self.step_s / 2)  # so that no rounding takes the last one away
        return await self._asked(query, first, past, self.step_s)

    async def _asked(self, query: str, begin: datetime, end: datetime, step_s: float) -> list[Series]:
        try:
            found = await self.prometheus.range(query, begin, end, step_s)
        except ClusterError as error:
            raise ClusterError(f"{error}{_advice(str(error))}", retry=error.retry) from error
        for each in found:
            self.warnings.update(each.warnings)
        return found


def _duration(seconds: float) -> str:
    """As PromQL writes it."""
    return f"{round(1000 * seconds)}ms"


def _quoted(text: str) -> str:
    """The same of a string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _advice(told: str) -> str:
    """What else to ask for, where the question was too large. Source: Prometheus, promql/engine.go, its errors."""
    is_too_large = any(each in told for each in ("too many samples", "timed out", "no answer in", "more than"))
    return "; ask for shorter windows, or for some services by --service" if is_too_large else ""


def _bound(series: Series) -> float:
    """Of a bucket; not a number if it has none."""
    try:
        return float(series.labels.get("le", "nan"))
    except ValueError:
        return math.nan


def _alert(series: Series) -> str:
    name, service = series.labels.get("alertname", ""), series.labels.get("service", "")
    return f"{name} of {service}" if service else name


def _by_service(found: Sequence[Series]) -> dict[str, list[Series]]:
    made: dict[str, list[Series]] = {}
    for each in found:
        made.setdefault(each.labels.get("service", ""), []).append(each)
    return made


def _by(found: Sequence[Series], label: str) -> dict[str, FloatArray]:
    return {each.labels.get(label, ""): each.values for each in found}
