"""A pod's own words as a claim: nothing is overlooked, and all that is wrong is told at once."""

from __future__ import annotations

import msgspec
import pytest

from cardwise.adapters import wire
from cardwise.adapters.claims import claim_of, read_claim
from cardwise.adapters.kube_objects import Pod
from cardwise.core.claim import LatencyClass, Stage
from cardwise.core.request import Isolation, WorkloadClass
from cardwise.errors import UserError
from tests.adapters.kubectl_builders import container, deployment_pod, gpu_pod, sidecar
from tests.adapters.kubectl_builders import pod as raw_pod

SLICE = {"nvidia.com/gpu": "1", "nvidia.com/gpu.memory": "4096", "nvidia.com/gpu.cuda-cores": "20"}


def typed(raw):
    return msgspec.convert(raw, Pod)


def claim(gpu=None, **more):
    return claim_of(typed(gpu_pod(SLICE if gpu is None else gpu, **more)))


def annotated(key, text):
    return claim(annotations={key: text})


def faults(gpu=None, **more):
    return read_claim(typed(gpu_pod(SLICE if gpu is None else gpu, **more)))[1]


def shape(gpu):
    (ask,) = claim(gpu).asks
    return ask.shape


# ---------------------------------------------------------------- annotations


@pytest.mark.parametrize(
    ("key", "text", "field", "value"),
    [
        ("class", "latency-sensitive", "latency", LatencyClass.SENSITIVE),
        ("class", "best-effort", "latency", LatencyClass.BEST_EFFORT),
        ("workload", "training", "workload", WorkloadClass.TRAINING),
        ("workload", "inference", "workload", WorkloadClass.INFERENCE),
        ("exclusive", "true", "exclusive", True),
        ("exclusive", "false", "exclusive", False),
        ("mix", "true", "mixes", True),
        ("mix", "false", "mixes", False),
        ("model", "llama-3-8b", "model_key", "llama-3-8b"),
    ],
)
def test_an_annotation_says_who_the_pod_is(key, text, field, value):
    assert getattr(annotated(f"cardwise.dev/{key}", text), field) == value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("latency", LatencyClass.SENSITIVE),
        ("workload", WorkloadClass.INFERENCE),
        ("exclusive", False),
        ("mixes", False),
        ("model_key", ""),
    ],
)
def test_a_pod_without_annotations_is_a_latency_sensitive_inference_that_shares_its_card(field, value):
    assert getattr(claim(), field) == value


@pytest.mark.parametrize(
    ("key", "text", "told"),
    [
        ("class", "fast", "'fast' is none of latency-sensitive, best-effort"),
        ("workload", "Training", "'Training' is none of inference, training"),
        ("exclusive", "yes", "'yes' is none of true, false"),
        ("mix", "", "'' is none of true, false"),
        ("isolation", "mps,virtual", "'virtual' is none of whole, time-slicing, mps, mig"),
        ("limits", "firm", "'firm' is none of hard, soft"),
        ("processes", "0", "'0' is no number of processes; write a whole number from 1 to 64"),
        ("processes", "65", "'65' is no number of processes; write a whole number from 1 to 64"),
        ("processes", "1.5", "'1.5' is no number of processes; write a whole number from 1 to 64"),
        ("processes", " 2", "' 2' is no number of processes; write a whole number from 1 to 64"),
        ("processes", "02", "'02' is no number of processes; write a whole number from 1 to 64"),
        ("processes", "²", "'²' is no number of processes; write a whole number from 1 to 64"),
        ("processes", "", "'' is no number of processes; write a whole number from 1 to 64"),
        ("isolation", "mps," * 1100, "is 4,400 characters long; write a list of at most 4,096"),
        ("gpu-model", "A10," * 1100, "is 4,400 characters long; write a list of at most 4,096"),
    ],
)
def test_an_annotation_that_cannot_be_read_is_told_with_what_can_be_written(key, text, told):
    with pytest.raises(UserError, match=f"^annotation cardwise.dev/{key}: {told}$"):
        annotated(f"cardwise.dev/{key}", text)


TRAINING = {"cardwise.dev/workload": "training"}
MIXED = {**TRAINING, "cardwise.dev/mix": "true"}


