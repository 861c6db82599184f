"""The feed takes what is kept for pods that wait into the books, and out again."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime

import pytest

from cardwise.adapters import wire
from cardwise.adapters.hollow import HollowCluster
from cardwise.adapters.kube.port import All, Gone, Put
from cardwise.adapters.nominations import Nomination, encode_nomination
from cardwise.adapters.watching import Watching
from cardwise.core.allocation import Allocation, Share
from tests.builders import CARD_MIB, node
from tests.clock import Clock
from tests.scheduler.fake_cluster import books, bound, node_object, pod

SPEC = node()
KEPT = Nomination(Allocation("n0", (("app", (Share("n0-card0", 4096, 20),)),)), (), 0.0, keep_s=60.0)
OVER = Nomination(KEPT.allocation, (), 0.0, keep_s=60.0, over=True)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def watching(clock):
    made = Watching(books(SPEC), clock)
    made.hear_node(All((node_object(SPEC),)))
    return made


def waits(nomination=KEPT):
    text = nomination if isinstance(nomination, str) else encode_nomination(nomination)
    return pod("w", annotations={wire.ANNOTATION_NOMINATED: text})


def kept_mib(watching):
    return CARD_MIB - int(watching.ledger.cluster.memory_free_mib[0, 0])


@pytest.mark.parametrize("told", [Put, lambda each: All((each,))], ids=["event", "list"])
def test_what_a_pod_that_waits_is_to_get_is_kept(watching, told):
    watching.hear_pod(All(()))
    watching.hear_pod(told(waits()))
    assert kept_mib(watching) == 4096


def test_it_is_kept_until_so_long_after_it_was_first_heard_of_whatever_lists_come(watching, clock):
    watching.hear_pod(All((waits(),)))
    clock.now_s += 59.0
    watching.hear_pod(All((waits(),)))
    watching.ledger.expire(clock.now_s)
    assert kept_mib(watching) == 4096
    clock.now_s += 1.0
    watching.ledger.expire(clock.now_s)
    watching.hear_pod(All((waits(),)))
    assert kept_mib(watching) == 0


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(Put(pod("w")), id="the mark is taken off"),
        pytest.param(Put(waits(OVER)), id="it is over"),
        pytest.param(Put(waits("nonsense")), id="the mark is unreadable"),
        pytest.param(Gone(waits()), id="the pod is gone"),
        pytest.param(All(()), id="a list without it"),
        pytest.param(Put(pod("w", phase="Failed")), id="the pod has ended"),
    ],
)
def test_nothing_more_is_kept_once(watching, event):
    watching.hear_pod(Put(waits()))
    watching.hear_pod(event)
    assert kept_mib(watching) == 0
    assert watching.ledger.nominated == {}


def test_a_pod_that_was_bound_holds_its_own_and_nothing_is_kept_beside(watching):
    class Written:
        node, annotations = "n0", {wire.ANNOTATION_ALLOC: '{"v":1,"epoch":1,"seq":1,"node":"n0","ctr":{}}'}

    watching.hear_pod(Put(waits()))
    watching.hear_pod(Put(bound(waits(), Written)))
    assert kept_mib(watching) == 0
    assert watching.ledger.nominated == {}


async def test_who_else_hears_hears_the_same_after_the_books(clock):
    heard = []

    class Other:
        def hear_pod(self, event):
            heard.append((type(event), len(watching.pending)))

        def hear_node(self, event):
            heard.append((type(event), len(watching.ledger.nodes)))

    cluster = HollowCluster(lambda: datetime(2026, 1, 1, tzinfo=UTC))
    watching = Watching(books(), clock, (Other(),))
    task = asyncio.create_task(watching.follow(cluster))
    while not watching.synced:
        await asyncio.sleep(0)
    cluster.create_pod({"metadata": {"name": "w"}, "spec": {"containers": []}})
    cluster.put_node({"metadata": {"name": "n0"}})
    await cluster.heard()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert sorted(heard, key=str) == sorted([(All, 0), (All, 0), (Put, 1), (Put, 1)], key=str)
