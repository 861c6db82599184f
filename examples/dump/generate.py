"""Write dump.json: what `kubectl get nodes,pods -A -o json` prints on a small cluster of the kind cardwise is for.

Six nodes of four A10 cards; every service holds whole cards, and most need a fraction.
Run: ``python generate.py > dump.json``
"""

from __future__ import annotations

import json
import sys

SERVICES = {  # namespace/name: (replicas, cores, GiB)
    "serving/resnet-50": (7, "2", "8Gi"),
    "serving/bert-base": (5, "2", "8Gi"),
    "serving/whisper": (3, "4", "16Gi"),
    "search/reranker": (4, "2", "8Gi"),
    "search/embedder": (2, "4", "16Gi"),
}
NODES = 6
PER_NODE = 4


def node(i: int) -> dict[str, object]:
    amounts = {"cpu": "32", "memory": "131072Mi", "pods": "110", "nvidia.com/gpu": str(PER_NODE)}
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-A10",
        "nvidia.com/gpu.memory": "23028",
        "nvidia.com/gpu.count": str(PER_NODE),
        "topology.kubernetes.io/zone": f"zone-{'ab'[i % 2]}",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"gpu-{i}", "labels": labels},
        "spec": {},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(service: str, replica: int, node_idx: int) -> dict[str, object]:
    namespace, name = service.split("/")
    _, cores, memory = SERVICES[service]
    hashed = f"{name}-5d9c7b6f4"
    gpu = {"nvidia.com/gpu": "1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{hashed}-{replica:05d}",
            "namespace": namespace,
            "creationTimestamp": f"2026-11-{1 + replica:02d}T08:00:00Z",
            "labels": {"app": name, "pod-template-hash": "5d9c7b6f4"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": hashed, "controller": True}],
        },
        "spec": {
            "nodeName": f"gpu-{node_idx}",
            "containers": [
                {"name": "server", "resources": {"requests": {"cpu": cores, "memory": memory, **gpu}, "limits": gpu}}
            ],
        },
        "status": {"phase": "Running"},
    }


def main() -> None:
    """Print the list."""
    replicas = [(service, i) for service, (count, _, _) in SERVICES.items() for i in range(count)]
    pods = [pod(service, i, at // PER_NODE) for at, (service, i) in enumerate(replicas)]
    items = [*(node(i) for i in range(NODES)), *pods]
    json.dump({"apiVersion": "v1", "kind": "List", "items": items}, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
