"""How much of a card may be lent beyond it: what is idle now, in case those who were lent some use all of it.

The watermark says how large a share may be lent at most. That share may be there on paper only: of a card that is four
fifths used, half cannot be lent. So what all others use now and what the borrowers were given, together, must stay
below the low mark; then no borrower brings the card to the high mark by itself. Refuses to look back: what was lent
before and is too much by now is left where it is.

Source: SPEC E1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

STEP_SHARE = 1 / 64
"""What may be lent moves in steps of this share of the card: each step is a write to the API server."""


@dataclass(frozen=True, slots=True)
class Borrower:
    """A slice with lent memory. used_mib: measured; physical_mib: given of the card itself."""

    used_mib: int
    physical_mib: int


def lendable_mib(
    lent_share: float, used_mib: int, total_mib: int, low_share: float, borrowers: Iterable[Borrower]
) -> int:
    """MiB that may be lent beyond a card in all, what is lent already included, in whole steps rounded down.

    lent_share: the most, of ``total_mib``; used_mib: of the whole card, by everybody. Raises ValueError for a card
    without memory.
    """
    if total_mib < 1:
        raise ValueError(f"{total_mib} MiB is no card")
    listed = list(borrowers)
    others_mib = max(used_mib - sum(each.used_mib for each in listed), 0)
    idle_mib = low_share * total_mib - others_mib - sum(each.physical_mib for each in listed)
    most_mib = max(min(lent_share * total_mib, idle_mib), 0.0)
    step_mib = max(int(STEP_SHARE * total_mib), 1)
    return int(most_mib) // step_mib * step_mib
