"""PodTemplates that load weights: what users wish, and the pod that is made of one for one node.

A PodTemplate is an object of Kubernetes itself: whatever loads a model (an image, a Hugging Face snapshot, a copy from
a bucket) is a container that the user writes. Refuses to touch what is in it, but for what makes it end, and end there.
"""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import msgspec

from cardwise.adapters import wire
from cardwise.adapters.kube_objects import Metadata
from cardwise.adapters.quantity import parse_count, parse_mib
from cardwise.core.fleet.prefetch import Load, Wish

MOST_NODES = 64
"""That one template may wish."""
LONGEST_NAME, DIGEST = 63, 10
DISK = "ephemeral-storage"


class PodTemplate(msgspec.Struct, frozen=True):
    """A PodTemplate; ``template`` is the pod's, as it was written."""

    metadata: Metadata
    template: dict[str, Any] = {}

    @property
    def name(self) -> str:
        """Namespace and name."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def service(self) -> str:
        """The workload whose next replicas load the model."""
        told = self.metadata.annotations.get(wire.ANNOTATION_PREFETCH_FOR, "")
        return f"{self.metadata.namespace}/{told}" if told else ""


def wish_of(template: PodTemplate) -> Wish:
    """What is wished. Raises ValueError that says which annotation is wrong, and what to write."""
    notes = template.metadata.annotations
    model = notes.get(wire.ANNOTATION_MODEL, "")
    if not model:
        raise ValueError(f"has no annotation {wire.ANNOTATION_MODEL}; write the model's name as the service's pods do")
    if not template.service:
        raise ValueError(f"has no annotation {wire.ANNOTATION_PREFETCH_FOR}; write the name of the Deployment")
    nodes = _read(notes, wire.ANNOTATION_PREFETCH_NODES, "2", parse_count)
    if not 1 <= nodes <= MOST_NODES:
        raise ValueError(f"{wire.ANNOTATION_PREFETCH_NODES} is {nodes}; write 1 to {MOST_NODES}")
    size_mib = _read(notes, wire.ANNOTATION_PREFETCH_SIZE, "0", lambda text: parse_mib(text, up=True))
    return Wish(template.name, model, nodes, size_mib)


def _read(notes: dict[str, str], key: str, default: str, parse: Any) -> int:  # noqa: ANN401 - a parser of quantities
    try:
        return int(parse(notes.get(key, default)))
    except ValueError as exc:
        raise ValueError(f"{key}: {exc}") from exc


def pod_name(template: str, node: str) -> str:
    """The name of the pod that loads on one node: always the same, so that it cannot be made twice."""
    digest = hashlib.blake2b(f"{template}@{node}".encode(), digest_size=DIGEST // 2).hexdigest()
    stem = template.partition("/")[2][: LONGEST_NAME - DIGEST - 1].rstrip("-.")
    return f"{stem}-{digest}"


def pod_for(template: PodTemplate, wish: Wish, load: Load) -> dict[str, Any]:
    """The pod: on this node alone, that ends, in its time, and asks for the disk that the weights take.

    kube-scheduler places it, so that taints and the disk count; it goes with its template.
    """
    body = copy.deepcopy(template.template)
    told, meta = body.get("metadata") or {}, template.metadata
    spec = body.get("spec") or {}
    spec["restartPolicy"] = "Never"
    spec["activeDeadlineSeconds"] = min(spec.get("activeDeadlineSeconds") or load.deadline_s, load.deadline_s)
    spec["affinity"] = _only_on(load.node, spec.get("affinity") or {})
    if wish.size_mib and spec.get("containers"):
        requests = spec["containers"][0].setdefault("resources", {}).setdefault("requests", {})
        requests.setdefault(DISK, f"{wish.size_mib}Mi")
    owner = {"apiVersion": "v1", "kind": "PodTemplate", "name": meta.name, "uid": meta.uid, "controller": True}
    metadata = {
        "name": pod_name(template.name, load.node),
        "namespace": meta.namespace,
        "labels": {**(told.get("labels") or {}), wire.LABEL_PREFETCH: meta.name[:LONGEST_NAME]},
        "annotations": {**(told.get("annotations") or {}), wire.ANNOTATION_PREFETCH_NODE: load.node},
        "ownerReferences": [owner],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _only_on(node: str, affinity: dict[str, Any]) -> dict[str, Any]:
    """The affinity, and this node. Source: Kubernetes, NodeSelectorTerm: matchFields knows ``metadata.name`` alone."""
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    wanted = affinity.get("nodeAffinity") or {}
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = (wanted.get(key) or {}).get("nodeSelectorTerms") or [{}]
    narrowed = [{**term, "matchFields": [here]} for term in terms]
    return {**affinity, "nodeAffinity": {**wanted, key: {"nodeSelectorTerms": narrowed}}}
