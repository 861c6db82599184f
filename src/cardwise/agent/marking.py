"""How full each card is, several times a second: its level, who uses what of it, and what may be lent of it.

Samples come from workers of their own (``cards.py``), which read nothing but memory. A card whose driver does not
answer lends nothing. Cards with MIG on are left out: an instance is one pod's, and nobody else can run out of its
memory. Refuses to act on a card that is full: ``reclaiming.py`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from cardwise.adapters.cgroup import home_of
from cardwise.adapters.journal import Journal, Row, Standing
from cardwise.adapters.kube_objects import LocalPod
from cardwise.adapters.nvml.driver import Driver
from cardwise.agent.cards import Cards, CardState
from cardwise.agent.inventory import Inventory, restart_s, standing_of
from cardwise.agent.watching import NodePods
from cardwise.core.card.facts import CardFacts, CardSample, ProcessUse
from cardwise.core.card.lend import Borrower, lendable_mib
from cardwise.core.card.watermark import Level, MarkPolicy, Reading, Watermark

log = structlog.get_logger()

RAISE_EVERY_S = 60.0
"""What may be lent of a card is raised no more often than this, for each time the node is written; it falls at once."""
_NOTHING = Standing(best_effort=False)


@dataclass(slots=True)
class MemorySampler:
    """What a card's worker asks of the driver here. wanted: cards whose processes are asked for, replaced whole."""

    driver: Driver
    wanted: frozenset[str] = frozenset()

    def sample(self, uuid: str) -> CardSample:
        """See :meth:`Driver.memory`."""
        return self.driver.memory(uuid, processes=uuid in self.wanted)


@dataclass(frozen=True, slots=True)
class PodUse:
    """A pod with a slice of a card.

    used_mib: measured, or all that it was given where the driver does not tell; 0 on cards without best-effort pods,
    where it is not asked for.
    physical_mib, lent_mib: what it was given of the card, and beyond it. pids: its processes on the card.
    """

    uid: str
    name: str
    standing: Standing
    restart_s: float
    used_mib: int
    physical_mib: int
    lent_mib: int
    pids: tuple[int, ...]

    @property
    def gives_back(self) -> bool:
        """Whether it may have to go: lent memory is taken back whatever the pod's annotations say by now."""
        return self.standing.best_effort or self.lent_mib > 0


@dataclass(frozen=True, slots=True)
class CardUse:
    """A card at one sample. pods: told while it has best-effort ones, or is nearly full."""

    uuid: str
    used_mib: int
    total_mib: int
    reading: Reading
    pods: tuple[PodUse, ...]


