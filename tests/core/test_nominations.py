"""What is kept in the books for a pod that waits: from others, growing as victims go, and never more than there is."""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cardwise.core.allocation import Allocation, BoundPod
from cardwise.core.reasons import Reason
from cardwise.core.request import Isolation
from tests.builders import CARD_MIB, card, node, slice_of, whole
from tests.core.test_ledger import ask, bind, claim, ledger, state


def wants(uid, mib=10000, pct=10, shape=None, **more):
    return claim(uid, ask(shape=shape or slice_of(mib, pct)), **more)


def nominate(books, wanted, name="n0", gone=(), until_s=100.0):
    kept = books.suppose_without(wanted, name, gone)
    assert kept is not None
    books.nominate(kept, until_s)
    return kept


def free_mib(books):
    return books.cluster.memory_free_mib[books.cluster.node_idx["n0"]].tolist()


def test_of_what_is_kept_as_much_is_held_as_is_free_and_more_as_victims_go():
    books = ledger(node())
    for uid in ("v0", "v1"):
        bind(books, wants(uid, 10000))
    nominate(books, wants("w", 20000), gone=["v0", "v1"])
    assert free_mib(books) == [0]
    books.drop_pod("v0")
    assert free_mib(books) == [0]
    assert isinstance(books.hold(wants("thief", 1), "n0"), Reason)
    books.drop_pod("v1")
    assert free_mib(books) == [CARD_MIB - 20000]
    assert isinstance(books.hold(wants("w", 20000), "n0"), Allocation)
    assert free_mib(books) == [CARD_MIB - 20000]


def test_only_the_pod_itself_gets_what_is_kept():
    books = ledger(node())
    nominate(books, wants("w", 20000))
    assert isinstance(books.hold(wants("other", 20000), "n0"), Reason)
    assert books.suppose(wants("other", 20000), "n0") is None
    assert books.suppose(wants("w", 20000), "n0") is not None


def test_a_binding_that_fails_keeps_it_again():
    books = ledger(node())
    nominate(books, wants("w", 20000))
    books.hold(wants("w", 20000), "n0")
    books.release("w")
    assert free_mib(books) == [CARD_MIB - 20000]


def test_a_pod_that_is_bound_elsewhere_keeps_nothing():
    books = ledger(node(), node("n1"))
    nominate(books, wants("w", 20000))
    bind(books, wants("w", 20000), "n1")
    assert free_mib(books) == [CARD_MIB]


def test_a_deadline_that_has_passed_frees_it_and_hearing_it_again_renews_nothing():
    books = ledger(node())
    kept = nominate(books, wants("w", 20000), until_s=100.0)
    books.take_freed()
    books.expire(99.0)
    assert free_mib(books) == [CARD_MIB - 20000]
    books.expire(100.0)
    assert free_mib(books) == [CARD_MIB]
    assert books.take_freed() == {"n0"}
    books.nominate(kept, 500.0)
    assert free_mib(books) == [CARD_MIB]
    books.nominate(replace(kept, allocation=replace(kept.allocation, seq=2)), 500.0)
    assert free_mib(books) == [CARD_MIB - 20000]


def test_hearing_of_it_again_does_not_move_the_deadline():
    books = ledger(node())
    kept = nominate(books, wants("w", 20000), until_s=100.0)
    books.nominate(kept, 500.0)
    books.expire(100.0)
    assert free_mib(books) == [CARD_MIB]


def test_a_pod_that_is_there_already_comes_before_what_is_kept():
    """The feed tells of a binding that was written before the nomination was heard of: it is no conflict."""
    books = ledger(node())
    nominate(books, wants("w", 20000))
    other = wants("other", 20000)
    books.put_pod(BoundPod(other, "n0", ledger(node()).hold(other, "n0")))
    assert books.conflicts == {}
    assert free_mib(books) == [0]
    books.drop_pod("other")
    assert free_mib(books) == [CARD_MIB - 20000]


def test_of_two_for_whom_something_is_kept_the_more_important_comes_first():
    books = ledger(node())
    bind(books, wants("v", 20000))
    nominate(books, wants("b", 20000, priority=1), gone=["v"])
    nominate(books, wants("a", 20000, priority=2), gone=["v", "b"])
    books.drop_pod("v")
    assert books.suppose(wants("a", 20000, priority=2), "n0") is not None
    assert books.suppose(wants("b", 20000, priority=1), "n0") is None


def test_a_whole_card_is_kept_while_its_last_slice_is_still_there():
    books = ledger(node())
    bind(books, wants("v", 4096))
    nominate(books, wants("w", shape=whole()), gone=["v"])
    assert isinstance(books.hold(wants("thief", 1, 0), "n0"), Reason)
    books.drop_pod("v")
    assert isinstance(books.hold(wants("thief", 1, 0), "n0"), Reason)
    assert isinstance(books.hold(wants("w", shape=whole()), "n0"), Allocation)


def test_a_mig_instance_is_kept_from_the_moment_it_is_free():
    mig = {"isolation": frozenset({Isolation.MIG})}
    books = ledger(node(cards=[card(isolation=Isolation.MIG)]))
    bind(books, wants("v", shape=slice_of(4096, 10, **mig)))
    nominate(books, wants("w", shape=slice_of(4096, 10, **mig)), gone=["v"])
    books.drop_pod("v")
    assert isinstance(books.hold(wants("thief", shape=slice_of(1, 0, **mig)), "n0"), Reason)
    assert isinstance(books.hold(wants("w", shape=slice_of(4096, 10, **mig)), "n0"), Allocation)


