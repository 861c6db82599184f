"""A world that follows its files: what changed is applied, what cannot be read is said and changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from cardwise.errors import UserError
from cardwise.up.sources import Sources
from cardwise.up.state import State, explanation_of, state_of
from cardwise.up.world import World

PERIOD_S = 1.0


@dataclass(slots=True)
class Session:
    """latest: the state to show; ``version`` in it counts the changes, ``problem`` says what is wrong with the files.

    tell: called with each new state but the first, which the caller asks for with :meth:`refresh`.
    """

    world: World
    sources: Sources
    tell: Callable[[State], None]
    latest: State = field(default_factory=dict)

    async def run(self, stop: asyncio.Event) -> None:
        """Apply the files again whenever they change, until ``stop``."""
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), PERIOD_S)
            if not stop.is_set() and self.sources.changed():
                await self.refresh_and_tell()

    async def refresh(self) -> None:
        """Read and apply. Raises UserError if the files cannot be used; the cluster is then as it was."""
        await self.world.apply(self.sources.read())
        self._keep("")

    async def refresh_and_tell(self) -> None:
        """As :meth:`refresh`, but a mistake in the files becomes the state's ``problem``."""
        try:
            await self.refresh()
        except UserError as error:
            self._keep(str(error))
        self.tell(self.latest)

    def explain(self, name: str) -> State | None:
        """Why the pod "namespace/name" is where it is, or nowhere; None if there is none."""
        return explanation_of(self.world, name)

    def _keep(self, problem: str) -> None:
        version = self.latest.get("version", 0) + 1
        self.latest = {"version": version, "problem": problem, **state_of(self.world)}
