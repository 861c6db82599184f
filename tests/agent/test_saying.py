"""What lasts is in the agent's log once, however often it looks: a node that is cut off must not fill its disk."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from structlog.testing import capture_logs

from cardwise.adapters.journal import Eviction, Journal
from cardwise.adapters.kube.port import Lost
from cardwise.adapters.kubelet.pod_resources import PodResources
from cardwise.adapters.mps.daemon import ControlDaemon
from cardwise.adapters.mps.v2 import MpsV2
from cardwise.agent.evicting import Evicting
from cardwise.agent.inventory import Inventory
from cardwise.agent.mps_daemon import Supervisor
from cardwise.agent.owners import Owners
from cardwise.agent.publishing import Publishing
from cardwise.agent.telling import MOST_WAITING, Teller
from cardwise.agent.watching import NodePods
from cardwise.core.card.facts import NodeFacts
from cardwise.errors import CardError, ClusterError
from cardwise.said import AGAIN_S
from tests.agent.a_node import GpuNode
from tests.agent.memory import Tenants
from tests.agent.node_port import NODE, NodePort
from tests.fakes.kubelet import ContainerError
from tests.fakes.mps import CARD_A, CARD_B, FakeMps

TIMES = 5


def times(logs, event):
    return sum(each["event"] == event for each in logs)


async def until(task, condition):
    """A loop goes on until this holds, and is ended."""
    while not condition():
        assert not task.done(), task.exception()
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_what_cannot_be_published_is_said_once_a_kind(monkeypatch):
    monkeypatch.setattr("cardwise.agent.publishing.PERIOD_S", 0)
    port, now = NodePort(), [1000.0]
    port.down = True
    publishing = Publishing(port, NODE, "ns", Inventory(NodeFacts("580", 13000, ())), dict, frozenset, lambda: now[0])
    with capture_logs() as logs:
        await until(asyncio.create_task(publishing.run()), lambda: publishing.failures >= 2 * TIMES)
        assert sorted(each["what"] for each in logs) == ["beat", "publish"]
        now[0] += AGAIN_S
        failed = publishing.failures
        await until(asyncio.create_task(publishing.run()), lambda: publishing.failures >= failed + 2 * TIMES)
    assert sorted(each["what"] for each in logs) == ["beat", "beat", "publish", "publish"]


async def test_an_alarm_of_mps_that_lasts_is_returned_at_every_look_and_said_once():
    fake, now = FakeMps(), [1000.0]
    try:
        daemon = ControlDaemon(fake.command, fake.pipe_dir, fake.log_dir, (CARD_A, CARD_B))
        supervisor = Supervisor(MpsV2(daemon), (CARD_A, CARD_B), lambda: now[0])
        await supervisor.start()
        fake.tell(start_fails="driver mismatch")
        fake.kill()
        with capture_logs() as logs:
            for _ in range(TIMES):
                now[0] += 15.0
                assert len(await supervisor.check()) == 2
        assert [each["card"] for each in logs if each["event"] == "mps"] == [CARD_A, CARD_B]
    finally:
        fake.close()


class Stuck:
    """Limits that cannot be lifted."""

    tries = 0

    async def lift(self, _row):
        self.tries += 1
        raise CardError("GPU-x", "it does not answer")


async def test_what_cannot_be_cleaned_up_is_said_once():
    async with GpuNode() as node:
        pod = node.pod("a")
        await node.run(pod)
        node.agent.sweeping.preparing.limits = stuck = Stuck()
        with capture_logs() as logs:
            await node.delete(pod)
            await node.until(lambda: stuck.tries >= TIMES)
        assert times(logs, "could not clean up after a pod") == 1


async def test_a_checkpoint_that_says_nothing_is_said_once(tmp_path):
    (tmp_path / "kubelet_internal_checkpoint").write_text("{")
    owners = Owners(PodResources(tmp_path / "none.sock"), tmp_path, "r", NodePods(NodePort(), NODE), lambda _pod: None)
    with capture_logs() as logs:
        for _ in range(TIMES):
            with pytest.raises(ClusterError):
                await owners.running()
    assert times(logs, "the kubelet's checkpoint says nothing") == 1


def test_a_watch_that_breaks_for_one_reason_is_said_once():
    pods = NodePods(NodePort(), NODE)
    with capture_logs() as logs:
        for _ in range(TIMES):
            pods.hear(Lost("the API server is away"))
    assert times(logs, "the watch of this node's pods broke") == 1


def test_a_disk_that_takes_no_eviction_is_said_once(tmp_path):
    journal = Journal(tmp_path / "journal.db")
    evicting = Evicting(NodePort(), NODE, journal, lambda: 1000.0)
    evicting.begin(Eviction("u", "ns", "p", "ns/s", ("GPU-1",), "why", 1000.0))
    journal._db.execute("PRAGMA query_only=ON")
    with capture_logs() as logs:
        for i in range(TIMES):
            evicting.note("u", how=f"step {i}")
    assert times(logs, "an eviction could not be written down") == 1
    journal.close()


async def test_a_process_that_may_not_be_signalled_is_said_once(monkeypatch):
    asked = []

    def refused(pid, *_more):
        asked.append(pid)
        raise ClusterError("not permitted", retry=False)

    monkeypatch.setattr("cardwise.agent.reclaiming.signal_of_pod", refused)
    settings = {"memory_every_s": 0.05, "reclaim_grace_s": 1}
    with capture_logs() as logs:
        async with GpuNode("A100-80", settings=settings) as node, Tenants(node) as tenants:
            node.port.budget = True
            await tenants.add("latency", 40_000)
            await tenants.add("be", 36_000, granted_mib=40_000, best_effort=True)
            await node.until(lambda: len(asked) >= TIMES)
    assert times(logs, "a pod that has to go cannot be ended") == 1


async def test_events_that_cannot_be_heard_are_said_once(monkeypatch):
    monkeypatch.setattr("cardwise.agent.using.EVENT_PAUSE_S", 0.01)
    asked = []

    def bad(wait_ms):
        asked.append(wait_ms)
        raise RuntimeError("an odd driver")

    with capture_logs() as logs:
        async with GpuNode("A10") as node:
            node.driver.events = bad
            await node.until(lambda: len(asked) >= TIMES)
    assert times(logs, "events of cards cannot be heard") == 1


async def test_a_container_that_may_not_start_is_said_once_though_the_kubelet_tries_again():
    with capture_logs() as logs:
        async with GpuNode(toolkit=False) as node:
            body = node.pod("a")
            await node.kubelet.admit(body)
            for _ in range(TIMES):
                with pytest.raises(ContainerError):
                    await node.kubelet.start_container(body["metadata"]["uid"], "app")
    assert times(logs, "a container may not start") == 1


async def test_events_without_room_are_counted_and_said_once_a_reason():
    port = NodePort()
    port.post_event = lambda *_: asyncio.sleep(3600)
    teller = Teller(port, NODE)
    with capture_logs() as logs:
        for i in range(MOST_WAITING + TIMES):
            teller.of_node("CardwiseNodeCheck", f"finding {i}")
    assert (teller.lost, times(logs, "no room for an event")) == (TIMES, 1)
    teller._writing.cancel()