@pytest.mark.parametrize(
    ("amounts", "told"),
    [
        ({"nvidia.com/gpu.memory": "4096"}, "no limit of compute"),
        ({"nvidia.com/gpu.memory": "4096", "nvidia.com/gpu.cuda-cores": "31"}, "31 % of a card's compute"),
        ({"nvidia.com/gpu.cuda-cores": "90"}, "90 % of a card's compute"),
        ({"cardwise.dev/gpu": "2", "cardwise.dev/gpu-memory": "8192", "cardwise.dev/gpu-cores": "62"}, "31 % of"),
    ],
    ids=["not said", "a little more", "memory not said", "own totals"],
)
def test_training_beside_inference_has_a_low_cap_of_compute(amounts, told):
    """SPEC B8."""
    (fault,) = faults(amounts, annotations=MIXED)
    assert fault.startswith(f"container main: asks for {told}")
    assert fault.endswith(
        "training that shares cards with inference gets 30 % at most: write nvidia.com/gpu.cuda-cores: 30 or less, "
        "or leave out cardwise.dev/mix"
    )


@pytest.mark.parametrize(
    ("amounts", "annotations"),
    [
        ({"nvidia.com/gpu.memory": "4096", "nvidia.com/gpu.cuda-cores": "30"}, MIXED),
        ({"nvidia.com/gpu.memory": "4096", "nvidia.com/gpu.cuda-cores": "90"}, TRAINING),
        ({"nvidia.com/gpu.memory": "4096", "nvidia.com/gpu.cuda-cores": "90"}, {"cardwise.dev/mix": "true"}),
        ({"nvidia.com/gpu": "1"}, MIXED),
    ],
    ids=["at the cap", "among its like", "inference", "a whole card, which nobody shares"],
)
def test_others_have_no_such_cap(amounts, annotations):
    assert faults(amounts, annotations=annotations) == []


@pytest.mark.parametrize("text", ["1", "2", "64"])
def test_a_number_of_processes_is_taken(text):
    assert faults(annotations={"cardwise.dev/processes": text}) == []


@pytest.mark.parametrize(
    ("text", "modes"),
    [("", set()), ("mps", {Isolation.MPS}), (" mig , whole ,", {Isolation.MIG, Isolation.WHOLE})],
    ids=["none", "one", "two with blanks"],
)
def test_isolation_modes_are_a_list_with_commas(text, modes):
    (ask,) = annotated("cardwise.dev/isolation", text).asks
    assert ask.shape.isolation == modes


@pytest.mark.parametrize(
    ("key", "text", "models"),
    [
        ("cardwise.dev/gpu-model", "a10", {"A10"}),
        ("cardwise.dev/gpu-model", "H20, NVIDIA H200", {"H20", "H200"}),
        ("cardwise.dev/gpu-model", "tesla-t4", {"T4"}),
        ("cardwise.dev/gpu-model", "NVIDIA Tesla T4", {"T4"}),
        ("cardwise.dev/gpu-model", "Tesla-T4-SHARED", {"T4"}),
        ("cardwise.dev/gpu-model", " , ", set()),
        ("nvidia.com/use-gputype", "A100,V100", {"A100", "V100"}),
    ],
)
def test_card_models_are_exact_tokens_however_they_are_spelt(key, text, models):
    """Case C24."""
    (ask,) = annotated(key, text).asks
    assert ask.shape.models == models


@pytest.mark.parametrize(
    ("text", "models"), [("A100", {"A100"}), ("tesla-t4, NVIDIA A10", {"T4", "A10"}), (" , ", set())]
)
def test_hamis_annotation_names_models_that_will_not_do(text, models):
    (ask,) = annotated("nvidia.com/nouse-gputype", text).asks
    assert (ask.shape.unwanted_models, ask.shape.models) == (models, set())


def test_models_that_will_and_will_not_do_must_leave_one():
    notes = {"nvidia.com/use-gputype": "A100,A10", "nvidia.com/nouse-gputype": "A10"}
    assert faults(annotations=notes) == []
    assert faults(annotations={**notes, "nvidia.com/nouse-gputype": "A10,A100"}) == [
        "annotation nvidia.com/nouse-gputype: leaves none of A10, A100; name other models"
    ]


