"""Services as their callers see them: replicas that take a minute to warm up, and retries that a budget limits.

A request that finds no replica with room fails and may be tried again, once, if the budget of the program's own gateway
allows it (``core/queue/retry.py``). An autoscaler wants as many replicas as the load, retries included, needs. Time is
counted in whole seconds; requests of a second are served in that second or fail. Refuses to know nodes and cards.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass, field

from cardwise.core.queue.retry import RetryBudget

REPLICA_RPS = 10.0
TARGET_SHARE = 0.75
"""Of a replica's rate, at which the autoscaler aims."""
SCALE_S, DOWN_S, AVERAGE_S = 15, 60, 15
"""How often the autoscaler looks; how long less must be wanted before replicas go; over how long it averages."""
RETRY_AFTER_S = 2


@dataclass(slots=True)
class Service:
    """One model behind one Deployment.

    rps: mean load; wave_share, period_s, phase: how it swells. wanted: replicas the autoscaler asks for. asked, served:
    requests so far, each counted once however often it was tried.
    """

    name: str
    priority: int
    sensitive: bool
    memory_mib: int
    rps: float
    wave_share: float
    period_s: float
    phase: float
    least: int = 1
    wanted: int = 1
    asked: int = 0
    served: int = 0
    budget: RetryBudget = field(default_factory=lambda: RetryBudget(least_per_s=1.0))
    _waiting: deque[tuple[int, int]] = field(default_factory=deque)
    _recent: deque[int] = field(default_factory=lambda: deque(maxlen=AVERAGE_S))
    _high_s: int = 0

    def second(self, now_s: int, ready: int, draw: random.Random) -> None:
        """A second's requests, on so many warm replicas."""
        swell = 1.0 + self.wave_share * math.sin(2 * math.pi * (now_s / self.period_s + self.phase))
        first = int(self.rps * swell + draw.random())
        again = 0
        while self._waiting and self._waiting[0][0] <= now_s:
            again += self._waiting.popleft()[1]
        for _ in range(first):
            self.budget.note_request(float(now_s))
        room = int(ready * REPLICA_RPS)
        served = min(first + again, room)
        served_again = min(again, round(served * again / max(first + again, 1)))
        failed = first - (served - served_again)
        retries = sum(self.budget.spend(float(now_s)) for _ in range(failed))
        if retries:
            self._waiting.append((now_s + RETRY_AFTER_S, retries))
        self.asked, self.served = self.asked + first, self.served + served
        self._recent.append(first + again)
        if now_s % SCALE_S == 0:
            self._scale(now_s)

    def _scale(self, now_s: int) -> None:
        load = sum(self._recent) / len(self._recent)
        wants = max(math.ceil(load / (REPLICA_RPS * TARGET_SHARE)), self.least)
        if wants >= self.wanted or now_s - self._high_s >= DOWN_S:
            self.wanted, self._high_s = wants, now_s
