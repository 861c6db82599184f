"""A cluster as one node's agent sees it, in memory: pods come and go by hand, what is written is kept."""

from __future__ import annotations

import asyncio

import msgspec

from cardwise.adapters import wire
from cardwise.adapters.allocations import encode
from cardwise.adapters.kube.port import All, Gone, LeaseRecord, Lost, Put
from cardwise.adapters.kube_objects import LocalPod, Node
from cardwise.core.allocation import Allocation, Share
from cardwise.errors import BudgetError, ClusterError, ConflictError, NotFoundError

NODE = "gpu-1"


class NodePort:
    """down: every call fails. mute: the watch says nothing, not even what there is. budget: no pod may be evicted."""

    def __init__(self):
        self.pods: dict[str, dict] = {}
        self.annotations: dict[str, str] = {}
        self.conditions: dict[str, dict] = {}
        self.events: list[dict] = []
        self.leases: dict[str, LeaseRecord] = {}
        self.evicted: list[tuple[str, int]] = []
        self.budget = False
        self.writes = 0
        self.down = False
        self.mute = False
        self._news: asyncio.Queue = asyncio.Queue()

    # ---------------------------------------------------------------- by hand

    def put(self, pod, *, told=True):
        """A pod is there; ``told``: the watch has said so."""
        self.pods[pod["metadata"]["uid"]] = pod
        if told:
            self._news.put_nowait(Put(local_pod(pod)))

    def remove(self, pod):
        self.pods.pop(pod["metadata"]["uid"], None)
        self._news.put_nowait(Gone(local_pod(pod)))

    def reasons(self):
        return [event["reason"] for event in self.events]

    # ---------------------------------------------------------------- the port

    async def follow_pods_on(self, _node):
        while self.down or self.mute:
            if self.down:
                yield Lost("the API server is down")
            await asyncio.sleep(0.02)
        yield All(tuple(local_pod(pod) for pod in self.pods.values()))
        while True:
            yield await self._news.get()

    async def get_local_pod(self, namespace, name):
        self._check()
        found = [
            p for p in self.pods.values() if (p["metadata"]["namespace"], p["metadata"]["name"]) == (namespace, name)
        ]
        if not found:
            raise NotFoundError(f"pod {namespace}/{name}", retry=False)
        return local_pod(found[-1])

    async def evict(self, evictee):
        self._check()
        if self.budget:
            raise BudgetError("Cannot evict pod as it would violate the pod's disruption budget.", retry=True)
        if evictee.uid not in self.pods:
            raise NotFoundError(f"pod {evictee.namespace}/{evictee.name}", retry=False)
        self.evicted.append((f"{evictee.namespace}/{evictee.name}", evictee.grace_s))

    async def get_node(self, name):
        self._check()
        return msgspec.convert({"metadata": {"name": name}}, Node)

    async def annotate_node(self, _name, annotations):
        self._check()
        self.writes += 1
        self.annotations |= annotations

    async def set_node_condition(self, _name, condition):
        self._check()
        self.conditions[condition["type"]] = condition

    async def post_event(self, event, _namespace):
        self._check()
        self.events.append(event)

    async def read_lease(self, _namespace, name):
        self._check()
        if name not in self.leases:
            raise NotFoundError(name, retry=False)
        return self.leases[name]

    async def write_lease(self, _namespace, name, record):
        self._check()
        if name in self.leases and record.version != self.leases[name].version:
            raise ConflictError(name, retry=True)
        self.leases[name] = record
        return record

    def _check(self):
        if self.down:
            raise ClusterError("the API server is down", retry=True)


def local_pod(pod):
    return msgspec.convert(pod, LocalPod)


def share(uuid, mib=4096, pct=20, **more):
    return Share(uuid, mib, pct, **more)


def pod(name, shares, *, uid=None, node=NODE, inits=None, sidecars=None, seq=1, annotations=None, alloc_node=None):
    """A bound pod: ``shares``, ``inits`` and ``sidecars`` say per container the cards that the scheduler gave it."""
    given = {**(sidecars or {}), **(inits or {}), **shares}
    allocation = Allocation(alloc_node or node, tuple((c, tuple(s)) for c, s in given.items()), epoch=1, seq=seq)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid or f"00000000-0000-0000-0000-{abs(hash(name)) % 10**12:012d}",
            "creationTimestamp": "2026-11-30T09:00:00Z",
            "annotations": {wire.ANNOTATION_ALLOC: encode(allocation), **(annotations or {})},
        },
        "spec": {
            "nodeName": node,
            "initContainers": [
                *({**_container(c, s), "restartPolicy": "Always"} for c, s in (sidecars or {}).items()),
                *(_container(c, s) for c, s in (inits or {}).items()),
            ],
            "containers": [_container(c, s) for c, s in shares.items()],
        },
        "status": {"phase": "Pending"},
    }


def _container(name, shares):
    asked = {
        wire.OWN_COUNT: str(len(shares)),
        wire.OWN_MEMORY: str(sum(each.memory_mib for each in shares)),
        wire.OWN_CORES: str(sum(each.compute_pct for each in shares)),
    }
    return {"name": name, "image": "none", "resources": {"limits": asked, "requests": asked}}
