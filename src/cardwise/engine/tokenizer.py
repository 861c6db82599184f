"""The step before the card: a tokenizer, or a decoder of images. Its CPU time is really burnt.

Refuses to be a formula, as the card is one: a CPU limit, or a neighbour on the same core, must be felt as a real server
feels it, in the answers and in what the kernel counts. One thread works, as in a Python server; while it does, health
and metrics are told, for it holds no lock, as tokenizers in Rust hold none.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from concurrent.futures import ThreadPoolExecutor

_BLOCK = bytes(1 << 16)
"""Hashed in some 0.1 ms: the burnt time is exact to that. Of blocks above 2 KiB hashlib lets other threads run."""


class Tokenizer:
    """each_s: CPU time that one row, or one prompt, costs; 0 for none."""

    def __init__(self, each_s: float) -> None:
        """No thread runs before there is work."""
        self._each_s = each_s
        self._thread = ThreadPoolExecutor(1, "tokenizer")

    async def take(self, items: int) -> None:
        """Return when they are done, first come, first served. Cancelled: dropped, unless they are under way."""
        if self._each_s > 0:
            await asyncio.get_running_loop().run_in_executor(self._thread, burn, self._each_s * items)

    def close(self) -> None:
        """Take nothing more; what is under way ends."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def burn(cpu_s: float) -> None:
    """Work for so much CPU time of this thread, however long that takes."""
    end_s = time.thread_time() + cpu_s
    while time.thread_time() < end_s:
        hashlib.sha256(_BLOCK)
