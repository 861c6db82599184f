"""CW409: a slice is smaller than what runs in it needs: CUDA runs out of memory again and again."""

from __future__ import annotations

from collections.abc import Iterable

from cardwise.doctor.facts import Facts
from cardwise.doctor.findings import LIKELY, POSSIBLE, Check, Finding
from cardwise.doctor.measures import labels_of
from cardwise.doctor.oom import gpu_ends

NEARLY_ALL = 0.97
"""Of its slice; what is left is less than one more buffer."""


def find(facts: Facts) -> Iterable[Finding]:
    """One finding for each pod whose containers said that CUDA is out of memory."""
    for pod in facts.gpu_pods:
        said = gpu_ends(pod, facts.taken)
        if not said:
            continue
        used = facts.metrics.last("slice_memory_used_mib", **labels_of(pod.name))
        granted = facts.metrics.last("slice_memory_granted_mib", **labels_of(pod.name))
        full = used is not None and granted is not None and used >= NEARLY_ALL * granted
        seen = [] if used is None or granted is None else [f"it uses {used:.0f} MiB of {granted:.0f}"]
        restarts = sum(status.restart_count for status in pod.status.container_statuses)
        yield Finding(
            "CW409",
            f"pod {pod.name}",
            frozenset({f"pod:{pod.name}"}),
            f"pod {pod.name}: its slice is smaller than what it needs",
            (*said, f"{restarts} restarts", *seen),
            "ask for what it needs: cardwise plan MODEL counts weights, KV cache and overheads; or lower batch, "
            "context or max-num-seqs",
            LIKELY if full or restarts > 1 else POSSIBLE,
        )


CHECK = Check(
    "CW409",
    "A slice is smaller than what runs in it needs",
    find,
    frozenset({"CW411"}),
    frozenset({"objects", "metrics"}),
)
