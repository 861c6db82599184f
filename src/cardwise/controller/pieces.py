"""A long search lets the rest of the program go on in between: a lease must be renewed meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import TypeVar

PIECE_S = 0.02
"""So long a search may keep everybody else waiting."""
_FoundT = TypeVar("_FoundT")


async def in_pieces(search: Generator[None, None, _FoundT], now_s: Callable[[], float]) -> _FoundT:
    """The answer of a search. What others change meanwhile is looked at again before anything is done."""
    since_s = now_s()
    while True:
        try:
            next(search)
        except StopIteration as end:
            found: _FoundT = end.value
            return found
        if now_s() - since_s > PIECE_S:
            await asyncio.sleep(0)
            since_s = now_s()
