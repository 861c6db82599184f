"""The allocation annotation: what is written is read back without loss, and nonsense is never "none"."""

from __future__ import annotations

import json
import re

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from cardwise.adapters.allocations import bound_pod, decode, encode
from cardwise.adapters.kube_objects import Pod
from cardwise.core.allocation import Allocation, Share
from cardwise.core.request import Isolation
from tests.adapters.kubectl_builders import gpu_pod

AMOUNTS = st.integers(0, 2**40).flatmap(lambda mib: st.tuples(st.just(mib), st.sampled_from([0, mib // 3, mib])))
SHARES = st.builds(
    lambda uuid, amounts, *more: Share(uuid, amounts[0], *more, lent_mib=amounts[1]),
    st.text(max_size=40),
    AMOUNTS,
    st.integers(0, 100),
    st.booleans(),
    st.sampled_from(Isolation),
)
CONTAINERS = st.lists(
    st.tuples(st.text(max_size=63), st.lists(SHARES, max_size=8).map(tuple)), max_size=5, unique_by=lambda each: each[0]
)
ALLOCATIONS = st.builds(
    Allocation, st.text(max_size=63), CONTAINERS.map(tuple), st.integers(0, 2**53), st.integers(0, 2**53)
)
GOOD = Allocation("n0", (("app", (Share("U", 4096, 20, mode=Isolation.MPS),)),), 3, 7)


def pod(**annotations):
    raw = gpu_pod({"nvidia.com/gpu": "1"}, name="p", node="n0")
    raw["metadata"]["annotations"] = {f"cardwise.dev/{key}": text for key, text in annotations.items()}
    return msgspec.convert(raw, Pod)


def told(**changes):
    """A good allocation's text with some parts changed."""
    return json.dumps({**json.loads(encode(GOOD)), **changes})


def told_share(**changes):
    share = {"uuid": "U", "mib": 1, "cores": 1}
    return told(ctr={"app": [{**share, **changes}]})


@given(ALLOCATIONS)
def test_what_is_written_is_read_back_without_loss(allocation):
    """Case C9."""
    assert decode(encode(allocation)) == allocation


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", "{", "whatever", told(more=1), told(node=3), told(ctr=[])])
def test_text_that_is_no_allocation_is_refused(text):
    with pytest.raises(ValueError, match=r"^cardwise\.dev/alloc is not readable: "):
        decode(text)


def test_an_allocation_of_lists_in_lists_is_refused():
    deep = "[" * 1200 + "]" * 1200
    with pytest.raises(ValueError, match=r"^cardwise\.dev/alloc is not readable: "):
        decode(f'{{"x": {deep}, {encode(GOOD)[1:]}')


def test_an_allocation_of_another_version_is_refused_with_both_versions():
    with pytest.raises(ValueError, match=r"^cardwise\.dev/alloc has version 2, this scheduler reads 1$"):
        decode(told(v=2))


@pytest.mark.parametrize(
    "changes", [{"mib": -1}, {"cores": -1}, {"cores": 101}, {"mode": "telepathy"}], ids=lambda each: next(iter(each))
)
def test_a_share_that_cannot_be_is_refused_and_shown(changes):
    ((key, value),) = changes.items()
    with pytest.raises(ValueError, match=rf"^cardwise\.dev/alloc: impossible share .*{key}={re.escape(repr(value))}"):
        decode(told_share(**changes))


def test_a_pod_with_an_allocation_holds_it():
    assert bound_pod(pod(alloc=encode(GOOD))).allocation == GOOD


def test_a_pod_without_an_allocation_holds_none():
    assert bound_pod(pod()).allocation is None


@pytest.mark.parametrize("text", ["", "{}"], ids=["empty", "no allocation"])
def test_an_unreadable_allocation_is_an_error_that_names_the_pod(text):
    with pytest.raises(ValueError, match=r"^pod team-a/p: cardwise\.dev/alloc is not readable"):
        bound_pod(pod(alloc=text))


def test_a_pod_that_runs_counts_whatever_its_annotations_say():
    read = bound_pod(pod(alloc=encode(GOOD), **{"class": "nonsense"}))
    assert (read.node, read.allocation) == ("n0", GOOD)


@pytest.mark.parametrize(("status", "initialized"), [("True", True), ("False", False)])
def test_a_pod_is_initialized_when_its_condition_says_so(status, initialized):
    raw = gpu_pod({"nvidia.com/gpu": "1"})
    raw["status"]["conditions"] = [{"type": "Ready", "status": "True"}, {"type": "Initialized", "status": status}]
    assert bound_pod(msgspec.convert(raw, Pod)).initialized is initialized
