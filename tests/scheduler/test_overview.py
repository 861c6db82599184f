"""What those are told who look: one shape from a cluster and from `cardwise up`, sums that add up, the latest first."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

from cardwise.adapters.claims import claim_of
from cardwise.adapters.manifests import read_manifests
from cardwise.core.allocation import Allocation, BoundPod, Share
from cardwise.scheduler import overview, telling
from cardwise.up.compare import settled
from cardwise.up.hardware import uniform
from tests.builders import card, node
from tests.scheduler.fake_cluster import books, pod, slice_limits

MANIFEST = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: first}
spec:
  replicas: 8
  template:
    spec:
      containers:
        - name: main
          resources: {limits: {nvidia.com/gpu.memory: 4096, nvidia.com/gpu.cuda-cores: 20}}
"""
NOW = datetime(2026, 1, 2, tzinfo=UTC)
MORE_FROM_A_CLUSTER = {"refused", "nodes_fit"}
"""Of a pod that waits: the emulated cycle has its own words for it."""


def bound(claim, uuid, seq, mib=4096, pct=20, node_name="n0"):
    share = Share(uuid, mib, pct)
    return BoundPod(claim, node_name, Allocation(node_name, (("app", (share,)),), epoch=1, seq=seq))


def ledger_of(*bounds):
    ledger = books(node("n0", cards=[card("c0", memory_mib=24576), card("c1", memory_mib=24576)]))
    for each in bounds:
        ledger.put_pod(each)
    return ledger


def claims(count, service):
    made = [claim_of(pod(f"{service}-{i}")) for i in range(count)]
    return [replace(each, service=f"ns/{service}") for each in made]


def shape(told):
    """Keys, all the way down; of lists the first element's."""
    if isinstance(told, dict):
        return {key: shape(value) for key, value in told.items()}
    return [shape(told[0])] if isinstance(told, list) and told else type(told).__name__


def test_up_and_the_scheduler_tell_the_same_shape():
    held, waits = claims(1, "a")[0], claim_of(pod("large", slice_limits(30000)))
    ledger = ledger_of(bound(held, "c0", 1))
    scheduler = telling.state(ledger, {waits.uid: waits}, {waits.uid})
    manifests = read_manifests({"f.yaml": MANIFEST})
    up = asyncio.run(settled(manifests, uniform(1, 1, "A10", 24576), {}, lambda: 0.0, lambda: NOW))
    assert scheduler.keys() == up.keys()
    for key in ("summary", "nodes", "services", "decisions"):
        assert shape(scheduler[key]) == shape(up[key]), key
    assert scheduler["pending"][0].keys() - MORE_FROM_A_CLUSTER == up["pending"][0].keys()


def test_a_services_sums_are_over_all_its_slices():
    one, two = claims(2, "a")
    (other,) = claims(1, "b")
    ledger = ledger_of(bound(one, "c0", 1), bound(two, "c1", 2), bound(other, "c1", 3, mib=1024, pct=5))
    first, second = telling.state(ledger, {}, ())["services"]
    assert first == {
        "service": "ns/a",
        "pods": 2,
        "pending": 0,
        "cards": 2,
        "memory_mib": 8192,
        "compute_pct": 40,
    }
    assert (second["service"], second["memory_mib"]) == ("ns/b", 1024)


def test_the_latest_decisions_come_first_and_are_not_more_than_said():
    many = claims(overview.MOST_DECISIONS + 5, "a")
    ledger = ledger_of(*(bound(each, "c0", i + 1, mib=16, pct=0) for i, each in enumerate(many)))
    told = overview.decisions(ledger)
    assert len(told) == overview.MOST_DECISIONS
    assert [each["pod"] for each in told[:2]] == [many[-1].name, many[-2].name]


def test_a_slice_of_all_of_a_card_is_a_whole_card():
    (held,) = claims(1, "a")
    told = telling.state(ledger_of(bound(held, "c0", 1, mib=24576, pct=100)), {}, ())
    assert (told["summary"]["cards_whole"], told["summary"]["slices"]) == (1, 0)


def test_a_pod_that_waits_is_told_the_numbers_of_the_closest_card():
    waits = claim_of(pod("large", slice_limits(30000)))
    (told,) = telling.state(ledger_of(bound(claims(1, "a")[0], "c0", 1)), {waits.uid: waits}, ())["pending"]
    assert told["detail"].startswith("card 1 of n0, the closest: 24576 of 24576 MiB are free")
    assert told["advice"]


def test_a_pod_that_fits_is_told_no_reason():
    waits = claim_of(pod("small"))
    (told,) = telling.state(ledger_of(), {waits.uid: waits}, ())["pending"]
    assert (told["nodes_fit"], told["detail"], told["advice"]) == (1, "", "")
