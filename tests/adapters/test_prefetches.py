"""PodTemplates that load weights: what is wished, and the pod that is made of one."""

from __future__ import annotations

import msgspec
import pytest

from cardwise.adapters import wire
from cardwise.adapters.prefetches import PodTemplate, pod_for, pod_name, wish_of
from cardwise.core.fleet.prefetch import Load, Wish

NOTES = {
    wire.ANNOTATION_MODEL: "org/llama",
    wire.ANNOTATION_PREFETCH_FOR: "web",
    wire.ANNOTATION_PREFETCH_NODES: "3",
    wire.ANNOTATION_PREFETCH_SIZE: "16Gi",
}
LOAD = Load("ns/load-llama", "n0", 900)
WISH = Wish("ns/load-llama", "org/llama", 3, 16384)


def template(notes=NOTES, **spec):
    containers = [{"name": "load", "image": "loader"}]
    raw = {
        "metadata": {"name": "load-llama", "namespace": "ns", "uid": "t1", "annotations": notes},
        "template": {"metadata": {"labels": {"app": "l"}}, "spec": {"containers": containers, **spec}},
    }
    return msgspec.convert(raw, PodTemplate)


def without(key):
    return {name: text for name, text in NOTES.items() if name != key}


def test_a_wish_is_read_from_the_annotations():
    assert wish_of(template()) == WISH
    assert template().service == "ns/web"


def test_two_nodes_are_wished_and_no_size_is_known_where_nothing_is_written():
    wish = wish_of(template({wire.ANNOTATION_MODEL: "m", wire.ANNOTATION_PREFETCH_FOR: "web"}))
    assert (wish.nodes, wish.size_mib) == (2, 0)


@pytest.mark.parametrize(
    ("notes", "words"),
    [
        (without(wire.ANNOTATION_MODEL), "no annotation cardwise.dev/model"),
        (without(wire.ANNOTATION_PREFETCH_FOR), "no annotation cardwise.dev/prefetch-for"),
        ({**NOTES, wire.ANNOTATION_PREFETCH_NODES: "0"}, "prefetch-nodes is 0; write 1 to 64"),
        ({**NOTES, wire.ANNOTATION_PREFETCH_NODES: "1.5"}, "prefetch-nodes: .*not a whole number"),
        ({**NOTES, wire.ANNOTATION_PREFETCH_SIZE: "big"}, "prefetch-size: "),
    ],
)
def test_what_is_wrong_is_said_by_annotation(notes, words):
    with pytest.raises(ValueError, match=words):
        wish_of(template(notes))


def test_the_pod_is_for_one_node_ends_in_its_time_and_asks_for_the_disk():
    pod = pod_for(template(), WISH, LOAD)
    spec = pod["spec"]
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["n0"]}]
    assert (spec["restartPolicy"], spec["activeDeadlineSeconds"]) == ("Never", 900)
    assert spec["containers"][0]["resources"]["requests"] == {"ephemeral-storage": "16384Mi"}
    assert pod["metadata"]["ownerReferences"][0]["uid"] == "t1"
    assert pod["metadata"]["labels"] == {"app": "l", wire.LABEL_PREFETCH: "load-llama"}


def test_what_the_user_wrote_of_affinity_and_time_stays_in_force():
    wanted = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [wanted]}}
    spec = pod_for(template(affinity={"nodeAffinity": rule}, activeDeadlineSeconds=60), WISH, LOAD)["spec"]
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == wanted["matchExpressions"]
    assert "matchFields" in term
    assert spec["activeDeadlineSeconds"] == 60


def test_making_a_pod_leaves_the_template_as_it_was():
    made = template()
    pod_for(made, WISH, LOAD)
    assert made == template()


def test_a_name_is_the_same_each_time_and_another_for_another_node():
    name = pod_name("ns/" + "x" * 200, "n0")
    assert (len(name), name) == (63, pod_name("ns/" + "x" * 200, "n0"))
    assert name != pod_name("ns/" + "x" * 200, "n1")
