"""CW302: a pod names a runtime class that is not there, or whose handler the node's runtime does not know."""

from __future__ import annotations

import re
from collections.abc import Iterable

from cardwise.adapters.symptoms import RuntimeClass, ToldPod
from cardwise.doctor.facts import Facts
from cardwise.doctor.findings import CERTAIN, Check, Finding

OF_CARDS = "nvidia"
NO_HANDLER = re.compile(r'no runtime for "?([\w-]+)"? is configured|RuntimeHandler "?([\w-]+)"? not supported')
NO_CLASS = re.compile(r'RuntimeClass(?:\.node\.k8s\.io)? "([^"]+)" not found')


def find(facts: Facts) -> Iterable[Finding]:
    """One finding for each pod; pods that asked for a card, or name the class of cards."""
    classes = {each.metadata.name for each in facts.capture.of(RuntimeClass)}
    for pod in facts.capture.pods:
        name = pod.spec.runtime_class_name
        if not name or pod.ended or pod.ready or not (facts.pod(pod.name) or OF_CARDS in name):
            continue
        events = facts.events_of("Pod", pod.metadata.namespace, pod.metadata.name)
        said = next((e.message for e in events if NO_HANDLER.search(e.message) or NO_CLASS.search(e.message)), "")
        if said and NO_HANDLER.search(said):
            cause = f"the container runtime of node {pod.spec.node_name} has no handler for runtime class {name}"
            action = (
                "on the node: nvidia-ctk runtime configure --runtime=containerd (or crio), then restart the runtime"
            )
            yield _finding(pod, cause, said[:300], action)
        elif said or (facts.saw("RuntimeClass") and name not in classes):
            cause = f"there is no runtime class {name}"
            action = "make it (handler: nvidia), or take runtimeClassName out of the pod: with CDI none is needed"
            yield _finding(
                pod, cause, said[:300] or f"it names {name}; there are: {', '.join(sorted(classes))}", action
            )


def _finding(pod: ToldPod, cause: str, evidence: str, action: str) -> Finding:
    places = frozenset({f"pod:{pod.name}", f"node:{pod.spec.node_name}"})
    told = f"no GPU in {pod.name}: {cause}"
    return Finding("CW302", f"pod {pod.name}", places, told, (evidence,), action, CERTAIN)


CHECK = Check("CW302", "The runtime class is missing, or its handler is", find, frozenset({"CW301", "CW304", "CW410"}))
