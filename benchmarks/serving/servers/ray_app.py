# ruff: noqa: D102 - methods that the library asks for
# mypy: disable-error-code="import-not-found, misc, untyped-decorator, attr-defined"
"""Ray Serve before the emulated card: one replica, ``serve.batch``, blocking work in a thread."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from typing import Any

import ray
from ray import serve
from ray.serve.config import BackpressureConfig, HTTPOptions

from benchmarks.serving.servers.device import BOUNDED, HOST, MAX_BATCH, PORT, QUEUE, WINDOW_S, Device

# the default of 5 ongoing requests would cap every batch at 5
ONGOING = 2 * MAX_BATCH if BOUNDED else 8 * MAX_BATCH
PROTECTION: dict[str, Any] = (
    {
        "max_queued_requests": QUEUE - 2 * MAX_BATCH,
        "backpressure_config": BackpressureConfig(status_code=429, retry_after_s=1),
    }
    if BOUNDED
    else {}
)


@serve.deployment(max_ongoing_requests=ONGOING, logging_config={"enable_access_log": False}, **PROTECTION)
class Emulated:
    """One row per request; ``serve.batch`` joins them."""

    def __init__(self) -> None:
        self.card = Device()

    @serve.batch(max_batch_size=MAX_BATCH, batch_wait_timeout_s=WINDOW_S)
    async def infer(self, rows: list[list[float]]) -> list[dict[str, object]]:
        return await asyncio.to_thread(self.card.run, rows)

    async def __call__(self, request: Any) -> dict[str, object]:  # noqa: ANN401 - Starlette's, which is only there
        return await self.infer(json.loads(await request.body())["x"])


def main() -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    ray.init(include_dashboard=False, num_cpus=4, log_to_driver=False)
    serve.start(http_options=HTTPOptions(host=HOST, port=PORT))
    serve.run(Emulated.bind(), route_prefix="/predict")
    stop.wait()
    ray.shutdown()


if __name__ == "__main__":
    main()
