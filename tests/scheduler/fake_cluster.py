"""A cluster in memory behind the scheduler's port, whose answers can be lost, late, or not come at all."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from dataclasses import replace

import msgspec

from cardwise.adapters import wire
from cardwise.adapters.allocations import bound_pod
from cardwise.adapters.kube.port import All, Gone, Put
from cardwise.adapters.kube_objects import Node, Pod
from cardwise.adapters.node_cards import encode_cards
from cardwise.core.claim import LatencyClass
from cardwise.core.ledger import Ledger
from cardwise.core.placement.policies import make_policy
from cardwise.errors import ClusterError, ConflictError, NotFoundError

DEAD = ClusterError("no answer in time", retry=True)


def balanced(cluster, mix):
    return dict.fromkeys(LatencyClass, make_policy("balanced", cluster, mix))


def books(*nodes):
    """A ledger that has heard of these nodes (specs)."""
    ledger = Ledger(balanced)
    ledger.reset(nodes, [])
    return ledger


def slice_limits(mib=4096, pct=20, cards=1):
    return {wire.GPU: str(cards), wire.USER_MEMORY: str(mib), wire.USER_CORES: str(pct)}


def pod(name="a", limits=None, *, uid="", node="", phase="", conditions=(), **more):
    """A pod of one container that asks for a slice; ``more``: annotations, containers, inits, spec."""
    limits = slice_limits() if limits is None else limits
    containers = more.pop("containers", {"app": limits})
    metadata = {
        "name": name,
        "namespace": "ns",
        "uid": uid or f"uid-{name}",
        "annotations": more.pop("annotations", {}),
    }
    spec = {
        "containers": [{"name": each, "resources": {"limits": asked}} for each, asked in containers.items()],
        "initContainers": [
            {"name": each, "resources": {"limits": asked}} for each, asked in more.pop("inits", {}).items()
        ],
        "nodeName": node,
        **more,
    }
    status = {"phase": phase, "conditions": list(conditions)}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, Pod)


def node_object(spec, *, conditions=(), annotations=None):
    """A node as its agent reports this spec."""
    told = {wire.ANNOTATION_CARDS: encode_cards(spec.cards), **(annotations or {})}
    raw = {
        "metadata": {"name": spec.name, "annotations": told},
        "spec": {"unschedulable": not spec.schedulable},
        "status": {
            "allocatable": {"cpu": f"{spec.cpu_milli}m", "memory": f"{spec.memory_mib}Mi"},
            "conditions": list(conditions),
        },
    }
    return msgspec.convert(raw, Node)


def bound(pod_object, binding):
    """The pod after its binding."""
    metadata, spec = pod_object.metadata, pod_object.spec
    annotations = {**metadata.annotations, **binding.annotations}
    return msgspec.structs.replace(
        pod_object,
        metadata=msgspec.structs.replace(metadata, annotations=annotations),
        spec=msgspec.structs.replace(spec, node_name=binding.node),
    )


class FakeCluster:
    """pods: by "namespace/name". history: all changes of pods, in order.

    dead: nothing is answered. answers: what becomes of the next bindings ("ok" if empty): "lost" is written without an
    answer, "unwritten" is neither, "hangs" is written and never answered.
    """

    def __init__(self, *pods):
        self.pods = {each.name: each for each in pods}
        self.history = []
        self.answers = deque()
        self.dead = False
        self.bindings, self.annotated, self.conditions, self.events = [], [], [], []
        self.lease, self.lease_fails, self._version = None, deque(), 0

    def create(self, pod_object):
        self.pods[pod_object.name] = pod_object
        self.history.append(Put(pod_object))

    def delete(self, name):
        self.history.append(Gone(self.pods.pop(name)))

    def all(self):
        return All(tuple(self.pods.values()))

    def bound_pods(self):
        return [bound_pod(each) for each in self.pods.values() if each.spec.node_name]

    # ---------------------------------------------------------------- the port

    async def get_pod(self, namespace, name):
        self._must_live()
        if f"{namespace}/{name}" not in self.pods:
            raise NotFoundError(f"pods {name} not found", retry=False)
        return self.pods[f"{namespace}/{name}"]

    async def bind(self, binding):
        self._must_live()
        answer = self.answers.popleft() if self.answers else "ok"
        if answer != "unwritten":
            self.write(binding)
        if answer == "hangs":
            await asyncio.Event().wait()
        if answer != "ok":
            raise DEAD

    def write(self, binding):
        """What the API server does with a binding."""
        before = self.pods.get(f"{binding.namespace}/{binding.pod}")
        if before is None:
            raise NotFoundError(f"pods {binding.pod} not found", retry=False)
        if before.metadata.uid != binding.uid:
            raise ConflictError("the UID in the precondition does not match", retry=False)
        if before.spec.node_name:
            raise ConflictError(f"pod {binding.pod} is already assigned to node {before.spec.node_name}", retry=False)
        self.bindings.append(binding)
        self.create(bound(before, binding))

    async def annotate_node(self, name, annotations):
        self._must_live()
        self.annotated.append((name, dict(annotations)))

    async def set_node_condition(self, name, condition):
        self._must_live()
        self.conditions.append((name, condition["status"], condition["message"]))

    async def post_event(self, event, namespace):
        self._must_live()
        self.events.append((namespace, event["involvedObject"]["name"], event["message"]))

    async def list_leases(self, _namespace, _prefix):
        return {}

    async def read_lease(self, _namespace, _name):
        self._must_live()
        if self.lease is None:
            raise NotFoundError("no lease", retry=False)
        return self.lease

    async def write_lease(self, _namespace, _name, record):
        self._must_live()
        if self.lease_fails:
            raise self.lease_fails.popleft()
        if record.version != (self.lease.version if self.lease else ""):
            raise ConflictError("the lease has been modified", retry=False)
        self._version += 1
        self.lease = replace(record, version=str(self._version))
        return self.lease

    def _must_live(self):
        if self.dead:
            raise DEAD


def patch_applied(raw, patch):
    """A JSON document after a JSON patch of "add" operations."""
    made = json.loads(json.dumps(raw))
    for change in patch:
        assert change["op"] == "add"
        *way, last = change["path"].strip("/").split("/")
        place = made
        for step in way:
            place = place[int(step)] if isinstance(place, list) else place[step]
        place[last] = json.loads(json.dumps(change["value"]))
    return made
