"""How often ``compare`` is wrong, and what it sees: windows of services that did not change, or got slower.

``python -m benchmarks.comparing`` prints the shares that docs/howto/compare.md names. It takes minutes.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable
from functools import partial

from tests.compare.world import PARTS, service, window
from tests.loadtest.test_compare import curve, measured

from cardwise.compare.judging import compare
from cardwise.core.comparison.verdict import Comparison, Verdict
from cardwise.loadtest.compare import compare as compare_curves

PAIRS = 100
NAMES = ("before", "after")
UNEVEN = 0.1
"""Spread of the parts of a window, as a logarithm: some minutes are a tenth slower than others."""
ALIKE = ((0.0, 0.05), (0.5, 0.2), (0.8, 0.2), (0.95, 0.2), (0.99, 0.3))
"""Correlation of neighbouring parts, and their spread."""


def windows(
    seed: int, *, scale: float = 1.0, alike: float = 0.0, drift: float = UNEVEN, per_part: int = 600, services: int = 1
) -> Comparison:
    """Two windows of 32 parts; every service has so many answers in each."""
    sides = [
        window(
            {
                f"s{i}": service(
                    2 * (1000 * seed + i) + side,
                    scale=scale if side else 1.0,
                    alike=alike,
                    drift=drift,
                    per_part=per_part,
                    refused=0.01,
                    failed=0.001,
                )
                for i in range(services)
            }
        )
        for side in (0, 1)
    ]
    return compare(sides[0], sides[1], NAMES)


def load_tests(seed: int, *, scale: float = 1.0, answers: int) -> Comparison:
    """Two load tests of one step."""
    sides = [curve(measured(2 * seed + i, scale=scale if i else 1.0, count=answers)) for i in (0, 1)]
    return compare_curves(sides[0], sides[1], NAMES)


def told(what: str, one: Callable[[int], Comparison], pairs: int) -> None:
    """A row: how often each verdict came out, overall, of the P99s, and of the groups that make a regression."""
    overall: collections.Counter[str] = collections.Counter()
    p99s: collections.Counter[Verdict] = collections.Counter()
    worse: collections.Counter[str] = collections.Counter()
    for seed in range(1000, 1000 + pairs):
        comparison = one(seed)
        overall[comparison.overall.value] += 1
        p99s.update(each.verdict for each in comparison.changes if each.what.startswith("P99"))
        worse.update(each.name for each in comparison.groups if each.verdict is Verdict.WORSE)
    count = sum(p99s.values())
    shares = (f"{100 * p99s[each] / count:.4g}" for each in (Verdict.WORSE, Verdict.SAME, Verdict.UNKNOWN))
    overalls = (f"{100 * overall[each] / pairs:.4g}" for each in ("regression", "no difference", "unknown"))
    groups = (f"{100 * worse[each] / pairs:.4g}" for each in ("service quality", "stability"))
    print(f"| {what} | {' | '.join([*shares, *overalls, *groups])} |", flush=True)


def main(pairs: int = PAIRS) -> None:
    """Print the tables."""
    print(f"of {pairs} pairs each, in %: of P99s; overall; groups that are worse\n")
    columns = "P99 worse | no difference | unknown | regression | no difference | unknown | quality | stability"
    print(f"| two that differ by | {columns} |\n|---|{'---|' * 8}")
    for services in (1, 10, 50):
        one = partial(windows, services=services)
        count = pairs if services == 1 else max(pairs // 5, 4)
        told(f"nothing, windows, services: {services} ({count} pairs)", one, count)
    for alike, drift in ALIKE:
        told(f"nothing, neighbours alike by {alike:g}", partial(windows, alike=alike, drift=drift), pairs)
    for answers in (2000, 10000):
        told(f"nothing, load tests of {answers:,} answers", partial(load_tests, answers=answers), pairs)
    for scale in (1.1, 1.2, 1.5):
        for per_part in (40, 150, 600, 3000):
            what = f"{scale - 1:+.0%}, windows of {per_part * PARTS:,} answers"
            told(what, partial(windows, scale=scale, per_part=per_part), pairs)
        for answers in (2000, 10000):
            what = f"{scale - 1:+.0%}, load tests of {answers:,} answers"
            told(what, partial(load_tests, scale=scale, answers=answers), pairs)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS)
