"""The emulated card inside a peer's process: the engine's own cost model, one batch at a time.

Imported in the peers' environments, so nothing but the standard library and the engine's formulas. Time is kept by the
plan, as the engine keeps it: a batch that waited begins when its predecessor ended, however late the thread woke.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

from cardwise.engine.model import SERIAL_COST

HOST = "127.0.0.1"
PORT = int(os.environ.get("PEER_PORT", "0"))
MAX_BATCH = int(os.environ.get("PEER_MAX_BATCH", "32"))
WINDOW_S = float(os.environ.get("PEER_WINDOW_MS", "0")) / 1000
BOUNDED = os.environ.get("PEER_BOUNDED", "") == "1"
"""Whether the peer's own protection against overload is on, where it has one."""
QUEUE = 3 * MAX_BATCH
"""Places then: three batches, the most that SPEC D1 allows."""
PATIENCE_S = 0.25
"""Or how long a request may wait then, where that is what can be set: the target of the P99."""


class Device:
    """A serial card. ``run`` blocks its thread, without the interpreter's lock, as a call into a driver does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._end_s = 0.0

    def run(self, rows: Sequence[Sequence[float]]) -> list[dict[str, object]]:
        """The answers to a batch, after as long as the card takes for it."""
        came_s = time.monotonic()
        with self._lock:
            self._end_s = max(self._end_s, came_s) + SERIAL_COST.batch_time_s(len(rows))
            time.sleep(max(0.0, self._end_s - time.monotonic()))
        return [{"sum": sum(row), "ends": [row[0], row[-1]]} for row in rows]
