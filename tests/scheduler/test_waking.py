"""Pods that wait are woken when it helps, nodes that contradict themselves say so; and both once."""

from __future__ import annotations

import pytest

from cardwise.adapters import wire
from cardwise.adapters.allocations import encode
from cardwise.adapters.extender_v1 import ExtenderArgs
from cardwise.adapters.kube.port import All, Gone, Put
from cardwise.adapters.watching import Watching
from cardwise.core.allocation import Allocation, Share
from cardwise.errors import ClusterError
from cardwise.scheduler import waking as module
from cardwise.scheduler.extender import Extender
from cardwise.scheduler.waking import Waking
from tests.builders import card, node
from tests.scheduler.fake_cluster import FakeCluster, books, node_object, pod, slice_limits

REFUSED = ClusterError("422: invalid", retry=False)


class Replica:
    """All parts but the binder, over nodes n0 and n1 of one card each."""

    def __init__(self, *nodes):
        self.specs = nodes or (node("n0"), node("n1"))
        self.api = FakeCluster()
        self.ledger = books()
        self.watching = Watching(self.ledger)
        self.watching.hear_node(All(tuple(map(node_object, self.specs))))
        self.watching.hear_pod(All(()))
        self.extender = Extender(self.ledger, lambda: 0.0)
        self.waking = Waking(self.api, self.ledger, self.extender, self.watching, lambda: True)

    def hold(self, name, mib=20000, where="n0", uuid=None, seq=1):
        """A pod that is bound; the cluster tells of it."""
        share = Share(uuid or f"{where}-card0", mib, 20)
        text = encode(Allocation(where, (("app", (share,)),), 1, seq))
        told = pod(name, slice_limits(mib), node=where, annotations={wire.ANNOTATION_ALLOC: text})
        self.watching.hear_pod(Put(told))
        return told

    def wait(self, name, mib=20000, **more):
        """A pod that no node takes."""
        told = pod(name, slice_limits(mib), **more)
        self.watching.hear_pod(Put(told))
        self.extender.filter(ExtenderArgs(told, [each.name for each in self.specs]))
        assert told.metadata.uid in self.extender.waiting
        return told


@pytest.fixture
async def full():
    """Both nodes full, and nothing new."""
    r = Replica()
    r.held = {where: r.hold(f"old-{where}", where=where) for where in ("n0", "n1")}
    await r.waking.wake()
    return r


# ---------------------------------------------------------------- waking


async def test_a_waiting_pod_that_fits_after_a_release_wakes_by_one_annotation(full):
    full.wait("a")
    full.wait("b")
    full.watching.hear_pod(Gone(full.held["n1"]))
    await full.waking.wake()
    assert full.api.annotated == [("n1", {wire.ANNOTATION_FREED: "0.1"})]


async def test_the_same_release_wakes_once(full):
    full.wait("a")
    full.watching.hear_pod(Gone(full.held["n1"]))
    await full.waking.wake()
    await full.waking.wake()
    assert len(full.api.annotated) == 1


async def test_each_wake_writes_something_new(full):
    full.wait("a")
    for where in ("n0", "n1"):
        full.watching.hear_pod(Gone(full.held[where]))
        await full.waking.wake()
    assert [each[wire.ANNOTATION_FREED] for _, each in full.api.annotated] == ["0.1", "0.2"]


async def test_nothing_is_written_when_nobody_waits(full):
    full.watching.hear_pod(Gone(full.held["n1"]))
    await full.waking.wake()
    assert full.api.annotated == []


async def test_nothing_is_written_when_what_came_free_is_too_little(full):
    full.wait("a", 24577)
    full.watching.hear_pod(Gone(full.held["n1"]))
    await full.waking.wake()
    assert full.api.annotated == []


async def test_nothing_is_written_when_nothing_came_free(full):
    full.wait("a")
    await full.waking.wake()
    assert full.api.annotated == []


