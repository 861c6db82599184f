"""How often ``compare`` is wrong, and what it sees: windows of a service that did not change, or got slower.

``python -m benchmarks.comparing`` prints the shares that docs/howto/compare.md and loadtest.md name. It takes minutes.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable
from functools import partial

from tests.compare.world import service, window
from tests.loadtest.test_compare import curve, measured

from cardwise.compare.judging import compare
from cardwise.core.comparison.verdict import Comparison
from cardwise.loadtest.compare import compare as compare_curves

PAIRS = 100
NAMES = ("before", "after")


def windows(seed: int, scale: float, alike: float, drift: float) -> Comparison:
    """Two windows of 32 parts with 600 answers each."""
    sides = [service(2 * seed + i, scale=scale if i else 1.0, alike=alike, drift=drift) for i in (0, 1)]
    return compare(window({"s": sides[0]}), window({"s": sides[1]}), NAMES)


def load_tests(seed: int, scale: float, answers: int) -> Comparison:
    """Two load tests of one step."""
    sides = [curve(measured(2 * seed + i, scale=scale if i else 1.0, count=answers)) for i in (0, 1)]
    return compare_curves(sides[0], sides[1], NAMES)


def told(what: str, one: Callable[[int], Comparison], pairs: int) -> None:
    """A line: how often each verdict came out."""
    counts = collections.Counter(one(seed).overall.value for seed in range(1000, 1000 + pairs))
    print(f"{what}: " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items())), flush=True)


def main(pairs: int = PAIRS) -> None:
    """Print the table."""
    print(f"of {pairs} pairs each")
    for scale in (1.0, 1.2):
        for answers in (2000, 10000):
            told(f"load tests, {answers} answers, × {scale}", partial(load_tests, scale=scale, answers=answers), pairs)
        for alike, drift in ((0.0, 0.05), (0.5, 0.2), (0.8, 0.2), (0.95, 0.2), (0.99, 0.3)):
            one = partial(windows, scale=scale, alike=alike, drift=drift)
            told(f"windows, neighbours alike by {alike}, drift {drift}, × {scale}", one, pairs)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS)
