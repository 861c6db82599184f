"""The laws of the ledger: in whatever order events come, it equals what the cluster says, and no card is oversold."""

from dataclasses import replace
from functools import partial

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from cardwise.core.allocation import Allocation, BoundPod, Hold, Share, holds
from cardwise.core.claim import Claim, ContainerAsk, LatencyClass, Stage
from cardwise.core.cluster import _CHANGING_ARRAYS as CHANGING
from cardwise.core.ledger import Ledger
from cardwise.core.placement.policies import make_policy
from cardwise.core.reasons import Code, Reason
from cardwise.core.request import Isolation
from tests.builders import CARD_MIB, card, node, slice_of, whole

TIMES = {"node_stamp", "compute_used_share", "compute_free_reported_milli"}
"""What of a cluster says when something was, not what is."""


def balanced(cluster, mix):
    policy = make_policy("balanced", cluster, mix)
    return dict.fromkeys(LatencyClass, policy)


def ledger(*nodes):
    books = Ledger(balanced)
    books.reset(nodes, [])
    return books


def ask(container="app", stage=Stage.APP, shape=None):
    return ContainerAsk(container, stage, shape or slice_of())


def claim(uid="u0", *asks, **more):
    return Claim(uid, f"ns/{uid}", asks or (ask(),), **more)


def bind(books, wanted, name="n0"):
    """Hold and confirm, as a binding that succeeds; the pod as the cluster then tells of it."""
    allocation = books.hold(wanted, name)
    assert isinstance(allocation, Allocation), allocation
    books.confirm(wanted.uid)
    return BoundPod(wanted, name, allocation)


def state(books):
    c = books.cluster
    order = np.argsort(c.node_names)
    arrays = {name: getattr(c, name)[order].tolist() for name in CHANGING if name not in TIMES}
    told = (c.node_names, c.cached_models, c.exclusive_total, c.class_total, c.service_slices, c.on_card, c.slices)
    return arrays, (*told, c.evicted), sorted(books.conflicts)


# ---------------------------------------------------------------- single situations


def test_five_slices_fit_a_24_gib_card_and_the_sixth_is_refused_with_the_reason():
    books = ledger(node())
    for i in range(5):
        bind(books, claim(f"u{i}"))
    refused = books.hold(claim("u5"), "n0")
    assert isinstance(refused, Reason)
    assert refused.code is Code.NODE_CARDS


def test_a_sidecar_an_init_and_an_app_container_hold_what_runs_at_once():
    """Case C20."""
    asks = (
        ask("side", Stage.SIDECAR, slice_of(4096, 10)),
        ask("init", Stage.INIT, slice_of(10240, 10)),
        ask("app", Stage.APP, slice_of(8192, 20)),
    )
    books = ledger(node())
    pod = bind(books, claim("u0", *asks))
    assert CARD_MIB - books.cluster.memory_free_mib[0, 0] == 14336
    books.put_pod(BoundPod(pod.claim, pod.node, pod.allocation, initialized=True))
    assert CARD_MIB - books.cluster.memory_free_mib[0, 0] == 12288
    assert books.cluster.compute_free_milli[0, 0] == 700


def test_an_init_container_takes_its_pods_own_card_when_that_costs_nothing():
    asks = (ask("init", Stage.INIT, slice_of(2048, 10)), ask("app"))
    books = ledger(node(cards=4))
    pod = bind(books, claim("u0", *asks))
    assert len({share.uuid for share in pod.allocation.shares}) == 1
    assert holds(pod.claim, pod.allocation, initialized=False) == holds(pod.claim, pod.allocation, initialized=True)


def test_a_pod_whose_only_ask_is_in_an_init_container_holds_it_until_initialized():
    """Case C4."""
    books = ledger(node())
    first = bind(books, claim("u0", ask("init", Stage.INIT, slice_of(1024, 10))))
    second = bind(books, claim("u1", ask("init", Stage.INIT, slice_of(2048, 20))))
    assert [share.memory_mib for pod in (first, second) for share in pod.allocation.shares] == [1024, 2048]
    assert books.cluster.memory_free_mib[0, 0] == CARD_MIB - 3072
    books.put_pod(BoundPod(first.claim, "n0", first.allocation, initialized=True))
    assert books.cluster.memory_free_mib[0, 0] == CARD_MIB - 2048


def test_two_containers_of_one_pod_may_land_on_two_cards():
    books = ledger(node(cards=2))
    pod = bind(books, claim("u0", ask("a", shape=slice_of(20000, 80)), ask("b", shape=slice_of(20000, 80))))
    assert len({share.uuid for share in pod.allocation.shares}) == 2


