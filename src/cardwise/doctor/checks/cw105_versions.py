"""CW105: versions that do not fit together (SPEC A8): kubelet and CDI, runtime and CDI, driver and the image's CUDA."""

from __future__ import annotations

import re
from collections.abc import Iterable

from cardwise.adapters.symptoms import ToldNode
from cardwise.agent.checks import driver_findings, node_findings
from cardwise.doctor.facts import Facts
from cardwise.doctor.findings import CERTAIN, LIKELY, Check, Finding
from cardwise.doctor.words import around, last_words

LEAST_CONTAINERD, LEAST_CRIO = (1, 7), (1, 23)
"""The first with CDI. Source: the container-device-interface project's README, "How to configure CDI"."""
TOO_OLD = re.compile(
    r"driver version is insufficient|forward compatibility was attempted|requires? (?:a )?newer .*driver"
)


def find(facts: Facts) -> Iterable[Finding]:
    """Nodes' kubelets and runtimes; containers that ended with the driver's complaint; this node's driver."""
    for node in facts.gpu_nodes:
        info = node.status.node_info
        for text in node_findings(node):
            if text.startswith("the kubelet"):
                yield _finding(node.metadata.name, text, (f"kubeletVersion {info.kubelet_version}",))
        if why := _runtime(node):
            yield _finding(node.metadata.name, why, (f"containerRuntimeVersion {info.container_runtime_version}",))
    for pod in facts.gpu_pods:
        for container, words in last_words(pod, facts.taken):
            if found := TOO_OLD.search(words):
                places = frozenset({f"pod:{pod.name}", f"node:{pod.spec.node_name}"})
                cause = f"the CUDA of {pod.name}'s image needs a newer driver than its node has"
                action = (
                    "upgrade the node's driver, or take an image of an older CUDA (see NVIDIA's CUDA compatibility)"
                )
                seen = f"container {container} ended with: …{around(found)}…"
                yield Finding("CW105", f"pod {pod.name}", places, cause, (seen,), action, CERTAIN)
    nearby = facts.nearby
    if nearby is not None and nearby.driver is not None:
        for told in driver_findings(nearby.driver):
            yield _finding(nearby.node, told, (f"driver {nearby.driver.driver_version}",))


def _finding(node: str, text: str, evidence: tuple[str, ...]) -> Finding:
    cause, _, action = text.rpartition(": ")
    told = f"node {node}: {cause}"
    return Finding("CW105", f"node {node}", frozenset({f"node:{node}"}), told, evidence, action, LIKELY)


def _runtime(node: ToldNode) -> str:
    """What is wrong with a container runtime; empty if nothing is, or it is not known."""
    told = node.status.node_info.container_runtime_version
    found = re.match(r"(containerd|cri-o)://v?(\d+)\.(\d+)", told)
    if found is None:
        return ""
    least = LEAST_CONTAINERD if found[1] == "containerd" else LEAST_CRIO
    if (int(found[2]), int(found[3])) >= least:
        return ""
    return f"{told.replace('://', ' ')} knows no CDI, by which containers get their cards: upgrade it to " + ".".join(
        map(str, least)
    )


CHECK = Check(
    "CW105",
    "Versions do not fit together",
    find,
    frozenset({"CW301", "CW303", "CW304"}),
    frozenset({"objects", "node"}),
)
