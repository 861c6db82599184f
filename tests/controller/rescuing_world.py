"""A hollow cluster with our scheduler, the rescuing loop, and what a ReplicaSet's controller and kubelets do.

Time is a number that a test moves.
"""

from __future__ import annotations

import copy
from dataclasses import replace

from cardwise.adapters import wire
from cardwise.adapters.kube_objects import Pod
from cardwise.adapters.moves import moving_of
from cardwise.adapters.node_cards import decode_cards, encode_cards
from cardwise.controller.rescue.settings import RescueSettings
from cardwise.controller.rescuing import Rescuing
from tests.controller.preempting_world import Gate, World

SETTINGS = RescueSettings(fenced_s=0.0, lost_s=30.0, settle_s=10.0, pending_s=60.0, starting_s=600.0, rest_s=100.0)
HASH = wire.LABEL_POD_HASHES[0]


class RescueGate(Gate):
    WRITES = frozenset({"annotate_pod", "annotate_node", "evict", "release_pod", "take_back_pod", "set_node_condition"})


class Deployment:
    """A ReplicaSet's controller, as far as pods come and go by it. kind: or a StatefulSet's. notes, spec: of pods."""

    def __init__(self, world, name, replicas, mib=16000, kind="ReplicaSet", notes=None, **spec):
        self.world, self.name, self.replicas, self.mib, self.kind = world, name, replicas, mib, kind
        self.notes, self.spec, self.uid, self.made = notes or {}, spec, f"uid-{name}", 0

    def control(self):
        mine = [raw for raw in self.world.raws() if self._is_mine(raw) and "deletionTimestamp" not in raw["metadata"]]
        for raw in mine:
            raw["metadata"]["ownerReferences"][0]["controller"] = True
            self.world.cluster._store_pod(raw)
        for _ in range(self.replicas - len(mine)):
            self._make()
        surplus = sorted(mine, key=lambda raw: (_ready(raw), bool(raw["spec"].get("nodeName"))))
        for raw in surplus[: max(len(mine) - self.replicas, 0)]:
            self.world.cluster.delete_pod(
                "default", raw["metadata"]["name"], graceful=bool(raw["spec"].get("nodeName"))
            )

    def _is_mine(self, raw):
        owners = raw["metadata"].get("ownerReferences") or [{}]
        labelled = self.kind != "ReplicaSet" or raw["metadata"]["labels"].get(HASH) == "h1"
        return owners[0].get("uid") == self.uid and labelled

    def _make(self):
        self.made += 1
        owner = f"{self.name}-h1" if self.kind == "ReplicaSet" else self.name
        asked = {wire.GPU: "1", wire.USER_MEMORY: str(self.mib), wire.USER_CORES: "10"}
        labels = {"app": self.name, **({HASH: "h1"} if self.kind == "ReplicaSet" else {})}
        owners = [{"kind": self.kind, "name": owner, "controller": True, "uid": self.uid}]
        metadata = {"name": f"{self.name}-{self.made}", "labels": labels, "ownerReferences": owners}
        metadata["annotations"] = dict(self.notes)
        containers = [{"name": "app", "resources": {"limits": asked}}]
        self.world.cluster.create_pod({"metadata": metadata, "spec": {"containers": containers, **self.spec}})


class RescueWorld(World):
    """slow: turns that a pod takes to become ready. lowest: the fewest ready pods of each deployment."""

    def __init__(self, settings=SETTINGS):
        super().__init__()
        self.rescue_settings, self.slow = settings, 0
        self.gate = RescueGate(self.cluster)
        self.deployments, self.lowest, self._age = [], {}, {}

    def make_loop(self, ledger, watching, seen):
        self.rescuing = Rescuing(
            self.gate, ledger, watching, seen, self.clock, lambda: True, self.rescue_settings, self.clock
        )

    async def deploy(self, name, replicas=2, **more):
        made = Deployment(self, name, replicas, **more)
        self.deployments.append(made)
        for _ in range(3 + self.slow):
            await self.live()
        self.lowest = {each.name: self.ready(each.name) for each in self.deployments}
        return made

    async def live(self):
        """Controllers, kube-scheduler and kubelets do their work once."""
        for each in self.deployments:
            each.control()
        await self.schedule()
        for raw in self.raws():
            name, node = raw["metadata"]["name"], raw["spec"].get("nodeName")
            namespace = raw["metadata"]["namespace"]
            if not node or self.is_lost(node):
                continue
            if "deletionTimestamp" in raw["metadata"]:
                self.cluster.delete_pod(namespace, name)
            elif not _ready(raw):
                self._age[name] = self._age.get(name, -1) + 1
                if self._age[name] >= self.slow:
                    self.cluster.ready_pod(namespace, name)
        await self.heard()
        for each in self.deployments:
            self.lowest[each.name] = min(self.lowest.get(each.name, 99), self.ready(each.name))

    async def turn(self, seconds=1.0):
        """Time passes, the loop takes a turn, and everybody else does their work."""
        self.now_s += seconds
        await self.heard()
        await self.rescuing.turn()
        await self.live()

    async def turns(self, count, seconds=1.0):
        for _ in range(count):
            await self.turn(seconds)

    # ---------------------------------------------------------------- objects

    def raws(self):
        return [copy.deepcopy(raw) for raw in self.cluster._pods.values()]

    def of(self, name):
        return {raw["metadata"]["name"]: raw for raw in self.raws() if raw["metadata"]["labels"].get("app") == name}

    def ready(self, name):
        living = [raw for raw in self.of(name).values() if "deletionTimestamp" not in raw["metadata"]]
        return sum(_ready(raw) and not self.is_lost(raw["spec"].get("nodeName")) for raw in living)

    def where(self, name):
        """Node by pod of a deployment."""
        return {pod: raw["spec"].get("nodeName") for pod, raw in self.of(name).items()}

    def moving(self):
        return sorted(
            each.metadata.name for each in self.rescuing.seen.pods.values() if isinstance(each, Pod) and moving_of(each)
        )

    def is_lost(self, node):
        raw = self.cluster._nodes.get(node or "")
        told = (raw or {}).get("status", {}).get("conditions") or ()
        return any(each["type"] == "Ready" and each["status"] != "True" for each in told)

    def fence(self, node, *, healthy=False):
        """The node's agent tells that all of its cards are sick, or well."""
        raw = copy.deepcopy(self.cluster._nodes[node])
        cards = decode_cards(raw["metadata"]["annotations"][wire.ANNOTATION_CARDS])
        told = encode_cards([replace(each, healthy=healthy) for each in cards])
        raw["metadata"]["annotations"][wire.ANNOTATION_CARDS] = told
        self.cluster.put_node(raw)

    async def condition(self, node, kind="Ready", status="Unknown"):
        await self.cluster.set_node_condition(node, {"type": kind, "status": status})

    def told(self, node, kind=wire.CONDITION_RESCUED):
        """A condition of a node: status, reason, message."""
        listed = self.cluster._nodes[node].get("status", {}).get("conditions") or ()
        return next(((c["status"], c["reason"], c["message"]) for c in listed if c["type"] == kind), None)

    def metric(self, name, **labels):
        return self.rescuing.registry.get_sample_value(name, labels) or 0.0


def _ready(raw):
    told = raw.get("status", {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in told)
