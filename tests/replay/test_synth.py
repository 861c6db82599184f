"""The synthetic cluster: the same for a seed, full once over, and every pod of it fits somewhere."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from cardwise.adapters.openb import read_openb, write_openb
from cardwise.core.cluster import Cluster
from cardwise.core.history import History, PodRecord
from cardwise.core.inventory import NodeSpec
from cardwise.errors import UserError
from cardwise.replay.synth import HORIZON_S, synthesize


@pytest.fixture(scope="module")
def history() -> History:
    return synthesize(nodes=60, seed=1)


def milli(pod: PodRecord) -> int:
    shape = pod.request.shape
    return shape.cards * (1000 if shape.whole else shape.compute_milli)


def fits(pod: PodRecord, node: NodeSpec) -> bool:
    """On the empty node: enough cards of a model that will do, enough CPU and memory."""
    shape = pod.request.shape
    cards = [card for card in node.cards if not shape.models or card.model in shape.models]
    host = shape.cpu_milli <= node.cpu_milli and shape.host_memory_mib <= node.memory_mib
    return host and len(cards) >= shape.cards


def test_a_seed_gives_the_same_cluster_again(history):
    assert synthesize(nodes=60, seed=1) == history


def test_another_seed_gives_another_cluster(history):
    assert synthesize(nodes=60, seed=2).pods != history.pods


def test_it_has_as_many_nodes_as_asked_for_and_they_make_a_cluster(history):
    assert len(Cluster.build(history.nodes).node_names) == 60


@pytest.mark.parametrize("nodes", [1, 3, 60, 300])
def test_pods_ask_for_all_cards_once_over(nodes):
    history = synthesize(nodes, seed=3)
    capacity = 1000 * sum(len(node.cards) for node in history.nodes)
    asked = sum(map(milli, history.pods))
    assert capacity <= asked < capacity + 8000  # the last pod may be the one that goes over


@pytest.mark.parametrize("nodes", [1, 5, 60])
def test_every_pod_fits_some_node_of_the_empty_cluster(nodes):
    history = synthesize(nodes, seed=4)
    assert [pod.request.name for pod in history.pods if not any(fits(pod, node) for node in history.nodes)] == []


def test_host_cpu_and_memory_are_not_what_runs_out_first(history):
    cpu = sum(pod.request.shape.cpu_milli for pod in history.pods) / sum(node.cpu_milli for node in history.nodes)
    memory = sum(p.request.shape.host_memory_mib for p in history.pods) / sum(n.memory_mib for n in history.nodes)
    assert (cpu < 0.8, memory < 0.8) == (True, True)


def test_the_mix_is_mostly_slices_of_one_card():
    pods = synthesize(nodes=300, seed=5).pods
    kinds = Counter("slice" if p.request.shape.is_slice else str(p.request.shape.cards) for p in pods)
    assert [kind for kind, _ in kinds.most_common()] == ["slice", "1", "0", "2", "4", "8"]


def test_slices_are_of_10_to_90_percent(history):
    sizes = {pod.request.shape.compute_milli for pod in history.pods if pod.request.shape.is_slice}
    assert (min(sizes), max(sizes)) == (100, 900)


def test_nodes_have_1_2_4_8_cards_or_none(history):
    assert {len(node.cards) for node in history.nodes} == {0, 1, 2, 4, 8}


def test_pods_come_in_order_of_their_creation(history):
    created = [pod.created_s for pod in history.pods]
    assert created == sorted(created)


def test_a_pod_is_deleted_after_its_creation_or_not_within_the_horizon(history):
    lives = [(pod.created_s, pod.deleted_s) for pod in history.pods if pod.deleted_s is not None]
    assert all(created < deleted < HORIZON_S for created, deleted in lives)
    assert 0.2 < 1 - len(lives) / len(history.pods) < 0.6


def test_lifetimes_have_a_long_tail():
    pods = synthesize(nodes=300, seed=5).pods
    lives = [pod.deleted_s - pod.created_s for pod in pods if pod.deleted_s is not None and pod.created_s is not None]
    assert np.mean(lives) > 3 * np.median(lives)


def test_it_can_be_written_as_a_trace_and_read_back(history, tmp_path):
    paths = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    write_openb(history, *paths)
    back = read_openb(*paths)
    assert (back.nodes, back.pods) == (history.nodes, history.pods)


def test_it_says_that_nothing_of_it_was_measured(history):
    assert history.source == "synthetic cluster of 60 nodes, seed 1"
    assert history.notes[0] == "Synthetic cluster, seed 1: its mix is plausible and nothing of it was measured."


@pytest.mark.parametrize(
    ("nodes", "seed", "message"),
    [
        (0, 1, "nodes is 0; write 1 or more"),
        (-3, 1, "nodes is -3; write 1 or more"),
        (1, -1, "seed is -1; write 0 or more"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(nodes, seed, message):
    with pytest.raises(UserError, match=f"^{message}$"):
        synthesize(nodes, seed)
