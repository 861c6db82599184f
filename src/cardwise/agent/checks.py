"""What an operator should know of this node before the first slice: versions that do not fit, nothing kept back.

Each finding is a sentence that says what was seen and what to do; the agent says it once as an event of the node and
works on. Refuses to refuse: what truly cannot work shows where it fails, with its own words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from cardwise.adapters.kube_objects import Node
from cardwise.adapters.quantity import NotAQuantityError, parse_mib, parse_milli
from cardwise.core.card.facts import NodeFacts

LEAST_KUBELET = (1, 29)
"""The first whose device plugins may name CDI devices without a feature gate. Source: KEP-4009."""

LEAST_BRANCH = 450
"""Older drivers lack what is asked of them at each look, and MPS limits per client came later still."""


def driver_findings(facts: NodeFacts) -> Sequence[str]:
    """What is wrong with the driver's version (SPEC A8)."""
    if not 0 < facts.driver_branch < LEAST_BRANCH:
        return []
    return [f"the driver is {facts.driver_version}, older than R{LEAST_BRANCH}: upgrade it"]


def node_findings(node: Node) -> Sequence[str]:
    """What is wrong with a node's versions (SPEC A8) and with what it keeps back (SPEC A7)."""
    return [*_versions(node), *_kept_back(node)]


def _versions(node: Node) -> Iterable[str]:
    told = node.status.node_info.kubelet_version
    version = re.match(r"v?(\d+)\.(\d+)", told)
    if version is None:
        return
    if (int(version.group(1)), int(version.group(2))) < LEAST_KUBELET:
        yield (
            f"the kubelet is {told}; containers get their cards by CDI, which device plugins may use since "
            f"{'.'.join(map(str, LEAST_KUBELET))}: upgrade the node, or switch on its gate "
            "DevicePluginCDIDevices"
        )


def _kept_back(node: Node) -> Iterable[str]:
    """The driver's and MPS's own processes need CPU and memory that no pod can take."""
    for resource, what in (("cpu", "CPU"), ("memory", "memory")):
        whole, free = node.status.capacity.get(resource), node.status.allocatable.get(resource)
        if whole is not None and free is not None and _amount(resource, free) >= _amount(resource, whole) > 0:
            yield (
                f"the node keeps no {what} back for the driver's and the system's own processes: set systemReserved "
                f"and kubeReserved in the kubelet's configuration"
            )


def _amount(resource: str, text: str | int) -> int:
    try:
        return parse_milli(text, up=False) if resource == "cpu" else parse_mib(text, up=False)
    except NotAQuantityError:
        return 0
