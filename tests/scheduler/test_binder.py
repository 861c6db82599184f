"""Bind is the authority: whatever becomes of the answer, a pod is counted once or not at all."""

from __future__ import annotations

import asyncio

import pytest

from cardwise.adapters import wire
from cardwise.adapters.allocations import decode
from cardwise.adapters.extender_v1 import ExtenderArgs, ExtenderBindingArgs
from cardwise.adapters.kube import feed
from cardwise.scheduler.binder import Binder
from cardwise.scheduler.extender import Extender
from tests.builders import CARD_MIB, card, node
from tests.scheduler.fake_cluster import FakeCluster, books, pod, slice_limits


class Replica:
    """A binder over one node of one card, and the cluster behind it."""

    def __init__(self, *pods, nodes=None):
        self.api = FakeCluster(*pods)
        self.ledger = books(*(nodes or [node("n0"), node("n1")]))
        self.barred = None
        extender = Extender(self.ledger, lambda: 0.0)
        self.binder = Binder(self.api, self.ledger, extender, lambda: self.barred)

    async def bind(self, name="a", where="n0", uid=""):
        return await self.binder.bind(ExtenderBindingArgs(name, "ns", uid or f"uid-{name}", where))

    @property
    def held_mib(self):
        cluster = self.ledger.cluster
        return int((cluster.memory_total_mib - cluster.memory_free_mib).sum())

    @property
    def under_way(self):
        return sorted(self.ledger.under_way)

    async def settled(self):
        async with asyncio.timeout(20):
            while self.ledger.under_way:
                await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    monkeypatch.setattr(feed, "BACKOFF_FIRST_S", 0.0)


LABELS = {wire.LABEL_BOUND: "true", wire.LABEL_LIMITS: "soft"}


async def test_a_binding_carries_the_allocation_and_is_counted():
    r = Replica(pod())
    assert await r.bind() == ""
    (binding,) = r.api.bindings
    assert decode(binding.annotations[wire.ANNOTATION_ALLOC]) == r.ledger.allocation_of("uid-a")
    assert (binding.uid, binding.node, binding.labels) == ("uid-a", "n0", LABELS)
    assert (r.held_mib, r.under_way, r.binder.bound) == (4096, [], 1)


@pytest.mark.parametrize(
    ("cards", "limits", "label"),
    [
        ([card(binds=True)], slice_limits(), "hard"),
        ([card()], slice_limits(), "soft"),
        ([card()], {wire.GPU: "1"}, "hard"),
        ([card(binds=True), card()], slice_limits(cards=2), "soft"),
    ],
    ids=["limits bind", "limits ask", "a whole card, which nobody shares", "one of two"],
)
async def test_a_pod_is_labelled_by_how_firmly_its_cards_hold_it(cards, limits, label):
    """Case C29."""
    r = Replica(pod(limits=limits), nodes=[node("n0", cards=cards)])
    assert await r.bind() == ""
    assert r.api.bindings[0].labels[wire.LABEL_LIMITS] == label


async def test_a_pod_without_an_ask_is_bound_without_an_allocation():
    r = Replica(pod(limits={"cpu": "1"}))
    assert await r.bind() == ""
    assert (r.api.bindings[0].annotations, r.api.bindings[0].labels) == ({}, {})


async def test_the_claim_of_the_filter_is_used_without_asking_again():
    r = Replica(pod())
    r.binder.extender.filter(ExtenderArgs(pod(), ["n0"]))
    r.api.get_pod = None
    assert await r.bind() == ""


async def test_the_answer_and_the_watch_may_come_in_any_order():
    r = Replica(pod())
    write = r.api.bind

    async def told_first(binding):
        await write(binding)
        (told,) = r.api.bound_pods()
        r.ledger.put_pod(told)

    r.api.bind = told_first
    assert await r.bind() == ""
    assert (r.held_mib, r.under_way) == (4096, [])


async def test_a_pod_that_another_has_bound_is_given_back_with_the_servers_words():
    r = Replica(pod(node="n1"))
    assert await r.bind() == "pod a is already assigned to node n1"
    assert (r.held_mib, r.binder.refused) == (0, 1)


async def test_an_answer_that_is_lost_after_the_write_is_read_back_and_counted_once():
    r = Replica(pod())
    r.api.answers.append("lost")
    assert await r.bind() == ""
    assert (r.held_mib, r.under_way, r.binder.bound) == (4096, [], 1)


async def test_an_answer_that_is_lost_before_the_write_gives_the_cards_back():
    r = Replica(pod())
    r.api.answers.append("unwritten")
    assert await r.bind() == "no answer in time"
    assert (r.held_mib, r.under_way) == (0, [])


async def test_a_pod_that_goes_while_it_is_bound_gives_the_cards_back():
    r = Replica(pod())
    r.binder.extender.filter(ExtenderArgs(pod(), ["n0"]))
    r.api.delete("ns/a")
    assert await r.bind() == "pods a not found"
    assert (r.held_mib, r.under_way) == (0, [])


