"""How a program of ours runs: logs, signals, and what happens when a part of it dies."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from contextlib import AbstractAsyncContextManager

import structlog
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import Processor

log = structlog.get_logger()

_DIED: list[str] = []
"""Parts of this process that died of a bug."""


def log_as_json() -> None:
    """One JSON object per line on stderr, times in UTC, also of what libraries warn of (SPEC A9)."""
    stamps: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # without the values of variables: a token may be among them
    tracebacks = structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False))
    renders: list[Processor] = [tracebacks, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[*stamps, *renders],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    theirs = logging.StreamHandler(sys.stderr)
    remove = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    theirs.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=stamps, processors=[remove, *renders]))
    logging.basicConfig(level=logging.WARNING, handlers=[theirs])
    logging.captureWarnings(capture=True)


def files_allowed(wanted: int) -> int:
    """Open files that this process may have; the soft limit is raised to as many as are wanted, as far as it can be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if most > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(soft, most)


def settle() -> None:
    """Take what is there by now out of the garbage collector's sight, for it lives as long as the program.

    A full collection looks at all of it, and stops the event loop meanwhile: 26 ms in a gateway that had just started.
    """
    gc.collect()
    gc.freeze()


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
