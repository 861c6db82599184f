"""When a full batch may leave for a replica that is about to be free, so that its device does not wait for the network.

Between the end of one batch and the start of the next lie an answer on its way, its splitting, and the next request on
its way: a tenth of a short batch. While a full batch waits anyway, sending it that moment early costs nobody anything
but the few who arrive within it.

Refuses to send ahead what is not full, for others may still join it; to trust fewer than a few batches; and to send
two ahead: what waits in a replica is out of reach of priorities and deadlines.
"""

from __future__ import annotations

_LEAST_SEEN = 5
_NEWEST_SHARE = 0.2
_FULL_SHARE = 0.75
"""Rows that make a batch full enough to learn from: requests of several rows do not always fill the last places."""
AHEAD_SHARE, AHEAD_MOST_S = 0.15, 0.003
"""How early: of a full batch's time, and at most. Set on the emulated device of 4 + 0.35 b ms, which lost 1.5 ms."""


class Ahead:
    """What one replica's batches take, and when its next may leave. begin and end in pairs, in the order of sending."""

    __slots__ = ("_ended_s", "_mean_s", "_seen", "_since_s", "_under_way")

    def __init__(self) -> None:
        self._mean_s = 0.0
        self._seen = self._under_way = 0
        self._since_s = self._ended_s = 0.0

    def begin(self, now_s: float) -> None:
        """A batch is sent."""
        self._under_way += 1
        if self._under_way == 1:
            self._since_s = now_s

    def end(self, now_s: float, rows: int, max_batch: int, *, ok: bool) -> None:
        """The oldest is over. A batch sent ahead has run only since the one before it ended."""
        took_s, self._since_s = now_s - self._since_s, now_s
        self._under_way = max(self._under_way - 1, 0)
        if ok and rows >= _FULL_SHARE * max_batch:
            self._seen += 1
            self._mean_s += (took_s - self._mean_s) * max(_NEWEST_SHARE, 1 / self._seen)

    def due_s(self, queued: int, max_batch: int) -> float | None:
        """From when on a batch may be sent though one is under way; None if none may."""
        if self._under_way != 1 or self._seen < _LEAST_SEEN or queued < max_batch:
            return None
        return self._since_s + self._mean_s - min(AHEAD_SHARE * self._mean_s, AHEAD_MOST_S)
