"""``[preemption]`` of the controller's settings."""

from __future__ import annotations

from typing import Annotated

import msgspec

from cardwise.core.fleet.guard import BrakePolicy

Seconds = Annotated[float, msgspec.Meta(ge=0, le=86400)]
Number = Annotated[int, msgspec.Meta(ge=0, le=10_000)]


class PreemptionSettings(msgspec.Struct, forbid_unknown_fields=True, rename="kebab", frozen=True):
    """All in seconds but the two numbers.

    wait_s: so long a pod waits before others go for it. settle_s: so long a pod is ready before it may have to go;
    starting_s: one that is not ready counts as starting for so long. grace_s: no victim gets longer to end, whatever it
    asks for. keep_s: so long after that what was freed is kept. most_per_node, most: evictions in window_s. pause_s:
    how long who was evicted is left alone, doubled with each further time within memory_s, up to most_pause_s. turn_s:
    how long who was evicted does not evict who evicted it.
    """

    enabled: bool = True
    wait_s: Seconds = 10.0
    settle_s: Seconds = 60.0
    starting_s: Seconds = 600.0
    grace_s: Annotated[int, msgspec.Meta(ge=1, le=600)] = 60
    keep_s: Annotated[float, msgspec.Meta(ge=1, le=600)] = 60.0
    most_per_node: Number = 2
    most: Number = 10
    window_s: Seconds = 300.0
    pause_s: Seconds = 60.0
    most_pause_s: Seconds = 1800.0
    memory_s: Seconds = 3600.0
    turn_s: Seconds = 3600.0

    @property
    def brakes(self) -> BrakePolicy:
        """As the rules take them."""
        return BrakePolicy(
            self.most_per_node, self.most, self.window_s, self.pause_s, self.most_pause_s, self.memory_s, self.turn_s
        )

    def fruitless_pause_s(self, tries: int) -> float:
        """How long a pod waits that did not take what was kept for it, after so many tries."""
        return min(self.pause_s * 2.0 ** min(max(tries - 1, 0), 30), self.most_pause_s)
