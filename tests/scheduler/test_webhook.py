"""Admission: users' names become cardwise's own, or the pod is denied with what to write instead."""

from __future__ import annotations

import base64
import json
import time

import msgspec
import pytest

from cardwise.adapters import wire
from cardwise.adapters.claims import claim_of
from cardwise.adapters.kube_objects import Pod
from cardwise.errors import UserError
from cardwise.scheduler.webhook import admit, review
from tests.scheduler.fake_cluster import patch_applied

SLICE = {wire.GPU: "1", wire.USER_MEMORY: "4096", wire.USER_CORES: "20"}
OWN = {wire.OWN_COUNT: "1", wire.OWN_MEMORY: "4096", wire.OWN_CORES: "20"}
ALLOC_PATH = "metadata.annotations['cardwise.dev/alloc']"


def raw(limits=None, *, containers=None, inits=(), metadata=None, **spec):
    containers = [container("app", SLICE if limits is None else limits)] if containers is None else containers
    spec = {"containers": containers, "initContainers": list(inits), "schedulerName": "default-scheduler", **spec}
    return {"metadata": {"name": "p", "namespace": "ns", **(metadata or {})}, "spec": spec}


def container(name, limits=None, **more):
    resources = {} if limits is None else {"resources": {"limits": limits}}
    return {"name": name, "image": "none", **resources, **more}


def admitted(pod):
    return patch_applied(pod, admit(msgspec.convert(pod, Pod), pod))


def denied(pod):
    with pytest.raises(UserError) as caught:
        admit(msgspec.convert(pod, Pod), pod)
    return str(caught.value)


def resources(pod, i=0, kind="containers"):
    return pod["spec"][kind][i]["resources"]


def shapes(pod):
    return [ask.shape for ask in claim_of(msgspec.convert(pod, Pod)).asks]


# ---------------------------------------------------------------- what is written


FAMILIES = pytest.mark.parametrize(
    ("limits", "own"),
    [
        (SLICE, OWN),
        (
            {wire.GPU: "1", wire.HAMI_MEMORY: "3000", wire.HAMI_CORES: "30"},
            {"": "1", "-memory": "3000", "-cores": "30"},
        ),
        ({wire.GPU: "2", wire.HAMI_MEMORY_PCT: "50"}, {"": "2", "-memory-percentage": "100"}),
        ({wire.GPU: "1", wire.HAMI_CORES: "30"}, {"": "1", "-memory-percentage": "100", "-cores": "30"}),
        ({wire.GPU: "2", wire.USER_MEMORY: "1024"}, {"": "2", "-memory": "2048"}),
        ({wire.GPU: "2"}, {"": "2", "-memory-percentage": "200", "-cores": "200"}),
        ({wire.GPU_SHARED: "1", wire.USER_MEMORY: "4Gi"}, {"": "1", "-memory": "4096"}),
        (OWN, OWN),
        ({wire.OWN_COUNT: "3", wire.OWN_MEMORY: "1000"}, {"": "3", "-memory": "1002"}),
    ],
    ids=[
        "nvidia",
        "hami",
        "hami percent",
        "hami compute alone",
        "two cards (case C44)",
        "whole cards",
        "shared",
        "own",
        "own that do not divide",
    ],
)


@FAMILIES
def test_every_family_of_names_becomes_our_own_totals(limits, own):
    expected = {name if "/" in name else f"cardwise.dev/gpu{name}": amount for name, amount in own.items()}
    made = resources(admitted(raw(limits)))
    assert made["limits"] == made["requests"] == expected


@FAMILIES
def test_what_was_admitted_asks_for_the_same_in_our_names(limits, own):
    assert shapes(admitted(raw(limits))) == shapes(raw(limits))


@FAMILIES
def test_a_pod_that_was_admitted_is_admitted_again_without_a_change(limits, own):
    once = admitted(raw(limits))
    assert admitted(once) == once