def test_containers_that_fit_alone_but_not_together_say_so():
    books = ledger(node())
    wanted = claim("u0", ask("a", shape=slice_of(20000, 80)), ask("b", shape=slice_of(20000, 80)))
    assert books.hold(wanted, "n0").code is Code.NODE_TOGETHER
    assert books.cluster.memory_free_mib[0, 0] == CARD_MIB


def test_what_the_driver_keeps_of_a_card_is_not_handed_out():
    """Case C27: 15360 MiB, of which the driver keeps 450."""
    books = ledger(node(cards=[card(memory_mib=15360 - 450)]))
    bind(books, claim("u0", ask(shape=slice_of(7680, 10))))
    assert isinstance(books.hold(claim("u1", ask(shape=slice_of(7680, 10))), "n0"), Reason)


def test_a_nodes_memory_is_never_divided_by_its_cards():
    """Case C25: 40960 fit the large card alone, though the mean of both would do."""
    books = ledger(node(cards=[card("small", memory_mib=24576), card("large", memory_mib=81920)]))
    pod = bind(books, claim("u0", ask(shape=slice_of(40960, 10))))
    assert [share.uuid for share in pod.allocation.shares] == ["large"]


@pytest.mark.parametrize(("asked", "there"), [("A10", "A100"), ("H20", "H200"), ("T4", "T4G")])
def test_a_card_whose_name_only_begins_like_the_asked_one_will_not_do(asked, there):
    """Case C24."""
    books = ledger(node(cards=[card(model=there)]))
    wanted = claim("u0", ask(shape=slice_of(1000, 10, models=frozenset({asked}))))
    assert isinstance(books.hold(wanted, "n0"), Reason)


def test_a_pod_is_bound_once():
    books = ledger(node())
    bind(books, claim())
    assert books.hold(claim(), "n0").code is Code.POD_BOUND


def test_an_allocation_on_a_card_that_the_node_no_longer_reports_fences_the_node_until_the_pod_is_gone():
    """Case C10."""
    books = ledger(node(cards=[card("U1")]))
    bind(books, claim())
    books.put_node(node(cards=[card("U2")]))
    assert books.hold(claim("u1"), "n0").code is Code.NODE_FENCED
    assert [(each.pod, each.text) for each in books.conflicts.values()] == [("ns/u0", "n0 reports no card U1")]
    books.drop_pod("u0")
    assert isinstance(books.hold(claim("u1"), "n0"), Allocation)


def test_of_two_allocations_that_contradict_each_other_the_later_is_the_conflict_in_whatever_order_they_are_seen():
    def pod(uid, seq):
        return BoundPod(claim(uid), "n0", Allocation("n0", (("app", (Share("n0-card0", 20000, 20),)),), 1, seq))

    for first, second in ((pod("a", 1), pod("b", 2)), (pod("b", 2), pod("a", 1))):
        books = ledger(node())
        books.put_pod(first)
        books.put_pod(second)
        assert list(books.conflicts) == ["b"]
        assert books.cluster.node_fenced[0]


def test_a_hold_takes_the_place_of_an_earlier_one_of_the_same_pod():
    books = ledger(node("n0"), node("n1"))
    books.hold(claim(), "n0")
    books.hold(claim(), "n1")
    assert books.cluster.card_slices.sum() == 1


def test_a_relist_keeps_the_holds_of_bindings_that_are_under_way():
    books = ledger(node())
    books.hold(claim(), "n0")
    books.reset([node()], [])
    assert books.cluster.card_slices.sum() == 1


def test_pods_that_ask_for_more_cpu_than_the_node_has_are_counted_all_the_same():
    books = ledger(node(cpu_milli=1000))
    books.put_pod(BoundPod(Claim("cpu", "ns/cpu", cpu_milli=1500), "n0"))
    assert (books.cluster.cpu_left_milli[0], books.cluster.cpu_free_milli[0]) == (-500, 0)
    books.drop_pod("cpu")
    assert books.cluster.cpu_free_milli[0] == 1000


def test_a_delete_that_is_told_twice_or_of_an_unknown_pod_changes_nothing():
    books = ledger(node())
    bind(books, claim())
    books.drop_pod("u0")
    books.drop_pod("u0")
    books.drop_pod("never")
    assert books.cluster.card_slices.sum() == 0


