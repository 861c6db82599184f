"""The rescuing world with the loop beside it that decides who moves for a pod that waits."""

from __future__ import annotations

from cardwise.adapters.nominations import nomination_of
from cardwise.controller.consolidation.settings import ConsolidationSettings
from cardwise.controller.preempting import Preempting
from cardwise.controller.rescuing import Rescuing
from tests.controller.preempting_world import SETTINGS as PREEMPTION
from tests.controller.preempting_world import Gate
from tests.controller.rescuing_world import RescueGate, RescueWorld

MOVES = ConsolidationSettings(wait_s=20.0, keep_s=600.0, rest_s=900.0)


class BothGate(RescueGate):
    WRITES = Gate.WRITES | RescueGate.WRITES


class ConsolidatingWorld(RescueWorld):
    def __init__(self, moving=MOVES, preemption=PREEMPTION):
        super().__init__()
        self.moving_settings, self.preemption_settings = moving, preemption
        self.gate = BothGate(self.cluster)

    def make_loop(self, ledger, watching, seen):
        movers = {}
        common = (self.gate, ledger, watching, seen, self.clock, lambda: True)
        self.rescuing = Rescuing(*common, self.rescue_settings, self.clock, movers=movers)
        self.preempting = Preempting(
            *common, self.preemption_settings, self.clock, moving=self.moving_settings, movers=movers
        )

    async def turn(self, seconds=1.0):
        self.now_s += seconds
        await self.heard()
        await self.preempting.turn()
        await self.heard()
        await self.rescuing.turn()
        await self.live()

    async def deploy_on(self, name, node, replicas=1, **more):
        """A service whose replicas come to this node."""
        for each in list(self.cluster._nodes.values()):
            self.cordon(each["metadata"]["name"], cordoned=each["metadata"]["name"] != node)
        made = await self.deploy(name, replicas, **more)
        assert set(self.where(name).values()) == {node}, name
        for each in list(self.cluster._nodes.values()):
            self.cordon(each["metadata"]["name"], cordoned=False)
        await self.heard()
        return made

    async def one_more_on(self, name, node):
        """Another replica of a service, on this node."""
        made = next(each for each in self.deployments if each.name == name)
        for each in list(self.cluster._nodes):
            self.cordon(each, cordoned=each != node)
        made.replicas += 1
        for _ in range(3 + self.slow):
            await self.live()
        assert list(self.where(name).values())[-1] == node
        for each in list(self.cluster._nodes):
            self.cordon(each, cordoned=False)
        await self.heard()

    def cordon(self, node, *, cordoned=True):
        raw = self.cluster._nodes[node]
        self.cluster.put_node({**raw, "spec": {**raw["spec"], "unschedulable": cordoned}})

    def scale(self, name, replicas):
        next(each for each in self.deployments if each.name == name).replicas = replicas

    def nomination(self, name):
        return nomination_of(self.get(name))

    def metric(self, name, **labels):
        found = self.preempting.registry.get_sample_value(name, labels)
        return found if found is not None else super().metric(name, **labels)
