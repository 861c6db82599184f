"""What lasts is in the log once, however often a loop finds it so: the scheduler's, the election, the controller's."""

from __future__ import annotations

import asyncio
import contextlib

from structlog.testing import capture_logs

from cardwise.adapters.kube.leader import Leader
from cardwise.controller.turns import take_turns
from cardwise.errors import ClusterError
from cardwise.scheduler.heartbeats import Heartbeats
from tests.scheduler.fake_cluster import DEAD, FakeCluster, books
from tests.scheduler.test_waking import Replica

TIMES = 5


class Tries:
    """An API server that is away; counts who asks."""

    def __init__(self):
        self.count = 0

    async def fail(self, *_what):
        self.count += 1
        await asyncio.sleep(0)
        raise DEAD


async def run(loop, tries):
    """A loop until it has failed so often, with what it said."""
    with capture_logs() as logs:
        task = asyncio.create_task(loop)
        while tries.count < TIMES:
            assert not task.done(), task.exception()
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, ClusterError):
            await task
    return [each["event"] for each in logs]


async def test_leases_that_cannot_be_read_are_said_once(monkeypatch):
    monkeypatch.setattr("cardwise.scheduler.heartbeats.PERIOD_S", 0)
    api, tries = FakeCluster(), Tries()
    api.list_leases = tries.fail
    said = await run(Heartbeats(api, books(), "ns", lambda: 0.0).run(), tries)
    assert said == ["the agents' leases cannot be read; nobody is called silent"]


async def test_a_lease_that_cannot_be_renewed_is_said_once(monkeypatch):
    monkeypatch.setattr("cardwise.adapters.kube.leader.PERIOD_S", 0)
    api, tries = FakeCluster(), Tries()
    api.read_lease = tries.fail

    async def elected(_epoch):
        raise AssertionError

    leader = Leader(api, "ns", "lease", "a", lambda: 0.0, elected, lambda: 0)
    assert await run(leader.run(), tries) == ["the lease could not be renewed, or what comes first not be done"]


async def test_a_controllers_turn_that_fails_again_is_said_once():
    tries = Tries()
    assert await run(take_turns(tries.fail, lambda: True, 0, "it goes on"), tries) == ["it goes on"]


async def test_a_node_that_takes_no_condition_is_said_once():
    r = Replica()
    r.hold("lost", uuid="removed")
    r.api.dead = True
    with capture_logs() as logs:
        for _ in range(TIMES):
            await r.waking.tell_conflicts()
    assert [each["event"] for each in logs] == ["a node's condition could not be written"]


async def test_a_node_that_takes_no_annotation_is_said_once(monkeypatch):
    monkeypatch.setattr("cardwise.scheduler.waking.PERIOD_S", 0)
    r, tries = Replica(), Tries()
    r.hold("old-n1", where="n1")
    r.hold("old-n0")
    await r.waking.wake()
    r.wait("a")
    r.ledger.drop_pod("uid-old-n1")
    r.api.annotate_node = tries.fail
    said = await run(r.waking.run(), tries)
    assert said.count("could not annotate a node") == 1
