"""``[consolidation]`` of the controller's settings."""

from __future__ import annotations

from typing import Annotated

import msgspec

from cardwise.adapters.nominations import MOST_KEPT_S
from cardwise.controller.preemption.settings import Seconds


class ConsolidationSettings(msgspec.Struct, forbid_unknown_fields=True, rename="kebab", frozen=True):
    """All in seconds but the two numbers.

    wait_s: so long a pod waits before others move for it. most: replicas that move for one pod. at_once: pods for which
    others move at a time. keep_s: so long what they leave is kept for it: their successors start meanwhile. rest_s: how
    long a service of which one moved is left alone. Without ``[rescue]``, which moves them, nobody moves.
    """

    enabled: bool = True
    wait_s: Seconds = 60.0
    most: Annotated[int, msgspec.Meta(ge=1, le=10)] = 3
    at_once: Annotated[int, msgspec.Meta(ge=1, le=10)] = 2
    keep_s: Annotated[float, msgspec.Meta(ge=60, le=MOST_KEPT_S)] = 1200.0
    rest_s: Seconds = 600.0


OFF = ConsolidationSettings(enabled=False)
