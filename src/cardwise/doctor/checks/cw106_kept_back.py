"""CW106: a GPU node keeps no CPU or memory back, so pods can starve the driver's, MPS' and the kubelet's own (A7)."""

from __future__ import annotations

from collections.abc import Iterable

from cardwise.agent.checks import node_findings
from cardwise.doctor.facts import Facts
from cardwise.doctor.findings import POSSIBLE, Check, Finding


def find(facts: Facts) -> Iterable[Finding]:
    """One finding for each node and resource. Only a possible cause: it hurts on the day the node is full."""
    for node in facts.gpu_nodes:
        name, status = node.metadata.name, node.status
        for text in node_findings(node):
            if not text.startswith("the node keeps no"):
                continue
            cause, _, action = text.partition(": ")
            resource = "cpu" if "CPU" in cause else "memory"
            seen = f"{resource}: allocatable {status.allocatable[resource]} of {status.capacity[resource]}"
            yield Finding(
                "CW106",
                f"node {name}",
                frozenset({f"node:{name}"}),
                cause.replace("the node", f"node {name}"),
                (seen,),
                action,
                POSSIBLE,
                later=True,
            )


CHECK = Check("CW106", "A GPU node keeps no CPU or memory back", find)
