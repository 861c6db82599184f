"""Room: where a pod's successor would go, asked of the ledger, one after the other as if the earlier were there.

Refuses to hold anything, and to know what kube-scheduler asks beside cards: whoever uses it says which nodes are open
to which pod.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

import numpy as np

from cardwise.core.allocation import BoundPod
from cardwise.core.claim import Claim
from cardwise.core.ledger import Ledger
from cardwise.core.placement.offer import offer

TRIED = 8
"""Nodes that are tried for one successor, the cheapest first."""


@dataclass(slots=True)
class Room:
    """is_open: whether a node may take a pod's successor, by the pod's UID and the node's name."""

    ledger: Ledger
    is_open: Callable[[str, str], bool]
    _guesses: list[BoundPod] = field(default_factory=list)

    def take(self, uid: str, *, beside: bool, gone: Collection[str] = ()) -> str | None:
        """The node on which a pod's successor would go, None if there is none. What it takes counts from then on.

        beside: while the pod itself still holds what it has. gone: as if these (UIDs) were.
        """
        pod = self.ledger.pods.get(uid)
        if pod is None:
            return None
        return self.place(replace(pod.claim, uid=f"{uid}+"), uid, gone if beside else (*gone, uid))

    def place(self, claim: Claim, like: str, gone: Collection[str] = ()) -> str | None:
        """The node on which a pod would go that is not there yet; nodes are open to it as they are to ``like`` (UID).

        gone: as if these (UIDs) were. The claim's UID is one that no pod has.
        """
        with self.ledger.asking(*gone), self.ledger.supposing(self._guesses):
            for node in self._ranked(like, claim):
                guess = self.ledger.suppose(claim, node)
                if guess is not None:
                    self._guesses.append(guess)
                    return node
        return None

    def _ranked(self, like: str, claim: Claim) -> Collection[str]:
        names = self.ledger.cluster.node_names
        rows = [i for i, name in enumerate(names) if self.is_open(like, name)]
        found = offer(self.ledger.policy(claim), claim, np.array(rows, np.intp), TRIED) if rows else None
        return [names[i] for i in found.ranked] if found else []
