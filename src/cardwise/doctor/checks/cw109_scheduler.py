"""CW109: pods wait for cardwise and no scheduler of ours runs: nobody looks at them."""

from __future__ import annotations

from collections.abc import Iterable

from cardwise.adapters import wire
from cardwise.doctor.facts import Facts
from cardwise.doctor.findings import CERTAIN, EVERYWHERE, LIKELY, Check, Finding

COMPONENT = "app.kubernetes.io/component"
PARTS = {"scheduler": "the extender", "kube-scheduler": "kube-scheduler with our extender"}


def find(facts: Facts) -> Iterable[Finding]:
    """One finding for each part without a pod that is ready, where pods name our scheduler."""
    waiting = [each for each in facts.waiting if each.ours and not each.pod.spec.scheduling_gates]
    if not waiting:
        return
    untouched = [each for each in waiting if not each.said]
    for part, what in PARTS.items():
        pods = [pod for pod in facts.capture.pods if _is_part(pod.metadata.labels, part)]
        if any(pod.ready for pod in pods):
            continue
        if not pods and not untouched:
            continue  # it is installed otherwise, and does its work
        states = [f"pod {pod.name} is {pod.status.phase or 'not started'}, not ready" for pod in pods]
        yield Finding(
            "CW109",
            "cluster",
            frozenset({EVERYWHERE}),
            f"no ready pod of {what}: {len(waiting)} pods wait for it",
            (*(states or [f"no pod has the label {COMPONENT}={part}"]), f"{len(untouched)} pods were never looked at"),
            f"kubectl get pods -A -l {COMPONENT}={part}; helm status cardwise",
            CERTAIN if pods else LIKELY,
        )


def _is_part(labels: dict[str, str], part: str) -> bool:
    return labels.get(COMPONENT) == part and labels.get("app.kubernetes.io/name", "cardwise") == wire.SCHEDULER_NAME


CHECK = Check(
    "CW109", "No scheduler of cardwise runs", find, frozenset({"CW101", "CW203", "CW204", "CW205", "CW209", "CW210"})
)
