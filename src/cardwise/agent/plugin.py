"""The device plugin: slots without a card, names for them, and the door to :mod:`preparing`.

Refuses to be asked for more than names: what a container gets is decided when the kubelet knows whose it is.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from cardwise.adapters.cdi import slot_name
from cardwise.adapters.journal import Journal
from cardwise.adapters.kubelet.device_plugin import Device, RefusedError, UnknownDeviceError
from cardwise.agent.inventory import Inventory
from cardwise.agent.owners import few
from cardwise.agent.preparing import Preparing
from cardwise.agent.telling import to_nobody
from cardwise.core.card.handover import SLOT_NAME, Slots
from cardwise.files import seen

PREPARE_TIMEOUT_S = 25.0
"""The kubelet gives a start 30 s: better our words than its own."""


@dataclass(slots=True)
class News:
    """Something changed, so many times. Counted: several may listen, and one who is busy meanwhile misses nothing."""

    count: int = 0
    _next: asyncio.Event = field(default_factory=asyncio.Event)

    def set(self) -> None:
        """Something changed."""
        self.count += 1
        told, self._next = self._next, asyncio.Event()
        told.set()

    async def after(self, count: int) -> None:
        """Wait until there was more than that."""
        while self.count <= count:
            await self._next.wait()


@dataclass(slots=True)
class SlotPlugin:
    """Behind the kubelet's device plugin API. took: called with each call's name and seconds."""

    inventory: Inventory
    journal: Journal
    preparing: Preparing
    slots: Slots
    changed: News = field(default_factory=News)
    took: Callable[[str, float], None] = to_nobody

    async def offers(self) -> AsyncIterator[Sequence[Device]]:
        """All slots, and again when :meth:`renew` was called and a slot's health changed."""
        told: Sequence[Device] | None = None
        while True:
            known = self.changed.count
            now = self.devices()
            if now != told:
                told = now
                yield now
            await self.changed.after(known)

    def renew(self) -> None:
        """Something changed: look again."""
        self.changed.set()

    def devices(self) -> list[Device]:
        """All slots as they are now."""
        cards, used = self.inventory.offered().values(), self._used()
        withdrawn = self.slots.unhealthy(cards, used)
        return [Device(name, name not in withdrawn) for name in self.slots.names(cards, used)]

    def _used(self) -> set[str]:
        return {slot for row in self.journal.rows for slot in row.slots}

    def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
        """The lowest free ones: which one is of no matter, but a constant choice is easier to follow."""
        rest = sorted(set(available) - set(must))
        return [*must, *rest[: max(size - len(must), 0)]]

    def cdi_names(self, ids: Sequence[str]) -> Sequence[str]:
        """The CDI device of each slot; it exists once the container may start. Raises UnknownDeviceError."""
        with self._timed("Allocate"):
            return self._cdi_names(ids)

    def _cdi_names(self, ids: Sequence[str]) -> Sequence[str]:
        known = set(self.slots.names(self.inventory.offered().values(), self._used()))
        unknown = sorted(set(ids) - known)
        if unknown:
            raise UnknownDeviceError(f"{few(unknown)}: this node has no such slot; it has {len(known)}")
        return [slot_name(each) for each in ids]

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Make the slots ready for the container that has them. Raises RefusedError, or another CardwiseError."""
        _check_names(ids)
        try:
            with self._timed("PreStartContainer"):
                async with asyncio.timeout(PREPARE_TIMEOUT_S):
                    await self.preparing.prepare(ids)
        except TimeoutError as exc:
            raise RefusedError(f"cardwise: the slots were not ready after {PREPARE_TIMEOUT_S:.0f} s") from exc

    @contextmanager
    def _timed(self, call: str) -> Iterator[None]:
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self.took(call, time.perf_counter() - began_s)


def _check_names(ids: Sequence[str]) -> None:
    """Refuse what the kubelet cannot have from us. Names that are offered no more pass: cards were divided since."""
    odd = sorted({each for each in ids if not SLOT_NAME.fullmatch(each)})
    twice = sorted(name for name, count in Counter(ids).items() if count > 1)
    if odd or not ids:
        raise RefusedError(f"cardwise: {few([seen(each) for each in odd]) or 'nothing'}: no slots of this node")
    if twice:
        raise RefusedError(f"cardwise: asked for twice in one call: {few(twice)}")
