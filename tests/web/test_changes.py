"""A change brings who knows the state that it is from to the one that it leads to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cardwise.web.changes import applied, changes

NAMES = st.lists(st.sampled_from("abcdef"), unique=True)
REST = st.dictionaries(st.sampled_from(["summary", "pending", "notes"]), st.integers(0, 2))


@st.composite
def states(draw, version):
    nodes = [{"name": name, "cards": draw(st.integers(0, 2))} for name in draw(NAMES)]
    return {"summary": 0, "pending": 0, "notes": 0, **draw(REST), "nodes": nodes, "version": version}


@given(states(1), states(2))
def test_the_change_between_two_states_leads_from_one_to_the_other(before, after):
    assert applied(before, changes(before, after)) == after


def test_what_did_not_change_is_not_sent():
    nodes = [{"name": f"n{i}", "cards": 0} for i in range(1000)]
    after = [*nodes[:-1], {"name": "n999", "cards": 1}]
    change = changes(
        {"nodes": nodes, "version": 1, "summary": 0, "notes": []},
        {"nodes": after, "version": 2, "summary": 1, "notes": []},
    )
    assert change == {"base": 1, "version": 2, "set": {"summary": 1}, "nodes": after[-1:]}
