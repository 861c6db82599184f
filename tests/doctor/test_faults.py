"""Every cause that doctor knows, as a fault that it must name first, and healthy clusters without a finding."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cardwise.doctor.checks import CHECKS
from tests.doctor.faults import FAULTS
from tests.doctor.world import CARD_MIB, GOOD_CERTIFICATE, STEPS, World, at, small

NODE_ONLY = {"CW305"}
"""Seen from the node alone: tests/doctor/test_nearby.py."""


@pytest.mark.parametrize(("code", "name"), list(FAULTS), ids=[f"{code} {name}" for code, name in FAULTS])
def test_the_cause_of_a_fault_is_named_first(tmp_path, code, name):
    world = small()
    FAULTS[code, name](world)
    ranked = world.diagnose(tmp_path)
    told = [(each.finding.code, each.finding.cause, each.follows_from) for each in ranked]
    assert told, "nothing was found"
    assert told[0][0] == code, told
    assert not ranked[0].follows_from


def test_every_check_has_a_fault():
    assert {code for code, _ in FAULTS} | NODE_ONLY == {check.code for check in CHECKS}


def test_a_healthy_cluster_has_no_finding(tmp_path):
    assert small().diagnose(tmp_path) == ()


def test_a_cluster_without_measurements_says_what_was_not_looked_at(tmp_path):
    world = small()
    world.metrics = {}
    path = world.write(tmp_path)
    text = path.read_text().replace('"measured"', '"elsewhere"')
    path.write_text(text)
    from cardwise.adapters.capture import read_capture  # noqa: PLC0415
    from cardwise.doctor.facts import facts_of  # noqa: PLC0415

    assert any("no Prometheus was asked" in gap for gap in facts_of(read_capture(path)).gaps)


def test_the_noisy_neighbour_is_named(tmp_path):
    world = small()
    FAULTS["CW406", "a neighbour takes more than it was granted"](world)
    first = world.diagnose(tmp_path)[0].finding
    assert "serving/bert-a" in first.cause
    assert "pod:serving/bert-a" in first.places


def test_a_cpu_bound_tokenizer_is_told_by_cpu_figures_of_the_very_times_at_which_it_was_slow(tmp_path):
    world = small()
    FAULTS["CW404", "the tokenizer is bound by the CPU limit: P99 spikes while the GPU idles"](world)
    first = world.diagnose(tmp_path)[0].finding
    assert "its CPU is short, not its card" in first.cause
    text = " ".join(first.evidence)
    assert "card busy then 2%, 60% otherwise" in text
    assert "uses 3.97 CPUs then, 1.30 otherwise; its limit is 4" in text
    assert "holds it back in 80% of its periods" in text


@pytest.mark.parametrize(
    ("name", "told", "not_told"),
    [
        ("the tokenizer is bound by the CPU limit: P99 spikes while the GPU idles", "raise the CPU limit", "node"),
        ("the tokenizer is one thread, far from the limit", "give tokenizing and decoding more threads", "limit"),
        ("others on the node have the CPU, and the pod has no limit", "a node whose CPU is free", "limit"),
    ],
)
def test_what_to_do_about_short_cpu_is_what_helps_against_that_shortness(tmp_path, name, told, not_told):
    world = small()
    FAULTS["CW404", name](world)
    first = world.diagnose(tmp_path)[0].finding
    assert told in first.action
    assert not_told not in first.action


def test_fifty_pods_that_wait_for_the_same_are_one_finding(tmp_path):
    world = small()
    for i in range(50):
        world.pod(f"waits-{i}", mib=40960)
    (only,) = world.diagnose(tmp_path)
    assert "and 47 more" in only.finding.subject
    assert len(only.finding.places) == 50


def test_three_hundred_pods_with_numbers_of_their_own_are_one_finding_with_examples(tmp_path):
    world = small()
    for i in range(300):
        world.pod(f"huge-{i}", mib=30000 + i)
    (only,) = world.diagnose(tmp_path)
    assert only.alike == 300
    assert only.finding.subject == "pod serving/huge-0, pod serving/huge-1, pod serving/huge-10 and 297 more"
    assert "serving/huge-0 asks for 30000 MiB" in only.finding.cause
    assert len(only.finding.places) == 300
    assert len(only.finding.evidence) <= 4


def test_a_few_that_differ_in_numbers_are_told_one_by_one(tmp_path):
    world = small()
    for i in range(3):
        world.pod(f"huge-{i}", mib=30000 + i)
    assert [each.alike for each in world.diagnose(tmp_path)] == [1, 1, 1]


def test_of_many_alike_only_those_that_follow_from_a_cause_are_called_its_consequences(tmp_path):
    world = small()
    for i in range(20):
        name = f"late-{i}"
        world.pod(name, "g1", mib=256, pct=1, card=1)
        world.started(name, 900 + i, ready=120 + i)
    status = world.pods["late-7"]["status"]["containerStatuses"][0]
    status["lastState"] = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": at(950)}}
    ranked = world.diagnose(tmp_path)
    assert [(each.finding.code, each.alike, each.follows_from) for each in ranked] == [
        ("CW408", 1, ()),
        ("CW410", 19, ()),
        ("CW410", 1, ("CW408",)),
    ]


def test_what_does_no_harm_yet_comes_after_what_does(tmp_path):
    world = small()
    FAULTS["CW102", "it expires in a week"](world)
    FAULTS["CW404", "the tokenizer is one thread, far from the limit"](world)
    assert [each.finding.code for each in world.diagnose(tmp_path)] == ["CW404", "CW102"]


def test_all_nodes_off_to_one_side_are_the_api_servers_clock(tmp_path):
    world = small()
    for lease in world.leases:
        world.leases[lease] += 4000
    (only,) = world.diagnose(tmp_path)
    assert "the API server's clock is 4005 s ahead of those of all 3 nodes" in only.finding.cause


@pytest.mark.parametrize(
    ("note", "text"),
    [("cards", "{not json"), ("alloc", "zzz")],
)
def test_what_the_books_cannot_read_is_named_with_the_node_that_they_fence(tmp_path, note, text):
    world = small()
    broken = world.nodes["g2"] if note == "cards" else world.pods["llm-a"]
    broken["metadata"]["annotations"][f"cardwise.dev/{note}"] = text
    first = world.diagnose(tmp_path)[0].finding
    assert (first.code, first.subject) == ("CW107", "node g2")


def test_amounts_and_figures_that_no_api_server_and_no_agent_writes_end_nothing(tmp_path):
    world = small()
    FAULTS["CW406", "a neighbour takes more than it was granted"](world)
    world.tell("card_holds_compute", 7.0, uuid="GPU-g1-0")
    world.pods["resnet-a"]["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "lots"
    assert "CW406" in [each.finding.code for each in world.diagnose(tmp_path)]


def test_a_consequence_comes_after_its_cause_and_names_it(tmp_path):
    world = small()
    FAULTS["CW107", "an agent is silent, and pods wait for its node"](world)
    ranked = world.diagnose(tmp_path)
    assert [(each.finding.code, each.follows_from) for each in ranked] == [("CW107", ()), ("CW208", ("CW107",))]


@st.composite
def healthy(draw):
    """A cluster in which nothing is wrong: slices fit, latencies keep their targets, CPUs have time."""
    world = World()
    shares = st.floats(0.0, 1.0)
    nodes = draw(st.integers(1, 4))
    world.node("cpu-1", cards=0)
    pods = []
    for n in range(nodes):
        mib = draw(st.sampled_from([15360, CARD_MIB, 81920]))
        cards = draw(st.integers(1, 4))
        world.node(f"n{n}", cards=cards, mib=mib, mode=draw(st.sampled_from(["mps", "whole", "time-slicing"])))
        world.leases["kube-node-lease", f"n{n}"] = draw(st.integers(0, 39))
        world.leases["cardwise-system", f"cardwise-agent-n{n}"] = draw(st.integers(0, 40))
        for c in range(cards):
            for s in range(draw(st.integers(0, 3))):
                name = f"p{n}-{c}-{s}"
                world.pod(name, f"n{n}", mib=draw(st.integers(512, mib // 3)), pct=draw(st.integers(1, 33)), card=c)
                pods.append((name, f"GPU-n{n}-{c}"))
                _busy(world, draw, name, f"GPU-n{n}-{c}", shares)
            world.tell("card_busy_pct", draw(_series(0, 100)), uuid=f"GPU-n{n}-{c}")
            used = draw(st.floats(0, 0.9)) * mib
            world.tell("card_memory_used_mib", used, uuid=f"GPU-n{n}-{c}")
    for i in range(draw(st.integers(0, 3)) if pods else 0):
        mine = draw(st.lists(st.sampled_from([name for name, _ in pods]), min_size=1, max_size=3, unique=True))
        target = draw(st.one_of(st.none(), st.floats(0.05, 1.0)))
        usual = (target or 0.2) * draw(st.floats(0.2, 0.5))
        p99 = draw(_series(0.75, 1.4))
        queue = draw(st.floats(0, 0.9))
        world.service(
            f"serving/s{i}",
            *mine,
            target=target,
            p99=[usual * each for each in p99],
            queue_length=queue,
            batch_mean=draw(st.floats(1, 32)),
            in_flight=draw(st.floats(0, 60)),
            limit=draw(st.floats(1, 64)),
        )
    if draw(st.booleans()):
        world.others.append(
            {
                "kind": "Pod",
                "metadata": {"name": "just-made", "namespace": "serving", "uid": "u", "creationTimestamp": at(5)},
                "spec": {
                    "schedulerName": "cardwise",
                    "containers": [{"name": "main", "resources": {"limits": {"cardwise.dev/gpu": "1"}}}],
                },
                "status": {"phase": "Pending"},
            }
        )
    world.bundle = None
    return world


def _series(least, most):
    """Any values between, one for each step; drawn from a seed, for hypothesis would take seconds over each."""
    return st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).uniform(least, most, STEPS).tolist())


def _busy(world, draw, name, uuid, shares):
    world.tell("slice_sm_pct", 30 * draw(shares), uuid=uuid, namespace="serving", pod=name)
    world.tell("pod_cpu_cores", draw(_series(0, 3.5)), namespace="serving", pod=name)
    world.tell("pod_cpu_throttled_share", 0.2 * draw(shares), namespace="serving", pod=name)
    world.tell("pod_packets_dropped_s", draw(shares), namespace="serving", pod=name)


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(healthy())
def test_a_healthy_state_has_no_finding(world):
    world.bundle = GOOD_CERTIFICATE
    with tempfile.TemporaryDirectory() as folder:
        ranked = world.diagnose(Path(folder))
    assert not ranked, [(each.finding.code, each.finding.cause, each.finding.evidence) for each in ranked]
