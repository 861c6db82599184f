"""CW406: a neighbour on the same card takes the compute that a service needs: its P99 jitters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from cardwise.doctor.facts import Facts, Served
from cardwise.doctor.findings import CERTAIN, LIKELY, Check, Finding
from cardwise.doctor.load import spikes_of
from cardwise.doctor.measures import Spikes, labels_of, mean

RISE_PCT, OVER = 15.0, 1.25
"""Points of the card by which a neighbour does more while the service is slow; or a quarter more than granted."""
HOLDS = {0.0: "not", 1.0: "if they do not try", 2.0: "in any case"}
"""How the agent's figure reads."""
BUSY_PCT = 70.0
"""Nobody is in the way on a card that has time."""


@dataclass(frozen=True, slots=True)
class _Neighbour:
    pod: str
    uuid: str
    slow_pct: float
    calm_pct: float
    granted_pct: float

    @property
    def over(self) -> bool:
        return bool(np.isfinite(self.granted_pct)) and self.slow_pct > OVER * self.granted_pct

    @property
    def rise(self) -> float:
        return self.slow_pct - (self.calm_pct if np.isfinite(self.calm_pct) else 0.0)


def find(facts: Facts) -> Iterable[Finding]:
    """One finding for each service that is slow while somebody else is busy on its card."""
    for service in facts.services:
        spikes = spikes_of(facts, service)
        if spikes is None:
            continue
        found = [each for each in _neighbours(facts, service, spikes) if each.over or each.rise >= RISE_PCT]
        if found:
            yield _finding(facts, service, spikes, max(found, key=lambda each: (each.over, each.rise)))


def _neighbours(facts: Facts, service: Served, spikes: Spikes) -> Iterable[_Neighbour]:
    for uuid in service.uuids:
        busy = facts.metrics.values("card_busy_pct", uuid=uuid)
        if busy is not None and mean(busy, spikes.slow) < BUSY_PCT:
            continue
        for line in facts.metrics.of("slice_sm_pct", uuid=uuid):
            if line.pod in service.pods:
                continue
            granted = facts.metrics.last("slice_compute_granted_pct", uuid=uuid, **labels_of(line.pod))
            yield _Neighbour(line.pod, uuid, *spikes.both(line.values), np.nan if granted is None else granted)


def _finding(facts: Facts, service: Served, spikes: Spikes, noisy: _Neighbour) -> Finding:
    holds = facts.metrics.last("card_holds_compute", uuid=noisy.uuid)
    seen = [
        f"P99 up to {spikes.worst_s:.3f} s, {spikes.usual_s:.3f} s usually",
        f"{noisy.pod} takes {noisy.slow_pct:.0f} % of {noisy.uuid} then"
        + (f", {noisy.calm_pct:.0f} % otherwise" if np.isfinite(noisy.calm_pct) else "")
        + (f", and was granted {noisy.granted_pct:.0f} %" if np.isfinite(noisy.granted_pct) else ""),
    ]
    if holds is not None:
        seen.append(f"slices of the card are held to their compute: {HOLDS.get(holds, f'unknown ({holds:g})')}")
    how = "takes more than it was granted" if noisy.over else "is busy at the same times"
    return Finding(
        "CW406",
        f"service {service.name}",
        service.places | {f"pod:{noisy.pod}"},
        f"service {service.name}: its neighbour {noisy.pod} {how} on card {noisy.uuid}",
        tuple(seen),
        "give the card limits that bind (cardwise advise says which mode), lower the neighbour's percentage, or keep "
        "other namespaces off the service's cards: cardwise.dev/exclusive",
        CERTAIN if noisy.over else LIKELY,
    )


CHECK = Check("CW406", "A neighbour takes the card's compute", find, frozenset({"CW413"}), frozenset({"metrics"}))
