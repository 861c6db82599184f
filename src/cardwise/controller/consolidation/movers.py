"""What the loop that decides who makes room tells the one that moves."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

FRESH_S = 10.0
"""So long it counts that somebody is to move. It is said anew each turn: whoever loses the lease, or cannot ask the API
server, says nothing more, and must not find it again an hour later."""


@dataclass(frozen=True, slots=True)
class Mover:
    """by: for which pod (UID) it moves. at_s: when that was right, on the steady clock.

    gone: whose places (UIDs) its successor may take, by having them evicted.
    """

    by: str
    at_s: float
    gone: tuple[str, ...] = ()


Movers = MutableMapping[str, Mover]
"""Who is to move, by UID: as it was right a moment ago."""


def fresh(movers: Mapping[str, Mover], now_s: float) -> dict[str, Mover]:
    """Those of whom it was said lately."""
    return {uid: each for uid, each in movers.items() if now_s - each.at_s < FRESH_S}
