"""Many emulated engines in one process: each is what ``cardwise engine`` runs, on a port of its own.

A process for each of some twenty replicas would measure how a small machine starts Python. Its arguments: settings as a
JSON list, and the file into which their addresses are written once all serve. Runs until SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path

import msgspec
import uvloop

from cardwise.engine.server import running
from cardwise.engine.settings import Settings
from cardwise.files import write_texts
from cardwise.process import log_as_json


async def serve(all_settings: list[Settings], told: Path) -> None:
    """Until it is told to stop."""
    stop, urls = asyncio.Event(), list[str]()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        for settings in all_settings:
            urls.append((await stack.enter_async_context(running(settings))).url)
        write_texts({told: msgspec.json.encode(urls).decode()})
        await stop.wait()


def main() -> None:
    log_as_json()
    told = [msgspec.convert(each, Settings) for each in msgspec.json.decode(sys.argv[1])]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(told, Path(sys.argv[2])))


if __name__ == "__main__":
    main()
