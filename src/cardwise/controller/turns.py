"""The controller's loops take turns: each looks whether it may, acts, and waits; a turn that failed is not the last."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from cardwise.errors import ClusterError
from cardwise.said import Said

log = structlog.get_logger()


async def take_turns(turn: Callable[[], Awaitable[None]], may: Callable[[], bool], period_s: float, said: str) -> None:
    """A turn at once and every ``period_s``, where it may be taken, until cancelled.

    said: in the log if one failed, once while that lasts.
    """
    told = Said()
    while True:
        if may():
            try:
                await turn()
            except ClusterError as exc:
                if told.is_news(said, str(exc)):
                    log.warning(said, why=str(exc))
        await asyncio.sleep(period_s)
