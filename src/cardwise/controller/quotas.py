"""Kueue's queues as the quota file says, at every hour: what holds now is read from the schedule and from the objects.

Every half minute the file is read, the window that holds is computed, and what differs in the cluster is applied. So a
restart, a missed hour and a hand that deleted a queue all end in the same way. Nothing is remembered but what was told.
Refuses to take fields over that others own, and to delete: both are for `cardwise quota apply`, which a person runs.

Lower limits evict nobody: what is over them counts as borrowed, and goes when its owner's pods want it back.
Source: SPEC C2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from cardwise.adapters.kube.events import event, post
from cardwise.adapters.kube.port import ClusterPort, Requests
from cardwise.adapters.kueue import GROUP_VERSION, Kueue, called, differs, is_ours, objects
from cardwise.adapters.quota_file import QuotaFile, read_quota_file
from cardwise.controller import metrics
from cardwise.controller.turns import take_turns
from cardwise.core.fleet.windows import holds_at
from cardwise.errors import CardwiseError, ClusterError, ConflictError, UserError
from cardwise.said import Said

log = structlog.get_logger()

PERIOD_S = 30.0
AGAIN_S = 3600.0
"""A refusal that stays is told again after so long."""
COMPONENT = "cardwise-quota"
MOST_LINES = 5
"""Fields that an event names; the log has all."""
OUTCOMES = ("applied", "conflict", "failed")
_NO_WINDOW = "no window"
_WHAT_TO_DO = "; `cardwise quota diff` shows it, `cardwise quota apply --force` takes it over"


@dataclass(slots=True)
class Quotas:
    """The loop. api: the API server for Kueue's objects; port: for events. now: an instant with a zone.

    leads: whether this replica works. now_s: the feed's clock, for how often something is told.
    """

    api: Requests
    port: ClusterPort
    file: Path
    now: Callable[[], datetime]
    now_s: Callable[[], float]
    leads: Callable[[], bool]
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    writes: Counter = field(init=False)
    unreadable: Gauge = field(init=False)
    window: Gauge = field(init=False)
    _told: Said = field(init=False)

    def __post_init__(self) -> None:
        """Register what is told to Prometheus, and remember what is said."""
        self._told = Said(self.now_s, AGAIN_S)
        self.writes = metrics.QUOTA_WRITES.counter(self.registry)
        for outcome in OUTCOMES:
            self.writes.labels(outcome)
        self.unreadable = metrics.QUOTA_UNREADABLE.gauge(self.registry)
        self.window = metrics.QUOTA_WINDOW.gauge(self.registry)

    async def run(self) -> None:
        """Look every half minute, until cancelled."""
        said = "the queues could not be kept, they are with the next turn"
        await take_turns(self.turn, self.leads, PERIOD_S, said)

    async def turn(self) -> None:
        """Make what holds now true; what fails is told, and tried again next time."""
        try:
            told = read_quota_file(self.file)
        except UserError as exc:
            self.unreadable.set(1)
            self._log("file", "the quota file cannot be used; the queues stay as they are", str(exc))
            return
        self.unreadable.set(0)
        held = holds_at(told.schedule, self.now())
        self.window.set(-1 if held is None else held)
        try:
            await self._apply(told, held)
        except CardwiseError as exc:
            self._log("cluster", "the queues could not be read", str(exc))

    async def _apply(self, told: QuotaFile, held: int | None) -> None:
        kueue = Kueue(self.api)
        known = {(each["kind"], called(each)): each for each in await kueue.ours(told.cohort)}
        why = told.windows[held].name if held is not None else _NO_WINDOW
        for wanted in objects(told, held):
            found = known.get((wanted["kind"], called(wanted)))
            lines = differs(found, wanted)
            if lines:
                await self._write(kueue, wanted, found, lines, why)
            else:
                self._told.forget(_key(wanted))

    async def _write(
        self, kueue: Kueue, wanted: dict[str, Any], found: dict[str, Any] | None, lines: list[str], why: str
    ) -> None:
        """One object. Who else owns one of its fields, or made it, keeps it."""
        if not self.leads():
            return
        what = f"{wanted['kind']} {called(wanted)}"
        try:
            if found is None and await self._is_anothers(kueue, wanted):
                await self._refused(wanted, "conflict", f"{what} is there, and cardwise did not make it{_WHAT_TO_DO}")
                return
            after = await kueue.apply(wanted)
        except ConflictError as exc:
            await self._refused(wanted, "conflict", f"{exc}{_WHAT_TO_DO}")
            return
        except ClusterError as exc:
            await self._refused(wanted, "failed", str(exc))
            return
        self.writes.labels("applied").inc()
        self._told.forget(_key(wanted))
        log.info("a queue was changed", object=what, window=why, created=found is None, changes=lines)
        text = f"{why}: {'created' if found is None else '; '.join(_named(lines))}"
        await self._post(after, "QuotaApplied", text, warning=False)

    async def _is_anothers(self, kueue: Kueue, wanted: dict[str, Any]) -> bool:
        other = await kueue.find(wanted)
        return other is not None and not is_ours(other)

    async def _refused(self, wanted: dict[str, Any], outcome: str, text: str) -> None:
        self.writes.labels(outcome).inc()
        if self._log(_key(wanted), "a queue could not be changed", text):
            await self._post(wanted, "QuotaRefused", text, warning=True)

    def _log(self, key: str, what: str, why: str) -> bool:
        """Whether this is told now: when it is new, and once an hour."""
        if not self._told.is_news(key, why):
            return False
        log.warning(what, object=key, why=why)
        return True

    async def _post(self, raw: dict[str, Any], reason: str, text: str, *, warning: bool) -> None:
        metadata = raw["metadata"]
        about = {"kind": raw["kind"], "name": metadata["name"], "apiVersion": GROUP_VERSION}
        about |= {key: metadata[key] for key in ("namespace", "uid") if metadata.get(key)}
        namespace = metadata.get("namespace") or "default"
        await post(self.port, event(about, reason, text, component=COMPONENT, namespace=namespace, warning=warning))


def _key(raw: dict[str, Any]) -> str:
    return f"{raw['kind']} {called(raw)}"


def _named(lines: list[str]) -> list[str]:
    more = len(lines) - MOST_LINES
    return [*lines[:MOST_LINES], *([f"and {more} more"] if more > 0 else [])]
