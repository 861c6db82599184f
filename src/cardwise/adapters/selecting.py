"""Labels, selectors, taints: which pods a budget covers, and on which nodes kube-scheduler's own rules let a pod.

Refuses to know what else keeps a pod off a node: pod affinity, topology spread and volumes are kube-scheduler's.
Source: labels.Requirement.Matches; v1.Toleration.ToleratesTaint; Kubernetes, "Assigning Pods to Nodes".
"""

from __future__ import annotations

from collections.abc import Mapping

from cardwise.adapters.kube_objects import Expression, Node, Pod, Selector, Taint, Toleration

KEEPS_OFF = frozenset({"NoSchedule", "NoExecute"})
"""Effects of taints that keep pods off; the third is a wish."""


def lets(node: Node, pod: Pod) -> bool:
    """Whether the node's labels and taints let the pod on it."""
    return is_selected(pod, node.metadata.labels) and tolerates(pod, node)


def is_selected(pod: Pod, labels: Mapping[str, str]) -> bool:
    """Node selector and required node affinity."""
    if any(labels.get(key) != text for key, text in pod.spec.node_selector.items()):
        return False
    terms = pod.spec.affinity.node_affinity.required.node_selector_terms
    return not terms or any(
        bool(term.match_expressions) and all(holds(each, labels) for each in term.match_expressions) for term in terms
    )


def tolerates(pod: Pod, node: Node) -> bool:
    """Whether the pod tolerates every taint of the node that keeps pods off."""
    taints = (taint for taint in node.spec.taints if taint.effect in KEEPS_OFF)
    return all(any(_tolerates(each, taint) for each in pod.spec.tolerations) for taint in taints)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in {"", taint.effect} or toleration.key not in {"", taint.key}:
        return False
    return toleration.operator == "Exists" or (bool(toleration.key) and toleration.value == taint.value)


def covers(selector: Selector | None, labels: Mapping[str, str]) -> bool:
    """Whether a selector of pods matches these labels; none at all matches nothing."""
    if selector is None or any(labels.get(key) != text for key, text in selector.match_labels.items()):
        return False
    return all(holds(each, labels) for each in selector.match_expressions)


def holds(expression: Expression, labels: Mapping[str, str]) -> bool:
    """One condition on labels; an operator that is not known holds nowhere."""
    told = labels.get(expression.key)
    match expression.operator:
        case "In":
            return told in expression.values
        case "NotIn":
            return told not in expression.values
        case "Exists":
            return told is not None
        case "DoesNotExist":
            return told is None
        case "Gt" | "Lt":
            return _compares(told, expression)
    return False


def _compares(told: str | None, expression: Expression) -> bool:
    try:
        number, bound = int(told or ""), int(expression.values[0])
    except (ValueError, IndexError):
        return False
    return number > bound if expression.operator == "Gt" else number < bound
