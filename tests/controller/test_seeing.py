"""What loops know of pods and nodes: as last told, and since when by our own clock."""

from __future__ import annotations

import msgspec
import pytest
import structlog

from cardwise.adapters import wire
from cardwise.adapters.kube.port import All, Gone, Put
from cardwise.adapters.kube_objects import Node, Pod
from cardwise.controller.preemption.seeing import Seen, owner_of, queue_of
from tests.clock import Clock

READY = [{"type": "Ready", "status": "True"}]


def pod(name="p", conditions=(), phase="Running", **metadata):
    told = {"name": name, "namespace": "ns", "uid": f"uid-{name}", **metadata}
    return msgspec.convert({"metadata": told, "status": {"conditions": list(conditions), "phase": phase}}, Pod)


def test_readiness_is_timed_from_when_it_was_seen_to_change():
    clock = Clock(10.0)
    seen = Seen(clock)
    seen.hear_pod(All((pod(),)))
    clock.now_s = 20.0
    seen.hear_pod(Put(pod(conditions=READY)))
    clock.now_s = 30.0
    seen.hear_pod(Put(pod(conditions=READY, labels={"a": "b"})))
    standing = seen.standing["uid-p"]
    assert (standing.ready, standing.since_s, standing.seen_s) == (True, 20.0, 10.0)
    seen.hear_pod(Put(pod()))
    assert seen.standing["uid-p"].since_s == 30.0


@pytest.mark.parametrize("event", [Gone(pod()), Put(pod(phase="Failed")), All(())], ids=["gone", "ended", "not listed"])
def test_a_pod_that_is_no_more_is_forgotten(event):
    seen = Seen(Clock(10.0))
    seen.hear_pod(Put(pod(annotations={wire.ANNOTATION_PREEMPTED_FOR: "x"})))
    assert seen.told == {"uid-p"}
    seen.hear_pod(event)
    assert (seen.pods, seen.standing, seen.told) == ({}, {}, set())


def test_nodes_are_as_they_were_told_last():
    seen = Seen(Clock(10.0))
    first, second = (msgspec.convert({"metadata": {"name": name}}, Node) for name in ("a", "b"))
    seen.hear_node(All((first,)))
    seen.hear_node(Put(second))
    seen.hear_node(Gone(first))
    assert list(seen.nodes) == ["b"]


@pytest.mark.parametrize(
    ("labels", "queue"),
    [
        ({}, ""),
        ({wire.LABEL_KUEUE_QUEUE: "team"}, "ns/team"),
        ({wire.LABEL_KUEUE_QUEUE: "team", wire.LABEL_KUEUE_CLUSTER_QUEUE: "all"}, "all"),
        ({wire.LABEL_KUEUE_MANAGED: "true"}, "of uid-p"),
    ],
)
def test_which_queue_of_kueue_a_pod_is_in(labels, queue):
    assert queue_of(pod(labels=labels)) == queue


def test_a_pod_belongs_to_its_workload_or_to_itself():
    owner = {"kind": "ReplicaSet", "name": "web-5d9f", "controller": True}
    assert owner_of(pod(ownerReferences=[owner], labels={"pod-template-hash": "5d9f"})) == "ns/web"
    assert owner_of(pod()) == "ns/p"


def test_what_cannot_be_read_is_said_once_and_again_when_it_changes():
    """Objects are told again and again; a fault in one that stays is no news each time."""
    clock = Clock(10.0)
    seen = Seen(clock)
    marks = {"moves": wire.ANNOTATION_MOVES, "preemptions": wire.ANNOTATION_PREEMPTIONS}

    def node(text, key="moves"):
        return msgspec.convert({"metadata": {"name": "n0", "annotations": {marks[key]: text}}}, Node)

    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            seen.hear_node(Put(node("7")))
            seen.hear_pod(Put(pod(annotations={wire.ANNOTATION_MOVING: "7"})))
        assert [line["of"] for line in logs] == ["n0", "ns/p"]
        seen.hear_node(Put(node('"seven"')))
        seen.hear_node(All((node("7", "preemptions"),)))
        assert len(logs) == 4
        clock.now_s += 1000.0
        seen.hear_node(Put(node("7", "preemptions")))
        assert len(logs) == 5
    assert {line["log_level"] for line in logs} == {"error"}
