"""A real cluster as the page's source: its nodes and pods, followed as the scheduler follows them. Reads only.

The truth lies in the pods, so no scheduler is asked, and none is slowed by those who look: the same ledger is built
here, and the same policy answers. The state is worked out when someone looks, and once a second at most. Refuses to
show what is old as if it were new: a broken watch is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cardwise.adapters.kube.port import Listing, Lost, NodeEvent, PodEvent
from cardwise.adapters.watching import Watching
from cardwise.core.ledger import Ledger, MakePolicies
from cardwise.scheduler import telling
from cardwise.web.marks import Marks
from cardwise.web.traffic import Traffic

PERIOD_S, REST = 1.0, 4.0
"""Between two states, at least; and so many times as long as the last took: 200 kinds of pods that wait take 1.5 s."""
NOT_YET = "nodes and pods are not known yet"


@dataclass(slots=True)
class Following:
    """A :class:`~cardwise.web.page.Source`. now_s: a clock that never goes back. traffic: None without Prometheus."""

    watching: Watching
    now_s: Callable[[], float]
    traffic: Traffic | None = None
    marks: Marks = field(default_factory=Marks)
    lost: dict[str, str] = field(default_factory=dict)
    _news: bool = True
    _next_s: float = 0.0
    _state: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def build(
        cls, make_policies: MakePolicies, now_s: Callable[[], float], traffic: Traffic | None = None
    ) -> Following:
        """Wire the parts; ``watching`` is then to be followed."""
        made = cls(Watching(Ledger(make_policies), now_s), now_s, traffic)
        made.watching.also = (made,)
        return made

    # ---------------------------------------------------------------- what the cluster tells

    def hear_node(self, event: NodeEvent) -> None:
        """One event of the stream of nodes, after the ledger."""
        self._hear("nodes", event)
        self.marks.hear_node(event)

    def hear_pod(self, event: PodEvent) -> None:
        """One event of the stream of pods, after the ledger."""
        self._hear("pods", event)
        self.marks.hear_pod(event)

    def _hear(self, what: str, event: NodeEvent | PodEvent) -> None:
        self._news = True
        if isinstance(event, Lost):
            self.lost[what] = event.why
        elif not isinstance(event, Listing):
            self.lost.pop(what, None)

    # ---------------------------------------------------------------- what is shown

    @property
    def latest(self) -> Mapping[str, Any]:
        """The state now, or of a second ago."""
        news = self._news or (self.traffic is not None and self.traffic.told is not self._state.get("traffic"))
        if not self._state or (news and self.now_s() >= self._next_s):
            self._news, begin_s = False, self.now_s()
            self._state = self._built()
            end_s = self.now_s()
            self._next_s = end_s + max(PERIOD_S, REST * (end_s - begin_s))
        return self._state

    def explain(self, name: str) -> Mapping[str, Any] | None:
        """Why the pod "namespace/name" is where it is, or nowhere; None if no pod that asks for cards is called so."""
        claim = telling.claim_named(self.watching, name)
        return telling.explain(self.watching.ledger, claim) if claim and claim.asks else None

    def _built(self) -> dict[str, Any]:
        told = telling.state(self.watching.ledger, self.watching.pending, ())
        self._add_inconsistent(told)
        told["evictions"] = self.marks.evictions()
        if self.traffic is not None:
            told["traffic"] = self.traffic.told
            told["notes"] += self.traffic.notes
        return {"version": self._state.get("version", 0) + 1, "problem": "", "stale": self._stale(), **told}

    def _add_inconsistent(self, told: dict[str, Any]) -> None:
        """The scheduler knows more than pods say, such as that an agent is silent; the node's condition tells."""
        for node in told["nodes"]:
            text = self.marks.inconsistent.get(node["name"])
            if text is not None and not node["fenced"]:
                node["fenced"] = True
                told["conflicts"].append({"pod": "", "node": node["name"], "text": text})

    def _stale(self) -> str:
        if self.lost:
            why = ", ".join(f"{what}: {text}" for what, text in sorted(self.lost.items()))
            return f"The API server cannot be followed, shown is what it said last ({why})."
        return "" if self.watching.synced else f"Not all is there: {NOT_YET}."
