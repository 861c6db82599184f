"""Requests and answers that nobody thought of, beside a plain reading of the protocol: json, and a check of the shape.

What is read must be what the plain reading reads; what is joined must split where it was joined; a body that has been
tampered with is refused, or is its own sender's trouble alone.
"""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cardwise.gateway import oip
from cardwise.gateway.lists import Lists
from cardwise.gateway.oip import WrongError

INTEGERS = ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
FLOATS = ("FP16", "FP32", "FP64", "BF16")
LEAF = {
    **dict.fromkeys(INTEGERS, st.integers(-(10**20), 10**20)),
    **dict.fromkeys(FLOATS, st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False)),
    "BOOL": st.booleans(),
    "BYTES": st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(["[1,2]", '","', "]}"]),
}
KINDS = {
    **dict.fromkeys(INTEGERS, (int,)),
    **dict.fromkeys(FLOATS, (int, float)),
    "BOOL": (bool,),
    "BYTES": (str,),
}

FIELDS = {"inputs", "id", "parameters", "outputs"}
TENSOR_FIELDS = {"name", "shape", "datatype", "data", "parameters"}


# ---------------------------------------------------------------- the plain reading


class RefusedError(Exception):
    """The plain reading refuses it."""


def no_constant(name):
    raise RefusedError(name)


def plainly(body):
    """Each input of a request as its flat values, and the rows that all have; None for those if it must go alone."""
    try:
        request = json.loads(body.decode(), parse_constant=no_constant)
        inputs = request["inputs"]
        heads = [(each["name"], each["datatype"], each["shape"]) for each in inputs]
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise RefusedError(str(exc)) from exc
    if not inputs:
        raise RefusedError("none")
    for name, datatype, shape in heads:
        if type(name) is not str or type(datatype) is not str or type(shape) is not list:
            raise RefusedError("head")
        if any(type(size) is not int or not 0 <= size < 2**31 for size in shape):
            raise RefusedError("shape")
    rows = {shape[0] if shape else 0 for *_, shape in heads}
    is_exact = set(request) <= FIELDS and all(set(each) <= TENSOR_FIELDS for each in inputs)
    if len(rows) > 1 or min(rows) < 1 or any("data" not in each for each in inputs) or not is_exact:
        return None, []
    return rows.pop(), [flat(each) for each in inputs]


def flat(tensor):
    shape, kinds, data = tensor["shape"], KINDS.get(tensor["datatype"]), tensor["data"]
    if kinds is None or type(data) is not list:
        raise RefusedError("kind")
    values = nested(data, shape) if len(shape) > 1 and data and type(data[0]) is list else data
    if not values or len(values) != math.prod(shape) or any(type(each) not in kinds for each in values):
        raise RefusedError("values")
    return values


def nested(data, shape):
    """The values of a nested list, if it is one of this shape."""
    if not shape:
        return [data]
    if type(data) is not list or len(data) != shape[0]:
        raise RefusedError("nesting")
    return [value for each in data for value in nested(each, shape[1:])]


# ---------------------------------------------------------------- what is asked


def shaped(values, shape):
    """Flat values as nested lists."""
    for size in reversed(shape[1:]):
        values = [values[at : at + size] for at in range(0, len(values), size)]
    return values


@st.composite
def alike(draw):
    """Bodies of requests that may share a batch."""
    tensors = draw(
        st.lists(
            st.tuples(
                st.text('xyz"\\é', max_size=3), st.sampled_from(sorted(LEAF)), st.lists(st.integers(1, 3), max_size=3)
            ),
            min_size=1,
            max_size=3,
        )
    )
    is_nested = draw(st.booleans())
    bodies = []
    for _ in range(draw(st.integers(1, 5))):
        rows, inputs = draw(st.integers(1, 4)), []
        for name, datatype, tail in tensors:
            shape = [rows, *tail]
            values = draw(st.lists(LEAF[datatype], min_size=math.prod(shape), max_size=math.prod(shape)))
            data = shaped(values, shape) if is_nested else values
            inputs.append({"name": name, "shape": shape, "datatype": datatype, "data": data})
        whole = {"inputs": inputs}
        if draw(st.booleans()):
            whole["id"] = draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=4))
        indent = draw(st.sampled_from([None, 1, 30]))
        bodies.append(json.dumps(whole, indent=indent, ensure_ascii=draw(st.booleans())).encode())
    return bodies


@st.composite
def spoilt(draw, bodies):
    """One of them with bytes of it exchanged, or with other values in its fields."""
    body = bytearray(draw(st.sampled_from(bodies)))
    if draw(st.booleans()):
        for _ in range(draw(st.integers(1, 3))):
            at = draw(st.integers(0, len(body) - 1))
            body[at : at + draw(st.integers(0, 3))] = draw(
                st.sampled_from(
                    [b"", b",", b"[", b"]", b"1", b"-", b".", b"e5", b'"', b" ", b"{", b"}", b"null", b"0,0", b"],["]
                )
            )
        return bytes(body)
    whole = json.loads(bytes(body))
    tensor = draw(st.sampled_from(whole["inputs"]))
    field, value = draw(
        st.tuples(st.just("shape"), st.lists(st.integers(-1, 5), max_size=4))
        | st.tuples(st.just("datatype"), st.sampled_from([*LEAF, "INT65", ""]))
        | st.tuples(
            st.just("data"),
            st.recursive(
                st.none() | st.booleans() | st.integers(0, 3) | st.just("a") | st.just(1.5),
                lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.just("k"), inner, max_size=1),
                max_leaves=8,
            ),
        )
    )
    tensor[field] = value
    return json.dumps(whole).encode()


