"""Filter and prioritize: kube-scheduler's questions, the ledger's answers. Reads only; binding is ``binder.py``'s.

kube-scheduler assumes a pod on a node before it is bound, and tells nobody. So the node it will most likely pick is
kept in mind for a moment, and the next pod's nodes are ordered as if the first were there: fewer bindings collide.
That is a guess, and a guess never makes a yes into a no.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from cardwise.adapters.claims import claim_of
from cardwise.adapters.extender_v1 import MOST_SCORE, ExtenderArgs, ExtenderFilterResult, HostPriority
from cardwise.core.allocation import BoundPod
from cardwise.core.claim import Claim
from cardwise.core.ledger import Ledger
from cardwise.core.placement.offer import Offer, offer, scores
from cardwise.core.reasons import Code, Reason
from cardwise.core.request import Shape
from cardwise.errors import UserError

BEST = 64
"""So many nodes are offered at most: kube-scheduler spends its time on every node that is left."""
GUESS_S, GUESSES = 2.0, 8
"""So long a pod is guessed to be where it will most likely go, and so many at most: kube-scheduler binds in moments."""
REMEMBERED = 4096
"""Pods whose claim and scores are remembered from filter to bind."""


@dataclass(slots=True)
class _Asked:
    claim: Claim
    scores: dict[str, int]
    likely: BoundPod | None
    until_s: float


@dataclass(slots=True)
class Extender:
    """now_s: a clock that never goes back. waiting: claims of pods that no node took at their last filter, by UID.

    refusals: how often that was, by the reason that most nodes gave.
    """

    ledger: Ledger
    now_s: Callable[[], float]
    waiting: dict[str, Claim] = field(default_factory=dict)
    refusals: Counter[Code] = field(default_factory=Counter)
    _asked: OrderedDict[str, _Asked] = field(default_factory=OrderedDict)

    def filter(self, args: ExtenderArgs) -> ExtenderFilterResult:
        """Which of the nodes take the pod, best first; a reason for each that does not."""
        try:
            claim = claim_of(args.pod)
        except UserError as error:
            return ExtenderFilterResult(error=str(error))
        names = args.node_names or []
        if self.ledger.outdated:
            self.ledger.rebuild()
        index = self.ledger.cluster.node_idx
        known = [name for name in names if name in index]
        result = ExtenderFilterResult(
            failed_and_unresolvable_nodes={name: Reason(Code.NODE_UNKNOWN).short for name in names if name not in index}
        )
        with self.ledger.asking(*self._waits(claim.uid)):  # what is kept for it is free for it
            found = self._offer(claim, known)
        result.node_names = [self.ledger.cluster.node_names[i] for i in found.ranked]
        words = {code: self._words(code, claim) for code in set(found.refused.values())}
        for node_idx, code in found.refused.items():
            result.failed_and_unresolvable_nodes[self.ledger.cluster.node_names[node_idx]] = words[code]
        self._remember(claim, result.node_names, found)
        return result

    def prioritize(self, args: ExtenderArgs) -> list[HostPriority]:
        """Our order of the nodes as scores; from the last filter where it is fresh."""
        asked = self._asked.get(args.pod.metadata.uid)
        if asked is None or asked.until_s < self.now_s():
            self.filter(args)
            asked = self._asked.get(args.pod.metadata.uid)
        known = asked.scores if asked else {}
        return [HostPriority(name, known.get(name, 0)) for name in args.node_names or []]

    def claim(self, uid: str) -> Claim | None:
        """The claim of a pod that was filtered lately."""
        return self._asked[uid].claim if uid in self._asked else None

    def forget(self, uid: str) -> None:
        """The pod is bound, or gone."""
        self._asked.pop(uid, None)
        self.waiting.pop(uid, None)

    def fits_now(self, claim: Claim, nodes: Sequence[str]) -> str | None:
        """One of these nodes that would take the pod now, if there is one."""
        known = [name for name in nodes if name in self.ledger.cluster.node_idx]
        with self.ledger.asking(*self._waits(claim.uid)):
            found = self._plain(claim, known, 1)
        return self.ledger.cluster.node_names[found.ranked[0]] if found.ranked else None

    # ---------------------------------------------------------------- inside

    def _waits(self, uid: str) -> tuple[str, ...]:
        """The pod, if something is kept for it."""
        return (uid,) if uid in self.ledger.nominated and not self.ledger.knows(uid) else ()

    def _offer(self, claim: Claim, names: list[str]) -> Offer:
        """The offer as if likely pods were there; nodes that only they would fill come last."""
        guesses = self._guesses(claim.uid)
        if not guesses:
            return self._plain(claim, names, BEST)
        with self.ledger.supposing(guesses):
            found = self._plain(claim, names, BEST)
        if len(found.ranked) == BEST:
            return found
        plain, ranked = self._plain(claim, names, BEST), set(found.ranked)
        last = [i for i in plain.ranked if i not in ranked][: BEST - len(found.ranked)]
        dearest = found.costs[-1] + 1.0 if found.costs else 0.0
        return Offer(found.ranked + last, found.costs + [dearest] * len(last), plain.refused)

    def _plain(self, claim: Claim, names: Sequence[str], best: int) -> Offer:
        rows = np.fromiter((self.ledger.cluster.node_idx[name] for name in names), np.intp, len(names))
        return offer(self.ledger.policy(claim), claim, rows, best)

    def _guesses(self, uid: str) -> list[BoundPod]:
        """The latest pods that were filtered and are not bound, and where they will most likely go."""
        now_s, guesses = self.now_s(), list[BoundPod]()
        for other, asked in reversed(self._asked.items()):
            if asked.until_s < now_s or len(guesses) == GUESSES:
                break
            if asked.likely and other != uid and not self.ledger.knows(other):
                guesses.append(asked.likely)
        return guesses

    def _remember(self, claim: Claim, names: list[str], found: Offer) -> None:
        by_name = dict(zip(names, scores(found.costs, MOST_SCORE), strict=True))
        likely = self.ledger.suppose(claim, names[0]) if names else None
        self._asked[claim.uid] = _Asked(claim, by_name, likely, self.now_s() + GUESS_S)
        self._asked.move_to_end(claim.uid)
        if len(self._asked) > REMEMBERED:
            self._asked.popitem(last=False)
        if names:
            self.waiting.pop(claim.uid, None)
        elif claim.asks:
            self.waiting[claim.uid] = claim
            self.refusals.update([code for code, _ in Counter(found.refused.values()).most_common(1)])

    def _words(self, code: Code, claim: Claim) -> str:
        """The short reason; where the cluster has no such card at all, which it has."""
        asked = frozenset[str]().union(*(ask.shape.models for ask in claim.asks))
        there = self.ledger.cluster.models
        if code is Code.CARD_MODEL and asked and not any(map(Shape(0, models=asked).takes, there)):
            models = ", ".join(there) or "no cards"
            return f"no card here is of model {' or '.join(sorted(asked))}, there are {models}"
        return Reason(code).short