def test_a_node_that_goes_and_comes_back_keeps_it_again():
    books = ledger(node())
    nominate(books, wants("w", 20000))
    books.drop_node("n0")
    books.rebuild()
    books.put_node(node())
    books.rebuild()
    assert free_mib(books) == [CARD_MIB - 20000]


def test_who_is_supposed_to_go_somewhere_is_not_counted_beside_what_is_kept_for_it():
    books = ledger(node())
    kept = nominate(books, wants("w", 20000))
    with books.supposing([kept]):
        assert free_mib(books) == [CARD_MIB - 20000]
    assert free_mib(books) == [CARD_MIB - 20000]


@pytest.mark.parametrize("gone", [["v"], []], ids=["supposed gone", "there"])
def test_supposing_changes_nothing(gone):
    books = ledger(node())
    bind(books, wants("v", 20000))
    before = state(books)
    books.suppose_without(wants("w", 20000), "n0", gone)
    assert state(books) == before


SHAPES = st.one_of(
    st.builds(slice_of, st.integers(1, 26000), st.integers(0, 60), st.integers(1, 2)),
    st.builds(whole, st.integers(1, 2)),
)
UIDS = ("a", "b", "c", "d", "e")


class Kept(RuleBasedStateMachine):
    """Pods are bound and go, others are waited for, in any order."""

    @initialize()
    def start(self):
        self.nodes = [node("n0", cards=2), node("n1", cards=1)]
        self.books, self.now_s = ledger(*self.nodes), 0.0

    @rule(uid=st.sampled_from(UIDS), name=st.sampled_from(["n0", "n1"]), shape=SHAPES)
    def bound(self, uid, name, shape):
        if self.books.knows(uid):
            return
        before = self.kept()
        if isinstance(self.books.hold(wants(uid, shape=shape), name), Allocation):
            self.books.confirm(uid)
            assert self.kept(but=uid) >= before - self.of(uid, before)
            self.books.withdraw(uid)

    @rule(uid=st.sampled_from(UIDS))
    def gone(self, uid):
        self.books.drop_pod(uid)

    @rule(
        uid=st.sampled_from(UIDS),
        name=st.sampled_from(["n0", "n1"]),
        shape=SHAPES,
        priority=st.integers(0, 2),
        s=st.integers(1, 9),
    )
    def waits(self, uid, name, shape, priority, s):
        if not self.books.knows(uid):
            kept = self.books.suppose_without(wants(uid, shape=shape, priority=priority), name, list(self.books.pods))
            if kept is not None:
                self.books.nominate(kept, self.now_s + s)

    @rule(uid=st.sampled_from(UIDS))
    def waits_no_more(self, uid):
        self.books.withdraw(uid)

    @rule(s=st.integers(1, 5))
    def time_passes(self, s):
        self.now_s += s
        self.books.expire(self.now_s)

    @rule()
    def relist(self):
        self.books.reset(self.nodes, list(self.books.pods.values()))

    @rule(cards=st.integers(1, 2))
    def other_hardware(self, cards):
        if not any(pod.node == "n1" for pod in self.books.pods.values()):
            self.nodes[1] = node("n1", cards=cards)
            self.books.put_node(self.nodes[1])
            self.books.rebuild()

    def kept(self, but=""):
        names = [name for name in self.books.cluster.slices if "!" in name and not name.startswith(f"{but}!")]
        return sum(sum(self.books.cluster.slices[name].memory_mib) for name in names)

    def of(self, uid, total):
        """All of it may have been the pod's own."""
        return total if uid in self.books.nominated else 0

    @invariant()
    def without_what_is_kept_the_books_are_what_the_pods_say(self):
        if not hasattr(self, "books"):
            return
        with self.books.asking(*(set(self.books.nominated) - set(self.books.pods))):
            fresh = ledger()
            fresh.reset(self.nodes, self.books.pods.values())
            assert state(self.books) == state(fresh)

    @invariant()
    def nothing_is_oversold(self):
        if hasattr(self, "books"):
            assert (self.books.cluster.memory_free_mib >= 0).all()
            assert (self.books.cluster.compute_free_milli >= 0).all()

    @invariant()
    def who_alone_waits_holds_all_that_it_wants_or_all_that_is_free_of_it(self):
        if not hasattr(self, "books") or len(self.books.nominated) != 1:
            return
        ((uid, known),) = self.books.nominated.items()
        if known.over or self.books.knows(uid):
            return
        slices = self.books.cluster.slices
        held = sum(sum(each.memory_mib) for name, each in slices.items() if name.startswith(f"{uid}!"))
        there = {each.uuid for each in self.books.nodes[known.pod.node].cards}  # the others went with the hardware
        wanted = {share.uuid: share.memory_mib for share in known.pod.allocation.shares if share.uuid in there}
        row = self.books.cluster.memory_free_mib[self.books.cluster.node_idx[known.pod.node]]
        free = [row[i] for i, each in enumerate(self.books.nodes[known.pod.node].cards) if each.uuid in wanted]
        assert held <= sum(wanted.values())
        assert held == sum(wanted.values()) or 0 in free


TestKept = Kept.TestCase
TestKept.settings = settings(max_examples=80, stateful_step_count=30)
