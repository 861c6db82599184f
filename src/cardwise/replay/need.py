"""How many cards a cluster's present pods need: held today, and placed anew by each policy.

The question behind a dump is not how a policy fills a cluster but how many cards it would free. So every pod is placed
once, in the order of creation, on an empty copy of the cluster. Refuses to guess what is held today: where a dump does
not tell which cards pods share, there is no such figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cardwise.config import PolicyChoice
from cardwise.core.history import History
from cardwise.replay.run import replay
from cardwise.replay.workload import as_is


@dataclass(frozen=True, slots=True)
class PolicyNeed:
    """Cards that hold at least one slice once the pods are placed by a policy, and pods that found no place."""

    policy: str
    cards: int
    pods_without_place: int


@dataclass(frozen=True, slots=True)
class Need:
    """cards_held: held today, None where that is not told. policies: in the order asked.

    pods_sliced: pods that ask for less than whole cards; without any, no policy can place them on fewer cards.
    """

    cards_total: int
    cards_held: int | None
    policies: tuple[PolicyNeed, ...]
    pods_sliced: int

    @property
    def sentence(self) -> str:
        """For people."""
        today = "" if self.cards_held is None else f"{self.cards_held:,} of {self.cards_total:,} cards are held today. "
        alike = len({(each.cards, each.pods_without_place) for each in self.policies}) == 1 < len(self.policies)
        anew = ", ".join(f"{each.policy} {_cards(each)}" for each in self.policies)
        told = f"{_cards(self.policies[0])} by every policy" if alike else anew
        whole = "" if self.pods_sliced else " They hold whole cards: say what they really need with --slice."
        return f"{today}The same pods placed anew need: {told}.{whole}"


def cards_needed(history: History, policies: Sequence[PolicyChoice]) -> Need:
    """Place the history's pods once with each policy. Raises UserError if no node has a card."""
    workload = as_is(history)
    needs = []
    for policy in policies:
        done = replay(history, workload, policy.label, policy.make)
        needs.append(PolicyNeed(policy.label, done.cards_used, done.run.pods_arrived - done.run.pods_placed))
    running = [pod for pod in history.pods if pod.node and pod.request.shape.cards]
    told = all(pod.cards_held for pod in running)
    held = len(frozenset[str]().union(*(pod.cards_held for pod in running))) if running and told else None
    sliced = sum(pod.request.shape.is_slice for pod in history.pods)
    return Need(sum(len(node.cards) for node in history.nodes), held, tuple(needs), sliced)


def _cards(need: PolicyNeed) -> str:
    short = f" ({need.pods_without_place:,} pods find no place)" if need.pods_without_place else ""
    return f"{need.cards:,} cards{short}"
