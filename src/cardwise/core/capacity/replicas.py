"""How many replicas carry a load: from what one was measured to carry, derated by what it really gets (SPEC I2).

Refuses to extrapolate upwards: a replica with a larger share of a card than it was measured with counts as measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LEAST = 2
"""Replicas of a service, on two nodes: one may fail (SPEC B5)."""
HEADROOM = 1.25
"""Of the load, for its noise and for a replica that is being replaced. Ours: 80 % of the knee is used."""
STEP_PCT = 5


@dataclass(frozen=True, slots=True)
class Measured:
    """A replica as a load test saw it. rate_per_s: answers in time at its knee. cores_pct: of a card, meanwhile.

    at_least: nobody saw that it carries no more. notes: what must be known to count with it.
    """

    rate_per_s: float
    cores_pct: int
    at_least: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Replicas:
    """How many, with what each of them carries. ``known``: from a curve; else the least is written."""

    count: int
    cores_pct: int | None
    rate_per_s: float | None
    known: bool
    why: str


def replicas_for(
    rate_per_s: float | None,
    measured: Measured | None,
    *,
    cores_pct: int | None = None,
    headroom: float = HEADROOM,
    least: int = LEAST,
) -> Replicas:
    """Replicas for so many requests per second. cores_pct: the share each gets; None to find the one that suffices.

    A share below the measured one carries in proportion less; a larger one no more. Without a share, the least replicas
    get as much as they need, in steps of ``STEP_PCT``; if whole cards do not suffice there are more of them. Raises
    ValueError for rates, shares or a headroom that cannot be.
    """
    _check(rate_per_s, measured, cores_pct, headroom, least)
    if measured is None:
        asked = "" if rate_per_s is None else f" for {_told(rate_per_s)} requests/s"
        why = f"unknown{asked} without a load test's curve; {least} are written, on nodes of their own"
        return Replicas(least, None, None, known=False, why=why)
    if rate_per_s is None:
        share = cores_pct or measured.cores_pct
        each = _carried(measured, share)
        return Replicas(
            least, share, each, known=False, why=f"no rate was given; {least} carry {_told(least * each)} requests/s"
        )
    share = cores_pct or _enough(rate_per_s * headroom / least, measured)
    each = _carried(measured, share)
    count = max(least, math.ceil(rate_per_s * headroom / each))
    more = " or more" if measured.at_least else ""
    why = (
        f"{_told(rate_per_s)} requests/s × {headroom:g} over {_told(each)}/s that a replica with {share} % of a card "
        f"carries; measured {_told(measured.rate_per_s)}/s{more} at {measured.cores_pct} %"
    )
    return Replicas(count, share, each, known=True, why=why)


def _told(rate_per_s: float) -> str:
    """As many digits as a measurement has."""
    return f"{rate_per_s:,.0f}" if rate_per_s >= 100 else f"{rate_per_s:.3g}"


def _check(rate: float | None, measured: Measured | None, cores: int | None, headroom: float, least: int) -> None:
    if rate is not None and not 0 < rate < math.inf:
        raise ValueError(f"rate is {rate:g}, must be above 0")
    if measured is not None and not (0 < measured.rate_per_s < math.inf and 1 <= measured.cores_pct <= 100):
        raise ValueError(
            f"measured {measured.rate_per_s:g} requests/s at {measured.cores_pct} % of a card is no measurement"
        )
    if cores is not None and not 1 <= cores <= 100:
        raise ValueError(f"share of compute is {cores} %, must be 1 to 100")
    if not 1 <= headroom < math.inf:
        raise ValueError(f"headroom is {headroom:g}, must be 1 or more")
    if least < 1:
        raise ValueError(f"replicas are at least {least}, must be 1 or more")


def _carried(measured: Measured, share_pct: int) -> float:
    """What a replica carries with a share of a card."""
    return measured.rate_per_s * min(1.0, share_pct / measured.cores_pct)


def _enough(rate_per_s: float, measured: Measured) -> int:
    """The share with which a replica carries so much; what it was measured with where it cannot."""
    needed = measured.cores_pct * rate_per_s / measured.rate_per_s
    return min(measured.cores_pct, max(STEP_PCT, math.ceil(needed / STEP_PCT) * STEP_PCT))