@pytest.mark.parametrize("initialized", [False, True])
def test_a_container_that_the_claim_does_not_know_counts_as_running(initialized):
    allocation = Allocation("n0", (("stranger", (Share("U", 10, 1),)),))
    assert holds(claim(), allocation, initialized=initialized) == [Hold("U", 10, 1)]


def forged(uid, *containers, node_name="n0", seq=1):
    """A pod whose allocation says so: (container, [(card, MiB, percent), ...]) each."""
    told = tuple((name, tuple(Share(*share) for share in shares)) for name, shares in containers)
    return BoundPod(claim(uid), node_name, Allocation(node_name, told, 1, seq))


@pytest.mark.parametrize(
    ("asks", "containers", "held_pct"),
    [
        (
            (ask("side", Stage.SIDECAR), ask("init", Stage.INIT), ask("app")),
            (
                ("side", [("n0-card0", 1000, 60)]),
                ("init", [("n0-card0", 500, 100)]),
                ("app", [("n0-card0", 1000, 10)]),
            ),
            150,
        ),
        ((ask("init", Stage.INIT),), (("init", [("n0-card0", 10, 100), ("n0-card0", 10, 100)]),), 200),
    ],
    ids=["sidecar, init and app", "one container twice"],
)
def test_an_allocation_of_more_than_a_card_is_a_conflict_that_fences_the_node_until_it_is_gone(
    asks, containers, held_pct
):
    pod = BoundPod(claim("u0", *asks), "n0", forged("u0", *containers).allocation)
    books = ledger(node())
    books.put_pod(pod)
    assert [(each.pod, each.text) for each in books.conflicts.values()] == [
        ("ns/u0", f"card n0-card0 on n0: one pod holds {held_pct} % of it")
    ]
    assert books.hold(claim("u1"), "n0").code is Code.NODE_FENCED
    books.drop_pod("u0")
    assert isinstance(books.hold(claim("u1"), "n0"), Allocation)


def test_a_card_whose_new_mode_does_not_take_what_is_on_it_is_a_conflict_until_the_mode_is_back():
    books = ledger(node())
    for uid in ("u0", "u1"):
        bind(books, claim(uid))
    books.put_node(changed(node(), isolation=Isolation.MIG))
    books.rebuild()
    assert list(books.conflicts) == ["u1"]
    books.put_node(node())
    books.rebuild()
    assert books.conflicts == {}
    assert isinstance(books.hold(claim("u2"), "n0"), Allocation)


# ---------------------------------------------------------------- cards that are told twice

ONE_CARD_ON_TWO_NODES = (node("n0", cards=[card("U"), card("V")]), node("n1", cards=[card("U"), card("W")]))
ONE_CARD_TWICE = (node("n0", cards=[card("U"), card("U"), card("V")]),)
CHANGES = {
    "cordoned": {"schedulable": False},
    "a sick card": {"healthy": False},
    "another mode": {"isolation": Isolation.MPS},
    "a mode that shares nothing": {"isolation": Isolation.MIG},
    "other weights on disk": {"cached_models": frozenset({"m"})},
    "much to lend": {"lendable_mib": 9000},
    "nothing to lend": {"lendable_mib": 0},
    "a service that gave memory back": {"evicted": frozenset({"s"})},
}


ON_CARDS = {"healthy", "isolation", "lendable_mib", "evicted"}


def changed(spec, **change):
    """The node after a change that needs no new hardware: of the node, or of all its cards."""
    on_cards = {key: change.pop(key) for key in ON_CARDS & change.keys()}
    return replace(spec, cards=tuple(replace(each, **on_cards) for each in spec.cards), **change)


