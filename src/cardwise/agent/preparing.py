"""One start of a container: whose slots, what was allocated, do the books allow it, limits in force, files written.

1. the owner, from the kubelet; 2. its pod's allocation; 3. the check against cards and what others hold; 4. a row in
the journal, before anything is waited for: two starts at once see each other; 5. limits, proven; 6. the slots' CDI
files; 7. the row says ready. Refuses the container at the first doubt, and leaves nothing of a refused one behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol
from weakref import WeakValueDictionary

import structlog

from cardwise.adapters.allocations import bound_pod
from cardwise.adapters.cdi import Edits, SlotFiles, Toolkit
from cardwise.adapters.journal import Journal, Row, State
from cardwise.adapters.kubelet.device_plugin import RefusedError
from cardwise.agent.inventory import Inventory, standing_of
from cardwise.agent.owners import Owner, Owners
from cardwise.agent.telling import Teller
from cardwise.agent.watching import NodePods, holds_with
from cardwise.core.allocation import BoundPod
from cardwise.core.card.facts import Unit
from cardwise.core.card.handover import Demands, Grant, Mismatch, Refusal, Start, hand_over
from cardwise.errors import CardwiseError, ClusterError
from cardwise.said import MOST_REMEMBERED, Said

log = structlog.get_logger()

ENV_CARDS, ENV_MEMORY, ENV_CORES = "CARDWISE_CARDS", "CARDWISE_MEMORY_MIB", "CARDWISE_CORES_PCT"
"""In a container: its cards' UUIDs, MiB and percent of each, comma-separated, in one order."""
LONGEST_BUG = 300
"""Characters of an error that nobody expected, in a pod's event."""


class Limits(Protocol):
    """What holds a container to its share."""

    async def enforce(self, owner: Owner, grants: Sequence[Grant]) -> Edits:
        """Put limits in force and prove them; what the container needs for that. Raises CardwiseError."""
        ...

    async def lift(self, row: Row) -> None:
        """Take back what was put in force. Raises CardwiseError."""
        ...


def _nobody(_uid: str) -> str:
    return ""


