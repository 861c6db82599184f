# ruff: noqa: D102 - methods that the library asks for
# mypy: disable-error-code="import-not-found, misc, untyped-decorator"
"""BentoML before the emulated card: one worker, its adaptive batching. Started by ``bentoml serve``."""

from __future__ import annotations

from typing import Any

import bentoml

from benchmarks.serving.servers.device import BOUNDED, MAX_BATCH, QUEUE, WINDOW_S, Device

# max_latency_ms is the goal that its batching works towards, and who has waited longer is refused
TRAFFIC: dict[str, Any] = {"timeout": 30, **({"max_concurrency": QUEUE} if BOUNDED else {})}


@bentoml.service(workers=1, traffic=TRAFFIC, logging={"access": {"enabled": False}}, metrics={"enabled": False})
class Emulated:
    """One row per request; BentoML joins them."""

    def __init__(self) -> None:
        self.card = Device()

    @bentoml.api(batchable=True, max_batch_size=MAX_BATCH, max_latency_ms=int(1000 * WINDOW_S))
    def predict(self, x: list[list[float]]) -> list[dict[str, Any]]:
        return self.card.run(x)
