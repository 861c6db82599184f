"""``cardwise page``. Only wires.

1. follow nodes and pods into a ledger of our own;
2. ask Prometheus about traffic, where there is one;
3. serve the page.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cardwise.adapters.kube.port import ClusterPort
from cardwise.adapters.prometheus import Prometheus
from cardwise.core.ledger import MakePolicies
from cardwise.process import end_if_failed
from cardwise.web.following import Following
from cardwise.web.page import Frame, serve_page
from cardwise.web.traffic import Traffic

FRAME = Frame("cardwise", "The cluster as its pods and nodes tell it. This page changes nothing.")


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked for. prometheus: an address, or None; token_file: of a bearer token for it."""

    make_policies: MakePolicies
    port: int
    prometheus: str | None = None
    token_file: Path | None = None


@asynccontextmanager
async def showing(port: ClusterPort, wish: Wish, tell: Callable[[str], None]) -> AsyncIterator[Following]:
    """Serve until the ``with`` ends. tell: the address. Raises UserError if Prometheus' address or the port is none."""
    async with AsyncExitStack() as stack:
        traffic = None
        if wish.prometheus is not None:
            asked = await stack.enter_async_context(Prometheus(wish.prometheus, token_file=wish.token_file))
            traffic = Traffic(asked, lambda: datetime.now(UTC))
        source = Following.build(wish.make_policies, time.monotonic, traffic)
        tasks = [asyncio.create_task(source.watching.follow(port), name="watching")]
        if traffic is not None:
            tasks.append(asyncio.create_task(traffic.run(), name="traffic"))
        stack.push_async_callback(_ended, tasks)
        for task in tasks:
            task.add_done_callback(end_if_failed)
        tell(await stack.enter_async_context(serve_page(source, wish.port, FRAME)))
        yield source


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