def test_all_faults_of_a_pod_are_told_together():
    with pytest.raises(UserError) as caught:
        claim(
            {"nvidia.com/gpu": "1", "nvidia.com/gpu.memory": "4.5", "nvidia.com/gpu.memroy": "4096"},
            annotations={"cardwise.dev/class": "fast", "cardwise.dev/mix": "maybe", "nvidia.com/gpumem": "1000"},
        )
    told = str(caught.value)
    for part in ("class: 'fast'", "mix: 'maybe'", "gpu.memory: '4.5'", "called nvidia.com/gpu.memroy", "gpumem: is a"):
        assert part in told


def test_a_pod_that_runs_is_read_as_far_as_it_can_be():
    read, told = read_claim(typed(gpu_pod(SLICE, annotations={"cardwise.dev/class": "fast"})))
    assert [ask.shape.memory_mib for ask in read.asks] == [4096]
    assert len(told) == 1


# ---------------------------------------------------------------- what looks like ours and is not


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("nvidia.com/gpu.memroy", "nvidia.com/gpu.memory"),
        ("nvidia.com/gpu-mem", "nvidia.com/gpumem"),
        ("nvidia.com/gpucore", "nvidia.com/gpucores"),
        ("cardwise.dev/gpu-memroy", "cardwise.dev/gpu-memory"),
    ],
)
def test_a_misspelt_resource_is_told_what_was_meant(name, meant):
    """Case C23."""
    assert faults({"nvidia.com/gpu": "1", name: "1"}) == [
        f"container main: no resource is called {name}; write {meant}"
    ]


def test_a_resource_that_is_like_none_of_ours_is_told_all_there_are():
    (told,) = faults({"nvidia.com/something-else": "1"})
    assert told.startswith(
        "container main: no resource is called nvidia.com/something-else; known are cardwise.dev/gpu, "
    )


@pytest.mark.parametrize("name", ["nvidia.com/mig-1g.5gb", "nvidia.com/priority", "example.com/fpga"])
def test_resources_of_others_are_left_alone(name):
    assert faults({name: "1"}) == []


def test_a_resource_among_the_annotations_is_told_where_it_belongs():
    """Case C23."""
    assert faults(annotations={"nvidia.com/gpu.memory": "4096"}) == [
        "annotation nvidia.com/gpu.memory: is a resource; write it under a container's resources.limits"
    ]


def test_a_misspelt_annotation_is_told_what_was_meant():
    assert faults(annotations={"cardwise.dev/clas": "best-effort"}) == [
        "annotation cardwise.dev/clas: is none of cardwise's; write cardwise.dev/class"
    ]


def test_the_allocation_is_no_misspelt_annotation():
    assert faults(annotations={"cardwise.dev/alloc": "{}"}) == []


# ---------------------------------------------------------------- amounts


@pytest.mark.parametrize(
    ("gpu", "cards", "mib", "pct", "cores"),
    [
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}, 1, 3000, 0, 30),
        ({"nvidia.com/gpu": "2", "nvidia.com/gpumem-percentage": "50"}, 2, 0, 50, 0),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpucores": "30"}, 1, 0, 100, 30),
        ({"nvidia.com/gpumem": "3000"}, 1, 3000, 0, 0),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpu.memory": "5k"}, 1, 5000, 0, 0),
        ({"cardwise.dev/gpu": "2", "cardwise.dev/gpu-memory": "2048", "cardwise.dev/gpu-cores": "40"}, 2, 1024, 0, 20),
        ({"cardwise.dev/gpu": "3", "cardwise.dev/gpu-memory": "1000"}, 3, 334, 0, 0),
        ({"cardwise.dev/gpu": "2", "cardwise.dev/gpu-memory-percentage": "50"}, 2, 0, 25, 0),
        ({"cardwise.dev/gpu": "1", "cardwise.dev/gpu-memory": "1M"}, 1, 1_000_000, 0, 0),
        ({"nvidia.com/gpu.shared": "1", "nvidia.com/gpu.memory": "4Gi"}, 1, 4096, 0, 0),
    ],
    ids=[
        "hami",
        "hami percent",
        "hami compute alone is all memory",
        "memory alone is one card",
        "as the API server shortens it",
        "own totals (case C44)",
        "own totals round up",
        "own percent totals",
        "1M of MiB",
        "shared cards",
    ],
)
def test_all_families_of_names_say_the_same_thing(gpu, cards, mib, pct, cores):
    read = shape(gpu)
    assert (read.cards, read.memory_mib, read.memory_milli, read.compute_milli) == (cards, mib, 10 * pct, 10 * cores)
    assert not read.whole


