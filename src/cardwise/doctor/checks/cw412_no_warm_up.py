"""CW412: a replica gets traffic before its first inference: somebody waits while it compiles and allocates."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

import numpy as np

from cardwise.core.arrays import BoolArray
from cardwise.doctor.facts import Facts, Served, with_card
from cardwise.doctor.findings import LIKELY, POSSIBLE, Check, Finding
from cardwise.doctor.load import spikes_of
from cardwise.doctor.queries import WINDOW_S
from cardwise.doctor.words import began

NEW_S = 2 * WINDOW_S
"""Since its container started: it may have loaded for a while before it was ready in the window."""
SOON_S, MOSTLY = 180.0, 0.6
"""After it was ready; and what part of the slow steps must be that soon."""


def find(facts: Facts) -> Iterable[Finding]:
    """One finding for each service that is slow just after a replica of it became ready."""
    measured = facts.capture.beside.measured
    for service in facts.services if measured is not None else ():
        spikes = spikes_of(facts, service)
        began = {name: at for name in service.pods if (at := _ready_at(facts, name)) is not None}
        if spikes is None or not began or measured is None:
            continue
        step = timedelta(seconds=measured.step_s)
        times = [measured.begin + i * step for i in range(len(spikes.slow))]
        soon = np.array([any(0 <= (t - at).total_seconds() <= SOON_S for at in began.values()) for t in times])
        near = int((spikes.slow & soon).sum())
        if near and near >= MOSTLY * spikes.slow.sum() and not _always(spikes.slow, soon):
            yield _finding(facts, service, near, int(spikes.slow.sum()), spikes.worst_s, began)


def _always(slow: BoolArray, soon: BoolArray) -> bool:
    """Whether the whole window is soon after: then nothing can be told apart."""
    return bool(soon.mean() > MOSTLY) and bool(slow.any())


def _ready_at(facts: Facts, name: str) -> datetime | None:
    """When a replica became ready that is new: one that was slow, and so not ready for a while, is not cold."""
    pod = facts.pod(name)
    if pod is None or any((facts.age_s(began(each)) or 0) > NEW_S for each in pod.status.container_statuses):
        return None
    found = [each for each in pod.status.conditions if (each.type, each.status) == ("Ready", "True")]
    return found[0].last_transition_time if found else None


def _finding(
    facts: Facts, service: Served, near: int, slow: int, worst_s: float, began: dict[str, datetime]
) -> Finding:
    bare = sorted(
        name
        for name in began
        if (pod := facts.pod(name)) is not None and any(each.readiness_probe is None for each in with_card(pod))
    )
    return Finding(
        "CW412",
        f"service {service.name}",
        service.places,
        f"service {service.name}: replicas get traffic before they are warm",
        (
            (
                f"{near} of {slow} slow steps come within {SOON_S:.0f} s after a replica became ready; P99 up to "
                f"{worst_s:.3f} s"
            ),
            *([f"without a readiness probe: {', '.join(bare[:3])}"] if bare else []),
        ),
        "have the gateway warm replicas up (warm-up in its settings), or the readiness probe pass only once a first "
        "inference was made",
        LIKELY if bare else POSSIBLE,
    )


CHECK = Check("CW412", "Replicas get traffic before they are warm", find, needs=frozenset({"objects", "metrics"}))
