"""Requests joined and answers split, without a socket. An answer never goes to another's request."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.engine.oip import infer_answer, read_infer
from cardwise.gateway import oip
from cardwise.gateway.lists import Lists
from cardwise.gateway.oip import WrongError


def request(rows, *, nested=False, identity="i", datatype="FP32", **more):
    width = len(rows[0])
    data = rows if nested else [value for row in rows for value in row]
    tensor = {"name": "x", "shape": [len(rows), width], "datatype": datatype, "data": data}
    return json.dumps({"id": identity, "inputs": [tensor], **more}).encode()


def tensor(shape, data, datatype="FP32", **more):
    return json.dumps({"inputs": [{"name": "x", "shape": shape, "datatype": datatype, "data": data, **more}]}).encode()


NUMBER = st.integers(-(10**6), 10**6) | st.floats(allow_nan=False, allow_infinity=False, width=32)
ROWS = st.lists(st.tuples(NUMBER, NUMBER, NUMBER).map(list), min_size=1, max_size=5)


@given(st.lists(ROWS, min_size=1, max_size=6), st.booleans(), st.integers(0, 3))
def test_every_request_of_a_batch_gets_what_it_would_have_got_alone(batch, nested, indent):
    bodies = [
        json.dumps(json.loads(request(rows, nested=nested, identity=f"n{n}")), indent=indent or None).encode()
        for n, rows in enumerate(batch)
    ]
    items = [oip.read(body) for body in bodies]
    assert len({item.key for item in items}) == 1
    answer = infer_answer(read_infer(oip.join(bodies[0], items)), "m")
    parts = [json.loads(part) for part in oip.split(answer, items)]
    assert parts == [json.loads(infer_answer(read_infer(body), "m")) for body in bodies]


@given(st.lists(st.lists(st.text(max_size=5), min_size=1, max_size=4), min_size=1, max_size=5))
def test_texts_with_any_sign_are_split_where_they_were_joined(batch):
    bodies = [tensor([len(texts)], texts, "BYTES") for texts in batch]
    items = [oip.read(body) for body in bodies]
    joined = json.loads(oip.join(bodies[0], items))["inputs"][0]
    assert joined["data"] == [text for texts in batch for text in texts]
    output = {"name": "y", "shape": [len(joined["data"])], "datatype": "BYTES", "data": joined["data"]}
    parts = oip.split(json.dumps({"outputs": [output]}).encode(), items)
    assert [json.loads(part)["outputs"][0]["data"] for part in parts] == batch


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"[]", id="list"),
        pytest.param(b'{"inputs": []}', id="no inputs"),
        pytest.param(b'{"inputs": [' * 10_000, id="nested too deep"),
        pytest.param(b"\xff\xfe{", id="not UTF-8"),
        pytest.param(tensor([2], [1]), id="one too few"),
        pytest.param(tensor([2], [1, 2, 3]), id="one too many"),
        pytest.param(tensor([1], []), id="none"),
        pytest.param(tensor([2, 2], [[1, 2], [3]]), id="ragged"),
        pytest.param(tensor([2, 2], [[1], [2, 3, 4]]), id="ragged, sum is right"),
        pytest.param(tensor([2, 2], [[1, 2, 3], [4]]), id="ragged, the other way"),
        pytest.param(tensor([2, 1], [[1], []]), id="an empty row"),
        pytest.param(tensor([2], [1, "2"]), id="a text among numbers"),
        pytest.param(tensor([2], [1, [2]]), id="a list among numbers"),
        pytest.param(tensor([3], [1, {"a": 1, "b": 2}]), id="an object that looks like two"),
        pytest.param(tensor([2], [1, None]), id="null"),
        pytest.param(tensor([2], [1, True]), id="a truth among numbers"),
        pytest.param(tensor([2], [1, 1.5], "INT64"), id="a fraction among integers"),
        pytest.param(tensor([2], [1, 2], "INT65"), id="no such type"),
        pytest.param(tensor([2], ["a", 1], "BYTES"), id="a number among texts"),
        pytest.param(tensor([2], ["a,b"], "BYTES"), id="one text with a comma"),
        pytest.param(tensor([-1], [1]), id="negative"),
        pytest.param(tensor([2**40, 2**40], [1]), id="huge"),
        pytest.param(tensor([2**30], [1]), id="large"),
        pytest.param(tensor([1, 2, 2], [[1, 2, 3, 4]]), id="half nested"),
        pytest.param(tensor([1, 0], [], "BYTES"), id="rows of no text"),
        pytest.param(request([[1]], identity=7), id="an id that is no text"),
        pytest.param(request([[1]], identity={"a": 1}), id="an id that is an object"),
    ],
)
def test_a_request_that_would_shift_the_rows_of_others_is_refused(body):
    with pytest.raises(WrongError):
        oip.read(body)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(tensor([1, 2], [1, 2]), tensor([1, 3], [1, 2, 3]), id="width"),
        pytest.param(tensor([1], [1]), tensor([1], [1], "INT64"), id="type"),
        pytest.param(tensor([1, 1], [1]), tensor([1, 1], [[1]]), id="nesting"),
        pytest.param(tensor([1], [1]), tensor([1], [1], parameters={"a": 1}), id="parameters of an input"),
        pytest.param(request([[1]]), request([[1]], parameters={"t": 1}), id="parameters"),
        pytest.param(request([[1]]), request([[1]], outputs=[{"name": "sum"}]), id="outputs"),
    ],
)
def test_requests_that_are_not_alike_do_not_share_a_batch(one, other):
    assert oip.read(one).key != oip.read(other).key


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(request([[1]], parameters={"sequence_id": 7}), id="sequence"),
        pytest.param(request([[1]], outputs=[{"name": "y", "parameters": {"binary_data": True}}]), id="binary answer"),
        pytest.param(tensor([], [1]), id="no first dimension"),
        pytest.param(request([[1]], trace=True), id="a field that the protocol does not have"),
        pytest.param(tensor([1], [1], unit="m"), id="a field that its tensors do not have"),
        pytest.param(
            b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "parameters": {"binary_data_size": 4}}]}',
            id="binary data",
        ),
    ],
)
def test_what_is_not_understood_goes_alone(body):
    assert oip.read(body).key is None


def test_how_far_a_body_is_indented_changes_nothing():
    body = json.loads(tensor([2, 1, 1], [[[1]], [[2]]]))
    narrow, wide = (oip.read(json.dumps(body, indent=indent).encode()) for indent in (None, 80))
    assert narrow.key == wide.key
    assert (narrow.rows, wide.rows) == (2, 2)


def test_an_id_that_is_null_is_none():
    item = oip.read(request([[1]], identity=None))
    output = {"name": "y", "shape": [1], "datatype": "FP32", "data": [1]}
    (answer,) = oip.split(json.dumps({"outputs": [output]}).encode(), [item])
    assert "id" not in json.loads(answer)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b'{"outputs": [{"name": "y", "shape": [2], "datatype": "FP32", "data": [1, 2', id="cut"),
        pytest.param({"shape": [2], "data": [1, 2]}, id="a row too few"),
        pytest.param({"shape": [4], "data": [1, 2, 3, 4]}, id="a row too many"),
        pytest.param({"shape": [3], "data": [1, 2]}, id="fewer than it says"),
        pytest.param({"shape": [3], "data": [1, 2, 3, 4]}, id="more than it says"),
        pytest.param({"shape": [3, 2], "data": [1, 2, 3]}, id="half the width"),
        pytest.param({"shape": [], "data": [1]}, id="no shape"),
        pytest.param({"shape": [1, 3], "data": [[1, 2, 3]]}, id="turned"),
    ],
)
def test_an_answer_of_a_wrong_shape_is_for_nobody(answer):
    if isinstance(answer, dict):
        answer = json.dumps({"outputs": [{"name": "y", "datatype": "FP32", **answer}]}).encode()
    items = [oip.read(request([[1], [2]])), oip.read(request([[3]]))]
    with pytest.raises(WrongError):
        oip.split(answer, items)


@given(st.lists(st.lists(st.one_of(st.integers(), st.text(), st.lists(st.text())), min_size=1), min_size=1, max_size=5))
def test_lists_come_back_as_they_went(batch):
    lists = Lists()
    bodies = [json.dumps(each).encode() for each in batch]
    items = [lists.read(body) for body in bodies]
    parts = lists.split(lists.join(bodies[0], items), items)
    assert [json.loads(part) for part in parts] == batch


def test_a_list_below_a_key_is_batched_with_those_that_say_the_same_beside_it():
    lists = Lists("instances", "predictions")
    bodies = [b'{"v": 1, "instances": [1, 2]}', b'{"instances": [3], "v": 1}']
    items = [lists.read(body) for body in bodies]
    assert items[0].key == items[1].key != lists.read(b'{"v": 2, "instances": [1]}').key
    assert json.loads(lists.join(bodies[0], items)) == {"v": 1, "instances": [1, 2, 3]}
    parts = lists.split(b'{"predictions": ["a", "b", "c"], "model": "m"}', items)
    assert [json.loads(part)["predictions"] for part in parts] == [["a", "b"], ["c"]]
    with pytest.raises(WrongError, match="2 answers for 3 items"):
        lists.split(b'{"predictions": ["a", "b"]}', items)
    with pytest.raises(WrongError, match="there is no 'instances'"):
        lists.read(b'{"inputs": [1]}')
