"""CW408: the kernel killed a container for its host memory: that is not the card's, however it looks."""

from __future__ import annotations

from collections.abc import Iterable

from cardwise.adapters.symptoms import ToldPod
from cardwise.doctor.facts import Facts
from cardwise.doctor.findings import CERTAIN, Check, Finding
from cardwise.doctor.words import ends, is_recent


def find(facts: Facts) -> Iterable[Finding]:
    """One finding for each pod with cards."""
    for pod in facts.gpu_pods:
        for status, end in ends(pod):
            if end.reason != "OOMKilled" or not is_recent(end, facts.taken):
                continue
            yield Finding(
                "CW408",
                f"pod {pod.name}",
                frozenset({f"pod:{pod.name}"}),
                f"pod {pod.name}: container {status.name} was killed for its host memory, not for the card's",
                (
                    f"it ended with OOMKilled (exit code {end.exit_code}), {status.restart_count} restarts",
                    f"its memory limit: {_limit(pod, status.name)}",
                ),
                "raise resources.limits.memory: weights pass through host memory as they are loaded, and pinned "
                "buffers stay there",
                CERTAIN,
            )
            break


def _limit(pod: ToldPod, name: str) -> str:
    found = next((each for each in pod.spec.containers if each.name == name), None)
    return str(found.resources.limits.get("memory", "none, so the node was full")) if found else "unknown"


CHECK = Check("CW408", "The kernel killed a container for its host memory", find, frozenset({"CW410", "CW411"}))
