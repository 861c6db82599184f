"""A cluster as the page shows it: the scheduler's own ledger, followed on a cluster in memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import pytest

from cardwise.adapters import wire
from cardwise.adapters.allocations import encode
from cardwise.adapters.hollow import HollowCluster
from cardwise.adapters.kube.port import All, Lost, Put, Resumed
from cardwise.adapters.kube_objects import Node, Pod
from cardwise.adapters.moves import Moving, encode_moving
from cardwise.adapters.nominations import Nomination, Victim, encode_nomination
from cardwise.core.allocation import Allocation, Share
from cardwise.up.hardware import HollowNode
from cardwise.web.following import Following
from cardwise.web.page import Source
from tests.clock import Clock
from tests.scheduler.fake_cluster import balanced, slice_limits

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
KEPT = Allocation("n7", (("app", (Share("card", 20000, 10),)),))
MAKES_ROOM = Nomination(KEPT, (Victim("u", "ns/small"),), 0.0, 60.0, moves=True)
MOVING = Moving(0.0, 1, "ns/s", "uid", "hash")
MARKED = {
    "waits": {wire.ANNOTATION_NOMINATED: encode_nomination(MAKES_ROOM)},
    "tried": {wire.ANNOTATION_NOMINATED: encode_nomination(replace(MAKES_ROOM, over=True))},
    "small": {wire.ANNOTATION_MOVING: encode_moving(replace(MOVING, aside=True))},
    "sick": {wire.ANNOTATION_MOVING: encode_moving(MOVING)},
    "garbled": {wire.ANNOTATION_NOMINATED: "7"},
    "preempted": {wire.ANNOTATION_PREEMPTED_FOR: "ns/urgent", wire.ANNOTATION_PREEMPTED_BY: "2026-01-02T03:09:05Z"},
    "stays": {wire.ANNOTATION_STAYS: "its budget allows no disruption"},
}


def following():
    clock = Clock()
    return Following.build(balanced, clock), clock


def node(name="n0", **annotations):
    raw = HollowNode(name, cards=2).raw()
    raw["metadata"]["annotations"] |= annotations
    return raw


def pod(name="a", **more):
    annotations = more.pop("annotations", {})
    container = {"name": "app", "resources": {"limits": slice_limits(**more)}}
    meta = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "annotations": annotations}
    return {"metadata": meta, "spec": {"containers": [container]}}


def as_node(raw):
    return msgspec.convert(raw, Node)


def as_pod(raw):
    return msgspec.convert(raw, Pod)


async def test_a_cluster_is_followed_and_shown():
    cluster = HollowCluster(lambda: NOW)
    cluster.put_node(node())
    cluster.create_pod(pod("large", mib=30000))
    shown, clock = following()
    task = asyncio.create_task(shown.watching.follow(cluster))
    try:
        while not shown.watching.synced:
            await asyncio.sleep(0)
        first = shown.latest
        assert (first["summary"]["cards"], first["stale"]) == (2, "")
        (waits,) = first["pending"]
        assert (waits["pod"], waits["asks"]) == ("ns/large", "30,000 MiB and 20 %")
        assert waits["why"] == "0/1 nodes fit: 1 too little card memory"
        assert "24576" in waits["detail"].replace(",", "")
        assert waits["advice"]
        assert shown.explain("ns/large")["nodes_fit"] == 0
        assert shown.explain("ns/nobody") is None
        cluster.delete_pod("ns", "large")
        await cluster.heard()
        clock.now_s += 1.0
        assert shown.latest["pending"] == []
        assert shown.latest["version"] > first["version"]
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def test_the_state_is_worked_out_once_a_second_at_most_and_only_when_something_happened():
    shown, clock = following()
    shown.hear_node(All(()))
    first = shown.latest
    shown.hear_node(All(()))
    assert shown.latest is first
    clock.now_s += 1.0
    second = shown.latest
    assert second["version"] == first["version"] + 1
    clock.now_s += 1000.0
    assert shown.latest is second


@pytest.mark.parametrize("event", [All(()), Resumed()], ids=["all is listed anew", "it goes on"])
def test_a_broken_watch_is_said_until_it_is_none(event):
    shown, clock = following()
    assert "not known yet" in shown.latest["stale"]
    shown.watching.pods_synced = shown.watching.nodes_synced = True
    shown.hear_pod(Lost("connection refused"))
    clock.now_s += 1.0
    assert "pods: connection refused" in shown.latest["stale"]
    shown.hear_pod(event)
    clock.now_s += 1.0
    assert shown.latest["stale"] == ""


def test_pods_that_have_to_go_or_cannot_are_told_until_they_are_gone():
    shown, clock = following()
    pods = [as_pod(pod(name, annotations=notes)) for name, notes in MARKED.items()]
    shown.hear_pod(All(tuple(pods)))
    told = {each["pod"]: each["why"] for each in shown.latest["evictions"]}
    assert "cardwise.dev/nominated is not readable" in told.pop("ns/garbled")
    goes = "another is made, and this one goes when that one is ready"
    assert told == {
        "ns/waits": "waits: a place on n7 is kept for it until these move, each once its successor is ready: ns/small",
        "ns/small": f"makes room for a pod that waits; {goes}",
        "ns/sick": f"is on bad ground; {goes}",
        "ns/preempted": "has to go for ns/urgent, until 2026-01-02T03:09:05Z",
        "ns/stays": "is on bad ground and stays: its budget allows no disruption",
    }
    shown.hear_pod(All(()))
    clock.now_s += 1.0
    assert shown.latest["evictions"] == []


def test_what_a_node_remembers_is_told_newest_first():
    lines = [
        {"at": "2026-01-02T03:00:00Z", "uid": "u1", "owner": "ns/batch", "by": "ns/urgent"},
        {"at": "2026-01-02T03:02:00Z", "uid": "u2", "owner": "ns/other", "by": "ns/urgent"},
    ]
    shown, _ = following()
    shown.hear_node(Put(as_node(node(**{wire.ANNOTATION_PREEMPTIONS: json.dumps(lines)}))))
    assert [(each["pod"], each["node"], each["at"]) for each in shown.latest["evictions"]] == [
        ("ns/other", "n0", "2026-01-02T03:02:00Z"),
        ("ns/batch", "n0", "2026-01-02T03:00:00Z"),
    ]


def test_a_nodes_notes_that_cannot_be_read_are_said():
    shown, _ = following()
    shown.hear_node(Put(as_node(node(**{wire.ANNOTATION_MOVES: "["}))))
    (told,) = shown.latest["evictions"]
    assert wire.ANNOTATION_MOVES in told["why"]


def test_a_node_that_the_scheduler_does_not_trust_is_shown_fenced():
    raw = node()
    raw["status"]["conditions"].append({"type": wire.CONDITION_CONSISTENT, "status": "False"})
    shown, _ = following()
    shown.watching.hear_node(All((as_node(raw),)))
    shown.hear_node(All((as_node(raw),)))
    (seen,) = shown.latest["nodes"]
    assert seen["fenced"]
    (conflict,) = shown.latest["conflicts"]
    assert wire.CONDITION_CONSISTENT in conflict["text"]


def test_a_bound_pod_is_a_slice_of_its_service_and_a_decision():
    raw = node()
    spec_node = as_node(raw)
    shown, _ = following()
    shown.watching.hear_node(All((spec_node,)))
    uuid = shown.watching.ledger.nodes["n0"].cards[0].uuid
    allocation = Allocation("n0", (("app", (Share(uuid, 4096, 20),)),), epoch=1, seq=1)
    made = pod("a", annotations={wire.ANNOTATION_ALLOC: encode(allocation)})
    made["spec"]["nodeName"] = "n0"
    shown.watching.hear_pod(All((as_pod(made),)))
    told = shown.latest
    (held,) = told["nodes"][0]["cards"][0]["slices"]
    assert (held["pod"], held["memory_mib"], held["whole"]) == ("ns/a", 4096, False)
    assert told["services"][0]["memory_mib"] == 4096
    (decision,) = told["decisions"]
    assert (decision["pod"], decision["node"], decision["cards"]) == ("ns/a", "n0", [uuid])


def test_it_is_a_source_of_the_page():
    shown, _ = following()
    source: Source = shown
    assert source.latest["version"] == 1
