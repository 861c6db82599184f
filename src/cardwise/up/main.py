"""``cardwise up`` from what the user wished for to what is shown. Only wires.

1. check the wish: nodes, policies, files;
2. once: place everything, print, end; or
3. stay: place, show, serve the page, and follow the files until told to stop.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog
from rich.console import Console
from rich.live import Live

from cardwise.config import choose_policy
from cardwise.errors import UserError
from cardwise.up.compare import CLASSES, WHOLE_CARD, compare, everywhere, settled
from cardwise.up.hardware import HollowNode, check_names
from cardwise.up.screen import MOST_BY_CARD, render, render_comparison
from cardwise.up.session import Session
from cardwise.up.sources import Sources
from cardwise.up.state import State
from cardwise.up.world import World

__all__ = ["WHOLE_CARD", "Wish", "compare_once", "log_errors_only", "policy_of", "show_once", "stay"]

OTHER_LINES = 8
"""Lines of a terminal that are no cards: heads, sums, the prompt."""
NARROWEST = 100
"""Columns where nobody says how many there are, as in a pipe."""
ServePage = Callable[[Session], AbstractAsyncContextManager[str]]


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked for, checked. policy: by latency class, where it is not the scheduler's own."""

    sources: Sources
    nodes: tuple[HollowNode, ...]
    policy: dict[str, str]

    @classmethod
    def of(cls, files: Sequence[str], nodes: Sequence[HollowNode], policies: Sequence[str]) -> Wish:
        """Raises UserError for names that come twice and for policies that are unknown."""
        check_names(nodes)
        return cls(Sources(tuple(files)), tuple(nodes), policy_of(policies))


def policy_of(texts: Sequence[str]) -> dict[str, str]:
    """Policies by latency class, from ``NAME`` and ``CLASS=NAME``; a class of its own wins over what is for all."""
    general: dict[str, str] = {}
    special: dict[str, str] = {}
    for text in texts:
        latency, equals, name = text.rpartition("=")
        if equals and latency not in CLASSES:
            raise UserError(f"--policy {text}: no such class; write {' or '.join(f'{each}=NAME' for each in CLASSES)}")
        choose_policy(name)
        if equals:
            special[latency] = name
        else:
            general = everywhere(name)
    return general | special


# ---------------------------------------------------------------- once


def show_once(wish: Wish, *, as_json: bool) -> None:
    """Place everything and print the state."""
    state = asyncio.run(settled(wish.sources.read(), wish.nodes, wish.policy, time.monotonic, _now))
    if as_json:
        _print_json(state)
    else:
        _console().print(render(state))


def compare_once(wish: Wish, *, as_json: bool) -> None:
    """Place everything under each contender and print what each of them needs."""
    rows = asyncio.run(compare(wish.sources.read(), wish.nodes, wish.policy, time.monotonic, _now))
    if as_json:
        _print_json({"compared": rows})
    else:
        _console().print(render_comparison(rows, [note for node in wish.nodes for note in node.notes]))


def _print_json(told: dict[str, Any]) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(told)).decode() + "\n")


# ---------------------------------------------------------------- until told to stop


async def stay(wish: Wish, serve_page: ServePage | None) -> None:
    """Show the state and follow the files until SIGINT or SIGTERM. ``serve_page``: None for no page."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    console = _console()
    live = Live(console=console, auto_refresh=False)
    session = Session(World.build(wish.nodes, wish.policy, time.monotonic, _now), wish.sources, _teller(live))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(session.world.running())
        await session.refresh()
        if serve_page is not None:
            url = await stack.enter_async_context(serve_page(session))
            console.print(f"The same on a page: {url}", highlight=False)
        if console.is_terminal:
            console.print("Edit the files and watch; Ctrl-C ends.", highlight=False)
            stack.enter_context(live)
        session.tell(session.latest)
        await session.run(stop)


def _teller(live: Live) -> Callable[[State], None]:
    """On a terminal the view is drawn anew; elsewhere each state is printed below the last."""

    def tell(state: State) -> None:
        if not live.console.is_terminal:
            live.console.print(render(state))
            return
        room = live.console.size.height - OTHER_LINES - 3 * len(state["pending"]) - len(state["denied"])
        live.update(render(state, most_by_card=max(min(room, MOST_BY_CARD), 8)), refresh=True)

    return tell


# ---------------------------------------------------------------- outside


def log_errors_only() -> None:
    """Only errors, on stderr: refusals are in the view, and stdout may be one JSON object."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _console() -> Console:
    console = Console(markup=False, emoji=False)  # names of pods are text, whatever is in them
    return console if console.is_terminal else Console(width=max(console.width, NARROWEST), markup=False, emoji=False)


def _now() -> datetime:
    return datetime.now(UTC)