async def test_a_pod_that_went_wakes_nobody_and_waits_no_more(full):
    gone = full.wait("a")
    full.watching.hear_pod(Gone(gone))
    await full.waking.wake()
    await full.waking.wake()
    assert full.extender.waiting == {}


async def test_a_pod_that_kube_scheduler_heard_of_first_waits_on(full):
    early = full.wait("a")
    full.watching.pending.clear()
    await full.waking.wake()
    full.watching.hear_pod(Put(early))
    await full.waking.wake()
    assert list(full.extender.waiting) == ["uid-a"]


async def test_a_release_whose_annotation_failed_is_not_forgotten(full):
    full.wait("a")
    full.watching.hear_pod(Gone(full.held["n1"]))
    full.api.dead = True
    with pytest.raises(ClusterError):
        await full.waking.wake()
    full.api.dead = False
    await full.waking.wake()
    assert [name for name, _ in full.api.annotated] == ["n1"]


async def test_a_node_that_takes_no_annotation_does_not_keep_pods_from_being_woken_by_another(full):
    full.wait("a")
    for where in ("n0", "n1"):
        full.watching.hear_pod(Gone(full.held[where]))
    take, refusing = full.api.annotate_node, []

    async def refused(name, annotations):
        if not refusing or name in refusing:
            refusing.append(name)
            raise REFUSED
        await take(name, annotations)

    full.api.annotate_node = refused
    with pytest.raises(ClusterError):
        await full.waking.wake()
    await full.waking.wake()
    assert len(full.api.annotated) == 1


async def test_a_small_pod_behind_many_large_ones_is_woken_in_a_later_turn(full, monkeypatch):
    monkeypatch.setattr(module, "MOST_TRIED", 2)
    for i in range(4):
        full.wait(f"large{i}", 24577)
    full.wait("small")
    full.watching.hear_pod(Gone(full.held["n1"]))
    for _ in range(3):
        await full.waking.wake()
    assert [name for name, _ in full.api.annotated] == ["n1"]


async def test_a_new_node_wakes_a_pod_that_fits_there(full):
    full.wait("a")
    full.watching.hear_node(Put(node_object(node("n2"))))
    await full.waking.wake()
    assert [name for name, _ in full.api.annotated] == ["n2"]


async def test_a_card_that_is_healthy_again_wakes_a_pod_that_fits_there():
    r = Replica(node("n0", cards=[card("U", healthy=False)]))
    r.wait("a")
    await r.waking.wake()
    r.watching.hear_node(Put(node_object(node("n0", cards=[card("U")]))))
    await r.waking.wake()
    assert [name for name, _ in r.api.annotated] == ["n0"]


# ---------------------------------------------------------------- conflicts


async def test_a_contradiction_is_told_once_with_the_pods_name():
    """Case C10."""
    r = Replica()
    r.hold("lost", uuid="removed")
    for _ in range(3):
        await r.waking.tell_conflicts()
    assert r.api.conditions == [("n0", "False", "ns/lost: n0 reports no card removed")]
    assert r.api.events == [("default", "n0", "ns/lost: n0 reports no card removed")]


async def test_all_pods_of_a_contradiction_are_named():
    r = Replica()
    for name in ("b", "a"):
        r.hold(name, uuid="removed")
    await r.waking.tell_conflicts()
    assert [message for _, _, message in r.api.conditions] == [
        "ns/a: n0 reports no card removed; ns/b: n0 reports no card removed"
    ]


async def test_a_contradiction_that_has_gone_is_told_once():
    r = Replica()
    lost = r.hold("lost", uuid="removed")
    await r.waking.tell_conflicts()
    r.watching.hear_pod(Gone(lost))
    for _ in range(3):
        await r.waking.tell_conflicts()
    assert [status for _, status, _ in r.api.conditions] == ["False", "True"]
    assert len(r.api.events) == 1


async def test_a_contradiction_that_changes_is_told_again():
    r = Replica()
    r.hold("a", uuid="removed")
    await r.waking.tell_conflicts()
    r.hold("b", uuid="removed")
    await r.waking.tell_conflicts()
    assert [status for _, status, _ in r.api.conditions] == ["False", "False"]


