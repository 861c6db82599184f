"""Whom a selector of labels means, and which nodes let a pod on them."""

from __future__ import annotations

import msgspec
import pytest

from cardwise.adapters.kube_objects import Expression, Node, Pod, Selector
from cardwise.adapters.selecting import covers, holds, lets

LABELS = {"app": "x", "size": "5"}
TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("operator", "values", "key", "wanted"),
    [
        ("In", ["x", "y"], "app", True),
        ("In", ["y"], "app", False),
        ("NotIn", ["y"], "app", True),
        ("NotIn", ["y"], "none", True),
        ("Exists", [], "app", True),
        ("Exists", [], "none", False),
        ("DoesNotExist", [], "none", True),
        ("Gt", ["4"], "size", True),
        ("Lt", ["4"], "size", False),
        ("Gt", ["4"], "app", False),
        ("Gt", [], "size", False),
        ("Never heard of", ["x"], "app", False),
    ],
)
def test_a_condition_on_labels(operator, values, key, wanted):
    assert holds(Expression(key, operator, values), LABELS) is wanted


@pytest.mark.parametrize(
    ("selector", "wanted"),
    [
        (None, False),
        (Selector(), True),
        (Selector({"app": "x"}), True),
        (Selector({"app": "y"}), False),
        (Selector({"app": "x"}, [Expression("size", "Exists")]), True),
        (Selector({"app": "x"}, [Expression("none", "Exists")]), False),
    ],
    ids=["none", "all", "label", "another", "label and expression", "one of both"],
)
def test_whom_a_selector_covers(selector, wanted):
    assert covers(selector, LABELS) is wanted


@pytest.mark.parametrize(
    ("toleration", "wanted"),
    [
        (None, False),
        ({"key": "gpu", "value": "yes"}, True),
        ({"key": "gpu", "value": "no"}, False),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_a_taint_keeps_pods_off_that_do_not_tolerate_it(toleration, wanted):
    node = msgspec.convert({"metadata": {"name": "n"}, "spec": {"taints": [TAINT]}}, Node)
    pod = msgspec.convert({"metadata": {}, "spec": {"tolerations": [toleration] if toleration else []}}, Pod)
    assert lets(node, pod) is wanted


def test_a_taint_that_is_only_a_wish_keeps_nobody_off():
    wish = {**TAINT, "effect": "PreferNoSchedule"}
    node = msgspec.convert({"metadata": {"name": "n"}, "spec": {"taints": [wish]}}, Node)
    assert lets(node, msgspec.convert({"metadata": {}}, Pod))


def test_a_node_selector_is_of_labels_that_the_node_has():
    node = msgspec.convert({"metadata": {"name": "n", "labels": LABELS}}, Node)
    for value, wanted in (("x", True), ("y", False)):
        assert lets(node, msgspec.convert({"metadata": {}, "spec": {"nodeSelector": {"app": value}}}, Pod)) is wanted
