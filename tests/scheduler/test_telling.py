"""What operators are told of pods that wait: the same that kube-scheduler was told."""

from __future__ import annotations

import pytest

from cardwise.adapters.claims import claim_of
from cardwise.adapters.extender_v1 import ExtenderArgs
from cardwise.scheduler import telling
from cardwise.scheduler.extender import Extender
from tests.builders import card, node
from tests.scheduler.fake_cluster import books, pod, slice_limits


def asked(*apps, **more):
    """A pod with one app container per amount of MiB."""
    containers = {f"c{i}": slice_limits(mib, 10) for i, mib in enumerate(apps)}
    return pod("a", containers=containers, **more)


def pending(ledger, *pods):
    claims = {each.metadata.uid: claim_of(each) for each in pods}
    return telling.state(ledger, claims, {})["pending"]


SITUATIONS = pytest.mark.parametrize(
    ("cards", "pod_object", "why"),
    [
        ([24576], asked(30000), "0/1 nodes fit: 1 too little card memory"),
        ([24576], asked(16000, 16000), "0/1 nodes fit: 1 containers do not fit together"),
        ([24576], asked(16000, 30000), "0/1 nodes fit: 1 too little card memory"),
        (
            [24576],
            asked(1000, inits={"init": slice_limits(30000, 10)}),
            "0/1 nodes fit: 1 containers do not fit together",
        ),
        ([24576, 24576], asked(16000, 16000), "1/1 nodes fit"),
        ([24576], asked(1000), "1/1 nodes fit"),
    ],
    ids=["one too large", "two too large together", "one of two", "init container", "two on two cards", "fits"],
)


@SITUATIONS
def test_a_pod_that_waits_says_what_the_filter_said(cards, pod_object, why):
    ledger = books(node("n0", cards=[card(memory_mib=mib) for mib in cards]))
    (told,) = pending(ledger, pod_object)
    assert (told["why"], told["nodes_fit"]) == (why, int(why[0]))
    refused = Extender(ledger, lambda: 0.0).filter(ExtenderArgs(pod_object, ["n0"])).failed_and_unresolvable_nodes
    assert [why.rpartition(": 1 ")[2]] * len(refused) == list(refused.values())


@SITUATIONS
def test_an_explanation_says_what_the_filter_said(cards, pod_object, why):
    ledger = books(node("n0", cards=[card(memory_mib=mib) for mib in cards]))
    told = telling.explain(ledger, claim_of(pod_object))
    assert told["nodes_fit"] == int(why[0])
    assert [each["short"] for each in told["refusals"]] == [why.rpartition(": 1 ")[2]] * (not told["nodes_fit"])
    (seen,) = told["nodes"]
    assert seen["fits"] == bool(told["nodes_fit"])
    assert (seen["reason"] is None) == (seen["cost"] is not None) == seen["fits"]


def test_nodes_that_take_all_containers_are_explained_first():
    ledger = books(node("n0", cards=[card(memory_mib=81920)]), node("n1", cards=[card(memory_mib=20000)] * 1))
    told = telling.explain(ledger, claim_of(asked(16000, 16000)))
    assert [(each["name"], each["fits"]) for each in told["nodes"]] == [("n0", True), ("n1", False)]


def test_replicas_are_asked_about_once(monkeypatch):
    calls = []
    real = telling.offer
    monkeypatch.setattr(telling, "offer", lambda *args: calls.append(args) or real(*args))
    ledger = books(node("n0"))
    told = pending(ledger, *(pod(f"p{i}") for i in range(5)), pod("other", slice_limits(1000)))
    assert [each["pod"] for each in told] == [*(f"ns/p{i}" for i in range(5)), "ns/other"]
    assert len(calls) == 2


def test_a_pod_that_is_bound_can_be_explained():
    ledger, claim = books(node("n0")), claim_of(asked(4096, 4096))
    ledger.hold(claim, "n0")
    told = telling.explain(ledger, claim)
    assert (told["bound_to"], told["nodes_fit"]) == ("n0", 1)
