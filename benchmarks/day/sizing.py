"""What a replica gets and how many there are for the peak, by the planner's own rules: a slice, or a whole card.

The curve that the planner wants stands in ``load.py``: what a replica carries, and the share of a card that it fills
meanwhile. Both ways of sizing use the same curve. A whole card carries no more than its engine does; a slice is derated
by what its neighbours may cost it, as a load test on a shared card would find (SPEC I2).
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.day.load import Load, Service
from cardwise.core.capacity.replicas import Measured, replicas_for
from cardwise.plan.catalogue import find_model
from cardwise.plan.planner import Wish, make_plan
from cardwise.plan.tables import tables

CARD = "A10"
SLICE_STEP_MIB = 256


@dataclass(frozen=True, slots=True)
class Sized:
    """One service. each_per_s: what a replica carries; fill_pct: of that it is given so much.

    for_peak: replicas that carry the highest load of the history so.
    """

    service: Service
    memory_mib: int
    compute_pct: int
    each_per_s: float
    fill_pct: int
    for_peak: int


def card_mib() -> int:
    """What may be handed out of a card."""
    return tables().cards[CARD].usable_mib


def sized(load: Load, fill_pct: int, interference: float) -> tuple[Sized, ...]:
    """All services. interference: see ``asking.py``; 0 for whole cards, which have no neighbours."""
    known = tables()
    made = []
    for service, peak in zip(load.services, load.peaks(), strict=True):
        slowest = 1 + interference * (1 - service.compute_pct / 100)
        measured = Measured(service.replica_per_s / slowest, service.compute_pct)
        wish = Wish(card=CARD, isolation="mps", sequences=service.max_batch, context=CONTEXTS.get(service.model))
        plan = make_plan(find_model(service.model), wish, known)
        found = replicas_for(float(peak), measured, cores_pct=service.compute_pct, headroom=100 / fill_pct)
        slice_mib = -(-plan.slice_mib // SLICE_STEP_MIB) * SLICE_STEP_MIB
        made.append(Sized(service, slice_mib, service.compute_pct, measured.rate_per_s, fill_pct, found.count))
    return tuple(made)


CONTEXTS = {"llama-3.2-3b": 2048, "modernbert-base": 512, "bge-m3": 512}
"""Tokens; others: what the model is made for."""
