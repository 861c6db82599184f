"""kube-scheduler's questions: which nodes, in which order, and why not the others."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from cardwise.adapters.claims import claim_of
from cardwise.adapters.extender_v1 import ExtenderArgs
from cardwise.core.ledger import Ledger
from cardwise.scheduler import extender as module
from cardwise.scheduler.extender import GUESS_S, Extender
from cardwise.scheduler.settings import DEFAULT_POLICY, Settings, policies_of
from tests.builders import card, node
from tests.scheduler.fake_cluster import books, pod, slice_limits

TOO_LITTLE = "too little card memory"


class Asked:
    """An extender with a clock that moves when told."""

    def __init__(self, *nodes):
        self.now_s = 0.0
        self.ledger = books(*nodes)
        self.names = [each.name for each in nodes]
        self.extender = Extender(self.ledger, lambda: self.now_s)

    def filter(self, name="a", limits=None, names=None, **more):
        args = ExtenderArgs(pod(name, limits, **more), self.names if names is None else names)
        return self.extender.filter(args)

    def best(self, name="a", limits=None):
        return self.filter(name, limits).node_names[0]

    def prioritize(self, name="a", limits=None, names=None):
        args = ExtenderArgs(pod(name, limits), self.names if names is None else names)
        return {each.host: each.score for each in self.extender.prioritize(args)}


# ---------------------------------------------------------------- filter


def calls_of(policy, pods_elsewhere):
    """Calls that one filter and one prioritize make, with so many pods on nodes that are not offered."""
    asked = Asked()
    asked.ledger = Ledger(policies_of(Settings(policy=dict.fromkeys(DEFAULT_POLICY, policy))))
    asked.ledger.reset([node(f"n{i}", cards=[card() for _ in range(8)]) for i in range(40)], [])
    asked.extender, asked.names = Extender(asked.ledger, lambda: 0.0), [f"n{i}" for i in range(4)]
    for i in range(pods_elsewhere):
        elsewhere = claim_of(pod(f"old{i}", slice_limits(1000, 5)))
        asked.ledger.hold(elsewhere, f"n{4 + i % 36}")
        asked.ledger.confirm(elsewhere.uid)
    asked.filter("first")  # what has changed since the last question is taken up once
    asked.prioritize("first")
    made = Counter()
    sys.setprofile(lambda _frame, event, _arg: made.update((event,)))
    try:
        assert asked.filter("next").node_names
        assert asked.prioritize("next")
    finally:
        sys.setprofile(None)
    return made["call"] + made["c_call"]


@pytest.mark.parametrize("policy", ["balanced", "dense"])
def test_a_question_is_not_longer_for_pods_on_nodes_that_are_not_offered(policy):
    """Case C49; ``benchmarks/extender.py`` has the times, which a shared machine cannot promise."""
    assert calls_of(policy, 1000) == calls_of(policy, 40)


def test_nodes_that_take_the_pod_come_best_first_and_others_with_their_reason():
    asked = Asked(
        node("small", cards=[card(memory_mib=2048)]), node("mid"), node("large", cards=[card(memory_mib=81920)])
    )
    result = asked.filter()
    assert result.node_names == ["large", "mid"]
    assert result.failed_and_unresolvable_nodes == {"small": TOO_LITTLE}


def test_a_node_that_no_agent_tells_of_says_so():
    assert Asked(node("n0")).filter(names=["n0", "stranger"]).failed_and_unresolvable_nodes == {
        "stranger": "no cards reported"
    }


def test_only_nodes_that_were_asked_about_are_answered():
    asked = Asked(node("n0"), node("n1"))
    assert asked.filter(names=["n1"]).node_names == ["n1"]


@pytest.mark.parametrize("names", [[], None], ids=["none", "null"])
def test_no_nodes_are_no_error(names):
    asked = Asked(node("n0"))
    result = asked.extender.filter(ExtenderArgs(pod(), names))
    assert (result.node_names, result.failed_and_unresolvable_nodes, result.error) == ([], {}, "")


def test_a_pod_that_cannot_be_read_is_an_error_with_all_faults():
    result = Asked(node("n0")).filter(annotations={"cardwise.dev/class": "fast", "cardwise.dev/mix": "maybe"})
    assert result.error.count("annotation cardwise.dev/") == 2
    assert result.node_names == []


def test_no_more_than_the_best_are_offered(monkeypatch):
    monkeypatch.setattr(module, "BEST", 3)
    asked = Asked(*[node(f"n{i}", cards=[card(memory_mib=10000 + i)]) for i in range(6)])
    result = asked.filter()
    assert result.node_names == ["n5", "n4", "n3"]
    assert result.failed_and_unresolvable_nodes == {}


def test_an_unknown_card_model_is_told_those_there_are():
    """Case C24."""
    asked = Asked(node("n0", cards=[card(model="A100"), card(model="T4")]))
    result = asked.filter(annotations={"cardwise.dev/gpu-model": "a10"})
    assert result.failed_and_unresolvable_nodes == {"n0": "no card here is of model A10, there are A100, T4"}


@pytest.mark.parametrize("key", ["cardwise.dev/gpu-model", "nvidia.com/use-gputype"])
def test_a_card_model_is_asked_for_with_all_of_its_variants(key):
    asked = Asked(node("n0", cards=[card(model="A100-SXM4-80GB")]), node("n1", cards=[card(model="A10")]))
    result = asked.filter(annotations={key: "A100"})
    assert result.node_names == ["n0"]
    assert result.failed_and_unresolvable_nodes == {"n1": "other card model"}


def test_cards_of_a_model_that_the_pod_does_not_want_are_a_plain_reason():
    asked = Asked(node("n0", cards=[card(model="A100-SXM4-80GB")]), node("n1", cards=[card(model="A10")]))
    result = asked.filter(annotations={"nvidia.com/nouse-gputype": "A100"})
    assert result.node_names == ["n1"]
    assert result.failed_and_unresolvable_nodes == {"n0": "other card model"}


def test_a_card_model_that_only_other_nodes_have_is_a_plain_reason():
    asked = Asked(node("n0", cards=[card(model="T4")]), node("n1", cards=[card(model="A10")]))
    result = asked.filter(annotations={"cardwise.dev/gpu-model": "a10"})
    assert result.node_names == ["n1"]
    assert result.failed_and_unresolvable_nodes == {"n0": "other card model"}


def test_a_node_that_came_just_now_is_offered():
    asked = Asked(node("n0"))
    asked.ledger.put_node(node("n1"))
    assert sorted(asked.filter(names=["n0", "n1"]).node_names) == ["n0", "n1"]


# ---------------------------------------------------------------- guesses


def test_two_pods_in_a_row_are_sent_to_two_nodes():
    asked = Asked(node("n0"), node("n1"))
    first = asked.best("a", slice_limits(20000))
    assert asked.best("b", slice_limits(20000)) != first


def test_a_node_that_only_a_guess_would_fill_is_offered_last():
    asked = Asked(node("n0"), node("n1"))
    first = asked.best("a", slice_limits(20000))
    assert asked.filter("b", slice_limits(20000)).node_names[1:] == [first]


def test_a_guess_never_makes_a_yes_into_a_no():
    asked = Asked(node("n0"))
    asked.filter("a", slice_limits(20000))
    result = asked.filter("b", slice_limits(20000))
    assert (result.node_names, result.failed_and_unresolvable_nodes) == (["n0"], {})


def test_a_guess_is_forgotten_after_a_moment():
    asked = Asked(node("n0"), node("n1"))
    first = asked.best("a", slice_limits(20000))
    asked.now_s += GUESS_S + 0.1
    assert asked.best("b", slice_limits(20000)) == first


def test_a_pod_is_no_guess_against_itself():
    asked = Asked(node("n0"), node("n1"))
    assert asked.best("a", slice_limits(20000)) == asked.best("a", slice_limits(20000))


def test_a_pod_that_is_held_is_counted_once():
    asked = Asked(node("n0"))
    asked.filter("a", slice_limits(12000, 40))
    claim = asked.extender.claim("uid-a")
    asked.ledger.hold(claim, "n0")
    assert asked.prioritize("b", slice_limits(12000, 40)) == {"n0": 10}


def test_guesses_leave_no_trace():
    asked = Asked(node("n0"))
    for i in range(20):
        asked.filter(f"p{i}")
    assert asked.ledger.cluster.card_slices.sum() == 0


# ---------------------------------------------------------------- prioritize


def test_the_cheapest_scores_ten_and_each_dearer_one_less():
    asked = Asked(*[node(f"n{i}", cards=[card(memory_mib=20000 + 1000 * i)]) for i in range(3)])
    asked.filter()
    assert asked.prioritize() == {"n2": 10, "n1": 9, "n0": 8}


def test_equal_nodes_score_the_same():
    asked = Asked(node("n0"), node("n1"))
    asked.filter()
    assert asked.prioritize() == {"n0": 10, "n1": 10}


def test_without_an_earlier_filter_the_nodes_are_looked_at_now():
    assert Asked(node("n0"), node("n1")).prioritize(names=["n1"]) == {"n1": 10}


def test_scores_that_are_old_are_worked_out_again():
    asked = Asked(node("n0"), node("n1"))
    asked.filter("a", slice_limits(20000))
    asked.filter("b", slice_limits(20000))
    asked.ledger.hold(asked.extender.claim("uid-a"), "n0")
    asked.now_s += GUESS_S + 0.1
    assert asked.prioritize("b", slice_limits(20000)) == {"n0": 0, "n1": 10}


def test_nodes_that_were_not_offered_score_nothing():
    asked = Asked(node("n0"), node("small", cards=[card(memory_mib=1000)]))
    asked.filter()
    assert asked.prioritize() == {"n0": 10, "small": 0}


def test_a_pod_that_cannot_be_read_scores_nothing_anywhere():
    args = ExtenderArgs(pod(annotations={"cardwise.dev/class": "fast"}), ["n0"])
    assert [each.score for each in Asked(node("n0")).extender.prioritize(args)] == [0]


# ---------------------------------------------------------------- pods that wait


def test_a_pod_without_room_waits_until_it_fits():
    asked = Asked(node("n0"))
    big = slice_limits(30000)
    asked.filter("a", big)
    assert list(asked.extender.waiting) == ["uid-a"]
    asked.ledger.put_node(node("n0", cards=[card(memory_mib=81920)]))
    asked.filter("a", big)
    assert asked.extender.waiting == {}


def test_a_pod_that_is_bound_waits_no_more_and_is_forgotten():
    asked = Asked(node("n0"))
    asked.filter("a", slice_limits(30000))
    asked.extender.forget("uid-a")
    assert (asked.extender.waiting, asked.extender.claim("uid-a")) == ({}, None)


def test_a_pod_without_an_ask_does_not_wait_for_us():
    asked = Asked(node("n0", cpu_milli=1000))
    asked.filter("a", {"cpu": "2"})
    assert asked.extender.waiting == {}


def test_only_the_pods_filtered_last_are_remembered(monkeypatch):
    monkeypatch.setattr(module, "REMEMBERED", 2)
    asked = Asked(node("n0"))
    for name in "abc":
        asked.filter(name)
    assert [asked.extender.claim(f"uid-{name}") is None for name in "abc"] == [True, False, False]