class Dies(FakeCluster):
    """Dead from the write on."""

    async def bind(self, binding):
        try:
            await super().bind(binding)
        finally:
            self.dead = True


@pytest.mark.parametrize(("answer", "held"), [("lost", 4096), ("unwritten", 0)])
async def test_with_a_dead_server_the_cards_stay_held_until_it_says_what_was_written(answer, held):
    r = Replica()
    r.api = r.binder.port = Dies(pod())
    r.api.answers.append(answer)
    assert (await r.bind()).endswith("whether the pod is bound is not known yet, its cards stay held")
    assert (r.held_mib, r.under_way) == (4096, ["uid-a"])
    r.api.dead = False
    await r.settled()
    assert r.held_mib == held


@pytest.mark.parametrize(("answer", "held"), [("hangs", 4096), ("unwritten", 0)])
async def test_a_binding_that_is_cancelled_in_the_middle_is_settled_in_the_background(answer, held):
    r = Replica(pod())
    if answer == "unwritten":
        r.api.bind = lambda _binding: asyncio.Event().wait()
    r.api.answers.append(answer)
    task = asyncio.create_task(r.bind())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert r.under_way == ["uid-a"]
    task.cancel()
    await asyncio.wait([task])
    await r.settled()
    assert r.held_mib == held


async def test_a_pod_is_not_bound_again_while_its_first_binding_is_not_settled():
    """kube-scheduler gives up waiting and picks another node; the first write may stand by then."""
    r = Replica(pod())
    r.api.answers.append("hangs")
    first = asyncio.create_task(r.bind(where="n0"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert await r.bind(where="n1") == "an earlier binding of the pod is not settled yet, its cards stay held"
    assert r.ledger.under_way["uid-a"].node == "n0"
    first.cancel()
    await asyncio.wait([first])
    await r.settled()
    assert r.ledger.pods["uid-a"].node == "n0"


async def test_a_replica_that_does_not_lead_refuses_and_holds_nothing():
    r = Replica(pod())
    r.barred = "not the leader (b is)"
    assert await r.bind() == "not the leader (b is)"
    assert (r.held_mib, r.under_way, r.api.bindings) == (0, [], [])


async def test_leadership_that_ends_while_the_pod_is_read_is_noticed():
    r = Replica(pod())
    get = r.api.get_pod

    async def slowly(namespace, name):
        r.barred = "not the leader (b is)"
        return await get(namespace, name)

    r.api.get_pod = slowly
    assert await r.bind() == "not the leader (b is)"
    assert r.api.bindings == []


async def test_a_pod_of_the_same_name_is_another_pod():
    r = Replica(pod(uid="second"))
    assert await r.bind(uid="first") == "pod ns/a is another one by now"
    assert (r.held_mib, r.api.bindings) == (0, [])


async def test_a_pod_whose_claim_is_wrong_is_refused_with_its_faults():
    r = Replica(pod(annotations={"cardwise.dev/class": "fast"}))
    assert await r.bind() == "annotation cardwise.dev/class: 'fast' is none of latency-sensitive, best-effort"


async def test_a_node_without_room_by_now_is_refused_with_numbers():
    r = Replica(pod("a", slice_limits(20000)), pod("b", slice_limits(5000)))
    await r.bind("a")
    assert await r.bind("b") == ("cardwise: too few cards on n0: 0 of the node's 1 cards would do, the pod asks for 1")
    assert r.held_mib == 20000


async def test_a_node_that_went_is_refused_by_name():
    r = Replica(pod())
    assert await r.bind(where="gone") == "cardwise: no cards reported on gone: no agent reports cards of gone"


async def test_a_pod_is_bound_once():
    r = Replica(pod())
    await r.bind()
    assert await r.bind(where="n1") == "cardwise: already bound on n1: the pod is bound to n0 already"


async def test_five_slices_that_are_bound_at_once_fill_the_card_and_the_sixth_is_refused():
    """Case C1."""
    r = Replica(*[pod(f"p{i}") for i in range(6)], nodes=[node("n0")])
    errors = await asyncio.gather(*(r.bind(f"p{i}") for i in range(6)))
    assert [bool(error) for error in errors] == [False] * 5 + [True]
    assert r.held_mib == 5 * 4096 < CARD_MIB


async def test_two_hundred_pods_come_and_go_and_nothing_is_left_held():
    """Case C7."""
    r = Replica()
    for i in range(200):
        r.api.create(pod(f"p{i}", slice_limits(20000)))
        assert await r.bind(f"p{i}") == ""
        r.api.delete(f"ns/p{i}")
        r.ledger.drop_pod(f"uid-p{i}")
    assert (r.held_mib, r.ledger.fresh) == (0, set())
