"""The backlog: depth, order, fairness, deadlines, and what those hear who are not served."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cardwise.core.queue.backlog import (
    BULK,
    NORMAL,
    URGENT,
    Admitted,
    Backlog,
    Reason,
    Shed,
    check,
    depth_for,
)


def filled(depth, tenants, **backlog):
    """A full backlog, one request per letter; the item is the letter and its number."""
    full = Backlog(depth, **backlog)
    for i, tenant in enumerate(tenants):
        assert isinstance(full.offer(f"{tenant}{i}", 0.0, tenant=tenant), Admitted)
    return full


def draining(rate, depth=100):
    """An empty backlog that was measured to drain at that rate."""
    backlog = Backlog(depth)
    for _ in range(50):
        backlog.offer("x", 0.0)
    for i in range(50):
        backlog.take(-10 + i / rate, 1)
    return backlog


# ---------------------------------------------------------------- depth


@pytest.mark.parametrize(
    ("target_p99_s", "rate", "depth"),
    [
        pytest.param(0.05, 2106, 32, id="never below a batch"),
        pytest.param(0.25, 2106, 52, id="a tenth of the target"),
        pytest.param(2.0, 2106, 96, id="never above three batches"),
    ],
)
def test_depth_is_a_tenth_of_the_target_within_one_to_three_batches(target_p99_s, rate, depth):
    assert depth_for(target_p99_s, rate, 32) == depth


def test_a_depth_that_meets_its_target_is_not_refused():
    assert check(64, 32, 0.0152, 0.050) is None  # (64 / 32 + 1) x 15.2 ms = 45.6 ms


def test_a_depth_that_cannot_meet_its_target_is_refused_with_one_that_can():
    told = check(96, 32, 0.0152, 0.050)
    assert told == (
        "depth 96 with max batch 32 takes up to 60.8 ms, the target P99 is 50 ms: set the depth to 73 or less"
    )
    assert check(73, 32, 0.0152, 0.050) is None


def test_where_no_depth_helps_another_batch_or_target_is_advised():
    told = check(32, 32, 0.030, 0.050)
    assert told.endswith("take a max batch whose time is at most 25 ms, or a target of at least 60 ms")


@pytest.mark.parametrize("depth", [0, -1])
def test_a_backlog_without_places_is_refused(depth):
    with pytest.raises(ValueError, match="must be at least 1"):
        Backlog(depth)


def test_a_full_backlog_sheds():
    told = filled(2, "aa").offer("more", 0.0, tenant="a")
    assert isinstance(told, Shed)
    assert told.reason is Reason.FULL


def test_a_request_larger_than_the_backlog_is_told_not_to_come_again():
    told = Backlog(4).offer("large", 0.0, size=5)
    assert (told.reason, told.retry_after_s) == (Reason.SIZE, None)


def test_a_smaller_depth_takes_nobodys_place():
    backlog = filled(4, "aaaa")
    backlog.resize(2)
    assert isinstance(backlog.offer("new", 0.0, tenant="a"), Shed)
    assert len(backlog.take(0.0, 10).entries) == 4


def test_a_cancelled_place_is_free_at_once_and_only_once():
    backlog = filled(2, "a")
    ticket = backlog.offer("second", 0.0, tenant="a")
    assert backlog.cancel(ticket)
    assert not backlog.cancel(ticket)
    assert isinstance(backlog.offer("third", 0.0, tenant="a"), Admitted)
    assert backlog.take(0.0, 5).items == ["a0", "third"]


# ---------------------------------------------------------------- order


def test_the_more_urgent_leave_first_and_of_equals_the_oldest():
    backlog = Backlog(10)
    for item, priority in (("b1", BULK), ("n1", NORMAL), ("u1", URGENT), ("n2", NORMAL), ("u2", URGENT)):
        backlog.offer(item, 0.0, priority=priority)
    assert backlog.take(0.0, 5).items == ["u1", "u2", "n1", "n2", "b1"]


def test_tenants_take_turns():
    assert filled(6, "aaaabb").take(0.0, 5).items == ["a0", "b4", "a1", "b5", "a2"]


def test_a_tenant_that_comes_back_at_once_waits_for_its_turn():
    backlog = filled(10, "aaab")
    taken = []
    for i in range(3):
        taken += backlog.take(0.0, 1).items
        backlog.offer(f"again{i}", 0.0, tenant="b")
    assert taken == ["a0", "b3", "a1"]


def test_large_requests_cost_as_many_turns_as_they_take_places():
    backlog = Backlog(100)
    for i in range(4):
        backlog.offer(f"large{i}", 0.0, tenant="l", size=4)
    for i in range(16):
        backlog.offer(f"small{i}", 0.0, tenant="s")
    taken = [backlog.take(0.0, 1).items[0][:5] for _ in range(10)]
    assert taken == ["large", "small", "small", "small", "small"] * 2


def test_only_alike_requests_leave_together_those_of_the_oldest_first():
    backlog = Backlog(10)
    for i, key in enumerate("xyxyy"):
        backlog.offer(f"{key}{i}", 0.0, key=key)
    assert [backlog.take(0.0, 8).items for _ in range(2)] == [["x0", "x2"], ["y1", "y3", "y4"]]


def test_head_tells_of_the_kind_that_is_next():
    backlog = Backlog(10)
    for now_s, key in ((1.0, "y"), (2.0, "x"), (3.0, "y")):
        backlog.offer("", now_s, key=key)
    assert backlog.head() == ("y", 2, 1.0, 3.0)
    backlog.take(4.0, 8)
    assert backlog.head() == ("x", 1, 2.0, 2.0)
    backlog.take(4.0, 8)
    assert backlog.head() is None


def test_a_batch_is_not_overfilled_and_what_does_not_fit_is_next():
    backlog = Backlog(20)
    for i, size in enumerate((3, 3, 1)):
        backlog.offer(i, 0.0, size=size)
    assert [backlog.take(0.0, 5).items for _ in range(2)] == [[0], [1, 2]]


def test_what_is_larger_than_a_batch_goes_alone():
    backlog = Backlog(20)
    backlog.offer("large", 0.0, size=9)
    backlog.offer("small", 0.0)
    assert backlog.take(0.0, 4).items == ["large"]


# ---------------------------------------------------------------- who gets a place when all are taken


def test_a_tenant_that_holds_less_gets_the_newest_place_of_who_holds_most():
    backlog = filled(4, "aaab")
    told = backlog.offer("b4", 0.0, tenant="b")
    assert isinstance(told, Admitted)
    assert [(drop.entry.item, drop.reason) for drop in told.dropped] == [("a2", Reason.DISPLACED)]
    assert sorted(backlog.take(0.0, 9).items) == ["a0", "a1", "b3", "b4"]


def test_a_tenant_at_its_share_is_shed_when_full():
    told = filled(4, "aabb").offer("a4", 0.0, tenant="a")
    assert isinstance(told, Shed)
    assert told.reason is Reason.SHARE


def test_an_urgent_request_displaces_the_newest_of_the_least_urgent():
    backlog = Backlog(3)
    for item, priority in (("n", NORMAL), ("b1", BULK), ("b2", BULK)):
        backlog.offer(item, 0.0, priority=priority)
    told = backlog.offer("u", 0.0, priority=URGENT)
    assert [drop.entry.item for drop in told.dropped] == ["b2"]


def test_a_less_urgent_request_displaces_nobody():
    backlog = Backlog(2)
    for tenant in "aa":
        backlog.offer("", 0.0, priority=URGENT, tenant=tenant)
    assert backlog.offer("", 0.0, priority=NORMAL, tenant="b").reason is Reason.FULL


def test_a_tenants_share_of_the_depth_may_be_bounded():
    backlog = filled(8, "aaaa", tenant_share=0.5)
    assert backlog.offer("", 0.0, tenant="a").reason is Reason.SHARE
    assert isinstance(backlog.offer("", 0.0, tenant="b"), Admitted)


def test_two_places_are_not_freed_for_one_request():
    told = filled(4, "aaaa").offer("large", 0.0, tenant="b", size=2)
    assert told.reason is Reason.FULL


# ---------------------------------------------------------------- deadlines


def test_who_would_be_answered_too_late_is_dropped_and_the_batch_is_filled_with_others():
    backlog = Backlog(10)
    for i, deadline_s in enumerate((1.0, 1.2, None, 1.1)):
        backlog.offer(i, 0.0, deadline_s=deadline_s)
    taken = backlog.take(1.0, 2, service_s=0.15)
    assert taken.items == [1, 2]
    assert [(drop.entry.item, drop.reason) for drop in taken.dropped] == [(0, Reason.EXPIRED)]


def test_if_a_whole_kind_is_too_late_the_next_is_taken():
    backlog = Backlog(10)
    backlog.offer("late", 0.0, key="x", deadline_s=1.0)
    backlog.offer("well", 0.0, key="y")
    taken = backlog.take(2.0, 4)
    assert (taken.items, len(taken.dropped)) == (["well"], 1)


def test_if_an_urgent_kind_is_too_late_another_urgent_one_is_before_the_rest_of_that_kind():
    backlog = Backlog(10)
    backlog.offer("bulk", 0.0, key="x", priority=BULK)
    backlog.offer("late", 0.0, key="x", deadline_s=1.0)
    backlog.offer("well", 0.0, key="y")
    taken = backlog.take(2.0, 4)
    assert (taken.items, len(taken.dropped)) == (["well"], 1)
    assert backlog.take(2.0, 4).items == ["bulk"]


def test_a_full_backlog_gives_the_places_of_the_late_away():
    backlog = Backlog(2)
    for i in range(2):
        backlog.offer(i, 0.0, deadline_s=1.0 + i)
    told = backlog.offer("new", 1.5)
    assert [(drop.entry.item, drop.reason) for drop in told.dropped] == [(0, Reason.EXPIRED)]
    assert [drop.entry.item for drop in backlog.expire(1.9, service_s=0.2)] == [1]
    assert backlog.next_deadline_s == math.inf


def test_who_would_wait_past_its_deadline_hears_so_on_arrival():
    backlog = draining(100)
    for _ in range(50):
        backlog.offer("", 0.0)
    told = backlog.offer("", 0.0, deadline_s=0.4)
    assert told.reason is Reason.LATE
    assert isinstance(backlog.offer("", 0.0, deadline_s=0.6), Admitted)


def test_a_tenant_whose_turn_comes_soon_is_not_taken_for_late():
    backlog = draining(100)
    for _ in range(50):
        backlog.offer("", 0.0, tenant="a")
    assert isinstance(backlog.offer("", 0.0, tenant="b", deadline_s=0.05), Admitted)


def test_deadlines_of_those_who_left_are_forgotten():
    backlog = Backlog(4)
    for i in range(5000):
        backlog.cancel(backlog.offer(i, 0.0, deadline_s=1e9, tenant=str(i), key=i))
    assert len(backlog._deadlines) < 200
    assert not backlog._sizes
    assert not backlog._arrived


# ---------------------------------------------------------------- when to come again


def test_before_a_rate_is_known_come_again_after_a_second():
    assert filled(1, "a").offer("", 0.0).retry_after_s == 1.0


def test_come_again_when_the_backlog_will_have_drained():
    backlog = draining(100, depth=50)
    for _ in range(50):
        backlog.offer("", 0.0)
    assert backlog.offer("", 0.0).retry_after_s == pytest.approx(0.5, rel=0.01)


def test_light_load_is_not_taken_for_a_slow_replica():
    backlog = Backlog(10)
    for i in range(100):
        backlog.offer("", i)
        backlog.take(i, 1)
    assert backlog.retry_after_s(100) == 1.0, "no rate is known"


def test_the_longer_nothing_is_taken_the_later_to_come_again():
    backlog = draining(100)
    backlog.offer("x", 0.0)
    backlog.offer("x", 0.0)
    backlog.take(0.0, 1)
    soon, late = backlog.retry_after_s(0.0), backlog.retry_after_s(30.0)
    assert soon < 0.1 < late


# ---------------------------------------------------------------- laws

PRIORITY, TENANT, KEY = st.integers(0, 2), st.sampled_from("abc"), st.sampled_from("xy")


class AnyUse(RuleBasedStateMachine):
    """Whatever is done in whatever order."""

    @initialize(depth=st.integers(1, 12), share=st.sampled_from([0.5, 1.0]))
    def begin(self, depth, share):
        self.backlog = Backlog(depth, tenant_share=share)
        self.most = depth
        self.now_s = 0.0
        self.admitted, self.taken, self.dropped, self.cancelled = [], [], [], []

    def _note_dropped(self, dropped):
        for drop in dropped:
            assert not drop.entry.waiting
            assert drop.retry_after_s > 0
            self.dropped.append(drop.entry)

    @rule(passed_s=st.floats(0, 2))
    def wait(self, passed_s):
        self.now_s += passed_s

    @rule(
        priority=PRIORITY,
        tenant=TENANT,
        key=KEY,
        size=st.integers(1, 3),
        left_s=st.none() | st.floats(0, 4),
        count=st.integers(1, 5),
    )
    def offer(self, priority, tenant, key, size, left_s, count):
        for _ in range(count):
            before = self.backlog.queued
            is_sure = before >= self.backlog.depth and not self.backlog.has_rivals(priority, tenant)
            told = self.backlog.offer(
                "",
                self.now_s,
                priority=priority,
                tenant=tenant,
                key=key,
                size=size,
                deadline_s=None if left_s is None else self.now_s + left_s,
            )
            self._note_dropped(told.dropped)
            if isinstance(told, Admitted):
                self.admitted.append(told)
                assert not is_sure or any(drop.reason is Reason.EXPIRED for drop in told.dropped)
                assert all(drop.entry.priority >= priority for drop in told.dropped if drop.reason is Reason.DISPLACED)
                assert self.backlog.queued <= max(self.backlog.depth, before)
            elif told.reason is not Reason.SIZE:
                assert told.retry_after_s > 0

    @rule(n=st.integers(1, 6), service_s=st.floats(0, 1))
    def take(self, n, service_s):
        waiting = [entry for entry in self.admitted if entry.waiting]
        taken = self.backlog.take(self.now_s, n, service_s=service_s)
        self._note_dropped(taken.dropped)
        entries = taken.entries
        self.taken += entries
        alive = [entry for entry in waiting if entry not in [drop.entry for drop in taken.dropped]]
        assert all(self.now_s + service_s <= entry.deadline_s for entry in entries)
        assert len({entry.key for entry in entries}) <= 1
        assert sum(entry.size for entry in entries) <= n or len(entries) == 1
        assert bool(entries) == bool(alive)
        assert [entry.priority for entry in entries] == sorted(entry.priority for entry in entries)
        for entry in entries[:1]:
            assert entry.priority == min(other.priority for other in alive)
        for first, then in itertools.combinations(entries, 2):
            if (first.priority, first.tenant) == (then.priority, then.tenant):
                assert first.seq < then.seq

    @rule(index=st.integers(0, 1000))
    def cancel(self, index):
        if self.admitted:
            entry = self.admitted[index % len(self.admitted)]
            waited = entry.waiting
            assert self.backlog.cancel(entry) == waited
            if waited:
                self.cancelled.append(entry)

    @rule()
    def expire(self):
        self._note_dropped(self.backlog.expire(self.now_s))
        assert self.backlog.next_deadline_s >= self.now_s

    @rule(depth=st.integers(1, 12))
    def resize(self, depth):
        self.backlog.resize(depth)
        self.most = max(self.most, depth)

    @invariant()
    def nobody_is_lost_and_nobody_counted_twice(self):
        gone = [*self.taken, *self.dropped, *self.cancelled]
        waiting = [entry for entry in self.admitted if entry.waiting]
        assert len(gone) + len(self.backlog) == len(self.admitted)
        assert {id(entry) for entry in gone} | {id(entry) for entry in waiting} == {id(e) for e in self.admitted}
        assert self.backlog.queued == sum(entry.size for entry in waiting) <= self.most


AnyUse.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestAnyUse = AnyUse.TestCase


@settings(max_examples=60)
@given(n=st.integers(1, 8), greedy=st.integers(2, 20), depth=st.integers(4, 60), tenants=st.integers(2, 4))
def test_no_tenant_starves_however_many_another_sends(n, greedy, depth, tenants):
    """Tenant 0 sends ``greedy`` to each one of the others, and first: yet all get an equal part.

    To a tenth where each one's share of the depth is two batches; where it is few places, rounding them costs more.
    """
    backlog = Backlog(depth)
    served = dict.fromkeys(range(tenants), 0)
    rounds = 60
    for now_s in range(rounds):
        for _ in range(n * greedy):
            backlog.offer(0, now_s, tenant="0")
        for _ in range(n):
            for tenant in range(1, tenants):
                backlog.offer(tenant, now_s, tenant=str(tenant))
        for item in backlog.take(now_s, n).items:
            served[item] += 1
    fair = rounds * min(n, depth) / tenants
    assert min(served.values()) >= (0.9 if depth >= 2 * n * tenants else 0.5) * fair - n - 1


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(PRIORITY, TENANT, KEY, st.integers(1, 3), st.none() | st.floats(0, 3), st.booleans()), max_size=60
    )
)
def test_the_same_requests_meet_the_same_answers(steps):
    def all_of(backlog):
        for now_s, (priority, tenant, key, size, left_s, takes) in enumerate(steps):
            told = backlog.offer(
                now_s,
                now_s / 4,
                priority=priority,
                tenant=tenant,
                key=key,
                size=size,
                deadline_s=None if left_s is None else now_s / 4 + left_s,
            )
            yield type(told), [drop.entry.item for drop in told.dropped], getattr(told, "reason", None)
            if takes:
                taken = backlog.take(now_s / 4, 4, service_s=0.1)
                yield taken.items, [drop.entry.item for drop in taken.dropped]

    assert list(all_of(Backlog(8))) == list(all_of(Backlog(8)))
