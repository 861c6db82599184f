"""What is no place for a service any more: a fenced card, a lost node, a card whose MPS daemon is down. And since when.

A state that toggles must not move services forth and back: each bout within a day doubles the patience with a node and
with MPS, and nothing ever moves back because a place is good again. A fenced card needs no patience of ours: its agent
lets it back only after a quiet time that doubles with each strike (``core/card/health.py``). Refuses to look at a
clock, and to remember across a restart: whoever starts anew waits the first patience again.

Source: SPEC G1.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace


class Why(enum.Enum):
    """What is wrong with a ground; the value is how it reads."""

    FENCED = "its card is fenced"
    LOST = "its node is not ready"
    MPS = "the MPS daemon of its card is down"
    WAY = "it stands in the way of a pod that waits"
    """Nothing is wrong with its card (``consolidate.py``)."""


BAD = (Why.LOST, Why.FENCED, Why.MPS)
"""What is wrong with a ground itself, the worst first."""


@dataclass(frozen=True, slots=True)
class Ground:
    """A card, or a whole node where ``uuid`` is empty."""

    node: str
    uuid: str
    why: Why


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a ground is bad before services leave it. forget_s: after so long a bout counts no more."""

    fenced_s: float = 5.0
    lost_s: float = 60.0
    mps_s: float = 60.0
    most_s: float = 1800.0
    forget_s: float = 86400.0

    def __post_init__(self) -> None:
        for name in ("fenced_s", "lost_s", "mps_s", "most_s", "forget_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}, and must be at least 0")

    def with_bouts(self, why: Why, bouts: int) -> float:
        """Seconds for a ground that is bad for the ``bouts``-th time."""
        if why is Why.FENCED:
            return self.fenced_s
        first_s = self.lost_s if why is Why.LOST else self.mps_s
        return float(min(first_s * 2.0 ** min(bouts - 1, 30), max(self.most_s, first_s)))


@dataclass(frozen=True, slots=True)
class Spell:
    """One ground's badness. bouts: how often it began, of late. over_s: when it ended; None while it lasts."""

    since_s: float
    bouts: int = 1
    over_s: float | None = None


Spells = Mapping[Ground, Spell]


def hear(spells: Spells, bad: Collection[Ground], now_s: float, patience: Patience) -> dict[Ground, Spell]:
    """What is known after hearing that exactly these grounds are bad now."""
    known = dict[Ground, Spell]()
    for ground, spell in spells.items():
        if ground not in bad and spell.over_s is None:
            spell = replace(spell, over_s=now_s)  # noqa: PLW2901 - it ends now
        if spell.over_s is None or now_s - spell.over_s < patience.forget_s:
            known[ground] = spell
    for ground in bad:
        before = known.get(ground)
        if before is None:
            known[ground] = Spell(now_s)
        elif before.over_s is not None:
            known[ground] = Spell(now_s, before.bouts + 1)
    return known


def anew(spells: Spells, now_s: float) -> dict[Ground, Spell]:
    """The same after nobody looked for a while: what lasts may have been over meanwhile, so it lasts from now on."""
    return {
        ground: spell if spell.over_s is not None else replace(spell, since_s=now_s) for ground, spell in spells.items()
    }


def ripe(spells: Spells, now_s: float, patience: Patience) -> set[Ground]:
    """Grounds that have been bad for long enough."""
    return {
        ground
        for ground, spell in spells.items()
        if spell.over_s is None and now_s - spell.since_s >= patience.with_bouts(ground.why, spell.bouts)
    }
