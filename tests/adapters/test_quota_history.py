"""Demand of teams over time: from histories of ours and from exports of Prometheus."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.adapters.quota_file import TeamTable
from cardwise.adapters.quota_history import asked_by_prometheus, asked_in
from cardwise.core.history import History, PodRecord
from cardwise.core.inventory import NodeSpec
from cardwise.core.request import PodRequest, Shape
from cardwise.errors import InputError
from tests.builders import card

NODES = (
    NodeSpec("a", 1000, 1000, (card("a0", "A10", 24576), card("a1", "A10", 24576))),
    NodeSpec("l", 1000, 1000, (card("l0", "L4", 20000),)),
)
SLICE = Shape(1, memory_mib=4096, compute_milli=200)


def record(name, shape=SLICE, created_s=None, deleted_s=None, node="a"):
    return PodRecord(PodRequest(name, shape), created_s, deleted_s, node)


def asked(*records, **more):
    return asked_in(History("test", NODES, records), 16, **more)


def lines(demand):
    return [
        (*amounts, lasts_s) for amounts, lasts_s in zip(demand.asked.tolist(), demand.lasts_s.tolist(), strict=True)
    ]


def test_pods_that_overlap_add_up_for_as_long_as_they_do():
    (demand,) = asked(
        record("n/x", created_s=0.0, deleted_s=10.0), record("n/y", created_s=4.0, deleted_s=19.0)
    ).demands
    assert (demand.team, demand.card) == ("n", "A10")
    assert lines(demand) == [(1, 4096, 20, 4.0), (2, 8192, 40, 6.0), (1, 4096, 20, 9.0), (0, 0, 0, 1.0)]


@pytest.mark.parametrize(
    ("shape", "amounts"),
    [
        (Shape(2, whole=True), [2, 49152, 200]),
        (Shape(2, memory_mib=1024, compute_milli=100), [2, 2048, 20]),
        (Shape(1, memory_milli=333), [1, 8184, 0]),
        (Shape(1, memory_mib=1, compute_milli=5), [1, 1, 1]),
    ],
    ids=["whole cards", "two cards (case C44)", "percent, rounded up", "half a percent, rounded up"],
)
def test_a_pod_counts_over_all_its_cards(shape, amounts):
    (demand,) = asked(record("n/x", shape)).demands
    assert demand.asked.tolist() == [amounts]


def test_a_dump_is_one_moment_and_says_so():
    found = asked(record("n/x", created_s=5.0), record("n/y", created_s=50.0))
    (demand,) = found.demands
    assert demand.asked.tolist() == [[2, 8192, 40]]
    assert any("one moment" in note for note in found.notes)


def test_a_pod_that_waits_counts_for_a_card_type_that_it_takes():
    found = asked(record("n/x", Shape(1, memory_mib=1, models=frozenset({"L4"})), node=""), record("n/y", node=""))
    assert [(demand.card, demand.asked.tolist()) for demand in found.demands] == [
        ("A10", [[1, 4096, 20]]),
        ("L4", [[1, 1, 0]]),
    ]


def test_a_pod_that_no_card_suits_is_left_out_with_a_note():
    found = asked(record("n/x", Shape(1, memory_mib=1, models=frozenset({"H100"})), node=""))
    assert found.demands == ()
    assert any("n/x" in note for note in found.notes)


def test_pods_belong_to_the_first_team_whose_pattern_they_match():
    teams = [TeamTable("web", ["n"], pods=["n/web-*"]), TeamTable("rest", ["n", "m"])]
    found = asked(record("n/web-1"), record("n/job"), record("m/x"), record("other/x"), teams=teams)
    assert {demand.team: demand.asked[0][0] for demand in found.demands} == {"web": 1, "rest": 2}
    assert any(note.startswith("Pods of no team") and "other/x" in note for note in found.notes)


def test_totals_are_those_of_the_cards():
    a10, l4 = asked().cards
    assert (a10.model, a10.memory_mib, a10.total.amounts) == ("A10", 24576, (32, 49152, 200))
    assert (l4.model, l4.total.amounts) == ("L4", (16, 20000, 100))


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=1, max_size=8))
def test_at_any_time_the_demand_is_that_of_the_pods_that_there_are(spans):
    records = [
        record(f"n/{i}", created_s=float(at), deleted_s=float(at + lasts)) for i, (at, lasts) in enumerate(spans)
    ]
    (demand,) = asked(*records).demands
    time = 0.0
    for slots, *_, lasts_s in lines(demand):
        middle = time + lasts_s / 2
        assert slots == sum(at <= middle < at + lasts for at, lasts in spans)
        time += lasts_s


# ---------------------------------------------------------------- Prometheus


def exported(tmp_path, *series, kind="matrix"):
    result = [{"metric": labels, "values": [[at, str(value)] for at, value in values]} for labels, values in series]
    path = tmp_path / "answer.json"
    path.write_text(json.dumps({"status": "success", "data": {"resultType": kind, "result": result}}))
    return path


def labels(resource, namespace="n", node="a"):
    return {"namespace": namespace, "node": node, "resource": resource}


def test_series_of_one_team_add_up_and_percent_is_of_the_nodes_card(tmp_path):
    path = exported(
        tmp_path,
        (labels("cardwise_dev_gpu_memory"), [(0, 1000), (60, 2000)]),
        (labels("cardwise_dev_gpu_memory_percentage"), [(60, 50)]),
        (labels("cardwise_dev_gpu"), [(0, 1), (60, 2)]),
        (labels("cardwise_dev_gpu_cores"), [(0, 10), (60, 20)]),
        (labels("cardwise_dev_gpu", node="l"), [(0, 1)]),
    )
    on_a10, on_l4 = asked_by_prometheus(path, NODES, 16).demands
    assert on_a10.asked.tolist() == [[1, 1000, 10], [2, 2000 + 12288, 20]]
    assert (on_l4.card, on_l4.asked.tolist()) == ("L4", [[1, 0, 0], [0, 0, 0]])


def test_a_gap_in_all_series_counts_for_nothing(tmp_path):
    path = exported(tmp_path, (labels("cardwise_dev_gpu"), [(0, 1), (60, 1), (120, 1), (9000, 2), (9060, 2)]))
    (demand,) = asked_by_prometheus(path, NODES, 16).demands
    assert demand.lasts_s.tolist() == [60.0] * 5


def test_pods_that_wait_count_for_the_card_type_that_is_asked_for_most(tmp_path):
    path = exported(
        tmp_path,
        (labels("cardwise_dev_gpu", node="l"), [(0, 1)]),
        (labels("cardwise_dev_gpu", node=""), [(0, 3)]),
    )
    found = asked_by_prometheus(path, NODES, 16)
    assert [(demand.card, demand.asked.tolist()) for demand in found.demands] == [("L4", [[4, 0, 0]])]
    assert any("count for L4" in note for note in found.notes)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"status": "error"}', "status: has status 'error'; give the answer of Prometheus'"),
        ('{"status": "success", "data": {"resultType": "vector", "result": []}}', "is a 'vector', of one moment"),
        ('{"status": "success", "data": {"resultType": "matrix", "result": []}}', "has no values"),
        ("[]", "is not readable"),
    ],
)
def test_what_is_no_export_is_refused(tmp_path, text, told):
    path = tmp_path / "answer.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        asked_by_prometheus(path, NODES, 16)
    assert told in str(caught.value)


@pytest.mark.parametrize("value", ["NaN", "-1", "1e300", "many"])
def test_a_value_that_is_no_amount_is_refused(tmp_path, value):
    path = exported(tmp_path, (labels("cardwise_dev_gpu"), [(0, value)]))
    with pytest.raises(InputError, match="which is no amount"):
        asked_by_prometheus(path, NODES, 16)
