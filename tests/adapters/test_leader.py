"""One replica binds, and everyone's clock may lie."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from cardwise.adapters.kube import leader as module
from cardwise.adapters.kube.leader import DURATION_S, RENEW_WITHIN_S, Leader
from cardwise.adapters.kube.port import LeaseRecord
from cardwise.errors import ClusterError, ConflictError
from tests.scheduler.fake_cluster import DEAD, FakeCluster


class Replica:
    """A leader with a clock of its own, which moves only when told. epochs: those it was elected for.

    known: the highest epoch in the allocations that it knows; None while it knows no pods.
    """

    def __init__(self, api, identity="a", now_s=1000.0, known=0):
        self.now_s, self.epochs, self.fails, self.known = now_s, [], [], known
        self.leader = Leader(api, "ns", "lease", identity, lambda: self.now_s, self._elected, lambda: self.known)

    async def _elected(self, epoch):
        if self.fails:
            raise self.fails.pop()
        self.epochs.append(epoch)

    async def step(self, after_s=2.0):
        self.now_s += after_s
        await self.leader._step()

    @property
    def leads(self):
        return self.leader.leads


@pytest.fixture
def api():
    return FakeCluster()


async def test_a_free_lease_is_taken(api):
    a = Replica(api)
    await a.step()
    assert (a.leads, a.epochs) == (True, [1])
    assert (api.lease.holder, api.lease.duration_s, api.lease.transitions) == ("a", DURATION_S, 1)


async def test_a_lease_that_was_given_up_is_taken_with_the_next_epoch(api):
    api.lease = LeaseRecord("", 1, 7, "", "1")
    api._version = 1
    a = Replica(api)
    await a.step()
    assert (a.leads, a.epochs) == (True, [8])


async def test_a_leader_that_renews_keeps_its_epoch(api):
    a = Replica(api)
    for _ in range(20):
        await a.step()
    assert (a.leads, a.epochs, api.lease.transitions) == (True, [1], 1)


async def test_a_second_does_not_take_a_lease_that_is_renewed(api):
    a, b = Replica(api, "a"), Replica(api, "b", now_s=5.0)
    for _ in range(30):
        await a.step()
        await b.step()
    assert (a.leads, b.leads, b.epochs) == (True, False, [])
    assert b.leader.holder == "a"


@pytest.mark.parametrize("renewed", ["2026-11-30T00:10:00.000000Z", "2026-11-29T23:50:00.000000Z", ""])
async def test_a_lease_is_taken_over_after_its_duration_on_the_own_clock_whatever_its_timestamp_says(api, renewed):
    """Case C15."""
    api.lease = LeaseRecord("dead", 15, 3, renewed, "1")
    api._version = 1
    b = Replica(api, "b")
    await b.step()
    await b.step(14.9)
    assert not b.leads
    await b.step(0.1)
    assert (b.leads, b.epochs) == (True, [4])


async def test_a_lease_counts_as_seen_when_its_answer_came_not_when_it_was_asked_for(api):
    """Its holder may have renewed it in between, and binds for a while yet."""
    api.lease = LeaseRecord("holder", 15, 3, "", "1")
    api._version = 1
    b = Replica(api, "b")
    read = api.read_lease

    async def slowly(namespace, name):
        b.now_s += 4.0
        return await read(namespace, name)

    api.read_lease = slowly
    await b.step(0.0)
    api.read_lease = read
    await b.step(14.9)
    assert not b.leads
    await b.step(0.1)
    assert b.leads


async def test_a_leader_stops_binding_well_before_others_may_take_over(api):
    a = Replica(api)
    await a.step()
    a.now_s += RENEW_WITHIN_S - 0.1
    assert a.leads
    a.now_s += 0.1
    assert not a.leads


async def test_a_renewal_counts_from_when_it_was_asked_for(api):
    a = Replica(api)
    write = api.write_lease

    async def slowly(namespace, name, record):
        a.now_s += 3.0
        return await write(namespace, name, record)

    api.write_lease = slowly
    await a.step()
    a.now_s += RENEW_WITHIN_S - 3.0
    assert not a.leads


async def test_a_leader_that_is_cut_off_leads_again_without_a_new_term_if_nobody_else_did(api):
    a = Replica(api)
    await a.step()
    api.dead = True
    for _ in range(5):
        with pytest.raises(ClusterError):
            await a.step()
    assert not a.leads
    api.dead = False
    await a.step()
    assert (a.leads, a.epochs) == (True, [1])


async def test_of_two_that_write_at_once_one_leads(api):
    a, b = Replica(api, "a"), Replica(api, "b")
    api.lease_fails.append(ConflictError("too late", retry=False))
    await b.step()
    await a.step()
    await b.step()
    assert (a.leads, b.leads, b.epochs) == (True, False, [])


async def test_a_leader_that_finds_another_in_the_lease_leads_no_more(api):
    a, b = Replica(api, "a"), Replica(api, "b")
    await a.step()
    await b.step()
    await b.step(DURATION_S)
    await a.step(0.0)
    assert (a.leads, b.leads, b.epochs) == (False, True, [2])


async def test_a_restarted_process_of_the_same_name_is_a_new_leader(api):
    await Replica(api, "a").step()
    again = Replica(api, "a")
    await again.step()
    assert (again.leads, again.epochs) == (True, [2])


async def test_a_write_whose_answer_was_lost_is_found_in_the_next_step(api):
    a = Replica(api)
    write = api.write_lease

    async def lost(namespace, name, record):
        await write(namespace, name, record)
        raise DEAD

    api.write_lease = lost
    with pytest.raises(ClusterError):
        await a.step()
    assert not a.leads
    api.write_lease = write
    await a.step()
    assert (a.leads, a.epochs) == (True, [2])


async def test_nobody_leads_before_it_has_heard_everything_and_that_is_tried_again(api):
    a = Replica(api)
    a.fails = [DEAD]
    with pytest.raises(ClusterError):
        await a.step()
    assert not a.leads
    await a.step()
    assert (a.leads, a.epochs) == (True, [2])


class Slow(Replica):
    """One whose beginning takes until it is told to end."""

    def __init__(self, api, identity="a"):
        super().__init__(api, identity)
        self.heard, self.abandoned = asyncio.Event(), []

    async def _elected(self, epoch):
        try:
            await self.heard.wait()
        except asyncio.CancelledError:
            self.abandoned.append(epoch)
            raise
        await super()._elected(epoch)


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(module, "PERIOD_S", 0.0)


async def until(what):
    async with asyncio.timeout(40):
        while not what():
            await asyncio.sleep(0)


async def test_a_lease_is_renewed_while_its_holder_begins_so_that_nobody_takes_it(api, at_once):
    a, b = Slow(api), Replica(api, "b")
    beginning = asyncio.create_task(a.step())
    for _ in range(10):
        version = api._version
        await until(lambda: api._version > version)  # noqa: B023 - awaited here
        await b.step(DURATION_S - 1)
    assert (a.leads, b.leads, api.lease.transitions) == (False, False, 1)
    a.heard.set()
    await beginning
    assert (a.leads, a.epochs, b.epochs) == (True, [1], [])


async def test_a_beginning_whose_lease_was_lost_is_abandoned_and_not_counted(api, at_once):
    a = Slow(api)
    beginning = asyncio.create_task(a.step())
    await until(lambda: api.lease is not None)
    api.lease = replace(api.lease, holder="b", transitions=2, version="taken")
    await beginning
    assert (a.leads, a.epochs, a.abandoned) == (False, [], [1])
    a.heard.set()
    await a.step()
    assert not a.leads
    await a.step(DURATION_S)
    assert (a.leads, a.epochs) == (True, [3])


async def test_a_beginning_goes_on_while_the_lease_cannot_be_renewed_for_a_moment(api, at_once):
    a = Slow(api)
    beginning = asyncio.create_task(a.step())
    await until(lambda: api.lease is not None)
    api.lease_fails.extend([DEAD, ConflictError("too late", retry=False)])
    await until(lambda: not api.lease_fails)
    a.heard.set()
    await beginning
    assert (a.leads, a.epochs, a.abandoned) == (True, [1], [])


async def test_one_that_ends_while_it_begins_gives_the_lease_up(api, at_once):
    a, b = Slow(api), Replica(api, "b")
    running = asyncio.create_task(a.leader.run())
    await until(lambda: api.lease is not None)
    running.cancel()
    await asyncio.wait([running])
    await b.step()
    assert (a.abandoned, b.leads, b.epochs) == ([1], True, [2])


async def test_a_leader_that_ends_gives_the_lease_up_so_that_the_next_begins_at_once(api):
    a, b = Replica(api, "a"), Replica(api, "b")
    running = asyncio.create_task(a.leader.run())
    while not a.leads:
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    assert not a.leads
    await b.step()
    assert (b.leads, b.epochs) == (True, [2])


async def test_one_that_does_not_lead_gives_nothing_up(api):
    a, b = Replica(api, "a"), Replica(api, "b")
    await a.step()
    await b.step()
    await b.leader._give_up()
    assert api.lease.holder == "a"


# ---------------------------------------------------------------- a lease that somebody deleted


@pytest.fixture
async def pair(api):
    """One that leads, and one that waits; both have seen the lease."""
    a, b = Replica(api, "a"), Replica(api, "b", now_s=5.0)
    await a.step()
    await b.step()
    return a, b


async def test_a_leader_whose_lease_was_deleted_writes_it_again_and_leads_on_in_its_term(api, pair):
    a, _ = pair
    api.lease = None
    await a.step()
    assert (a.leads, a.epochs, api.lease.holder, api.lease.transitions) == (True, [1], "a", 1)


async def test_a_deleted_lease_is_left_to_its_leader_for_a_while(api, pair):
    a, b = pair
    api.lease = None
    await b.step()
    await a.step()
    await b.step()
    assert (a.leads, b.leads, api.lease.holder) == (True, False, "a")


async def test_a_deleted_lease_is_never_led_by_two_whenever_it_is_deleted(api, pair):
    a, b = pair
    for i in range(200):
        if i % 3 == 0 or 60 < i < 90:
            api.lease = None
        first, second = (a, b) if i % 2 else (b, a)
        await first.step(1.0)
        second.now_s += 1.0
        assert not (a.leads and b.leads)
        if 60 < i < 90:
            await second.step(0.0)
            assert not (a.leads and b.leads)


WRITE_S = 4.0
"""So long after the question a binding may land."""
DEEDS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["step"] * 6 + ["delete", "blank", "lose", "cut", "join"]))
)


@given(DEEDS, st.sampled_from([0.5, 1.0, 2.0]))
def test_no_order_of_deletions_and_failures_makes_two_bind_at_once(deeds, each_s):
    asyncio.run(_hostile_hours(deeds * 4, each_s))


async def _hostile_hours(deeds, each_s):
    api = FakeCluster()
    api.lease = LeaseRecord("", 1, 1, "", "given up")
    write, lost = api.write_lease, []

    async def unanswered(namespace, name, record):
        written = await write(namespace, name, record)
        if lost:
            raise lost.pop()
        return written

    api.write_lease = unanswered
    replicas, cut, led_s = [Replica(api, name, 0.0, known=1) for name in "abc"], set(), {}
    for now_s, (who, deed) in enumerate(deeds):
        for each in replicas:
            each.now_s = now_s * each_s
        if deed in {"delete", "blank"} and api.lease:
            api.lease = None if deed == "delete" else replace(api.lease, holder="", version=f"edited-{now_s}")
        if deed == "lose":
            lost.append(DEAD)
        cut = cut | {who} if deed == "cut" else cut - {who} if deed == "join" else cut
        if who not in cut:
            with contextlib.suppress(ClusterError):
                await replicas[who].leader._step()
        leading = [i for i, each in enumerate(replicas) if each.leads]
        led_s |= dict.fromkeys(leading, now_s * each_s)
        assert all(now_s * each_s - led_s[i] >= WRITE_S for i in led_s if leading and i not in leading)
        assert len(leading) <= 1


async def test_who_creates_a_deleted_lease_leads_once_the_old_leaders_last_renewal_has_run_out(api, pair):
    """The old leader is cut off from the API server: it binds for a while on its last renewal."""
    a, b = pair
    api.lease = None
    while api.lease is None:
        await b.step()
    await b.step(DURATION_S - 0.1)
    assert (api.lease.holder, b.leads, b.epochs) == ("b", False, [])
    a.now_s = b.now_s + 995.0  # both clocks go alike
    await b.step(0.2)
    assert (a.leads, b.leads) == (False, True)


async def test_a_lease_that_is_deleted_again_while_its_creator_waits_is_waited_for_again(api, pair):
    _, b = pair
    api.lease = None
    while api.lease is None:
        await b.step()
    api.lease = None
    for _ in range(9):
        await b.step()
        assert not b.leads


async def test_a_replica_that_starts_on_a_deleted_lease_waits_because_there_are_allocations(api):
    b = Replica(api, "b", known=3)
    for _ in range(9):
        await b.step()
        assert not b.leads
    for _ in range(4):
        await b.step()
    assert (b.leads, b.epochs) == (True, [4])


async def test_a_created_lease_whose_answer_was_lost_is_waited_for_too(api, pair):
    _, b = pair
    write = api.write_lease

    async def lost(namespace, name, record):
        await write(namespace, name, record)
        raise DEAD

    api.lease, api.write_lease = None, lost
    while api.lease is None:
        with contextlib.suppress(ClusterError):
            await b.step()
    api.write_lease = write
    for _ in range(8):
        await b.step()
        assert not b.leads
    await b.step()
    assert b.leads


async def test_a_first_lease_is_not_created_before_the_pods_are_known(api, at_once):
    a = Replica(api, known=None)
    running = asyncio.create_task(a.leader.run())
    for _ in range(50):
        await asyncio.sleep(0)
    assert api.lease is None
    a.known = 0
    await until(lambda: a.leads)
    running.cancel()
    await asyncio.wait([running])


async def test_a_new_term_is_numbered_above_every_allocation_that_is_known(api):
    a = Replica(api, known=41)
    api.lease = LeaseRecord("", 1, 3, "", "1")
    await a.step()
    assert (a.leads, a.epochs, api.lease.transitions) == (True, [42], 42)


@pytest.mark.parametrize(("known", "term"), [(0, 1), (7, 1), (2**31 - 1, 1)])
async def test_a_count_of_terms_that_is_full_begins_anew(api, known, term):
    """The API server takes 32 bits."""
    a = Replica(api, known=known)
    api.lease = LeaseRecord("", 1, 2**31 - 1, "", "1")
    await a.step()
    assert (a.leads, a.epochs, api.lease.transitions) == (True, [term], term)


async def test_a_lease_whose_holder_somebody_blanked_is_waited_for_like_any_other(api, pair):
    a, b = pair
    api.lease = replace(api.lease, holder="", version="edited")
    await b.step()
    assert not b.leads
    await a.step()
    assert a.leads