@pytest.mark.parametrize("specs", [ONE_CARD_ON_TWO_NODES, ONE_CARD_TWICE], ids=["on two nodes", "on one node"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_any_change_of_a_node_with_a_card_that_is_told_twice_is_taken_over(specs, change):
    books = ledger(*specs)
    for i, spec in enumerate(specs):
        books.put_node(changed(spec, **change))
        assert books.outdated == (change.get("isolation") is Isolation.MIG)
        if books.outdated:
            books.rebuild()
        assert state(books) == state(ledger(*(changed(each, **change) for each in specs[: i + 1]), *specs[i + 1 :]))


@pytest.mark.parametrize("specs", [ONE_CARD_ON_TWO_NODES, ONE_CARD_TWICE], ids=["on two nodes", "on one node"])
def test_load_of_a_card_that_is_told_twice_is_taken_over(specs):
    books = ledger(*specs)
    books.report_load("n0", {"U": 0.5, "nobody's": 0.5})
    assert np.nansum(books.cluster.compute_used_share) == 0.5


def test_nodes_that_tell_one_card_take_nothing_and_name_each_other_until_one_is_gone():
    books = ledger(*ONE_CARD_ON_TWO_NODES, node("n2"))
    assert [(each.pod, each.node, each.text) for each in books.conflicts.values()] == [
        ("", "n0", "n1 reports card U too; delete the node that is no more"),
        ("", "n1", "n0 reports card U too; delete the node that is no more"),
    ]
    assert [books.hold(claim(), name).code for name in ("n0", "n1")] == [Code.NODE_FENCED] * 2
    assert isinstance(books.hold(claim("u2"), "n2"), Allocation)
    books.drop_node("n0")
    assert isinstance(books.hold(claim(), "n1"), Allocation)
    assert books.conflicts == {}


def test_a_node_that_tells_a_card_twice_takes_nothing_until_it_tells_it_once():
    books = ledger(*ONE_CARD_TWICE)
    assert [each.text for each in books.conflicts.values()] == ["n0 reports card U twice"]
    assert books.hold(claim(), "n0").code is Code.NODE_FENCED
    books.put_node(node("n0", cards=[card("U"), card("V")]))
    assert isinstance(books.hold(claim(), "n0"), Allocation)


def test_pods_on_nodes_that_tell_one_card_stay_counted_where_they_are():
    books = ledger(*ONE_CARD_ON_TWO_NODES)
    for i, name in enumerate(("n0", "n1")):
        books.put_pod(forged(f"u{i}", ("app", [("U", 20000, 20)]), node_name=name))
    assert (CARD_MIB - books.cluster.memory_free_mib).tolist() == [[20000, 0], [20000, 0]]
    books.drop_pod("u0")
    assert books.cluster.node_fenced.all()
    books.drop_node("n0")
    books.rebuild()
    assert (CARD_MIB - books.cluster.memory_free_mib).tolist() == [[20000, 0]]


def test_a_conflict_of_a_pod_that_has_gone_leaves_its_node_fenced_while_another_is_there():
    books = ledger(node())
    for uid in ("a", "b"):
        books.put_pod(forged(uid, ("app", [("removed", 1, 1)])))
    books.drop_pod("a")
    assert books.cluster.node_fenced[0]
    books.drop_pod("b")
    assert not books.cluster.node_fenced[0]


# ---------------------------------------------------------------- lists that miss a pod


def test_a_pod_that_a_list_does_not_have_is_kept_as_unlisted_until_it_is_told():
    books = ledger(node())
    books.begin_list()
    pod = bind(books, claim())
    books.hold(claim("u1"), "n0")
    books.take_list([], [])
    assert books.unlisted == {"u0", "u1"}
    books.put_pod(pod)
    books.release("u1")
    assert books.unlisted == set()


@pytest.mark.parametrize("confirmed", [True, False], ids=["bound", "under way"])
def test_a_pod_that_is_gone_for_good_holds_nothing_whether_or_not_it_was_bound(confirmed):
    books = ledger(node())
    books.hold(claim(), "n0")
    if confirmed:
        books.confirm("u0")
    books.disown("u0")
    books.disown("u0")
    books.confirm("u0")
    assert (books.knows("u0"), int(books.cluster.card_slices.sum())) == (False, 0)


# ---------------------------------------------------------------- laws

SHAPES = st.one_of(
    st.builds(slice_of, st.integers(1, 26000), st.integers(0, 100), st.integers(1, 2)),
    st.builds(partial(slice_of, oversubscribe=True), st.integers(1, 26000), st.integers(0, 30), st.integers(1, 2)),
    st.builds(whole, st.integers(1, 2)),
)
ASKS = st.lists(st.tuples(st.sampled_from(Stage), SHAPES), min_size=0, max_size=3)
NODES = ("n0", "n1", "n2")
CARDS = st.lists(st.sampled_from([CARD_MIB, 2 * CARD_MIB]), min_size=1, max_size=3)


def held_of(cluster):
    """What all slices hold of each card, and what they were lent beyond it."""
    physical, lent = np.zeros_like(cluster.memory_total_mib), np.zeros_like(cluster.memory_total_mib)
    for held in cluster.slices.values():
        for place, physical_mib, lent_mib in held.parts:
            physical[held.node_idx, place] += physical_mib
            lent[held.node_idx, place] += lent_mib
    return physical, lent


class AnyOrder(RuleBasedStateMachine):
    """``api`` is what the cluster would say; events reach the ledger late, twice, or only by a relist (case C9)."""

    holding = Bundle("holding")

    @initialize(cards=CARDS)
    def start(self, cards):
        self.books = ledger()
        self.api_nodes, self.api_pods, self.count = {}, {}, 0
        self.put_node("n0", cards)

    @rule(name=st.sampled_from(NODES), cards=CARDS, shared=st.sampled_from([False, False, True]))
    def put_node(self, name, cards, shared=False):
        """Nodes come in any order of their names; ``shared``: with a card that another may tell too."""
        told = [card("shared" if shared and not i else "", memory_mib=mib) for i, mib in enumerate(cards)]
        self.api_nodes[name] = node(name, cards=told, cpu_milli=3000)
        self.books.put_node(self.api_nodes[name])

    @rule(name=st.sampled_from(NODES), change=st.sampled_from([*CHANGES.values(), {"schedulable": True}]))
    def a_node_changes(self, name, change):
        if name in self.api_nodes:
            self.api_nodes[name] = changed(self.api_nodes[name], **change)
            self.books.put_node(self.api_nodes[name])

    @rule(name=st.sampled_from(NODES))
    def drop_node(self, name):
        self.api_nodes.pop(name, None)
        self.books.drop_node(name)

    @rule(
        target=holding,
        name=st.sampled_from(NODES),
        asks=ASKS,
        cpu=st.integers(0, 2000),
        service=st.sampled_from(["", "s"]),
        exclusive=st.booleans(),
    )
    def hold(self, name, asks, cpu, service, exclusive):
        self.count += 1
        named = tuple(ContainerAsk(f"c{i}", stage, shape) for i, (stage, shape) in enumerate(asks))
        wanted = Claim(
            f"u{self.count}", f"ns/u{self.count}", named, cpu_milli=cpu, service=service, exclusive=exclusive
        )
        allocation = self.books.hold(wanted, name)
        return BoundPod(wanted, name, allocation) if isinstance(allocation, Allocation) else multiple()

    @rule(pod=consumes(holding), heard=st.booleans())
    def binding_succeeds(self, pod, heard):
        self.api_pods[pod.claim.uid] = pod
        if heard or pod.claim.uid not in self.books.under_way:  # a write that lands after a restart is told by the feed
            self.books.put_pod(pod)
        self.books.confirm(pod.claim.uid)

    @rule(pod=consumes(holding))
    def binding_fails(self, pod):
        self.books.release(pod.claim.uid)

    @rule(data=st.data(), heard=st.booleans())
    def pod_is_initialized(self, data, heard):
        if self.api_pods:
            uid = data.draw(st.sampled_from(sorted(self.api_pods)))
            pod = self.api_pods[uid]
            self.api_pods[uid] = BoundPod(pod.claim, pod.node, pod.allocation, initialized=True)
            self._tell(heard, lambda: self.books.put_pod(self.api_pods[uid]))

    @rule(data=st.data(), heard=st.booleans())
    def pod_goes(self, data, heard):
        if self.api_pods:
            uid = data.draw(st.sampled_from(sorted(self.api_pods)))
            del self.api_pods[uid]
            self._tell(heard, lambda: self.books.drop_pod(uid))

    def _tell(self, heard, tell):
        """An event is heard, or the watch was cut and a relist tells it."""
        tell() if heard else self.relist()

    @rule()
    def relist(self):
        self.books.reset(list(self.api_nodes.values()), list(self.api_pods.values()))

    @rule()
    def restart(self):
        for uid in list(self.books.under_way):
            self.books.release(uid)
        fresh = Ledger(balanced)
        fresh.reset(self.api_nodes.values(), self.api_pods.values())
        fresh.seq = self.books.seq
        self.books = fresh

    @invariant()
    def no_card_is_oversold(self):
        cluster = self.books.cluster
        assert (cluster.memory_free_mib >= 0).all()
        assert (cluster.compute_free_milli >= 0).all()
        physical, lent = held_of(cluster)
        assert (cluster.memory_total_mib - cluster.memory_free_mib).tolist() == physical.tolist()
        assert cluster.memory_lent_mib.tolist() == lent.tolist()

    @invariant()
    def the_ledger_equals_what_the_cluster_says(self):
        if self.books.outdated:
            self.books.rebuild()
        fresh = Ledger(balanced)
        fresh.under_way = dict(self.books.under_way)
        fresh.reset(self.api_nodes.values(), self.api_pods.values())
        assert state(self.books) == state(fresh)


AnyOrder.TestCase.settings = settings(max_examples=150, stateful_step_count=30)
TestAnyOrder = AnyOrder.TestCase