def test_our_variable_is_known_again_with_what_the_api_server_adds_to_it():
    once = admitted(raw())
    once["spec"]["containers"][0]["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] = "v1"
    assert resources(admitted(once))["limits"] == OWN


def test_other_resources_stay():
    pod = raw(containers=[container("app", {"cpu": "2", **SLICE}, resources=None)])
    pod["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "2", **SLICE}, "requests": {"cpu": "1"}}
    made = resources(admitted(pod))
    assert (made["limits"], made["requests"]) == ({"cpu": "2", **OWN}, {"cpu": "1", **OWN})


@pytest.mark.parametrize("part", ["limits", "requests"])
def test_hamis_priority_is_taken_out_for_no_node_offers_it(part):
    pod = raw(containers=[container("app", resources={part: {**SLICE, "nvidia.com/priority": "1"}})])
    assert resources(admitted(pod)) == {"limits": OWN, "requests": OWN}


def test_the_container_sees_its_allocation_after_its_own_variables():
    pod = raw(containers=[container("app", SLICE, env=[{"name": "MINE", "value": "1"}])])
    assert admitted(pod)["spec"]["containers"][0]["env"] == [
        {"name": "MINE", "value": "1"},
        {"name": "CARDWISE_ALLOC", "valueFrom": {"fieldRef": {"fieldPath": ALLOC_PATH}}},
    ]


@pytest.mark.parametrize("name", ["", "default-scheduler", "cardwise"])
def test_a_pod_with_an_ask_is_scheduled_by_cardwise(name):
    assert admitted(raw(schedulerName=name))["spec"]["schedulerName"] == "cardwise"


def test_init_containers_and_all_containers_are_translated_each_in_its_place():
    """Case C4."""
    two = {wire.GPU: "2", wire.USER_MEMORY: "1024"}
    pod = raw(
        containers=[container("cpu", {"cpu": "1"}), container("a", SLICE), container("b", two)],
        inits=[container("init", two), container("side", SLICE, restartPolicy="Always")],
    )
    made = admitted(pod)
    assert resources(made, 0) == {"limits": {"cpu": "1"}}
    assert "env" not in made["spec"]["containers"][0]
    assert resources(made, 1)["limits"] == OWN
    assert resources(made, 2)["limits"] == {wire.OWN_COUNT: "2", wire.OWN_MEMORY: "2048"}
    assert resources(made, 0, "initContainers")["limits"] == {wire.OWN_COUNT: "2", wire.OWN_MEMORY: "2048"}
    assert resources(made, 1, "initContainers")["limits"] == OWN


def test_a_pod_without_an_ask_is_left_as_it_is():
    pod = raw({"cpu": "1"}, nodeName="n0", schedulerName="other")
    assert admit(msgspec.convert(pod, Pod), pod) == []


# ---------------------------------------------------------------- what is denied


@pytest.mark.parametrize(
    "env",
    [
        {"name": "CARDWISE_ALLOC", "value": "{}"},
        {"name": "CARDWISE_ALLOC"},
        {"name": "CARDWISE_ALLOC", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['mine']"}}},
        {"name": "CARDWISE_ALLOC", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ],
    ids=["a value", "empty", "another annotation", "a secret"],
)
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_an_allocation_that_the_user_made_up_is_denied(env, kind):
    pod = raw()
    pod["spec"][kind] = [*pod["spec"][kind], container("liar", env=[env])]
    assert denied(pod) == "container liar: env CARDWISE_ALLOC is set by cardwise; remove it"


def test_an_allocation_annotation_is_denied_even_without_an_ask():
    pod = raw({"cpu": "1"}, metadata={"annotations": {wire.ANNOTATION_ALLOC: ""}})
    assert denied(pod) == "annotation cardwise.dev/alloc: is written by the scheduler alone; remove it"


@pytest.mark.parametrize(
    "key",
    [
        wire.ANNOTATION_NOMINATED,
        wire.ANNOTATION_PREEMPTED_FOR,
        wire.ANNOTATION_PREEMPTED_BY,
        wire.ANNOTATION_MOVING,
        wire.ANNOTATION_STAYS,
    ],
)
def test_a_pod_with_a_mark_of_preemption_is_denied(key):
    pod = raw({"cpu": "1"}, metadata={"annotations": {key: ""}})
    assert denied(pod) == f"annotation {key}: is written by the controller alone; remove it"


def test_a_pod_that_chose_its_node_is_denied():
    assert denied(raw(nodeName="n0")) == (
        "spec.nodeName: a pod that asks for cards is bound by cardwise; use spec.nodeSelector instead"
    )


def test_a_pod_that_chose_another_scheduler_is_denied():
    assert denied(raw(schedulerName="volcano")) == (
        "spec.schedulerName: 'volcano' knows nothing of card slices; write cardwise, or leave it out"
    )


@pytest.mark.parametrize("name", [wire.USER_MEMORY, wire.HAMI_MEMORY])
def test_a_slice_of_nothing_is_denied_not_read_as_a_whole_card(name):
    """Case C22."""
    told = f"container app: {name}: '0' is no share of a card; write 4096 (MiB), 4096Mi, 4Gi or 4G"
    assert denied(raw({wire.GPU: "1", name: "0"})) == told


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ({wire.USER_MEMORY: "4096"}, "nvidia.com/gpu.memory asks"),
        ({wire.HAMI_MEMORY: "4096", wire.HAMI_CORES: "20"}, "nvidia.com/gpucores and nvidia.com/gpumem ask"),
        ({wire.HAMI_MEMORY_PCT: "50"}, "nvidia.com/gpumem-percentage asks"),
    ],
)
@pytest.mark.parametrize("none", ["0", 0])
def test_a_part_of_no_card_is_denied_not_read_as_no_ask(part, told, none):
    """Cases C22 and C23."""
    assert denied(raw({wire.GPU: none, **part})) == (
        f"container app: {told} for a part of a card, but 0 cards are asked; write nvidia.com/gpu: 1, or remove both"
    )


@pytest.mark.parametrize("limits", [{wire.GPU: "0"}, {wire.GPU: "0", wire.HAMI_CORES: "0"}])
def test_no_cards_and_no_part_of_one_are_no_ask(limits):
    pod = raw(limits)
    assert admit(msgspec.convert(pod, Pod), pod) == []


def test_all_faults_are_told_together_and_each_once():
    pod = raw(
        {wire.GPU: "1", "nvidia.com/gpu.memroy": "1", wire.USER_MEMORY: "4.5"},
        containers=None,
        metadata={"annotations": {wire.USER_MEMORY: "4096", "cardwise.dev/class": "fast"}},
    )
    pod["spec"]["containers"].append(container("ok", SLICE))
    pod["spec"]["nodeName"] = "n0"
    told = denied(pod).split("; ")
    for part in ("write nvidia.com/gpu.memory", "'fast' is none of", "is a resource", "'4.5'", "spec.nodeName"):
        assert sum(part in each for each in told) == 1


def test_cpu_that_cannot_be_is_denied_like_any_other_fault():
    assert denied(raw({**SLICE, "cpu": "1"}, overhead={"cpu": "-1"})).startswith("cpu: '-1' is not a quantity")


# ---------------------------------------------------------------- the message


def reviewed(pod, uid="u-1"):
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": uid, "object": pod}}
    return json.loads(review(json.dumps(body).encode()))


def test_a_review_is_answered_with_its_uid_and_a_patch():
    answer = reviewed(raw())
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response = answer["response"]
    assert (response["uid"], response["allowed"], response["patchType"]) == ("u-1", True, "JSONPatch")
    patch = json.loads(base64.b64decode(response["patch"]))
    assert patch_applied(raw(), patch) == admitted(raw())


def test_a_pod_without_an_ask_is_allowed_without_a_patch():
    assert reviewed(raw({"cpu": "1"}))["response"] == {"uid": "u-1", "allowed": True}


UNREAD = {
    "nvidia.com/use-gpuuuid": "GPU-1",
    "nvidia.com/nouse-gpuuuid": "GPU-1",
    "nvidia.com/numa-bind": "true",
    "nvidia.com/vgpu-mode": "mig",
    "hami.io/node-scheduler-policy": "binpack",
    "hami.io/gpu-scheduler-policy": "spread",
}
"""Wishes that HAMi reads."""


@pytest.mark.parametrize("key", UNREAD)
def test_a_wish_that_only_hami_reads_is_told_to_whoever_makes_the_pod(key):
    (told,) = reviewed(raw(metadata={"annotations": {key: UNREAD[key]}}))["response"]["warnings"]
    assert told.startswith(f"cardwise: annotation {key}: is HAMi's, and not read; ")


def test_hamis_priority_is_told_once():
    two = [container(name, {**SLICE, "nvidia.com/priority": "1"}) for name in "ab"]
    (told,) = reviewed(raw(containers=two))["response"]["warnings"]
    assert told == "cardwise: nvidia.com/priority: is HAMi's, and was taken out; write spec.priorityClassName"


def test_a_pod_without_an_ask_is_told_nothing_of_hami():
    pod = raw({"cpu": "1"}, metadata={"annotations": UNREAD})
    assert reviewed(pod)["response"] == {"uid": "u-1", "allowed": True}


def test_a_denial_says_who_denies_and_why():
    response = reviewed(raw(nodeName="n0"))["response"]
    assert (response["allowed"], response["status"]["code"]) == (False, 400)
    assert response["status"]["message"].startswith("cardwise: spec.nodeName: ")
    assert "patch" not in response


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        b'"\xff"',
        b"null",
        b'{"request": ' + b"[" * 100_000,
        b"[]",
        b"{}",
        b'{"request": null}',
        b'{"request": "x"}',
        b'{"request": []}',
        b'{"request": {}}',
        b'{"request": {"uid": 5}}',
        b'{"request": {"object": null}}',
        b'{"request": {"object": {}}}',
        b'{"request": {"object": {"metadata": {}, "spec": {"containers": {}}}}}',
        b'{"request": {"object": {"metadata": {}, "spec": {"containers": [null]}}}}',
        b'{"request": {"object": {"metadata": {"annotations": {"a": 1}}}}}',
    ],
)
def test_what_is_no_review_of_a_pod_is_answered_by_one_that_denies(body):
    answer = json.loads(review(body))
    assert (answer["kind"], answer["response"]["allowed"]) == ("AdmissionReview", False)
    assert answer["response"]["status"]["message"].startswith("cardwise: not an AdmissionReview of a pod: ")


