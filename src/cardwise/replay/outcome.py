"""What one replay run found. ``Run`` is the documented JSON (docs/reference/replay-json.md); the rest feeds reports."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cardwise.core.reasons import Code


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one run, as ``--json`` prints them.

    load: demand over capacity that the regime was asked for; under ``trace`` the peak that the history itself had.
    allocated_share: GPU that placed pods asked for, over the cluster's GPU, in [0, 1]. ``fill``: when arrived demand
        reaches the load (mean over the steps whose arrived share rounds to it); ``churn``, ``trace``: mean over the
        counted time.
    unallocated_cards: cards_total × (1 − allocated_share): what the policy leaves unusable, in cards.
    refused_share: GPU demand that found no place, over the demand that arrived, in the counted part.
    pods_arrived, pods_placed: over the whole run. decision_us_*: time to choose a node and cards for one pod.
    wall_s: the whole run, all bookkeeping included.
    """

    policy: str
    seed: int
    regime: str
    load: float
    cards_total: int
    allocated_share: float
    unallocated_cards: float
    refused_share: float
    pods_arrived: int
    pods_placed: int
    decision_us_p50: float
    decision_us_p99: float
    wall_s: float


@dataclass(frozen=True, slots=True)
class Leftover:
    """What no pod uses at the end of a run, in cards, by why. The parts sum to what is not allocated.

    rounded_up: held by pods beyond what they asked for. The rest is free, weighed by how often the mix asks:
    cpu, memory: the node has too little CPU or host memory left to use the card; fragments: too small a piece;
    model: another model than asked for; usable: could still be used.
    """

    rounded_up: float
    cpu: float
    memory: float
    fragments: float
    model: float
    usable: float


@dataclass(frozen=True, slots=True)
class Replayed:
    """One run with what reports draw.

    arrived_share, allocated_share: the curve, float64 [points], both over the cluster's GPU (``trace``: time in s
        instead of arrived share). free_milli: what is left on each card that exists, int64 [G]. cards_used: cards
        that hold at least one slice, at the busiest moment. refused_for: refused demand in cards by the reason that
        most nodes gave.
    """

    run: Run
    arrived_share: NDArray[np.float64]
    allocated_share: NDArray[np.float64]
    free_milli: NDArray[np.int64]
    cards_used: int
    leftover: Leftover
    refused_for: dict[Code, float]
