"""The mix: which shapes of pods a cluster sees, and how often. What policies that look ahead know of the future.

It is counted over history, never over what is still to come, and holds no names: only shapes and weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from cardwise.core.request import Shape
from cardwise.units import MILLI_PER_CARD


@dataclass(frozen=True, slots=True)
class Mix:
    """Shapes by how often they were seen, most frequent first; ties in a fixed order. ``counts`` are weights > 0."""

    shapes: tuple[Shape, ...]
    counts: tuple[float, ...]

    @classmethod
    def of(cls, shapes: Iterable[Shape]) -> Mix:
        """Count a history of shapes, one per pod."""
        counted = sorted(Counter(shapes).items(), key=lambda item: (-item[1], _order(item[0])))
        return cls(tuple(shape for shape, _ in counted), tuple(float(count) for _, count in counted))

    def typical(self, share: float) -> Mix:
        """The most frequent shapes that together make up ``share`` of all pods, as FGD's "typical pods"."""
        total, so_far, kept = sum(self.counts), 0.0, 0
        while kept < len(self.shapes) and so_far < share * total:
            so_far += self.counts[kept]
            kept += 1
        return Mix(self.shapes[:kept], self.counts[:kept])

    @property
    def with_cards(self) -> Mix:
        """The part of the mix that asks for cards."""
        kept = [(shape, count) for shape, count in zip(self.shapes, self.counts, strict=True) if shape.cards]
        return Mix(tuple(shape for shape, _ in kept), tuple(count for _, count in kept))


def card_milli(shape: Shape, memory_total_mib: int) -> int:
    """Thousandths of one card of that memory size that one card of ``shape`` uses up: the scarcer of its two sides.

    More than 1000 means that the shape cannot fit such a card.
    """
    if shape.whole:
        return MILLI_PER_CARD
    memory_milli = shape.memory_milli or -(-shape.memory_mib * MILLI_PER_CARD // max(memory_total_mib, 1))
    return max(memory_milli, shape.compute_milli)


def demand_milli(shape: Shape, memory_total_mib: int) -> int:
    """Thousandths of cards that a pod of ``shape`` asks for in all, measured on cards of that memory size."""
    return shape.cards * card_milli(shape, memory_total_mib)


def _order(shape: Shape) -> tuple[object, ...]:
    return (
        shape.cpu_milli,
        shape.compute_milli,
        shape.cards,
        shape.memory_mib,
        shape.memory_milli,
        shape.host_memory_mib,
        shape.whole,
        tuple(sorted(shape.models)),
        tuple(sorted(shape.unwanted_models)),
        tuple(sorted(shape.isolation)),
    )