@dataclass(slots=True)
class Preparing:
    """All that one start needs. toolkit: reads what the container toolkit says, afresh each time.

    unknown: why the journal may lack containers that run; until that is empty, only what ran before may start.
    reclaimed: why a pod, by its UID, had to give its card's memory back; empty if it had not.
    """

    node: str
    owners: Owners
    pods: NodePods
    inventory: Inventory
    journal: Journal
    files: SlotFiles
    limits: Limits
    toolkit: Callable[[], Toolkit]
    teller: Teller
    mismatches: dict[Mismatch, int] = field(default_factory=dict)
    unknown: str = ""
    reclaimed: Callable[[str], str] = _nobody
    _locks: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    _said: Said = field(default_factory=lambda: Said(most=MOST_REMEMBERED))

    async def prepare(self, slots: Sequence[str]) -> None:
        """Make a container's slots ready. Raises RefusedError with the reason, or another CardwiseError."""
        with _bugs_told():
            wanted = self._touched(slots, None)
            while True:
                async with self._alone(wanted):
                    owner = await self.owners.find(slots, self._with(slots))
                    touched = self._touched(slots, owner)
                    if touched <= wanted:
                        await self._prepare_and_tell(owner, slots)
                        return
                wanted |= touched  # its row has other slots, which others may be about to start with

    async def _prepare_and_tell(self, owner: Owner, slots: Sequence[str]) -> None:
        try:
            with _bugs_told(pod=owner.pod.name, container=owner.container):
                await self._prepare(owner, slots)
        except CardwiseError as error:
            if self._said.is_news((owner.pod.metadata.uid, owner.container), str(error)):
                log.warning("a container may not start", pod=owner.pod.name, container=owner.container, why=str(error))
            self.teller.refused(owner, str(error))
            raise

    def _touched(self, slots: Iterable[str], owner: Owner | None) -> set[str]:
        """Slots that a start has to do with: its own, and those of rows that it displaces or writes anew."""
        mine = None if owner is None else self.journal.get(owner.pod.metadata.uid, owner.container)
        rows = [*self._with(slots), *([] if mine is None else [mine])]
        return {*slots, *(slot for row in rows for slot in row.slots)}

    async def remove(self, row: Row) -> None:
        """Take back all that a container was given. Raises CardwiseError; its row then stays, to be tried again."""
        async with self._alone(row.slots):
            if self.journal.get(row.uid, row.container) is row:  # else its slots have changed hands meanwhile
                await self._take_back(row)

    @asynccontextmanager
    async def _alone(self, slots: Iterable[str]) -> AsyncIterator[None]:
        """Nobody else works on these slots meanwhile. All take them in one order: no two wait for each other.

        A lock is there as long as somebody has it or waits for it.
        """
        locks = [self._locks.setdefault(slot, asyncio.Lock()) for slot in sorted(set(slots))]
        async with AsyncExitStack() as stack:
            for lock in locks:
                await stack.enter_async_context(lock)
            yield

    def _with(self, slots: Iterable[str]) -> list[Row]:
        wanted = set(slots)
        return [row for row in self.journal.rows if wanted & set(row.slots)]

    async def _prepare(self, owner: Owner, slots: Sequence[str]) -> None:
        bound = _bound(owner)
        unknown = await self._still_unknown(owner)
        before = self.journal.get(bound.claim.uid, owner.container)
        displaced = [row for row in self._with(slots) if row is not before]
        again = any(
            row.state is State.READY and row.uid == bound.claim.uid for row in (before, *displaced) if row is not None
        )
        if unknown and not again:
            raise RefusedError(f"cardwise: what runs on this node is not known yet: {unknown}; try again")
        for other in displaced:  # the kubelet took their slots back, so their container is gone
            log.info("slots change hands", pod=f"{other.namespace}/{other.pod}", slots=other.slots)
            await self._take_back(other)
        row = self._row(owner, bound, slots, again=again)
        if before is not None:
            await self._let_go(before, row.grants)
            if set(before.slots) != set(slots):  # should the start fail: these are its slots from now on
                before = replace(before, grants=row.grants)
        self.journal.put(row)
        try:
            edits = await self.limits.enforce(owner, row.grants)
            write_files(self.files, self.toolkit(), self.inventory.cards, row.grants, edits)
            self.journal.put(replace(row, state=State.READY))
        except BaseException:
            await self._undo(row, before)
            raise
        log.info("slots are ready", pod=owner.pod.name, container=owner.container, slots=row.slots)

    async def _let_go(self, row: Row, kept: Collection[Grant]) -> None:
        """Of a container that is given other slots, or other cards in them: files and limits that are its no more."""
        stay = {(grant.slot, grant.uuid) for grant in kept}
        gone = tuple(grant for grant in row.grants if (grant.slot, grant.uuid) not in stay)
        for grant in gone:
            self.files.remove(grant.slot)
        if gone:
            log.info("a container has other slots", pod=f"{row.namespace}/{row.pod}", left=[each.slot for each in gone])
            await self.limits.lift(replace(row, grants=gone))

    async def _take_back(self, row: Row) -> None:
        for slot in row.slots:
            self.files.remove(slot)
        await self.limits.lift(row)
        self.journal.drop(row)

    async def enter_what_runs(self, starting: Owner | None = None) -> None:
        """Once after a start: containers that the journal does not know. Raises ClusterError; then it is due still.

        starting: is no such one, its own start is under way.
        """
        if not self.unknown:
            return
        if not self.pods.synced:
            self.unknown = "the API server has not told the node's pods"
            return
        for owner, slots in await self.owners.running():
            known = self.journal.get(owner.pod.metadata.uid, owner.container) is not None
            if not known and not _same(owner, starting):
                self._adopt_or_tell(owner, sorted(slots))
        self.unknown = ""

    def _adopt_or_tell(self, owner: Owner, slots: list[str]) -> None:
        """A container that has slots and whose start this journal does not know: it may run, or wait for its start."""
        try:
            self.adopt(owner, slots)
        except CardwiseError as exc:
            if self._said.is_news((owner.pod.metadata.uid, owner.container), str(exc)):
                log.error("a container holds slots that it may not have", pod=owner.pod.name, why=str(exc))

    async def _still_unknown(self, owner: Owner) -> str:
        """Why the journal may lack containers that run, after another look: the kubelet may have come a moment ago."""
        try:
            await self.enter_what_runs(owner)
        except CardwiseError as exc:
            return str(exc)
        return self.unknown

    def adopt(self, owner: Owner, slots: Sequence[str]) -> None:
        """Enter a container that runs already and that the journal does not know. Raises RefusedError if it may not."""
        self.journal.put(replace(self._row(owner, _bound(owner), slots, again=True, runs=True), state=State.READY))

    def _row(self, owner: Owner, bound: BoundPod, slots: Sequence[str], *, again: bool, runs: bool = False) -> Row:
        """What would be handed over. Raises RefusedError if it may not be."""
        if not runs and (why := self.reclaimed(bound.claim.uid)):  # else what was ended would be back at once
            self._count(Mismatch.RECLAIMED)
            raise RefusedError(f"cardwise: container {owner.container}: {why}")
        start = Start(owner.container, slots, bound.allocation, again, runs, _demands(bound, owner.container))
        pod = [each for each in self.journal.rows if each.uid == bound.claim.uid]
        mine = holds_with(owner.pod, [each for each in pod if each.container != owner.container])
        others = self.pods.holds_of_others(self.journal, bound.claim.uid)
        grants = hand_over(start, self.node, self.inventory.offered(), mine, others)
        if isinstance(grants, Refusal):
            self._count(grants.code)
            raise RefusedError(f"cardwise: container {owner.container}: {grants.text}")
        meta = owner.pod.metadata
        standing = standing_of(owner.pod)
        return Row(meta.uid, meta.namespace, meta.name, owner.container, grants, mine, State.PREPARING, standing)

    def _count(self, code: Mismatch) -> None:
        self.mismatches[code] = self.mismatches.get(code, 0) + 1

    async def _undo(self, row: Row, before: Row | None) -> None:
        """A container that ran before keeps its row, for the slots are still its own; but no file lets it start."""
        try:
            if before is None:
                await self._take_back(row)
                return
            self.journal.put(before)
            for slot in row.slots:
                self.files.remove(slot)
        except CardwiseError as exc:  # why it may not start is what matters; the row stays, and is swept with its pod
            log.error("what a refused container got was not taken back", pod=row.pod, why=str(exc))