def test_a_pod_that_cannot_be_read_is_denied_with_the_uid_of_its_review():
    assert reviewed({"metadata": {}, "spec": {"containers": "all"}})["response"]["uid"] == "u-1"


NULLS = [
    "metadata.labels",
    "metadata.annotations",
    "metadata.ownerReferences",
    "metadata.deletionTimestamp",
    "spec.initContainers",
    "spec.nodeSelector",
    "spec.overhead",
    "spec.resources",
    "spec.affinity",
    "spec.affinity.nodeAffinity",
    "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution",
    "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms",
    "spec.schedulerName",
    "spec.nodeName",
    "spec.priority",
    "spec.containers.0.env",
    "spec.containers.0.resources.requests",
    "status",
    "status.conditions",
]


def with_null(pod, path):
    """The pod with null there; what is above it is made."""
    place, (*above, last) = pod, path.split(".")
    for step in above:
        place = place[int(step)] if isinstance(place, list) else place.setdefault(step, {})
    place[last] = None
    return pod


@pytest.mark.parametrize("path", NULLS)
def test_null_is_read_as_absent(path):
    """The API server writes it for what is not there."""
    response = reviewed(with_null(raw(), path))["response"]
    assert response["allowed"]
    patch = json.loads(base64.b64decode(response["patch"]))
    assert resources(patch_applied(with_null(raw(), path), patch))["limits"] == OWN


