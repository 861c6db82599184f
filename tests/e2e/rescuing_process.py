"""The rescuing loop as a process that can be killed: ``python -m tests.e2e.rescuing_process KUBECONFIG JSON``."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import msgspec

from cardwise.adapters.kube.client import connect
from cardwise.adapters.watching import Watching
from cardwise.controller.preemption.seeing import Seen
from cardwise.controller.rescue.settings import RescueSettings
from cardwise.controller.rescuing import Rescuing
from cardwise.core.ledger import Ledger
from cardwise.process import log_as_json
from cardwise.scheduler.settings import Settings, policies_of


async def main():
    log_as_json()
    settings = msgspec.json.decode(sys.argv[2], type=RescueSettings)
    ledger, seen = Ledger(policies_of(Settings())), Seen(time.monotonic)
    watching = Watching(ledger, time.monotonic, (seen,))
    async with connect(Path(sys.argv[1])) as port, asyncio.TaskGroup() as tasks:
        tasks.create_task(watching.follow(port))
        tasks.create_task(Rescuing(port, ledger, watching, seen, time.monotonic, lambda: True, settings).run())


if __name__ == "__main__":
    asyncio.run(main())