async def test_what_an_earlier_leader_told_and_is_no_more_is_taken_back_once():
    r = Replica()
    said = [{"type": "CardwiseConsistent", "status": "False"}]
    r.watching.hear_node(Put(node_object(r.specs[0], conditions=said)))
    await r.waking.tell_conflicts()
    r.watching.hear_node(Put(node_object(r.specs[0])))
    await r.waking.tell_conflicts()
    assert [each[:2] for each in r.api.conditions] == [("n0", "True")]


async def test_nothing_is_told_where_all_is_well():
    r = Replica()
    r.hold("a")
    await r.waking.tell_conflicts()
    assert r.api.conditions == []


async def test_a_telling_that_failed_is_tried_again():
    r = Replica()
    r.hold("lost", uuid="removed")
    r.api.dead = True
    await r.waking.tell_conflicts()
    r.api.dead = False
    await r.waking.tell_conflicts()
    assert len(r.api.conditions) == 1


async def test_a_node_that_takes_no_condition_does_not_keep_the_others_from_being_told():
    r = Replica()
    for where in ("n0", "n1"):
        r.hold(f"lost-{where}", where=where, uuid="removed")
    take = r.api.set_node_condition

    async def refused(name, condition):
        if name == "n0":
            raise REFUSED
        await take(name, condition)

    r.api.set_node_condition = refused
    for _ in range(3):
        await r.waking.tell_conflicts()
    assert [each[:2] for each in r.api.conditions] == [("n1", "False")]
    r.api.set_node_condition = take
    await r.waking.tell_conflicts()
    assert [each[:2] for each in r.api.conditions] == [("n1", "False"), ("n0", "False")]


async def test_many_nodes_that_take_no_condition_end_a_turn_and_come_last_in_the_next(monkeypatch):
    monkeypatch.setattr(module, "MOST_FAILURES", 1)
    r = Replica()
    for where in ("n0", "n1"):
        r.hold(f"lost-{where}", where=where, uuid="removed")
    asked = []

    async def refused(name, _condition):
        asked.append(name)
        raise REFUSED

    r.api.set_node_condition = refused
    for _ in range(3):
        await r.waking.tell_conflicts()
    assert asked == ["n0", "n1", "n0"]


async def test_an_event_that_nobody_takes_does_not_have_the_condition_written_again():
    r = Replica()
    r.hold("lost", uuid="removed")

    async def refused(_event, _namespace):
        raise REFUSED

    r.api.post_event = refused
    for _ in range(3):
        await r.waking.tell_conflicts()
    assert len(r.api.conditions) == 1


async def test_two_nodes_that_report_one_card_both_say_so_and_neither_takes_anything():
    r = Replica(node("new", cards=[card("U")]), node("old", cards=[card("U")]))
    await r.waking.tell_conflicts()
    assert r.api.conditions == [
        ("new", "False", "old reports card U too; delete the node that is no more"),
        ("old", "False", "new reports card U too; delete the node that is no more"),
    ]
    result = r.extender.filter(ExtenderArgs(pod(), ["new", "old"]))
    assert result.failed_and_unresolvable_nodes == {"new": "node fenced", "old": "node fenced"}
    r.watching.hear_node(Gone(node_object(node("old"))))
    await r.waking.wake()
    await r.waking.tell_conflicts()
    assert ("new", "True") in [each[:2] for each in r.api.conditions]


async def test_a_node_whose_pods_contradict_it_and_that_another_contradicts_says_both():
    r = Replica(node("new", cards=[card("U")]), node("old", cards=[card("U")]))
    r.hold("lost", where="new", uuid="removed")
    await r.waking.tell_conflicts()
    assert r.api.conditions[0] == (
        "new",
        "False",
        "old reports card U too; delete the node that is no more; ns/lost: new reports no card removed",
    )