@pytest.mark.parametrize("path", ["spec", "spec.containers", "spec.containers.0.resources.limits"])
def test_a_pod_whose_asks_are_null_has_none(path):
    assert reviewed(with_null(raw(), path))["response"] == {"uid": "u-1", "allowed": True}


@pytest.mark.parametrize("levels", [100, 700, 990, 10_000])
def test_what_lies_too_deep_to_be_read_hides_nothing_else(levels):
    body = json.dumps({"request": {"uid": "u-1", "object": raw(metadata={"managedFields": "DEEP"})}})
    answer = json.loads(review(body.replace('"DEEP"', "[" * levels + "]" * levels).encode()))
    assert answer["response"]["allowed"]


# ---------------------------------------------------------------- who would keep everybody waiting


def many(limits=None, annotations=None):
    return raw({**SLICE, **(limits or {})}, metadata={"annotations": annotations or {}})


@pytest.mark.parametrize(
    "pod",
    [
        many({f"nvidia.com/gpu-{i:06d}": "1" for i in range(100_000)}),
        many(annotations={f"cardwise.dev/gpumodel{i}": "" for i in range(100_000)}),
        many(annotations={wire.ANNOTATION_ISOLATION: ",".join(f"mode{i}" for i in range(40_000))}),
        many(annotations={wire.ANNOTATION_GPU_MODEL: "NVIDIA-" * 400_000}),
        many(annotations=dict.fromkeys(wire.ANNOTATIONS_HAMI_TYPES, ",".join(map(str, range(40_000))))),
        many({f"nvidia.com/{'g' * 3_000_000}": "1"}),
        raw(containers=[container(f"c{i}", {**SLICE, wire.USER_CORES: "0"}) for i in range(10_000)]),
        raw(containers=[container("c" * 3_000_000, SLICE, env=[{"name": wire.ENV_ALLOC}])]),
    ],
    ids=["resources", "annotations", "modes", "vendor", "models", "a long name", "containers", "a long container"],
)
def test_a_pod_full_of_faults_is_denied_at_once_and_in_few_words(pod):
    body = json.dumps({"request": {"uid": "u", "object": pod}}).encode()
    start_s = time.process_time()
    message = json.loads(review(body))["response"]["status"]["message"]
    assert time.process_time() - start_s < 3.0
    assert len(message) < 5000


def test_so_many_faults_are_told_and_the_others_counted():
    told = denied(many({f"nvidia.com/gpu-{i:06d}": "1" for i in range(100)})).split("; container app: ")
    assert len(told) < 21
    assert told[-1].endswith(f"; and {100 - len(told)} more")


# ---------------------------------------------------------------- what no container has


@pytest.mark.parametrize("env", ["x", ["x"], [{"name": 1}], [{"name": "A", "valueFrom": "x"}], {"A": "1"}])
def test_variables_that_are_none_are_denied(env):
    assert denied(raw(containers=[container("app", SLICE, env=env)])).startswith("container app: env: Expected ")
