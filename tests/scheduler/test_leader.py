"""One replica binds, and everyone's clock may lie."""

from __future__ import annotations

import asyncio

import pytest

from cardwise.adapters.kube.port import LeaseRecord
from cardwise.errors import ClusterError, ConflictError
from cardwise.scheduler.leader import DURATION_S, RENEW_WITHIN_S, Leader
from tests.scheduler.fake_cluster import DEAD, FakeCluster


class Replica:
    """A leader with a clock of its own, which moves only when told. epochs: those it was elected for."""

    def __init__(self, api, identity="a", now_s=1000.0):
        self.now_s, self.epochs, self.fails = now_s, [], []
        self.leader = Leader(api, "ns", "lease", identity, lambda: self.now_s, self._elected)

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
    api.lease = LeaseRecord("", 15, 7, "", "1")
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