@pytest.mark.parametrize(
    "gpu",
    [
        {"nvidia.com/gpu": "2"},
        {"nvidia.com/gpu": "2", "nvidia.com/gpucores": "100"},
        {"cardwise.dev/gpu": "2", "cardwise.dev/gpu-cores": "200"},
    ],
    ids=["nvidia", "all compute", "own"],
)
def test_cards_without_an_amount_or_with_all_of_it_are_whole(gpu):
    assert (shape(gpu).cards, shape(gpu).whole) == (2, True)


@pytest.mark.parametrize(
    ("gpu", "told"),
    [
        ({"nvidia.com/gpu": "65"}, "nvidia.com/gpu: 65 cards are more than any node has"),
        ({"nvidia.com/gpu": "500m"}, "nvidia.com/gpu: '500m' is not a whole number; write 0, 1, 2, ..."),
        (
            {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "101"},
            "nvidia.com/gpucores: 101 % is more than one card has; write a whole number from 1 to 100",
        ),
        (
            {"cardwise.dev/gpu": "2", "cardwise.dev/gpu-cores": "201"},
            "cardwise.dev/gpu-cores: 201 % is more than 2 cards have; write a whole number from 1 to 200",
        ),
        (
            {"cardwise.dev/gpu": "1", "cardwise.dev/gpu-memory": "2M"},
            "cardwise.dev/gpu-memory: 2000000 MiB are more than 1 cards have; write plain MiB",
        ),
    ],
)
def test_an_amount_that_no_card_has_is_told_with_its_resource(gpu, told):
    assert faults(gpu) == [f"container main: {told}"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("120", "120 % is more than one card has"),
        ("12.5", "'12.5' is no whole number"),
        ("50%", "'50%' is not a quantity"),
        ("-1", "'-1' is not a quantity"),
        ("0", "'0' is no share of a card"),
    ],
)
@pytest.mark.parametrize("name", ["nvidia.com/gpu.cuda-cores", "nvidia.com/gpumem-percentage"])
def test_a_share_in_percent_is_told_what_to_write(name, text, told):
    wrong = faults({"nvidia.com/gpu": "1", name: text})
    assert wrong == [f"container main: {name}: {told}; write a whole number from 1 to 100"]


ZERO = "is no share of a card; write"


@pytest.mark.parametrize(
    ("gpu", "told"),
    [
        ({"nvidia.com/gpu.memory": "0"}, f"nvidia.com/gpu.memory: '0' {ZERO} 4096 (MiB), 4096Mi, 4Gi or 4G"),
        ({"nvidia.com/gpu.memory": "0Mi"}, f"nvidia.com/gpu.memory: '0Mi' {ZERO} 4096 (MiB), 4096Mi, 4Gi or 4G"),
        ({"nvidia.com/gpumem": "0"}, f"nvidia.com/gpumem: '0' {ZERO} 4096 (MiB), 4096Mi, 4Gi or 4G"),
        ({"cardwise.dev/gpu-memory": "0"}, f"cardwise.dev/gpu-memory: '0' {ZERO} MiB of all cards together"),
        (
            {"cardwise.dev/gpu": "2", "cardwise.dev/gpu-cores": "0"},
            f"gpu-cores: '0' {ZERO} a whole number from 1 to 200",
        ),
        (
            {"nvidia.com/gpu.cuda-cores": "0", "nvidia.com/gpu.memory": "1"},
            f"gpu.cuda-cores: '0' {ZERO} a whole number",
        ),
    ],
)
def test_nothing_of_a_card_is_never_read_as_all_of_it(gpu, told):
    """Case C22."""
    (wrong,) = faults(gpu)
    assert told in wrong


@pytest.mark.parametrize("memory", [{}, {"nvidia.com/gpumem": "3000"}], ids=["alone", "beside memory"])
def test_hamis_compute_of_0_is_no_limit(memory):
    assert faults({"nvidia.com/gpu": "1", "nvidia.com/gpucores": "0", **memory}) == []


