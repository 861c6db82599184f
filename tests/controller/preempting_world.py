"""A hollow cluster with both programs on it: kube-scheduler's cycle with our scheduler, and the preempting controller.

Time is a number that a test moves. The kubelets' part is the test's: pods become ready, and end when they are told to.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from datetime import UTC, datetime

import msgspec

from cardwise.adapters import wire
from cardwise.adapters.hollow import HollowCluster
from cardwise.adapters.kube_objects import Pod
from cardwise.adapters.node_cards import encode_cards
from cardwise.adapters.nominations import nomination_of, preemptions_of
from cardwise.adapters.watching import Watching
from cardwise.controller.preempting import Preempting
from cardwise.controller.preemption.seeing import Seen
from cardwise.controller.preemption.settings import PreemptionSettings
from cardwise.core.ledger import Ledger
from cardwise.scheduler import webhook
from cardwise.scheduler.binder import Binder
from cardwise.scheduler.extender import Extender
from cardwise.scheduler.settings import Settings, policies_of
from cardwise.up.kube_cycle import Cycle
from tests.builders import card

BEST_EFFORT = {wire.ANNOTATION_CLASS: "best-effort"}
SETTINGS = PreemptionSettings(wait_s=5.0, settle_s=30.0, grace_s=10, keep_s=50.0)


class Killed(BaseException):
    """The controller process is gone, in the middle of what it did."""


class Gate:
    """A port that dies at a call: before it has an effect, or after. calls: all that were made and change something."""

    WRITES = frozenset({"annotate_pod", "nominate", "evict", "annotate_node", "post_event"})

    def __init__(self, cluster):
        self._cluster, self.calls, self.dies_at, self.before = cluster, [], None, True

    def __getattr__(self, name):
        call = getattr(self._cluster, name)
        if name not in self.WRITES:
            return call

        async def gated(*args, **more):
            self.calls.append((name, args))
            if len(self.calls) - 1 == self.dies_at and self.before:
                raise Killed
            answer = await call(*args, **more)
            if len(self.calls) - 1 == self.dies_at:
                raise Killed
            return answer

        return gated


class World:
    """now_s: the time, for everybody."""

    def __init__(self, settings=SETTINGS):
        self.now_s, self.settings = 1000.0, settings
        self.cluster = HollowCluster(lambda: datetime.fromtimestamp(self.now_s, UTC), webhook.admit)
        self.ledger = Ledger(policies_of(Settings()), epoch=1)
        self.watching = Watching(self.ledger, self.clock)
        self.extender = Extender(self.ledger, self.clock)
        self.cycle = Cycle(self.cluster, self.extender, Binder(self.cluster, self.ledger, self.extender, lambda: None))
        self.gate, self._stack, self._controller = Gate(self.cluster), contextlib.AsyncExitStack(), None

    def clock(self):
        return self.now_s

    async def __aenter__(self):
        for follow in (self.watching.follow(self.cluster), self.cycle.follow()):
            self._run(asyncio.create_task(follow))
        while not self.watching.synced:
            await asyncio.sleep(0)
        await self.start_controller()
        return self

    async def __aexit__(self, *exc):
        await self._stack.aclose()

    def _run(self, task):
        async def end():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

        self._stack.push_async_callback(end)
        return task

    # ---------------------------------------------------------------- the controller

    async def start_controller(self):
        """Start it, or start it anew: it knows nothing but what the objects say."""
        if self._controller:
            self._controller.cancel()
        ledger, seen = Ledger(policies_of(Settings())), Seen(self.clock)
        watching = Watching(ledger, self.clock, (seen,))
        self._controller = self._run(asyncio.create_task(watching.follow(self.cluster)))
        while not watching.synced:
            await asyncio.sleep(0)
        self.make_loop(ledger, watching, seen)

    def make_loop(self, ledger, watching, seen):
        """The controller's loop, on what it has heard."""
        self.preempting = Preempting(
            self.gate, ledger, watching, seen, self.clock, lambda: True, self.settings, self.clock
        )

    async def turn(self, seconds=1.0):
        """Time passes, the controller takes a turn, and kube-scheduler tries who waits."""
        self.now_s += seconds
        await self.heard()
        await self.preempting.turn()
        await self.schedule()

    async def schedule(self):
        await self.heard()
        self.ledger.expire(self.now_s)
        self.cycle.unpark()
        while await self.cycle.step():
            await self.heard()

    async def heard(self):
        await self.cluster.heard()

    # ---------------------------------------------------------------- objects

    def node(self, name, *cards, labels=None, taints=()):
        specs = [replace(each, uuid=f"{name}-{i}") for i, each in enumerate(cards or [card()])]
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", wire.OWN_COUNT: str(16 * len(specs))}
        self.cluster.put_node(
            {
                "metadata": {
                    "name": name,
                    "labels": labels or {},
                    "annotations": {wire.ANNOTATION_CARDS: encode_cards(specs)},
                },
                "spec": {"taints": list(taints)},
                "status": {"allocatable": amounts, "capacity": amounts},
            }
        )

    def pod(self, name, mib, priority=0, *, owner="", annotations=BEST_EFFORT, labels=None, **spec):
        asked = {wire.GPU: "1", wire.USER_MEMORY: str(mib), wire.USER_CORES: "10"}
        owners = [{"kind": "Job", "name": owner, "controller": True, "uid": f"uid-{owner}"}] if owner else []
        metadata = {"name": name, "annotations": dict(annotations), "labels": labels or {}, "ownerReferences": owners}
        containers = [{"name": "app", "resources": {"limits": asked}}]
        self.cluster.create_pod(
            {"metadata": metadata, "spec": {"containers": containers, "priority": priority, **spec}}
        )

    async def runs(self, name, mib, priority=0, **more):
        """A pod that is bound and ready."""
        self.pod(name, mib, priority, **more)
        await self.schedule()
        assert self.node_of(name), name
        self.cluster.ready_pod("default", name)
        await self.heard()

    def get(self, name):
        raw = self.cluster._pods.get(("default", name))
        return raw and msgspec.convert(raw, Pod)

    def node_of(self, name):
        return self.get(name).spec.node_name

    def is_going(self, name):
        pod = self.get(name)
        return pod is None or pod.metadata.deletion_timestamp is not None

    def going(self):
        return sorted(name for (_, name) in list(self.cluster._pods) if self.is_going(name))

    def nomination(self, name):
        return nomination_of(self.get(name))

    def noted(self, node):
        return preemptions_of(self.preempting.seen.nodes[node]).lines

    def end(self, *names):
        """The kubelet's part: these have ended."""
        for name in names:
            self.cluster.delete_pod("default", name)

    def end_going(self):
        self.end(*(name for name in self.going() if self.get(name)))

    def events(self, name, reason):
        mine = [each for each in self.cluster.events if each["involvedObject"]["name"] == name]
        return [each["message"] for each in mine if each["reason"] == reason]

    def metric(self, name, **labels):
        return self.preempting.registry.get_sample_value(name, labels) or 0.0
