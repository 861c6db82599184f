"""What a new leader does first, with all parts of the scheduler wired as they are."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from cardwise.adapters import wire
from cardwise.adapters.allocations import encode
from cardwise.adapters.hollow import HollowCluster
from cardwise.adapters.kube.port import LeaseRecord
from cardwise.core.allocation import Allocation, Share
from cardwise.scheduler.main import Scheduler
from cardwise.scheduler.settings import Settings

SETTINGS = Settings(host="127.0.0.1", port=0)
LEASE = SETTINGS.namespace, SETTINGS.lease


@pytest.fixture
def cluster():
    """One in which an earlier leader bound a pod in its epoch 41."""
    cluster = HollowCluster(lambda: datetime.now(UTC))
    text = encode(Allocation("n0", (("app", (Share("U", 4096, 20),)),), 41, 7))
    metadata = {"name": "a", "namespace": "ns", "annotations": {wire.ANNOTATION_ALLOC: text}}
    cluster.create_pod({"metadata": metadata, "spec": {"nodeName": "n0", "containers": [{"name": "app"}]}})
    return cluster


async def until(what):
    async with asyncio.timeout(40):
        while not what():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("terms", [2, 2**31 - 1], ids=["a counter that began anew", "a counter that is full"])
async def test_a_new_leader_binds_in_an_epoch_above_all_that_is_bound(cluster, terms):
    await cluster.write_lease(*LEASE, LeaseRecord(duration_s=1, transitions=terms))
    scheduler = Scheduler.build(cluster, SETTINGS, "a")
    async with scheduler.running():
        await until(lambda: scheduler.leader.leads)
        assert scheduler.parts.ledger.epoch == 42


async def test_the_first_leader_of_a_cluster_begins_at_once():
    scheduler = Scheduler.build(HollowCluster(lambda: datetime.now(UTC)), SETTINGS, "a")
    async with scheduler.running():
        await until(lambda: scheduler.leader.leads)
        assert scheduler.parts.ledger.epoch == 1


async def test_a_leader_on_a_cluster_with_allocations_whose_lease_is_gone_waits(cluster):
    scheduler = Scheduler.build(cluster, SETTINGS, "a")
    async with scheduler.running():
        await until(lambda: scheduler.parts.watching.synced)
        await asyncio.sleep(0.5)
        assert not scheduler.leader.leads
