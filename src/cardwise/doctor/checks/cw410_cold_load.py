"""CW410: a replica takes minutes to start where its model's weights are not on the node: the first requests wait."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from cardwise.adapters import wire
from cardwise.adapters.symptoms import ToldPod
from cardwise.doctor.facts import Facts
from cardwise.doctor.findings import LIKELY, POSSIBLE, Check, Finding
from cardwise.doctor.words import began, statuses

LONG_S = 180.0
"""Loading 16 GiB from a local disk takes less than a minute; from a registry it takes several."""
LONGEST_S = 3600.0
"""What takes longer is no loading: a pod that was never ready, or that was ready before and is so again."""
RECENT_S = 86400.0


def find(facts: Facts) -> Iterable[Finding]:
    """One finding for each pod that started slowly of late, or is at it, and did not fail meanwhile."""
    cached = {
        node.metadata.name: set(node.metadata.annotations.get(wire.ANNOTATION_CACHED_MODELS, "").split(",")) - {""}
        for node in facts.capture.nodes
    }
    for pod in facts.gpu_pods:
        took = _took_s(facts, pod)
        if (
            took is None
            or not LONG_S <= took <= LONGEST_S
            or any(each.restart_count for each in pod.status.container_statuses)
        ):
            continue
        key, node = facts.claim(pod).model_key, pod.spec.node_name
        if key and key in cached.get(node, set()):
            continue
        lacks = f"node {node} has not the weights of {key}" if key else "the pod does not say which model it loads"
        elsewhere = sorted(name for name, keys in cached.items() if key and key in keys)
        at = "so far" if not pod.ready else "from its first container's start to ready"
        yield Finding(
            "CW410",
            f"pod {pod.name}",
            frozenset({f"pod:{pod.name}"}),
            f"pod {pod.name} starts slowly: its weights come from afar",
            (f"{took:.0f} s {at}", lacks + (f"; {', '.join(elsewhere[:3])} have them" if elsewhere else "")),
            "write cardwise.dev/model on the pod's template, list the folder in the agent's model-folders, and have "
            "weights prefetched (a PodTemplate with cardwise.dev/prefetch)",
            LIKELY if key else POSSIBLE,
        )


def _took_s(facts: Facts, pod: ToldPod) -> float | None:
    """Seconds from its first container's start to ready, or to now; None if none started, or that was long ago.

    Not from its binding: an image that is pulled for minutes is no weights.
    """
    times = {each.type: each.last_transition_time for each in pod.status.conditions if each.status == "True"}
    bound = min((at for each in statuses(pod) if (at := began(each)) is not None), default=None)
    if bound is None or pod.metadata.deletion_timestamp:
        return None
    ready: datetime | None = times.get("Ready")
    if pod.ready and ready is None:
        return None
    if ready is not None and (facts.taken - ready).total_seconds() > RECENT_S:
        return None
    return ((ready or facts.taken) - bound).total_seconds()


CHECK = Check("CW410", "Weights are loaded from afar", find)