def _same(one: Owner, other: Owner | None) -> bool:
    return other is not None and (one.pod.metadata.uid, one.container) == (other.pod.metadata.uid, other.container)


def toolkit_names(unit: Unit, toolkit: Toolkit) -> tuple[str, ...]:
    """How the container toolkit may call a card, the surest first.

    It counts instances as the driver does, and the numbers move: they are tried only in a file that names none by UUID,
    for in one that does, an instance that is missing came later. Source: nvidia-ctk, --device-name-strategy.
    """
    index = unit.card.index
    if unit.instance is None:
        return unit.uuid, str(index), f"gpu{index}"
    if any(name.startswith("MIG-") for name in toolkit.devices):
        return (unit.uuid,)
    return unit.uuid, f"{index}:{unit.instance.number}", f"mig{index}:{unit.instance.number}"


def write_files(
    files: SlotFiles, toolkit: Toolkit, cards: Mapping[str, Unit], grants: Sequence[Grant], edits: Edits
) -> None:
    """A container's slot files: each has its card; the first also what all of them share. Raises ClusterError."""
    env = {
        ENV_CARDS: ",".join(grant.uuid for grant in grants),
        ENV_MEMORY: ",".join(str(grant.memory_mib) for grant in grants),
        ENV_CORES: ",".join(str(grant.compute_pct) for grant in grants),
        **edits.env,
    }
    for i, grant in enumerate(grants):
        card = cards[grant.uuid]
        names = toolkit_names(card, toolkit)
        part = toolkit.of_card(names)
        if part is None:
            known = ", ".join(sorted(toolkit.devices)) or "no card"
            raise ClusterError(
                f"the container toolkit's CDI file does not know card {' or '.join(names)}, only {known}; "
                "run nvidia-ctk cdi generate again",
                retry=True,
            )
        first = i == 0
        parts = [toolkit.common, part] if first else [part]
        files.write(grant.slot, toolkit, parts, replace(edits, env=env) if first else Edits())


@contextmanager
def _bugs_told(**about: str) -> Iterator[None]:
    """What is no error of ours on purpose is a bug of ours: the log has its traceback, the pod's event its text."""
    try:
        yield
    except CardwiseError:
        raise
    except Exception as exc:
        log.exception("a start failed by a bug of ours", **about)
        raise RefusedError(f"cardwise: a bug of ours: {type(exc).__name__}: {str(exc)[:LONGEST_BUG]}") from exc


def _demands(bound: BoundPod, container: str) -> Demands:
    """How the container's cards must be shared, as its pod says."""
    shape = next((ask.shape for ask in bound.claim.asks if ask.container == container), None)
    return Demands() if shape is None else Demands(shape.isolation, shape.binding)


def _bound(owner: Owner) -> BoundPod:
    try:
        return bound_pod(owner.pod)
    except ValueError as exc:
        raise RefusedError(f"cardwise: {exc}") from exc
