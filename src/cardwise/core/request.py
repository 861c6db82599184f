"""What a pod asks for: its *shape* (what decides whether and where it fits) and who it is.

Two pods of one shape fit the same places at the same cost, so everything expensive is computed per shape and kept.
This module refuses impossible shapes; it does not parse quantities (that is the wire contract's work).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from cardwise.units import MILLI_PER_CARD


class Isolation(enum.IntEnum):
    """How a card is shared (SPEC A3). The value is stored in ``Cluster.card_isolation``."""

    ANY = 0
    """Nothing was decided for the card yet: it takes whatever comes first."""
    WHOLE = 1
    """One container at a time: no slices."""
    TIME_SLICING = 2
    MPS = 3
    MIG = 4


class WorkloadClass(enum.Enum):
    """Training and inference do not share a card unless allowed (SPEC B8)."""

    INFERENCE = "inference"
    TRAINING = "training"


@dataclass(frozen=True, slots=True)
class Shape:
    """What decides whether and where a pod fits. Hashable: the key under which scores are kept.

    cards: how many cards, 0 for a pod without a GPU.
    memory_mib: memory on *each* card in MiB; 0 if asked in thousandths or whole.
    memory_milli: memory on each card in thousandths of that card's memory (HAMi's ``gpumem-percentage``; traces that
        know only "milli-GPU"); rounds down to MiB, as HAMi does, so that shares that sum to 1000 always fit one card;
        to 1 MiB at least.
    compute_milli: thousandths of each card's compute, 1-1000; 0 asks for no compute limit.
    whole: all of each card; the four fields above are then fixed by the card.
    models: card models that will do, folded to upper case by the reader; empty means any.
    unwanted_models: card models that will not do. Of both, a model has its variants with it, and is a word for itself:
        A100 is A100-SXM4-80GB too, but not A1000.
    oversubscribe: memory that is lent beyond the card will do, as far as there is any; of a slice only (SPEC E1).
    binding: only cards will do that hold every slice to its memory in any case.
    isolation: modes that will do; empty means any that shares (or a whole card, if ``whole``).
    cpu_milli, host_memory_mib: what the pod takes of the node beside its cards.
    """

    cards: int
    memory_mib: int = 0
    memory_milli: int = 0
    compute_milli: int = 0
    whole: bool = False
    models: frozenset[str] = frozenset()
    unwanted_models: frozenset[str] = frozenset()
    isolation: frozenset[Isolation] = frozenset()
    binding: bool = False
    oversubscribe: bool = False
    cpu_milli: int = 0
    host_memory_mib: int = 0

    def __post_init__(self) -> None:
        """Refuse what no card could ever be asked for: this is a caller's bug, not a refusal."""
        amounts = {
            "cards": self.cards,
            "memory_mib": self.memory_mib,
            "memory_milli": self.memory_milli,
            "compute_milli": self.compute_milli,
            "cpu_milli": self.cpu_milli,
            "host_memory_mib": self.host_memory_mib,
        }
        for name, value in amounts.items():
            if value < 0:
                raise ValueError(f"{name} is {value}, must be 0 or more")
        if self.memory_milli > MILLI_PER_CARD or self.compute_milli > MILLI_PER_CARD:
            raise ValueError(
                f"memory_milli {self.memory_milli} and compute_milli {self.compute_milli} must be at most "
                f"{MILLI_PER_CARD}: more than one card is asked by `cards`"
            )
        sliced = bool(self.memory_mib or self.memory_milli or self.compute_milli)
        if self.cards == 0 and (sliced or self.whole):
            raise ValueError("a shape without cards asks for card memory or compute")
        if self.whole and self.oversubscribe:
            raise ValueError("a whole card leaves no memory to lend")
        if self.whole and sliced:
            raise ValueError("a whole card leaves no memory or compute to choose")
        if self.memory_mib and self.memory_milli:
            raise ValueError("memory_mib and memory_milli exclude each other")
        if self.cards and not (self.whole or self.memory_mib or self.memory_milli):
            raise ValueError("a slice must ask for memory: a slice of 0 MiB cannot run")

    @property
    def is_slice(self) -> bool:
        """True if the shape leaves room on its cards for others."""
        return self.cards > 0 and not self.whole

    def takes(self, model: str) -> bool:
        """True if cards of this model will do."""
        if self.models and not _is_any_of(model, self.models):
            return False
        return not _is_any_of(model, self.unwanted_models)


def _is_any_of(model: str, named: frozenset[str]) -> bool:
    """True if the model is one of those named, or a variant of one."""
    return any(f"{model}-".startswith(f"{each}-") for each in named)


@dataclass(frozen=True, slots=True)
class PodRequest:
    """One pod's wish: a shape and an identity. Identity never changes whether the pod fits the card's numbers.

    service: replicas of one service spread over cards, then nodes (SPEC B5). Empty: no spreading.
    tenant, exclusive: an exclusive pod shares a card only with pods of its own tenant.
    workload, mixes: a training pod shares a card with inference only if both sides set ``mixes`` (SPEC B8).
    model_key: names the model weights the pod loads, for the cache affinity score (SPEC B2, F1).
    """

    name: str
    shape: Shape
    service: str = ""
    tenant: str = ""
    exclusive: bool = False
    workload: WorkloadClass = WorkloadClass.INFERENCE
    mixes: bool = False
    model_key: str = ""
