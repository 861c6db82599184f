"""How a program of ours runs: logs, signals, and what happens when a part of it dies."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import sys
from contextlib import AbstractAsyncContextManager

import structlog

log = structlog.get_logger()

_DIED: list[str] = []
"""Parts of this process that died of a bug."""


def log_as_json() -> None:
    """One JSON object per line on stderr, times in UTC (SPEC A9)."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def files_allowed(wanted: int) -> int:
    """Open files that this process may have; the soft limit is raised to as many as are wanted, as far as it can be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if most > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(soft, most)


async def until_stopped(running: AbstractAsyncContextManager[object]) -> None:
    """Run until SIGTERM or SIGINT. Ends the process with exit code 1 if a part of it died."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running:
        await stop.wait()
    log.info("stopped")
    if _DIED:
        sys.exit(1)


def end_if_failed(task: asyncio.Task[None]) -> None:
    """A part that died would leave a program that looks alive: end the process, and be started again."""
    if not task.cancelled() and task.exception() is not None:
        log.critical("a part of the program died", part=task.get_name(), exc_info=task.exception())
        _DIED.append(task.get_name())
        os.kill(os.getpid(), signal.SIGTERM)
