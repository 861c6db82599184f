"""What the scheduler tells Prometheus of its stock and its refusals, by numbers worked by hand."""

from __future__ import annotations

import pytest

from cardwise.adapters.extender_v1 import ExtenderArgs
from cardwise.core.reasons import Code
from cardwise.scheduler.extender import Extender
from cardwise.scheduler.metrics import Metrics
from tests.builders import CARD_MIB, card, node
from tests.scheduler.fake_cluster import books, pod, slice_limits


@pytest.fixture
def metrics():
    """Of two nodes with two cards each, of which one is sick."""
    ledger = books(node("n0", 2), node("n1", [card(), card(healthy=False)]))
    return Metrics(ledger, Extender(ledger, lambda: 0.0), lambda: True)


def ask(metrics, name, mib):
    nodes = ["n0", "n1"]
    metrics.extender.filter(ExtenderArgs(pod=pod(name, slice_limits(mib)), node_names=nodes))


def value(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, labels)


def test_the_stock_is_what_the_ledger_has(metrics):
    told = {name: value(metrics, f"cardwise_scheduler_{name}") for name in ("nodes", "cards", "cards_sick", "leader")}
    assert told == {"nodes": 2, "cards": 4, "cards_sick": 1, "leader": 1}
    assert value(metrics, "cardwise_scheduler_memory_allocatable_mib") == 4 * CARD_MIB


def test_what_is_held_is_free_no_more(metrics):
    claim = metrics.extender
    ask(metrics, "a", 4096)
    metrics.ledger.hold(claim.claim("uid-a"), "n0")
    assert value(metrics, "cardwise_scheduler_memory_free_mib") == 4 * CARD_MIB - 4096
    assert value(metrics, "cardwise_scheduler_compute_free_cards") == pytest.approx(4 - 0.2)
    assert value(metrics, "cardwise_scheduler_bindings_under_way") == 1


def test_a_refusal_counts_by_the_reason_that_most_nodes_gave(metrics):
    ask(metrics, "large", CARD_MIB + 1)
    ask(metrics, "large", CARD_MIB + 1)
    assert value(metrics, "cardwise_scheduler_pods_waiting") == 1
    (code,) = metrics.extender.refusals
    assert isinstance(code, Code)
    assert value(metrics, "cardwise_scheduler_refusals_total", reason=code.value) == 2


def test_a_pod_that_fits_is_no_refusal(metrics):
    ask(metrics, "small", 1024)
    assert not metrics.extender.refusals
    assert value(metrics, "cardwise_scheduler_pods_waiting") == 0
