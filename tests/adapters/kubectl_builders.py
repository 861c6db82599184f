"""Objects as ``kubectl get nodes,pods -A -o json`` prints them, from a few words each.

Besides what cardwise reads they carry what a real API server adds (images, probes, statuses), for that must be skipped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

Item = dict[str, Any]
"""A Kubernetes object, or a part of one."""
T4_LABELS = {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.memory": "15360", "nvidia.com/gpu.count": "4"}


def node(
    name: str = "gpu-1",
    gpus: str | None = "4",
    labels: dict[str, str] = T4_LABELS,
    annotations: dict[str, str] | None = None,
    ready: str = "True",
    **more: Any,
) -> Item:
    """A node of 64 cores and 256 GiB with four T4s; ``more`` replaces parts of spec and status."""
    offered = {"cpu": "64", "memory": "263856652Ki", "pods": "110", "ephemeral-storage": "94Gi"}
    if gpus is not None:
        offered["nvidia.com/gpu"] = gpus
    status = {
        "capacity": offered,
        "allocatable": offered,
        "conditions": [
            {"type": "MemoryPressure", "status": "False", "reason": "KubeletHasSufficientMemory"},
            {"type": "Ready", "status": ready, "reason": "KubeletReady"},
        ],
        "nodeInfo": {"kubeletVersion": "v1.34.2", "architecture": "amd64", "osImage": "Ubuntu 24.04"},
        "images": [{"names": ["registry.k8s.io/pause:3.10"], "sizeBytes": 320368}],
    }
    spec = {key: more.pop(key) for key in ("unschedulable", "taints") if key in more}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": dict(labels), "annotations": annotations or {}, "uid": f"uid-{name}"},
        "spec": {"podCIDR": "10.0.0.0/24", **spec},
        "status": status | more,
    }


def cpu_node(name: str = "cpu-1", **more: Any) -> Item:
    return node(name, gpus=None, labels={}, **more)


def container(
    cpu: str | None = None,
    memory: str | None = None,
    gpu: dict[str, str] | None = None,
    name: str = "main",
    **more: Any,
) -> Item:
    """A container with CPU and memory requests, GPU asks as a dict of resource names, and other fields."""
    requests = {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value is not None}
    gpu = gpu or {}
    resources = {"requests": requests | gpu, "limits": gpu} if gpu or requests else {}
    return {
        "name": name,
        "image": "registry.example/resnet:1.2",
        "imagePullPolicy": "IfNotPresent",
        "ports": [{"containerPort": 8000}],
        "resources": resources,
        "terminationMessagePath": "/dev/termination-log",
        **more,
    }


def sidecar(*args: Any, **more: Any) -> Item:
    return container(*args, restartPolicy="Always", **more)


def pod(
    name: str = "resnet-6c9f-abcde",
    *containers: Item,
    init: Sequence[Item] = (),
    namespace: str = "team-a",
    node: str = "gpu-1",
    phase: str = "Running",
    **more: Any,
) -> Item:
    """A running pod of one small CPU container; ``more`` are fields of spec, or one of labels, owner, created."""
    labels, owner = more.pop("labels", {}), more.pop("owner", None)
    created, annotations = more.pop("created", "2026-11-01T10:00:00Z"), more.pop("annotations", {})
    owners = [{"apiVersion": "apps/v1", "kind": owner[0], "name": owner[1], "controller": True}] if owner else []
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "creationTimestamp": created,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": owners,
        },
        "spec": {
            "containers": list(containers) or [container("1", "1Gi")],
            "initContainers": list(init),
            "restartPolicy": "Always",
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            **({"nodeName": node} if node else {}),
            **more,
        },
        "status": {"phase": phase, "qosClass": "Burstable", "podIP": "10.0.0.7"},
    }


def gpu_pod(gpu: dict[str, str], name: str = "resnet-6c9f-abcde", **more: Any) -> Item:
    """A pod with one container that asks for these GPU resources."""
    return pod(name, container("2", "8Gi", gpu), **more)


def whole(cards: int = 1, name: str = "resnet-6c9f-abcde", **more: Any) -> Item:
    return gpu_pod({"nvidia.com/gpu": str(cards)}, name, **more)


def deployment_pod(pod_dict: Item, deployment: str = "resnet", pod_hash: str = "6c9f4d7b8") -> Item:
    """The same pod as a replica of a Deployment."""
    metadata = pod_dict["metadata"]
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{deployment}-{pod_hash}", "controller": True}
    return pod_dict | {
        "metadata": metadata | {"labels": {"pod-template-hash": pod_hash}, "ownerReferences": [owner]},
    }


def hami_cards(*cards: Item) -> dict[str, str]:
    """HAMi's annotation; each card a dict of what differs from a healthy 15 GiB T4."""
    plain = {"count": 10, "devmem": 15360, "devcore": 100, "type": "NVIDIA-Tesla T4", "mode": "hami-core"}
    entries = [plain | {"id": f"GPU-{i}", "index": i, "health": True} | dict(card) for i, card in enumerate(cards)]
    return {"hami.io/node-nvidia-register": json.dumps(entries)}


def listing(*items: Item, kind: str = "List") -> Item:
    return {"apiVersion": "v1", "items": list(items), "kind": kind, "metadata": {"resourceVersion": ""}}


def dump_text(*items: Item) -> str:
    return json.dumps(listing(*items), indent=4) + "\n"