@dataclass(slots=True)
class Marking:
    """uses: the last sample of each card that can be read. lends: False, and nothing is lent whatever is measured."""

    cards: Cards
    sampler: MemorySampler
    inventory: Inventory
    journal: Journal
    pods: NodePods
    proc: Path
    now_s: Callable[[], float]
    policy: MarkPolicy = field(default_factory=MarkPolicy)
    lends: bool = True
    uses: dict[str, CardUse] = field(default_factory=dict)
    _marks: dict[str, Watermark] = field(default_factory=dict)
    _seen: dict[str, CardSample] = field(default_factory=dict)
    _at_s: dict[str, float] = field(default_factory=dict)
    _homes: dict[str, dict[int, str]] = field(default_factory=dict)
    _standings: dict[str, tuple[LocalPod, Standing]] = field(default_factory=dict)
    _offered: dict[str, tuple[float, int]] = field(default_factory=dict)

    def look(self) -> list[CardUse]:
        """Take over what was sampled since the last call."""
        self.want()
        states, news = self.cards.states(), list[CardUse]()
        for card in self.inventory.facts.cards:
            state = states.get(card.uuid)
            if state is None or card.mig or (use := self._use(card, state)) is None:
                self._lose(card.uuid)
            elif use is not self.uses.get(card.uuid):
                self.uses[card.uuid] = use
                news.append(use)
            self._offer(card.uuid)
        return news

    def want(self) -> None:
        """Have processes told of the cards with a best-effort pod: elsewhere nobody has to know who uses what."""
        cards = {
            grant.uuid
            for row in self.journal.rows
            for grant in row.grants
            if grant.lent_mib or self._standing(self.pods.by_uid.get(row.uid), row).best_effort
        }
        if cards != self.sampler.wanted:
            self.sampler.wanted = frozenset(cards)

    def lendable(self) -> Mapping[str, int]:
        """MiB that may be lent beyond each card now; a card that lends nothing is not in it."""
        return {uuid: mib for uuid, (_, mib) in self._offered.items() if mib}

    # ---------------------------------------------------------------- one card

    def _use(self, card: CardFacts, state: CardState) -> CardUse | None:
        """The card as it is; the one from before if there is no newer sample; None if it cannot be read."""
        sample, age_s = state.sample, state.age_s
        if state.problem is not None or sample is None or age_s is None or sample.memory_used_mib is None:
            return None
        if sample is self._seen.get(card.uuid):
            return self.uses.get(card.uuid) if age_s <= self.policy.gap_s else None
        self._seen[card.uuid] = sample
        total_mib = card.allocatable_mib
        mark = self._marks.setdefault(card.uuid, Watermark(self.policy))
        at_s = max(self.now_s() - age_s, self._at_s.get(card.uuid, 0.0))  # what took long here must not turn time back
        self._at_s[card.uuid] = at_s
        reading = mark.observe(at_s, sample.memory_used_mib, total_mib)
        matters = card.uuid in self.sampler.wanted or reading.level is Level.RECLAIM
        pods = self._pods(card.uuid, sample) if matters else ()
        return CardUse(card.uuid, sample.memory_used_mib, total_mib, reading, pods)

    def _lose(self, uuid: str) -> None:
        self.uses.pop(uuid, None)
        if uuid in self._marks:
            self._marks[uuid].missed()

    def _offer(self, uuid: str) -> None:
        """Bring what may be lent of a card up to date."""
        at_s, before = self._offered.get(uuid, (float("-inf"), 0))
        mib = self._lendable(uuid)
        if mib < before or (mib > before and self.now_s() - at_s >= RAISE_EVERY_S):
            self._offered[uuid] = (self.now_s(), mib)
            log.info("what may be lent has changed", card=uuid, mib=mib, before_mib=before, why=self._why(uuid))

    def _lendable(self, uuid: str) -> int:
        use = self.uses.get(uuid)
        if use is None or not self.lends or use.reading.level is not Level.CALM:
            return 0
        borrowers = [Borrower(pod.used_mib, pod.physical_mib) for pod in use.pods if pod.lent_mib]
        return lendable_mib(use.reading.lent_share, use.used_mib, use.total_mib, self.policy.low_share, borrowers)

    def _why(self, uuid: str) -> str:
        use = self.uses.get(uuid)
        return "the card cannot be read" if use is None else f"{use.reading.level.value}: {use.used_mib} MiB are used"

    # ---------------------------------------------------------------- who uses what of it

    def _pods(self, uuid: str, sample: CardSample) -> tuple[PodUse, ...]:
        rows: dict[str, list[Row]] = {}
        for row in self.journal.rows:
            if any(grant.uuid == uuid for grant in row.grants):
                rows.setdefault(row.uid, []).append(row)
        processes = self._by_pod(uuid, sample.processes or ()) if rows else {}
        told = sample.processes is not None
        return tuple(self._pod(uuid, theirs, processes.get(uid, []), told=told) for uid, theirs in rows.items())

    def _pod(self, uuid: str, rows: list[Row], processes: list[ProcessUse], *, told: bool) -> PodUse:
        grants = [grant for row in rows for grant in row.grants if grant.uuid == uuid]
        given_mib, lent_mib = sum(each.memory_mib for each in grants), sum(each.lent_mib for each in grants)
        amounts = [each.memory_mib for each in processes]
        used_mib = sum(amount or 0 for amount in amounts) if told and None not in amounts else given_mib
        first, pod = rows[0], self.pods.by_uid.get(rows[0].uid)
        return PodUse(
            first.uid,
            f"{first.namespace}/{first.pod}",
            self._standing(pod, first),
            0.0 if pod is None else restart_s(pod),
            used_mib,
            given_mib - lent_mib,
            lent_mib,
            tuple(each.pid for each in processes),
        )

    def _standing(self, pod: LocalPod | None, row: Row) -> Standing:
        """As the cluster says now, else as it said when the pod started; nobody is best-effort by default."""
        if pod is None:
            self._standings.pop(row.uid, None)
            return row.standing or _NOTHING
        known = self._standings.get(row.uid)
        if known is None or known[0] is not pod:  # news is another object
            known = self._standings[row.uid] = (pod, standing_of(pod))
        return known[1]

    def _by_pod(self, uuid: str, processes: Iterable[ProcessUse]) -> dict[str, list[ProcessUse]]:
        before, homes = self._homes.get(uuid, {}), dict[int, str]()
        found: dict[str, list[ProcessUse]] = {}
        for each in processes:
            uid = before.get(each.pid) or self._home(each.pid)
            if uid:
                homes[each.pid] = uid
                found.setdefault(uid, []).append(each)
        self._homes[uuid] = homes
        return found

    def _home(self, pid: int) -> str:
        home = home_of(pid, self.proc)
        return "" if home is None else home.pod_uid