def echo(joined):
    """An answer whose outputs are the inputs: each row is told from all others."""
    return json.dumps({"model_name": "m", "outputs": json.loads(joined)["inputs"]}).encode()


# ---------------------------------------------------------------- what must hold


@given(alike())
@settings(max_examples=150)
def test_whatever_is_joined_is_split_where_it_was_joined(bodies):
    items = [oip.read(body) for body in bodies]
    assert len({item.key for item in items}) == 1
    for body, item, part in zip(bodies, items, oip.split(echo(oip.join(bodies[0], items)), items), strict=True):
        asked, told = json.loads(body), json.loads(part)
        assert told["outputs"] == asked["inputs"]
        assert told.get("id") == asked.get("id")
        assert item.rows == asked["inputs"][0]["shape"][0]


@given(st.data())
@settings(max_examples=200)
def test_what_is_read_is_what_a_plain_reading_reads(data):
    bodies = data.draw(alike())
    body = data.draw(spoilt(bodies)) if data.draw(st.booleans()) else bodies[0]
    try:
        rows, values = plainly(body)
    except RefusedError:
        with pytest.raises(WrongError):
            oip.read(body)
        return
    item = oip.read(body)
    if rows is None:
        assert item.key is None
    elif item.key is not None:
        assert item.rows == rows
        joined = json.loads(oip.join(body, [item]))["inputs"]
        assert [flat(each) for each in joined] == values


@given(st.data())
@settings(max_examples=150)
def test_a_spoilt_request_takes_no_row_of_anothers(data):
    bodies = data.draw(alike())
    items = [oip.read(body) for body in bodies]
    wrong = data.draw(spoilt(bodies))
    try:
        item = oip.read(wrong)
    except WrongError:
        return
    if item.key != items[0].key:
        return
    at = data.draw(st.integers(0, len(items)))
    together = [*items[:at], item, *items[at:]]
    first = wrong if at == 0 else bodies[0]
    parts = oip.split(echo(oip.join(first, together)), together)
    del parts[at]
    for body, part in zip(bodies, parts, strict=True):
        assert json.loads(part)["outputs"] == json.loads(body)["inputs"]


@given(st.data())
@settings(max_examples=150)
def test_a_spoilt_answer_is_for_nobody_or_cut_where_its_shape_says(data):
    bodies = data.draw(alike())
    items = [oip.read(body) for body in bodies]
    answer = echo(oip.join(bodies[0], items))
    as_request = json.dumps({"inputs": json.loads(answer)["outputs"]}).encode()
    wrong = data.draw(spoilt([as_request])).replace(b'"inputs"', b'"outputs"', 1)
    try:
        parts = [json.loads(part)["outputs"] for part in oip.split(wrong, items)]
    except WrongError:
        return
    for idx, output in enumerate(json.loads(wrong)["outputs"]):
        cut = [part[idx] for part in parts]
        assert [each["shape"] for each in cut] == [[item.rows, *output["shape"][1:]] for item in items]
        assert [value for each in cut for value in each["data"]] == output["data"]
        steps = {len(each["data"]) / item.rows for each, item in zip(cut, items, strict=True)}
        assert steps <= {1.0, float(math.prod(output["shape"][1:]))}
        assert len(steps) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=2),
    max_leaves=6,
)


@given(st.data(), st.sampled_from(["", "instances"]), st.sampled_from(["", "predictions"]))
@settings(max_examples=150)
def test_a_spoilt_list_takes_no_item_of_anothers(data, items_key, answers_key):
    lists = Lists(items_key, answers_key)

    def body_of(items, key):
        return json.dumps({"v": 1, key: items} if key else items, indent=data.draw(st.sampled_from([None, 2]))).encode()

    asked = data.draw(st.lists(st.lists(JSON, min_size=1, max_size=4), min_size=1, max_size=4))
    bodies = [body_of(each, items_key) for each in asked]
    wrong = bytearray(data.draw(st.sampled_from(bodies)))
    at = data.draw(st.integers(0, len(wrong) - 1))
    wrong[at : at + 1] = data.draw(st.sampled_from([b"", b",", b"[", b"]", b'"', b"1", b"],[", b"{"]))
    items = [lists.read(body) for body in bodies]
    try:
        item = lists.read(bytes(wrong))
    except WrongError:
        pass
    else:
        asked_wrongly = json.loads(bytes(wrong))
        asked_wrongly = asked_wrongly[items_key] if items_key else asked_wrongly
        assert item.rows == len(asked_wrongly)
        if item.key == items[0].key:
            asked, items, bodies = [asked_wrongly, *asked], [item, *items], [bytes(wrong), *bodies]
    joined = json.loads(lists.join(bodies[0], items))
    answers = joined[items_key] if items_key else joined
    parts = [json.loads(part) for part in lists.split(body_of(answers, answers_key), items)]
    assert [part[answers_key] if answers_key else part for part in parts] == asked
