"""A cluster's history: its nodes and the pods it saw. What replay, tune and the mix are made from."""

from __future__ import annotations

from dataclasses import dataclass

from cardwise.core.inventory import NodeSpec
from cardwise.core.request import PodRequest


@dataclass(frozen=True, slots=True)
class PodRecord:
    """One pod of the past. Times in seconds from the start of the history; None where the source does not know.

    node: where it ran, by name; empty if it never did or the source does not know.
    cards_held: the cards that it holds today, by any names that are unique in the history; a card that pods share bears
        one name. Empty if it holds none or the source does not know which.
    """

    request: PodRequest
    created_s: float | None = None
    deleted_s: float | None = None
    node: str = ""
    cards_held: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class History:
    """Nodes and pods, each with unique names. ``source`` names the files for messages and reports.

    notes: what the reader had to assume, in words for the report: an assumption that is not told is a lie.
    """

    source: str
    nodes: tuple[NodeSpec, ...]
    pods: tuple[PodRecord, ...]
    notes: tuple[str, ...] = ()
