"""The port's laws on the cluster in memory: one write binds, old beliefs are refused, nobody misses a change."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime

import pytest

from cardwise.adapters.hollow import HollowCluster, apply_patch
from cardwise.adapters.kube.port import All, Binding, Evictee, Gone, LeaseRecord, Put
from cardwise.errors import BudgetError, ConflictError, NotFoundError, UserError

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def make(admit=lambda _pod, _raw: []):
    return HollowCluster(lambda: NOW, admit)


def pod(name="a", **spec):
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "main"}], **spec}}


def node(name="n"):
    return {"metadata": {"name": name}, "status": {"allocatable": {"cpu": "4"}}}


def binding(uid, node="n", name="a"):
    return Binding("default", name, uid, node, {"note": "text"}, {"mark": "true"})


async def take(stream, count):
    return [await asyncio.wait_for(anext(stream), 10) for _ in range(count)]


# ---------------------------------------------------------------- binding


async def test_a_binding_puts_node_name_annotations_and_labels_on_the_pod_in_one_change():
    cluster = make()
    made = cluster.create_pod(pod())
    async with aclosing(cluster.follow_pods()) as stream:
        await take(stream, 1)
        await cluster.bind(binding(made.metadata.uid))
        (event,) = await take(stream, 1)
    bound = event.object
    assert (bound.spec.node_name, bound.metadata.annotations, bound.metadata.labels) == (
        "n",
        {"note": "text"},
        {"mark": "true"},
    )
    assert await cluster.get_pod("default", "a") == bound


async def test_a_binding_keeps_what_the_pod_already_carries():
    cluster = make()
    raw = pod()
    raw["metadata"] |= {"annotations": {"mine": "1"}, "labels": {"app": "x"}}
    made = cluster.create_pod(raw)
    await cluster.bind(binding(made.metadata.uid))
    bound = await cluster.get_pod("default", "a")
    assert bound.metadata.annotations == {"mine": "1", "note": "text"}
    assert bound.metadata.labels == {"app": "x", "mark": "true"}


async def refused(cluster, wanted, kind=ConflictError):
    before = await cluster.get_pod("default", "a") if kind is ConflictError else None
    with pytest.raises(kind) as error:
        await cluster.bind(wanted)
    assert not error.value.retry
    if before is not None:
        assert await cluster.get_pod("default", "a") == before, "a refused binding changes nothing"
    return str(error.value)


async def test_a_binding_of_another_pod_under_the_same_name_is_a_conflict():
    cluster = make()
    old = cluster.create_pod(pod())
    cluster.delete_pod("default", "a")
    cluster.create_pod(pod())
    assert "UID in the precondition" in await refused(cluster, binding(old.metadata.uid))


async def test_a_second_binding_is_a_conflict_that_names_the_node():
    cluster = make()
    made = cluster.create_pod(pod())
    await cluster.bind(binding(made.metadata.uid, "first"))
    assert "already assigned to node first" in await refused(cluster, binding(made.metadata.uid, "second"))


async def test_a_binding_of_a_pod_that_is_being_deleted_is_a_conflict():
    cluster = make()
    made = cluster.create_pod(pod())
    cluster.delete_pod("default", "a", graceful=True)
    assert "being deleted" in await refused(cluster, binding(made.metadata.uid))


async def test_a_binding_of_a_pod_with_scheduling_gates_is_a_conflict():
    cluster = make()
    made = cluster.create_pod(pod(schedulingGates=[{"name": "wait"}]))
    assert "gates" in await refused(cluster, binding(made.metadata.uid))


async def test_a_binding_of_a_pod_that_is_gone_is_not_found():
    await refused(make(), binding("uid"), NotFoundError)


# ---------------------------------------------------------------- streams


async def test_a_follower_hears_all_there_is_and_then_every_change_in_order():
    cluster = make()
    cluster.create_pod(pod("a"))
    async with aclosing(cluster.follow_pods()) as stream:
        (first,) = await take(stream, 1)
        made = cluster.create_pod(pod("b"))
        await cluster.bind(binding(made.metadata.uid, name="b"))
        cluster.start_pod("default", "b")
        cluster.delete_pod("default", "a")
        events = await take(stream, 4)
    assert isinstance(first, All)
    assert [each.metadata.name for each in first.objects] == ["a"]
    assert [type(each) for each in events] == [Put, Put, Put, Gone]
    assert [each.object.metadata.name for each in events] == ["b", "b", "b", "a"]
    versions = [int(each.object.metadata.resource_version) for each in events]
    assert versions == sorted(set(versions))


async def test_a_pod_that_ends_leaves_the_stream_once_and_is_not_listed():
    cluster = make()
    cluster.create_pod(pod())
    async with aclosing(cluster.follow_pods()) as stream:
        await take(stream, 1)
        cluster.end_pod("default", "a")
        cluster.delete_pod("default", "a")
        cluster.create_pod(pod("b"))
        events = await take(stream, 2)
    assert [type(each) for each in events] == [Gone, Put]


async def test_a_write_that_changes_nothing_is_no_event():
    cluster = make()
    cluster.put_node(node())
    async with aclosing(cluster.follow_nodes()) as stream:
        await take(stream, 1)
        await cluster.annotate_node("n", {"a": "1"})
        await cluster.annotate_node("n", {"a": "1"})
        await cluster.annotate_node("n", {"a": None})
        events = await take(stream, 2)
    assert [each.object.metadata.annotations for each in events] == [{"a": "1"}, {}]


async def test_heard_waits_until_a_follower_has_dealt_with_what_it_took():
    cluster, dealt = make(), []

    async def follow():
        async for event in cluster.follow_pods():
            await asyncio.sleep(0)
            dealt.append(event)

    task = asyncio.create_task(follow())
    await asyncio.sleep(0)
    cluster.create_pod(pod("a"))
    cluster.create_pod(pod("b"))
    await cluster.heard()
    assert len(dealt) == 3
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_nobody_waits_for_a_follower_that_has_left():
    cluster = make()
    async with aclosing(cluster.follow_pods()) as stream:
        await take(stream, 1)
        cluster.create_pod(pod())
    await asyncio.wait_for(cluster.heard(), 10)


async def test_what_readers_get_shares_nothing_with_what_is_stored():
    cluster = make()
    raw = pod()
    raw["metadata"]["annotations"] = {"a": "1"}
    cluster.create_pod(raw)
    raw["metadata"]["annotations"]["a"] = "2"
    (await cluster.get_pod("default", "a")).metadata.annotations["a"] = "3"
    assert (await cluster.get_pod("default", "a")).metadata.annotations == {"a": "1"}


# ---------------------------------------------------------------- pods


def test_a_pod_gets_a_uid_of_its_own_each_time_it_is_made():
    cluster = make()
    first = cluster.create_pod(pod())
    cluster.delete_pod("default", "a")
    second = cluster.create_pod(pod())
    assert first.metadata.uid != second.metadata.uid
    assert make().create_pod(pod()).metadata.uid == first.metadata.uid, "the same steps give the same UIDs"
    assert first.metadata.creation_timestamp == NOW


def test_a_name_that_is_taken_is_a_conflict():
    cluster = make()
    cluster.create_pod(pod())
    with pytest.raises(ConflictError, match="already exists"):
        cluster.create_pod(pod())


def test_a_pod_that_admission_denies_is_not_stored():
    def deny(_pod, _raw):
        raise UserError("no")

    cluster = make(deny)
    with pytest.raises(UserError, match=r"^no$"):
        cluster.create_pod(pod())
    with pytest.raises(NotFoundError):
        cluster.delete_pod("default", "a")


def test_admission_changes_the_pod_before_it_is_stored():
    cluster = make(lambda _pod, _raw: [{"op": "add", "path": "/spec/schedulerName", "value": "cardwise"}])
    assert cluster.create_pod(pod()).spec.scheduler_name == "cardwise"


def test_what_is_limited_and_not_requested_is_requested_up_to_the_limit():
    amounts = {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}
    made = make().create_pod(pod(containers=[{"name": "main", "resources": amounts}]))
    assert made.spec.containers[0].resources.requests == {"cpu": "1", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/a/b", {"a": {"b": 1, "c/~": 0}, "l": [7]}),
        ("/a/c~1~0", {"a": {"c/~": 1}, "l": [7]}),
        ("/l/-", {"a": {"c/~": 0}, "l": [7, 1]}),
        ("/l/0", {"a": {"c/~": 0}, "l": [1, 7]}),
    ],
)
def test_a_patch_adds_where_rfc_6902_says(path, expected):
    raw = {"a": {"c/~": 0}, "l": [7]}
    apply_patch(raw, [{"op": "add", "path": path, "value": 1}])
    assert raw == expected


@pytest.mark.parametrize("change", [{"op": "remove", "path": "/a"}, {"op": "add", "path": "/x/y", "value": 1}])
def test_a_patch_that_cannot_be_applied_is_an_error_of_ours(change):
    with pytest.raises(ValueError, match=r"only the operation add|no such place"):
        apply_patch({"a": 1}, [change])


# ---------------------------------------------------------------- nodes, leases, events


async def test_a_condition_is_set_beside_the_others():
    cluster = make()
    cluster.put_node({**node(), "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    for status in ("False", "True"):
        await cluster.set_node_condition("n", {"type": "CardwiseConsistent", "status": status})
    async with aclosing(cluster.follow_nodes()) as stream:
        (every,) = await take(stream, 1)
    conditions = {each.type: each.status for each in every.objects[0].status.conditions}
    assert conditions == {"Ready": "True", "CardwiseConsistent": "True"}


@pytest.mark.parametrize("write", ["annotate_node", "set_node_condition"])
async def test_writes_to_a_node_that_is_not_there_are_not_found(write):
    with pytest.raises(NotFoundError):
        await getattr(make(), write)("n", {"type": "x"})


async def test_a_lease_is_written_only_over_the_version_that_was_read():
    cluster = make()
    with pytest.raises(NotFoundError):
        await cluster.read_lease("s", "l")
    first = await cluster.write_lease("s", "l", LeaseRecord(holder="a"))
    with pytest.raises(ConflictError):
        await cluster.write_lease("s", "l", LeaseRecord(holder="b"))
    second = await cluster.write_lease("s", "l", LeaseRecord(holder="b", version=first.version))
    with pytest.raises(ConflictError):
        await cluster.write_lease("s", "l", LeaseRecord(holder="c", version=first.version))
    assert await cluster.read_lease("s", "l") == second
    with pytest.raises(NotFoundError):
        await cluster.write_lease("s", "other", LeaseRecord(version="1"))


async def test_events_are_kept_with_their_namespace():
    cluster = make()
    await cluster.post_event({"reason": "X"}, "default")
    assert list(cluster.events) == [{"reason": "X", "metadata": {"namespace": "default"}}]


async def test_a_node_that_is_removed_is_told_with_its_last_state():
    cluster = make()
    cluster.put_node(node())
    async with aclosing(cluster.follow_nodes()) as stream:
        await take(stream, 1)
        cluster.delete_node("n")
        (event,) = await take(stream, 1)
    assert isinstance(event, Gone)
    assert event.object.status.allocatable == {"cpu": "4"}


# ---------------------------------------------------------------- eviction


def budget(allowed, **selector):
    told = {"metadata": {"name": "b"}, "spec": {"selector": {"matchLabels": selector}}}
    return {**told, "status": {"disruptionsAllowed": allowed}}


async def evictable(cluster, name="a"):
    """A pod with a node, that ends when its kubelet says so."""
    raw = pod(name)
    raw["metadata"]["labels"] = {"app": "x"}
    uid = cluster.create_pod(raw).metadata.uid
    await cluster.bind(Binding("default", name, uid, "n", {}, {}))
    return Evictee("default", name, uid)


async def is_going(cluster, name="a"):
    return (await cluster.get_pod("default", name)).metadata.deletion_timestamp is not None


async def test_who_is_evicted_is_told_to_end_and_stays_until_it_has():
    cluster = make()
    evictee = await evictable(cluster)
    await cluster.evict(evictee, dry_run=True)
    assert not await is_going(cluster)
    await cluster.evict(evictee)
    assert await is_going(cluster)
    await cluster.evict(evictee)  # once more: nothing happens


async def test_a_budget_lets_so_many_go_and_no_more():
    cluster = make()
    cluster.put_budget(budget(1, app="x"))
    first, second = await evictable(cluster, "a"), await evictable(cluster, "b")
    await cluster.evict(first)
    for dry_run in (True, False):
        with pytest.raises(BudgetError):
            await cluster.evict(second, dry_run=dry_run)
    assert [each.status.disruptions_allowed for each in await cluster.list_budgets()] == [0]


async def test_only_the_very_pod_that_is_meant_is_evicted_or_marked():
    cluster = make()
    await evictable(cluster)
    with pytest.raises(ConflictError):
        await cluster.evict(Evictee("default", "a", "another"))
    with pytest.raises(ConflictError):
        await cluster.annotate_pod("default", "a", "another", {"x": "y"})
    with pytest.raises(ConflictError):
        await cluster.nominate("default", "a", "another", "n")


async def test_annotations_of_a_pod_are_set_and_removed_and_its_nomination_is_told():
    cluster = make()
    evictee = await evictable(cluster)
    await cluster.annotate_pod("default", "a", evictee.uid, {"x": "y", "z": "1"})
    await cluster.annotate_pod("default", "a", evictee.uid, {"x": None})
    await cluster.nominate("default", "a", evictee.uid, "n")
    told = await cluster.get_pod("default", "a")
    assert (told.metadata.annotations, told.status.nominated_node_name) == ({"z": "1"}, "n")
