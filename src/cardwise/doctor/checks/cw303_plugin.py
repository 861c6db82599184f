"""CW303: the kubelet does not know cardwise's slots, or the agent refused a container: the pod cannot start."""

from __future__ import annotations

from collections.abc import Iterable

from cardwise.adapters import wire
from cardwise.adapters.quantity import parse_count
from cardwise.adapters.symptoms import ToldContainer, ToldPod
from cardwise.agent.registering import ENDPOINT, KUBELET_SOCKET
from cardwise.doctor.facts import Facts, with_card
from cardwise.doctor.findings import CERTAIN, LIKELY, Check, Finding

RECENT_S = 3600.0
ADMISSION = frozenset({"UnexpectedAdmissionError", "OutOfcardwise.dev/gpu", "InvalidNodeInfo"})


def find(facts: Facts) -> Iterable[Finding]:
    """Nodes whose agent tells of cards and whose kubelet offers no slots; refused pods; sockets here."""
    for node in facts.gpu_nodes:
        ours = wire.ANNOTATION_CARDS in node.metadata.annotations
        if ours and not _slots(node.status.allocatable) and not facts.settling(node):
            offered = f"allocatable has {wire.OWN_COUNT}: {node.status.allocatable.get(wire.OWN_COUNT, 'nothing')}"
            cause = "its agent tells of cards, and its kubelet offers no slots"
            yield _of_node(node.metadata.name, cause, (offered,), CERTAIN)
    for pod in facts.capture.pods:
        age = facts.age_s(pod.status.start_time or pod.metadata.creation_timestamp)
        recent = age is None or age <= RECENT_S  # refused pods stay listed for weeks
        if recent and pod.status.reason in ADMISSION and _is_ours(pod):
            yield Finding(
                "CW303",
                f"pod {pod.name}",
                frozenset({f"pod:{pod.name}", f"node:{pod.spec.node_name}"}),
                f"the kubelet of node {pod.spec.node_name} refused pod {pod.name}: no card was handed out",
                (f"{pod.status.reason}: {pod.status.message[:300]}",),
                "do what the message says; its ReplicaSet makes another. If it recurs see the agent's log on that node",
                CERTAIN,
            )
    nearby = facts.nearby
    if nearby is not None and KUBELET_SOCKET in nearby.sockets and ENDPOINT not in nearby.sockets:
        seen = (f"the kubelet's folder has {', '.join(nearby.sockets)}",)
        yield _of_node(nearby.node, "no agent of cardwise is registered with the kubelet", seen, LIKELY)


def _is_ours(pod: ToldPod) -> bool:
    """Another plugin's refusals read alike."""
    message = pod.status.message
    return wire.OWN_COUNT in message or ("Allocate" in message and any(map(_of_ours, with_card(pod))))


def _of_ours(container: ToldContainer) -> bool:
    return wire.OWN_COUNT in container.resources.limits


def _slots(allocatable: dict[str, str | int]) -> int:
    try:
        return parse_count(allocatable.get(wire.OWN_COUNT, "0"))
    except ValueError:
        return 0


def _of_node(node: str, cause: str, evidence: tuple[str, ...], likelihood: float) -> Finding:
    action = (
        "see the agent's log on that node (kubectl get pods -n cardwise-system -o wide names its pod); its metric "
        "cardwise_agent_registered is 1 once the kubelet knows it"
    )
    places = frozenset({f"node:{node}"})
    return Finding("CW303", f"node {node}", places, f"node {node}: {cause}", evidence, action, likelihood)


CHECK = Check(
    "CW303",
    "The kubelet offers no slots, or refused a container",
    find,
    frozenset({"CW208", "CW209", "CW304"}),
    frozenset({"objects", "node"}),
)
