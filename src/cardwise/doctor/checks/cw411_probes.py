"""CW411: probes end replicas that are well: liveness asks for an inference, or starting takes longer than they bear."""

from __future__ import annotations

import re
from collections.abc import Iterable

from cardwise.adapters.symptoms import Probe, ToldContainer, ToldPod
from cardwise.doctor.facts import Facts, with_card
from cardwise.doctor.findings import CERTAIN, LIKELY, Check, Finding

INFERENCE = re.compile(
    r"/(?:v1/(?:chat/)?completions|v1/embeddings|v2/models/[^/\s]+(?:/versions/[^/\s]+)?/infer|generate(?:_stream)?|"
    r"predict(?:ions)?|infer|invocations)\b"
)
RIGHT = (
    "startupProbe: {initialDelaySeconds: 10, periodSeconds: 10, failureThreshold: 30}; liveness on a path that does no "
    "inference (/health, /v2/health/live)"
)
"""Source: SPEC F1."""


def find(facts: Facts) -> Iterable[Finding]:
    """One finding for each container with a card whose probes are wrong, or ended it."""
    for pod in facts.gpu_pods:
        failed = [
            event.message
            for event in facts.events_of("Pod", pod.metadata.namespace, pod.metadata.name)
            if event.reason == "Unhealthy"
        ]
        restarts = {each.name: each.restart_count for each in pod.status.container_statuses}
        for container in with_card(pod):
            found = _on_inference(pod, container, failed) or _too_short(
                pod, container, failed, restarts.get(container.name, 0)
            )
            if found:
                yield found


def _asks(probe: Probe | None) -> str:
    if probe is None:
        return ""
    return probe.http_get.path if probe.http_get else " ".join(probe.exec.command) if probe.exec else ""


def _on_inference(pod: ToldPod, container: ToldContainer, failed: list[str]) -> Finding | None:
    found = INFERENCE.search(_asks(container.liveness_probe))
    if found is None:
        return None
    said = [text for text in failed if text.startswith("Liveness")]
    return _finding(
        pod,
        f"container {container.name}'s liveness probe asks for an inference ({found[0]}): under load it fails, and the "
        "replica is ended when it is needed most",
        (f"livenessProbe: {_asks(container.liveness_probe)[:100]}", *said[:1]),
        CERTAIN if said else LIKELY,
    )


def _too_short(pod: ToldPod, container: ToldContainer, failed: list[str], restarts: int) -> Finding | None:
    """Ended by a probe before it was up."""
    startup, liveness = container.startup_probe, container.liveness_probe
    kind, probe = ("Startup", startup) if startup else ("Liveness", liveness)
    said = [text for text in failed if text.startswith(kind)]
    if probe is None or not said or not restarts:
        return None
    bears_s = probe.initial_delay_seconds + probe.period_seconds * probe.failure_threshold
    what = f"its {kind.lower()} probe bears {bears_s} s" + ("" if startup else ", and there is no startup probe")
    return _finding(
        pod,
        f"container {container.name} is ended before it is up: {what}",
        (f"{restarts} restarts", said[0][:200]),
        CERTAIN if startup else LIKELY,
    )


def _finding(pod: ToldPod, cause: str, evidence: tuple[str, ...], likelihood: float) -> Finding:
    places = frozenset({f"pod:{pod.name}"})
    return Finding("CW411", f"pod {pod.name}", places, f"pod {pod.name}: {cause}", evidence, RIGHT, likelihood)


CHECK = Check("CW411", "Probes end replicas that are well", find, frozenset({"CW410", "CW412"}))
