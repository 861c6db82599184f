"""What Kubernetes' controllers make of workloads: pods with owners, labels and stable names.

An emulation, and a small one: the wanted pods, no rollouts. A pod that is no longer wanted as it is goes, and the new
one comes. Names end in a number instead of random letters, so that the same files give the same pods.
"""

from __future__ import annotations

import copy
import hashlib
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from cardwise.adapters import wire
from cardwise.adapters.manifests import GROUPS, Workload
from cardwise.up.hardware import LABEL_HOSTNAME

Raw = dict[str, Any]
LONGEST_HASH = 8
_UIDS = uuid.UUID("6ba7b814-9dad-11d1-80b4-00c04fd430c8")


def pods_of(workload: Workload, nodes: Mapping[str, Mapping[str, str]]) -> Iterator[Raw]:
    """The pods that a workload wants. ``nodes``: labels by name, for DaemonSets."""
    if workload.kind == "Pod":
        yield _pod(workload, workload.name, None, {})
        return
    owner, labels = (workload.kind, workload.name), {}
    if workload.kind == "Deployment":
        digest = _hash(workload.template)
        owner, labels = ("ReplicaSet", f"{workload.name}-{digest}"), {wire.LABEL_POD_HASHES[0]: digest}
    if workload.pods is None:
        yield from (_on_node(workload, owner, node) for node in _matching(workload, nodes))
        return
    for number in range(workload.pods):
        yield _pod(workload, f"{owner[1]}-{number}", owner, labels)


def _pod(workload: Workload, name: str, owner: tuple[str, str] | None, labels: Mapping[str, str]) -> Raw:
    raw: Raw = {"apiVersion": "v1", "kind": "Pod", **copy.deepcopy(dict(workload.template))}
    metadata = raw["metadata"]
    metadata |= {"name": name, "namespace": workload.namespace}
    if labels:
        metadata["labels"] = {**metadata.get("labels", {}), **labels}
    if owner is not None:
        kind, owner_name = owner
        uid = uuid.uuid5(_UIDS, f"{kind}/{workload.namespace}/{owner_name}")
        metadata["ownerReferences"] = [
            {
                "apiVersion": GROUPS[kind],
                "kind": kind,
                "name": owner_name,
                "uid": str(uid),
                "controller": True,
            }
        ]
    return raw


def _on_node(workload: Workload, owner: tuple[str, str], node: str) -> Raw:
    """Kubernetes pins a DaemonSet's pod by an affinity on the node's name; its host name says the same here."""
    raw = _pod(workload, f"{workload.name}-{node}", owner, {})
    raw["spec"]["nodeSelector"] = {**raw["spec"].get("nodeSelector", {}), LABEL_HOSTNAME: node}
    return raw


def _matching(workload: Workload, nodes: Mapping[str, Mapping[str, str]]) -> list[str]:
    wanted = workload.template["spec"].get("nodeSelector", {})
    return [name for name, labels in nodes.items() if all(labels.get(key) == text for key, text in wanted.items())]


def _hash(template: Mapping[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(template, order="deterministic")).hexdigest()[:LONGEST_HASH]
