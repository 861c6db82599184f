"""Keeps a service's replicas as its cluster's endpoints are.

Refuses to hurry where an endpoint is missing: one that moves from a slice to another may be in neither for a moment.
One that is told to be terminating drains at once.
"""

from __future__ import annotations

from collections.abc import Mapping

from cardwise.adapters.endpoints import Place, State
from cardwise.gateway.members import Members
from cardwise.gateway.replicas import Replica

MISSING_S = 1.0
"""How long an endpoint may be in no slice before its replica drains. The EndpointSlice controller writes the slices of
one move within milliseconds; until then probes and requests tell whether the replica is there. Of time in which we
listened: a process that stood still has not yet read what was told meanwhile."""


class Membership:
    """Of one service."""

    def __init__(self, members: Members) -> None:
        """Of these members, who are its own to add and remove."""
        self._members = members
        self._replicas: dict[Place, Replica] = {}
        self._missing: dict[Place, float] = {}

    def hear(self, places: Mapping[Place, State]) -> None:
        """All endpoints, as they are now."""
        for place, state in places.items():
            self._missing.pop(place, None)
            self._put(place, state)
        for place in self._replicas:
            if place not in places:
                self._missing.setdefault(place, 0.0)

    def tick(self, listened_s: float) -> None:
        """Let those drain that have been missing for long enough. listened_s: since the last tick."""
        for place in self._missing:
            self._missing[place] += listened_s
        for place in [each for each, missing_s in self._missing.items() if missing_s >= MISSING_S]:
            del self._missing[place]
            self._members.leave(self._replicas.pop(place))

    def _put(self, place: Place, state: State) -> None:
        replica = self._replicas.get(place)
        if replica is None:
            if state is State.READY:
                self._replicas[place] = self._members.join(place.url, place.pod)
        elif state is State.READY:
            self._members.work(replica)
        elif state is State.WAITING:
            self._members.rest(replica)
        else:
            del self._replicas[place]
            self._members.leave(replica)
