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


def test_fifty_pods_that_wait_for_the_same_are_one_finding(tmp_path):
    world = small()
    for i in range(50):
        world.pod(f"waits-{i}", mib=40960)
    (only,) = world.diagnose(tmp_path)
    assert "and 47 more" in only.finding.subject
    assert len(only.finding.places) == 50


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


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(healthy())
def test_a_healthy_state_has_no_finding(world):
    world.bundle = GOOD_CERTIFICATE
    with tempfile.TemporaryDirectory() as folder:
        ranked = world.diagnose(Path(folder))
    assert not ranked, [(each.finding.code, each.finding.cause, each.finding.evidence) for each in ranked]