@pytest.mark.parametrize(
    ("gpu", "told"),
    [
        (
            {"nvidia.com/gpu.memory": "4096", "nvidia.com/gpumem": "3000"},
            "gpu.memory and nvidia.com/gpumem both say memory",
        ),
        ({"nvidia.com/gpumem": "4096", "nvidia.com/gpumem-percentage": "50"}, "gpumem-percentage both say memory"),
        ({"nvidia.com/gpu.memory": "4096", "cardwise.dev/gpu-memory": "1"}, "cardwise.dev/gpu-memory both say memory"),
        (
            {"nvidia.com/gpu.memory": "1", "nvidia.com/gpumem": "2", "cardwise.dev/gpu-memory": "3"},
            "nvidia.com/gpu.memory and nvidia.com/gpumem and cardwise.dev/gpu-memory all say memory",
        ),
        (
            {"nvidia.com/gpu.cuda-cores": "20", "nvidia.com/gpucores": "30"},
            "cores and nvidia.com/gpucores both say cores",
        ),
        (
            {"nvidia.com/gpu": "1", "nvidia.com/gpu.shared": "2"},
            "nvidia.com/gpu and nvidia.com/gpu.shared both say cards",
        ),
    ],
)
def test_two_asks_for_one_thing_that_differ_are_never_guessed(gpu, told):
    (wrong,) = faults(gpu)
    assert wrong.startswith("container main: ")
    assert wrong.endswith(f"{told}; write one")


