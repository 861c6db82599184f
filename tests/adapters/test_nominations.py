"""What stands in objects of a preemption is read back as it was written, and nonsense is refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.adapters import wire
from cardwise.adapters.kube_objects import Node, Pod
from cardwise.adapters.nominations import (
    MOST_KEPT_S,
    Nomination,
    Preempted,
    Preemptions,
    Victim,
    encode_nomination,
    encode_preemptions,
    nomination_of,
    preemptions_of,
)
from cardwise.core.allocation import Allocation, Share
from cardwise.core.fleet.guard import Eviction

NAMES = st.text("abc-/0", max_size=8)
TIMES = st.integers(0, 4_000_000_000).map(float)
SHARES = st.builds(Share, NAMES, st.integers(0, 99999), st.integers(0, 100), st.booleans())
ALLOCATIONS = st.builds(
    Allocation,
    NAMES,
    st.lists(st.tuples(NAMES, st.lists(SHARES, max_size=2).map(tuple)), max_size=2, unique_by=lambda each: each[0]).map(
        tuple
    ),
    st.integers(0, 9),
    st.integers(0, 9),
)
NOMINATIONS = st.builds(
    Nomination,
    ALLOCATIONS,
    st.lists(st.builds(Victim, NAMES, NAMES), max_size=3).map(tuple),
    TIMES,
    st.floats(0, MOST_KEPT_S),
    st.integers(1, 9),
    st.booleans(),
)


def pod(text):
    told = {} if text is None else {wire.ANNOTATION_NOMINATED: text}
    return msgspec.convert({"metadata": {"name": "p", "annotations": told}}, Pod)


def node(text):
    told = {} if text is None else {wire.ANNOTATION_PREEMPTIONS: text}
    return msgspec.convert({"metadata": {"name": "n", "annotations": told}}, Node)


def line(uid="u", at_s=100.0):
    return Preempted(uid, Eviction(at_s, "n", "ns/a", "ns/b"))


@given(NOMINATIONS)
def test_a_nomination_is_read_as_it_was_written(nomination):
    assert nomination_of(pod(encode_nomination(nomination))) == nomination


@given(st.lists(st.builds(line, NAMES, TIMES), max_size=4).map(tuple))
def test_evictions_are_read_as_they_were_written(lines):
    assert preemptions_of(node(encode_preemptions(Preemptions(lines)))).lines == lines


def test_without_an_annotation_there_is_nothing():
    assert nomination_of(pod(None)) is None
    assert preemptions_of(node(None)) == Preemptions()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"v":2}', "x" * 100])
def test_nonsense_is_no_nomination(text):
    with pytest.raises(ValueError, match="nominated"):
        nomination_of(pod(text))


@pytest.mark.parametrize(
    ("old", "new"), [('"v":1', '"v":2'), ('"keep":5.0', '"keep":1e9'), ('"keep":5.0', '"keep":-1')]
)
def test_another_version_and_a_share_that_is_kept_for_ever_are_refused(old, new):
    text = encode_nomination(Nomination(Allocation("n", ()), (), 0.0, 5.0))
    assert old in text
    with pytest.raises(ValueError, match="nominated"):
        nomination_of(pod(text.replace(old, new)))


@pytest.mark.parametrize("text", ["", "{}", "[1]"])
def test_nonsense_is_no_memory_of_evictions(text):
    with pytest.raises(ValueError, match="preemptions"):
        preemptions_of(node(text))


def test_each_pod_is_remembered_once_the_old_are_forgotten_and_who_was_spared_is_taken_out():
    known = Preemptions((line("a", 10.0), line("b", 20.0)))
    more = known.with_more([line("b", 25.0), line("c", 30.0)], now_s=30.0, oldest_s=15.0)
    assert [(each.uid, each.eviction.at_s) for each in more.lines] == [("b", 20.0), ("c", 30.0)]
    assert [each.uid for each in more.without(["b"]).lines] == ["c"]
