"""What preemption decides on, in clusters of many pods and many budgets."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.adapters.kube_objects import Budget, Pod
from cardwise.adapters.selecting import covers
from cardwise.controller.preemption.seeing import Seen
from cardwise.controller.preemption.settings import PreemptionSettings
from cardwise.controller.preemption.snapshot import SEVERAL, Snapshot
from cardwise.core.allocation import Allocation, BoundPod, Share
from cardwise.core.claim import Claim
from cardwise.core.ledger import Ledger
from cardwise.scheduler.settings import Settings, policies_of
from tests.builders import node


class Counted(dict):
    """Labels that count how often they are looked at."""

    looks = 0

    def get(self, *args):
        self.looks += 1
        return super().get(*args)


def budget(name, selector, namespace="default"):
    return msgspec.convert(
        {"metadata": {"name": name, "namespace": namespace}, "spec": {"selector": selector}, "status": {}}, Budget
    )


def covering(labels, budgets):
    """What a snapshot says of one pod with these labels."""
    seen, ledger = Seen(lambda: 0.0), Ledger(policies_of(Settings()))
    told = node("n0", 1)
    ledger.reset([told], [])
    pod = msgspec.convert({"metadata": {"name": "p", "namespace": "default", "uid": "u"}}, Pod)
    pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, labels=labels))
    seen._put(pod)
    share = Share(told.cards[0].uuid, 1000, 10)
    ledger.put_pod(BoundPod(Claim("u", "default/p"), "n0", Allocation("n0", (("app", (share,)),))))
    made = Snapshot(ledger, seen, PreemptionSettings(), 0.0, 0.0, frozenset(), set(), []).fill(budgets)
    return made.running("n0", "u").budgets


SELECTORS = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {},
        optional={
            "matchLabels": st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy")),
            "matchExpressions": st.lists(
                st.fixed_dictionaries(
                    {
                        "key": st.sampled_from("ab"),
                        "operator": st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
                        "values": st.lists(st.sampled_from("xyz"), max_size=3),
                    }
                ),
                max_size=2,
            ),
        },
    ),
)


@given(st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy")), st.lists(SELECTORS, max_size=4))
def test_the_budgets_of_a_pod_are_those_that_cover_it_however_they_are_looked_up(labels, selectors):
    budgets = [budget(f"b{i}", selector) for i, selector in enumerate(selectors)]
    names = {each.name for each in budgets if covers(each.spec.selector, labels)}
    assert covering(labels, budgets) == (frozenset([SEVERAL]) if len(names) > 1 else frozenset(names))


@pytest.mark.parametrize(
    "selector",
    [
        pytest.param(lambda i: {"matchLabels": {"app": f"s{i}"}}, id="labels"),
        pytest.param(
            lambda i: {"matchExpressions": [{"key": "app", "operator": "In", "values": [f"s{i}"]}]}, id="expressions"
        ),
    ],
)
def test_a_thousand_budgets_of_a_namespace_are_not_all_compared_with_each_pod(selector):
    labels = Counted(app="s7", role="x")
    assert covering(labels, [budget(f"b{i}", selector(i)) for i in range(1000)]) == {"default/b7"}
    assert labels.looks < 20