@pytest.mark.parametrize(
    "gpu",
    [
        {"nvidia.com/gpu.memory": "4096", "nvidia.com/gpumem": "4Gi"},
        {
            "cardwise.dev/gpu": "2",
            "nvidia.com/gpu": "2",
            "cardwise.dev/gpu-memory": "2048",
            "nvidia.com/gpumem": "1024",
        },
        {"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "2"},
        {"nvidia.com/gpu": "1", "nvidia.com/gpu.cuda-cores": "20", "nvidia.com/gpucores": "0"},
    ],
)
def test_two_asks_for_one_thing_that_say_the_same_are_one(gpu):
    assert faults(gpu) == []


def test_requests_and_limits_that_differ_are_never_guessed():
    raw = gpu_pod({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"})
    raw["spec"]["containers"][0]["resources"]["requests"] = {"nvidia.com/gpumem": "1000"}
    assert read_claim(typed(raw))[1] == [
        "container main: nvidia.com/gpumem: requests say '1000' and limits '3000'; write one amount"
    ]


def test_a_container_may_be_called_as_it_pleases():
    raw = gpu_pod({"nvidia.com/gpumem": "0"})
    raw["spec"]["containers"][0]["name"] = "{0}{x}%s"
    assert read_claim(typed(raw))[1][0].startswith("container {0}{x}%s: nvidia.com/gpumem: '0'")


@pytest.mark.parametrize("text", ["-1", "NaN", "4.5", "16Ei"])
def test_card_memory_is_never_guessed(text):
    """Case C22."""
    (told,) = faults({"nvidia.com/gpu": "1", "nvidia.com/gpu.memory": text})
    assert told.startswith(f"container main: nvidia.com/gpu.memory: {text!r} is ")


# ---------------------------------------------------------------- containers in time


def test_containers_keep_their_order_and_their_stage():
    raw = raw_pod(
        "p",
        container(gpu=SLICE, name="app"),
        container(name="no-ask"),
        init=[sidecar(gpu=SLICE, name="side"), container(gpu=SLICE, name="init")],
    )
    asks = claim_of(typed(raw)).asks
    assert [(ask.container, ask.stage) for ask in asks] == [
        ("side", Stage.SIDECAR),
        ("init", Stage.INIT),
        ("app", Stage.APP),
    ]


@pytest.mark.parametrize(
    ("init", "apps", "cpu_milli", "mib"),
    [
        ([], [container("1", "1Gi"), container("500m", "512Mi")], 1500, 1536),
        ([container("4", "1Gi")], [container("1", "2Gi")], 4000, 2048),
        ([container("4"), container("3")], [container("1")], 4000, 0),
        ([sidecar("1"), container("4")], [container("2")], 5000, 0),
        ([container("4"), sidecar("1")], [container("2")], 4000, 0),
        ([sidecar("3"), container("1")], [container("2")], 5000, 0),
        ([], [container("1m", "1")], 1, 1),
    ],
    ids=[
        "apps add up",
        "init alone",
        "inits one after the other",
        "sidecar beside a later init",
        "sidecar after the init",
        "sidecar beside the app",
        "rounds up",
    ],
)
def test_cpu_and_memory_are_what_kube_scheduler_counts(init, apps, cpu_milli, mib):
    read = claim_of(typed(raw_pod("p", *apps, init=init)))
    assert (read.cpu_milli, read.host_memory_mib) == (cpu_milli, mib)


def test_overhead_is_added_and_pod_level_resources_stand_in_place_of_the_sum():
    raw = raw_pod("p", container("1"), overhead={"cpu": "250m"}, resources={"requests": {"cpu": "3"}})
    assert claim_of(typed(raw)).cpu_milli == 3250


@pytest.mark.parametrize(
    ("cpu", "told"),
    [
        ("-1", "cpu: '-1' is not a quantity"),
        ("9E", "cpu: 9000000000000000000000 milli are more than any node has"),
    ],
    ids=["negative", "more than can be added up"],
)
def test_cpu_that_no_node_has_is_a_fault_like_any_other(cpu, told):
    read, wrong = read_claim(typed(raw_pod("p", container(cpu, gpu=SLICE))))
    assert len(read.asks) == 1
    assert [each[: len(told)] for each in wrong] == [told]


# ---------------------------------------------------------------- identity


def test_a_pod_is_named_with_its_namespace_which_is_its_tenant():
    read = claim(name="p", namespace="team-b")
    assert (read.name, read.tenant) == ("team-b/p", "team-b")


def test_a_pod_without_a_uid_goes_by_its_name():
    assert claim(name="p", namespace="team-b").uid == "team-b/p"


def test_replicas_of_a_deployment_are_one_service():
    assert claim_of(typed(deployment_pod(gpu_pod(SLICE)))).service == "team-a/resnet"


@pytest.mark.parametrize(
    ("annotations", "preemptible"),
    [
        ({}, False),
        ({wire.ANNOTATION_CLASS: "best-effort"}, True),
        ({wire.ANNOTATION_CLASS: "best-effort", wire.ANNOTATION_PREEMPTIBLE: "false"}, False),
        ({wire.ANNOTATION_CLASS: "best-effort", wire.ANNOTATION_PREEMPTIBLE: "true"}, True),
        ({wire.ANNOTATION_PREEMPTIBLE: "false"}, False),
    ],
)
def test_best_effort_pods_may_have_to_go_unless_they_say_no(annotations, preemptible):
    assert claim_of(a_pod(annotations)).preemptible is preemptible


def test_a_latency_sensitive_pod_cannot_say_that_it_may_go():
    with pytest.raises(UserError, match="only best-effort pods are preempted; write cardwise"):
        claim_of(a_pod({wire.ANNOTATION_PREEMPTIBLE: "true"}))


def test_priority_is_that_of_the_pods_class():
    assert claim_of(a_pod({}, priority=7)).priority == 7
    assert claim_of(a_pod({})).priority == 0


def a_pod(annotations, **spec):
    told = {"metadata": {"name": "p", "annotations": annotations}, "spec": {"containers": [], **spec}}
    return msgspec.convert(told, Pod)


# ---------------------------------------------------------------- lent memory

LENT = {wire.ANNOTATION_OVERSUBSCRIBE: "true"}
BEST_EFFORT = {wire.ANNOTATION_CLASS: "best-effort"}


def test_a_best_effort_pod_may_say_that_lent_memory_will_do():
    (ask,) = claim(annotations=LENT | BEST_EFFORT).asks
    assert ask.shape.oversubscribe


def test_any_other_pod_is_denied_with_what_to_write():
    (told,) = faults(annotations=LENT)
    assert told == (
        "annotation cardwise.dev/oversubscribe: only best-effort pods are lent memory; write cardwise.dev/class: "
        "best-effort, or leave it out"
    )


def test_one_that_runs_all_the_same_is_lent_nothing():
    found, _ = read_claim(typed(gpu_pod(SLICE, annotations=LENT)))
    assert not found.asks[0].shape.oversubscribe


def test_whole_cards_and_init_containers_are_lent_nothing():
    (ask,) = claim({"nvidia.com/gpu": "1"}, annotations=LENT | BEST_EFFORT).asks
    assert not ask.shape.oversubscribe
    raw = gpu_pod(SLICE, annotations=LENT | BEST_EFFORT)
    raw["spec"]["initContainers"] = [container(gpu=SLICE, name="init")]
    shapes = {ask.stage: ask.shape.oversubscribe for ask in claim_of(typed(raw)).asks}
    assert shapes == {Stage.INIT: False, Stage.APP: True}
