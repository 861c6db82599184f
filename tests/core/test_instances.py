"""MIG instances as cards: one pod at a time has each, from the filter to the handover."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import multiple, rule

from cardwise.core.allocation import Allocation, BoundPod, Hold, Share
from cardwise.core.card.facts import CardFacts, CardSample, MigInstance, NodeFacts, ProcessUse, links_of, units
from cardwise.core.card.handover import Holder, Mismatch, Offered, Refusal, Slots, Start, hand_over
from cardwise.core.card.usage import by_instance
from cardwise.core.claim import Claim, ContainerAsk, Stage
from cardwise.core.cluster import OversoldError
from cardwise.core.inventory import check_inventory
from cardwise.core.placement.choose import choose, tie_ranks
from cardwise.core.placement.explain import refusals, summary
from cardwise.core.placement.filter import card_reason
from cardwise.core.placement.mix import Mix
from cardwise.core.placement.policies import POLICIES, make_policy
from cardwise.core.reasons import Code
from cardwise.core.request import Isolation
from tests.builders import MIG, card, cluster, node, pod, slice_of, whole
from tests.core.test_ledger import ASKS, CARDS, NODES, AnyOrder, ask, bind, claim, ledger

SIZES = (40448, 9984, 20096)


def instances(*sizes, name="n0"):
    return node(name, [card(f"{name}-{i}", "H100", mib, isolation=Isolation.MIG) for i, mib in enumerate(sizes)])


def mig_slice(mib=4096, pct=20, **more):
    return slice_of(mib, pct, isolation=MIG, **more)


# ---------------------------------------------------------------- rules


def test_an_instance_with_a_slice_takes_no_other_however_much_is_free():
    c = cluster(instances(40448))
    c.reserve(pod("a", mig_slice()), 0, [0])
    reason = card_reason(c, pod("b", mig_slice()), 0, 0)
    assert (reason.code, reason.short) == (Code.CARD_INSTANCE, "MIG instance in use")
    assert refusals(c, pod("b", mig_slice())) == {Code.CARD_INSTANCE: 1}
    assert summary(c, pod("b", mig_slice())) == "0/1 nodes fit: 1 MIG instance in use"
    with pytest.raises(OversoldError, match="of a MIG instance"):
        c.reserve(pod("b", mig_slice()), 0, [0])
    c.release("a")
    assert card_reason(c, pod("b", mig_slice()), 0, 0) is None


def test_a_card_that_is_shared_otherwise_takes_several_also_of_pods_that_would_take_an_instance():
    c = cluster(node(cards=[card(isolation=Isolation.MPS)]))
    either = slice_of(isolation=MIG | {Isolation.MPS})
    c.reserve(pod("a", either), 0, [0])
    assert card_reason(c, pod("b", either), 0, 0) is None


def test_an_instance_in_use_has_nothing_free_for_policies_that_pack():
    c = cluster(instances(40448))
    c.reserve(pod("a", mig_slice()), 0, [0])
    assert c.free_milli.tolist() == [[0]]
    c.release("a")
    assert c.free_milli.tolist() == [[1000]]


# ---------------------------------------------------------------- policies


@pytest.mark.parametrize(("asked", "place"), [(8000, 1), (12000, 2), (30000, 0)])
@pytest.mark.parametrize("pct", [10, 100])
@pytest.mark.parametrize("spread", [False, True], ids=["one node", "several nodes"])
def test_dense_takes_the_smallest_instance_that_fits(asked, place, pct, spread):
    specs = [instances(mib, name=f"n{i}") for i, mib in enumerate(SIZES)] if spread else [instances(*SIZES)]
    c = cluster(*specs, node("other", [card(isolation=Isolation.MPS)] * 8))
    mix = Mix.of([mig_slice(8000), mig_slice(30000), slice_of(12000, 50)])
    placement = choose(make_policy("dense", c, mix), pod("a", mig_slice(asked, pct)), tie_ranks(c, 1))
    assert (placement.node_idx, placement.places) == ((place, (0,)) if spread else (0, (place,)))


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_gives_each_pod_an_instance_of_its_own(name):
    c = cluster(instances(*SIZES), instances(*SIZES, name="n1"))
    shape = mig_slice(4096, 10)
    policy, ranks, taken = make_policy(name, c, Mix.of([shape])), tie_ranks(c, 1), set()
    for i in range(6):
        placement = choose(policy, pod(f"p{i}", shape), ranks)
        if placement is None:
            assert name == "whole-card"
            return
        c.reserve(placement.granted, placement.node_idx, placement.places)
        taken.add((placement.node_idx, placement.places))
    assert len(taken) == 6
    assert choose(policy, pod("one too many", shape), ranks) is None


# ---------------------------------------------------------------- pods of several containers, the ledger


def test_two_containers_of_a_pod_get_an_instance_each():
    books = ledger(instances(9984, 9984))
    held = bind(books, claim("u0", ask("a", shape=mig_slice()), ask("b", shape=mig_slice())))
    assert len({share.uuid for share in held.allocation.shares}) == 2
    assert books.hold(claim("u1", ask(shape=mig_slice())), "n0").code is Code.NODE_CARDS


def test_an_init_container_may_have_the_instance_of_the_app_container_that_comes_after_it():
    books = ledger(instances(9984))
    held = bind(books, claim("u0", ask("init", Stage.INIT, mig_slice(8000, 50)), ask("app", shape=mig_slice())))
    assert len({share.uuid for share in held.allocation.shares}) == 1
    assert books.cluster.memory_free_mib.tolist() == [[9984 - 8000]]
    assert books.conflicts == {}


@pytest.mark.parametrize(("sizes", "fits"), [((9984,), False), ((9984, 9984), True)])
def test_an_init_container_does_not_share_the_instance_of_the_sidecar_that_runs_beside_it(sizes, fits):
    books = ledger(instances(*sizes))
    asks = (ask("side", Stage.SIDECAR, mig_slice(1000, 10)), ask("init", Stage.INIT, mig_slice(1000, 10)))
    assert isinstance(books.hold(claim("u0", *asks), "n0"), Allocation) is fits


def test_two_pods_on_one_instance_are_a_conflict_and_the_later_one_is_in_the_wrong():
    books = ledger(instances(40448))

    def told(uid, seq):
        share = Share("n0-0", 4096, 20, mode=Isolation.MIG)
        return BoundPod(claim(uid, ask(shape=mig_slice())), "n0", Allocation("n0", (("app", (share,)),), 1, seq))

    books.put_pod(told("u2", 2))
    books.put_pod(told("u1", 1))
    assert [each.pod for each in books.conflicts.values()] == ["ns/u2"]
    assert books.cluster.node_fenced.tolist() == [True]
    books.drop_pod("u2")
    assert not books.conflicts


def test_a_card_that_is_no_instance_any_more_is_counted_anew():
    books = ledger(node(cards=[card("U", isolation=Isolation.MPS)]))
    bind(books, claim("u0"))
    bind(books, claim("u1"))
    books.put_node(node(cards=[card("U", isolation=Isolation.MIG)]))
    books.rebuild()
    assert [each.pod for each in books.conflicts.values()] == ["ns/u1"]


class AnyOrderOfInstances(AnyOrder):
    """The laws of the ledger, with nodes whose cards are divided."""

    @rule(name=st.sampled_from(NODES), cards=CARDS)
    def divide(self, name, cards):
        told = [card(f"{name}-card{i}", memory_mib=mib, isolation=Isolation.MIG) for i, mib in enumerate(cards)]
        self.api_nodes[name] = node(name, cards=told, cpu_milli=3000)
        self.books.put_node(self.api_nodes[name])

    @rule(target=AnyOrder.holding, name=st.sampled_from(NODES), asks=ASKS)
    def hold_instances(self, name, asks):
        self.count += 1
        uid = f"u{self.count}"
        named = tuple(ContainerAsk(f"c{i}", stage, _of_instances(shape)) for i, (stage, shape) in enumerate(asks))
        wanted = Claim(uid, f"ns/{uid}", named)
        allocation = self.books.hold(wanted, name)
        return BoundPod(wanted, name, allocation) if isinstance(allocation, Allocation) else multiple()


def _of_instances(shape):
    return whole(shape.cards, isolation=MIG) if shape.whole else mig_slice(shape.memory_mib, cards=shape.cards)


AnyOrderOfInstances.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestAnyOrderOfInstances = AnyOrderOfInstances.TestCase


# ---------------------------------------------------------------- the node


def instance(uuid, mib=9984, gpu_instance=1, start=0, compute_instance=0, size=1):
    return MigInstance(uuid, "1g.10gb", mib, gpu_instance, compute_instance, start, size)


def h100(uuid="GPU-0", *made, links=(), mig=True, index=0):
    return CardFacts(uuid, "H100", index, index, "00000000:07:00.0", 81559, 551, links=links, mig=mig, instances=made)


def test_a_divided_card_is_handed_out_by_its_instances_only():
    cards = (h100("GPU-0", instance("MIG-a"), instance("MIG-b", gpu_instance=2)), h100("GPU-1", mig=False))
    assert [unit.uuid for unit in units(cards)] == ["MIG-a", "MIG-b", "GPU-1"]
    assert [unit.allocatable_mib for unit in units(cards)] == [9984, 9984, 81008]


@pytest.mark.parametrize(
    "made",
    [
        pytest.param((), id="none"),
        pytest.param((instance("", compute_instance=-1),), id="half-made"),
        pytest.param((instance("MIG-a"), instance("MIG-b", compute_instance=1)), id="sharing their memory"),
    ],
)
def test_what_no_container_can_have_to_itself_is_not_handed_out(made):
    assert units((h100("GPU-0", *made),)) == ()


def test_links_of_a_node_with_divided_cards_stay_those_of_the_others():
    cards = (
        h100("GPU-0", links=(0, 0, 1), mig=False),
        h100("GPU-1", instance("MIG-a"), links=(0, 0, 1)),
        h100("GPU-2", links=(1, 1, 0), mig=False),
    )
    offered = units(cards)
    links = [links_of(unit, offered, cards) for unit in offered]
    assert links == [(0, 3, 1), (3, 0, 3), (1, 3, 0)]
    specs = [card(unit.uuid, links=told) for unit, told in zip(offered, links, strict=True)]
    check_inventory([node(cards=specs)])
    bare = tuple(CardFacts(each.uuid, "H100", 0, 0, "", 81559, mig=each.mig) for each in cards)
    assert links_of(units(bare)[0], units(bare), bare) == ()


def test_processes_are_told_of_the_instance_they_are_in():
    divided = h100("GPU-0", instance("MIG-a"), instance("MIG-b", gpu_instance=2, start=1))
    sample = CardSample("GPU-0", processes=(ProcessUse(1, 10, gpu_instance=2), ProcessUse(2, 20, gpu_instance=9)))
    told = {each.uuid: [use.pid for use in each.processes] for each in by_instance(sample, divided)}
    assert told == {"MIG-a": [], "MIG-b": [1], "GPU-0": [2]}
    assert by_instance(sample, h100(mig=False)) == [sample]


def start(uuid="MIG-a", again=False):
    return Start("app", ["slot-000"], Allocation("n", (("app", (Share(uuid, 4096, 20),)),)), again)


@pytest.mark.parametrize("again", [False, True])
def test_an_instance_that_another_pod_has_is_not_handed_over(again):
    offered = {"MIG-a": Offered("MIG-a", 40448, Isolation.MIG)}
    mine, others = [Hold("MIG-a", 4096, 20)], {Holder("u", "ns/other"): [Hold("MIG-a", 4096, 20)]}
    refusal = hand_over(start(again=again), "n", offered, mine, others)
    assert refusal == Refusal(
        Mismatch.OVERSOLD, "card MIG-a: it is a MIG instance, which one pod has at a time; held by ns/other"
    )
    assert not isinstance(hand_over(start(again=again), "n", offered, mine, {}), Refusal)


# ---------------------------------------------------------------- slots


def shared(why_not=""):
    return Offered("GPU", 24576, Isolation.MPS, why_not)


def divided(why_not=""):
    return Offered("MIG", 9984, Isolation.MIG, why_not)


def test_an_instance_is_one_slot_and_a_shared_card_is_many():
    assert Slots(3).names([shared(), divided(), divided()]) == [f"slot-00{i}" for i in range(5)]


@pytest.mark.parametrize(
    ("cards", "used", "listed", "healthy"),
    [
        pytest.param([divided()] * 3, [], 3, {0, 1, 2}, id="all free"),
        pytest.param([divided(), divided("sick")], [], 2, {0}, id="a sick one"),
        pytest.param([divided(), divided("sick")], [1], 2, {1}, id="a sick one, the last slot is used"),
        pytest.param([divided()], [5], 2, {5}, id="fewer than before, one that is gone is used"),
        pytest.param([divided()] * 2, [5], 3, {0, 5}, id="fewer than before, one is free"),
        pytest.param([], [4], 1, {4}, id="all gone, one is used"),
        pytest.param([shared(), divided()], [0, 3], 4, {0, 1, 2, 3}, id="mixed"),
    ],
)
def test_as_many_slots_are_healthy_as_containers_could_start(cards, used, listed, healthy):
    slots, taken = Slots(3), [f"slot-{number:03d}" for number in used]
    names, withdrawn = slots.names(cards, taken), slots.unhealthy(cards, taken)
    assert len(names) == listed
    assert set(names) - withdrawn == {f"slot-{number:03d}" for number in healthy}


def test_node_facts_know_no_instances_of_a_card_without_mig():
    assert units(NodeFacts("580", 13000, (h100(mig=None),)).cards)[0].instance is None
