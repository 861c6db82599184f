"""A live cluster's dump: what is read, what is noted, and the one sentence for every wrong file."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cardwise.adapters.dump import SizeRule, parse_card_memory, parse_size_rule, read_dump
from cardwise.core.cluster import Cluster
from cardwise.core.history import History
from cardwise.core.inventory import NodeSpec
from cardwise.core.request import Isolation, Shape
from cardwise.errors import InputError, UserError
from tests.adapters.kubectl_builders import (
    T4_LABELS,
    Item,
    container,
    cpu_node,
    deployment_pod,
    dump_text,
    gpu_pod,
    hami_cards,
    listing,
    node,
    pod,
    sidecar,
    whole,
)

MEMORY_FORMS = "write 4096 (MiB), 4096Mi, 4Gi or 4G, more than 0 and at most 1Ti"
QUANTITY_FORMS = "write a Kubernetes quantity of 0 or more such as 4, 500m, 8G, 8Gi or 1e3"
RULE_FORM = "write NAMESPACE/NAME=MEMORY:PERCENT, such as team-a/resnet-*=4096:20"
WANT = "the output of `kubectl get nodes,pods -A -o json`"


@pytest.fixture
def read(tmp_path):
    """Reads objects as kubectl would have written them to dump.json."""

    def _read(*items, **options):
        path = tmp_path / "dump.json"
        path.write_text(dump_text(*items))
        return read_dump(path, **options)

    return _read


@pytest.fixture
def refused(tmp_path):
    """The message about a file with this content, without the folder."""

    def _refused(content, **options):
        path = tmp_path / "dump.json"
        if content is not None:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(InputError) as caught:
            read_dump(path, **options)
        return str(caught.value).replace(f"{tmp_path}/", "")

    return _refused


def only_node(history: History) -> NodeSpec:
    (spec,) = history.nodes
    return spec


def only_shape(history: History) -> Shape:
    (record,) = history.pods
    return record.request.shape


# ---------------------------------------------------------------- nodes


def test_a_node_is_read_with_its_cards_memory_and_failure_domain(read):
    spec = only_node(read(node(labels=T4_LABELS | {"topology.kubernetes.io/zone": "eu-1a"}), pod()))
    assert (spec.cpu_milli, spec.memory_mib, spec.domain, spec.schedulable) == (64000, 257672, "eu-1a", True)
    assert [(card.uuid, card.model, card.memory_mib) for card in spec.cards] == [
        (f"gpu-1-{i}", "T4", 15360) for i in range(4)
    ]


def test_a_dump_builds_a_cluster(read):
    history = read(node(), node("gpu-2"), cpu_node(), pod())
    assert Cluster.build(history.nodes).card_exists.sum() == 8


@pytest.mark.parametrize(
    ("product", "model"),
    [
        pytest.param("Tesla-T4", "T4", id="tesla"),
        pytest.param("NVIDIA-A100-SXM4-80GB", "A100-SXM4-80GB", id="vendor"),
        pytest.param("NVIDIA-A100-SXM4-80GB-SHARED", "A100-SXM4-80GB", id="shared"),
        pytest.param("tesla-t4", "T4", id="lower case"),
        pytest.param("NVIDIA-A10", "A10", id="A10 is not A100"),
    ],
)
def test_a_card_model_is_one_exact_token_however_it_is_spelt(read, product, model):
    spec = only_node(read(node(labels=T4_LABELS | {"nvidia.com/gpu.product": product}), pod()))
    assert spec.cards[0].model == model


@pytest.mark.parametrize(
    ("gpus", "labels", "cards"),
    [
        pytest.param("4", {}, 4, id="plain"),
        pytest.param("16", {"nvidia.com/gpu.replicas": "4"}, 4, id="time slicing"),
        pytest.param("16", {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.count": None}, 4, id="no count"),
        pytest.param("4", {"nvidia.com/gpu.count": None}, 4, id="no count, no sharing"),
        pytest.param(None, {}, 4, id="offers nothing, has the label"),
    ],
)
def test_cards_are_physical_cards(read, gpus, labels, cards):
    merged = {key: value for key, value in (T4_LABELS | labels).items() if value is not None}
    spec = only_node(read(node(gpus=gpus, labels=merged), pod()))
    assert [card.healthy for card in spec.cards] == [True] * cards


def test_shared_cards_under_their_own_resource_name_are_counted(read):
    item = node(labels=T4_LABELS | {"nvidia.com/gpu.replicas": "4"})
    item["status"]["allocatable"] |= {"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "16"}
    assert [card.healthy for card in only_node(read(item, pod())).cards] == [True] * 4


def test_capacity_counts_where_allocatable_does_not_tell_the_cards(read):
    item = node(labels={"nvidia.com/gpu.product": "Tesla-T4"}, gpus="2")
    item["status"]["allocatable"] = {"cpu": "64", "memory": "1Gi"}
    assert len(only_node(read(item, pod())).cards) == 2


def test_a_card_that_the_plugin_withdrew_counts_as_sick(read):
    history = read(node(gpus="3"), pod())
    assert [card.healthy for card in only_node(history).cards] == [True, True, True, False]
    assert "The plugin offers fewer cards than there are, the last ones count as sick: gpu-1." in history.notes


def test_hamis_list_of_cards_wins_over_the_labels(read):
    cards = hami_cards({}, {"devmem": 81920, "type": "NVIDIA-NVIDIA A100-SXM4-80GB", "mode": "mig"}, {"health": False})
    history = read(node(gpus="30", annotations=cards), pod())
    told = [(c.uuid, c.model, c.memory_mib, c.isolation, c.healthy) for c in only_node(history).cards]
    assert told == [
        ("GPU-0", "T4", 15360, Isolation.ANY, True),
        ("GPU-1", "A100-SXM4-80GB", 81920, Isolation.MIG, True),
        ("GPU-2", "T4", 15360, Isolation.ANY, False),
    ]
    assert "Cards that HAMi calls unhealthy take nothing: gpu-1 GPU-2." in history.notes


def test_hamis_cards_stand_in_the_order_of_their_index(read):
    cards = hami_cards({"index": 1}, {"index": 0})
    assert [card.uuid for card in only_node(read(node(annotations=cards), pod())).cards] == ["GPU-1", "GPU-0"]


def test_hamis_old_format_falls_back_to_the_labels_with_a_note(read):
    old = {"hami.io/node-nvidia-register": "GPU-0,10,15360,100,NVIDIA-Tesla T4,0,true:"}
    history = read(node(annotations=old), pod())
    assert [card.uuid for card in only_node(history).cards] == ["gpu-1-0", "gpu-1-1", "gpu-1-2", "gpu-1-3"]
    assert "HAMi's old list of cards is not read, the labels are: gpu-1." in history.notes


@pytest.mark.parametrize(
    ("change", "note"),
    [
        pytest.param({"unschedulable": True}, "Cordoned nodes take nothing: gpu-2.", id="cordoned"),
        pytest.param({"ready": "Unknown"}, "Nodes that are not Ready count as cordoned: gpu-2.", id="not ready"),
    ],
)
def test_a_node_that_takes_no_pods_is_not_schedulable(read, change, note):
    history = read(node(), node("gpu-2", **change), pod())
    assert [spec.schedulable for spec in history.nodes] == [True, False]
    assert note in history.notes


def test_taints_are_noted_but_not_the_one_that_every_gpu_node_has(read):
    master = cpu_node("master", taints=[{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}])
    history = read(node(taints=[{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]), master, pod())
    assert history.notes == ("Taints are not read, these nodes take any pod: master.",)


def test_a_well_known_card_without_the_memory_label_is_assumed_with_a_note(read):
    history = read(node(labels={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}), pod())
    assert only_node(history).cards[0].memory_mib == 81559
    assert history.notes == ("No label nvidia.com/gpu.memory, 81559 MiB per H100-80GB-HBM3 were assumed: gpu-1.",)


@pytest.mark.parametrize("labels", [T4_LABELS, {"nvidia.com/gpu.product": "Tesla-T4"}], ids=["label", "no label"])
def test_the_users_card_memory_wins(read, labels):
    history = read(node(labels=labels), pod(), card_memory={"tesla-t4": 14910})
    assert {card.memory_mib for card in only_node(history).cards} == {14910}


def test_a_card_memory_that_no_node_needs_is_noted(read):
    assert read(node(), pod(), card_memory={"Tesla-P4": 7680}).notes == (
        "No node has the cards of --card-memory: Tesla-P4.",
    )


def test_a_card_memory_of_nothing_is_refused(read):
    with pytest.raises(
        UserError, match=re.escape("--card-memory Tesla-T4=0: 0 MiB is no card's memory; write the MiB")
    ):
        read(node(), pod(), card_memory={"Tesla-T4": 0})


def test_mig_instances_count_as_cards_with_a_note(read):
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "nvidia.com/gpu.memory": "4864"}
    history = read(node(gpus="7", labels=labels), pod())
    assert {card.model for card in only_node(history).cards} == {"A100-SXM4-40GB-MIG-1G.5GB"}
    assert history.notes == ("MIG instances count as cards of their own: gpu-1.",)


# ---------------------------------------------------------------- what a pod asks of cards

ASKS = [
    pytest.param({"nvidia.com/gpu": "2"}, Shape(2, whole=True), id="whole cards"),
    pytest.param({"nvidia.com/gpu.shared": "1"}, Shape(1, whole=True), id="renamed shared cards"),
    pytest.param(
        {"nvidia.com/gpu": "1", "nvidia.com/gpu.memory": "4096", "nvidia.com/gpu.cuda-cores": "20"},
        Shape(1, memory_mib=4096, compute_milli=200),
        id="slice",
    ),
    pytest.param(
        {"nvidia.com/gpu.memory": "4Gi", "nvidia.com/gpu.cuda-cores": "20"},
        Shape(1, memory_mib=4096, compute_milli=200),
        id="no count is one card",
    ),
    pytest.param(
        {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "5k"},
        Shape(2, memory_mib=5000),
        id="hami memory, as the API server shortens 5000",
    ),
    pytest.param(
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50", "nvidia.com/gpucores": "30"},
        Shape(1, memory_milli=500, compute_milli=300),
        id="hami percent",
    ),
    pytest.param(
        {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "30"},
        Shape(1, memory_milli=1000, compute_milli=300),
        id="hami cores only: all memory",
    ),
    pytest.param(
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}, Shape(1, memory_mib=3000), id="memory only: no limit"
    ),
    pytest.param(
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "0", "nvidia.com/gpucores": "0"},
        Shape(1, whole=True),
        id="an ask for 0 is none",
    ),
    pytest.param(
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "100", "nvidia.com/gpucores": "100"},
        Shape(1, whole=True),
        id="all of both is whole",
    ),
    pytest.param(
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpumem-percentage": "50"},
        Shape(1, memory_mib=3000),
        id="MiB win over percent",
    ),
    pytest.param(
        {"cardwise.dev/gpu": "2", "cardwise.dev/gpu-memory": "8191", "cardwise.dev/gpu-cores": "50"},
        Shape(2, memory_mib=4096, compute_milli=250),
        id="cardwise totals",
    ),
    pytest.param({"nvidia.com/gpu": "0", "nvidia.com/gpumem": "3000"}, Shape(0), id="no card"),
    pytest.param({}, Shape(0), id="nothing"),
]


@pytest.mark.parametrize(("gpu", "shape"), ASKS)
def test_a_gpu_ask_is_read_in_every_family_of_names(read, gpu, shape):
    assert only_shape(read(node(), pod("p", container(gpu=gpu)))) == shape


def test_a_gpu_ask_counts_from_requests_or_limits(read):
    main = container() | {"resources": {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpumem": "1000"}}}
    assert only_shape(read(node(), pod("p", main))) == Shape(1, memory_mib=1000)


def slice_container(memory: str, cores: str, **more: Any) -> Item:
    return container(gpu={"nvidia.com/gpu": "1", "nvidia.com/gpumem": memory, "nvidia.com/gpucores": cores}, **more)


WHOLE = container(gpu={"nvidia.com/gpu": "1"})
ADDED = "Slices of several containers were added up, as if on one card: team-a/p."
MIXED = "Whole cards and slices, or unlike slices, in one pod: all were counted as whole cards: team-a/p."


@pytest.mark.parametrize(
    ("containers", "init", "shape", "notes"),
    [
        pytest.param([WHOLE, WHOLE], [], Shape(2, whole=True), (), id="whole cards sum"),
        pytest.param(
            [slice_container("4096", "20"), slice_container("1024", "10")],
            [],
            Shape(1, memory_mib=5120, compute_milli=300),
            (ADDED,),
            id="slices add up",
        ),
        pytest.param([WHOLE, slice_container("4096", "20")], [], Shape(2, whole=True), (MIXED,), id="mixed"),
        pytest.param(
            [slice_container("4096", "60"), slice_container("4096", "60")],
            [],
            Shape(2, whole=True),
            (MIXED,),
            id="slices that no one card can hold",
        ),
        pytest.param(
            [container()],
            [slice_container("1024", "10")],
            Shape(1, memory_mib=1024, compute_milli=100),
            (),
            id="only in an init container (C4)",
        ),
        pytest.param(
            [slice_container("8192", "10")],
            [slice_container("10240", "5")],
            Shape(1, memory_mib=10240, compute_milli=100),
            (),
            id="init containers run before",
        ),
        pytest.param(
            [slice_container("8192", "10")],
            [slice_container("4096", "10", restartPolicy="Always"), slice_container("10240", "10")],
            Shape(1, memory_mib=14336, compute_milli=200),
            (ADDED,),
            id="a sidecar runs beside what follows (C20)",
        ),
        pytest.param([WHOLE], [WHOLE], Shape(1, whole=True), (), id="whole, then whole"),
    ],
)
def test_several_gpu_containers_make_one_ask(read, containers, init, shape, notes):
    history = read(node(), pod("p", *containers, init=init, node="", phase="Pending"))
    assert (only_shape(history), history.notes) == (shape, notes)


@pytest.mark.parametrize(
    ("gpu", "why"),
    [
        pytest.param(
            {"nvidia.com/gpucores": "150"},
            "nvidia.com/gpucores: 150 % is more than one card has; write a whole number from 1 to 100",
            id="%",
        ),
        pytest.param(
            {"nvidia.com/gpu": "500m"},
            "nvidia.com/gpu: '500m' is not a whole number; write 0, 1, 2, ...",
            id="half a card",
        ),
        pytest.param({"nvidia.com/gpu": "65"}, "nvidia.com/gpu: 65 cards are more than any node has", id="too many"),
        pytest.param(
            {"nvidia.com/gpumem": "1Ei"},
            f"nvidia.com/gpumem: '1Ei' is not an amount of card memory; {MEMORY_FORMS}",
            id="more memory than any card (C22)",
        ),
        pytest.param(
            {"cardwise.dev/gpu": "1", "cardwise.dev/gpu-cores": "101"},
            "cardwise.dev/gpu-cores: 101 % is more than one card has; write a whole number from 1 to 100",
            id="own cores",
        ),
    ],
)
def test_an_ask_that_no_card_can_meet_is_left_out_with_a_note(read, gpu, why):
    history = read(node(), gpu_pod(gpu, "bad"), pod("good"))
    assert [record.request.name for record in history.pods] == ["team-a/good"]
    assert history.notes == (f"Pods that could fit no node were left out: team-a/bad ({why}).",)


# ---------------------------------------------------------------- what a pod asks of its node


@pytest.mark.parametrize(
    ("containers", "init", "more", "asked"),
    [
        pytest.param([container("1", "1Gi"), container("500m", "512Mi")], [], {}, (1500, 1536), id="app sum"),
        pytest.param([container("1", "1Gi")], [container("4", "512Mi")], {}, (4000, 1024), id="init max, per resource"),
        pytest.param(
            [container("1", "1Gi")], [sidecar("500m", "1Gi"), container("2", "4Gi")], {}, (2500, 5120), id="init beside"
        ),
        pytest.param([container("1", "1Gi")], [container("2"), sidecar("500m")], {}, (2000, 1024), id="sidecar later"),
        pytest.param(
            [container("1", "1Gi")], [], {"overhead": {"cpu": "250m", "memory": "120Mi"}}, (1250, 1144), id="overhead"
        ),
        pytest.param(
            [container("1", "1Gi")], [], {"resources": {"requests": {"cpu": "3"}}}, (3000, 1024), id="pod-level"
        ),
        pytest.param([container("1m", "1")], [], {}, (1, 1), id="rounds up"),
        pytest.param([container()], [], {}, (0, 0), id="nothing"),
    ],
)
def test_cpu_and_memory_follow_kubernetes_own_rule(read, containers, init, more, asked):
    shape = only_shape(read(node(), pod("p", *containers, init=init, **more)))
    assert (shape.cpu_milli, shape.host_memory_mib) == asked


def affinity(*terms: list[tuple[str, str, list[str]]]) -> Item:
    """Required node affinity: each term a list of (label, operator, values)."""
    told = [
        {"matchExpressions": [{"key": key, "operator": operator, "values": values} for key, operator, values in term]}
        for term in terms
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": told}}
    return {"affinity": {"nodeAffinity": required}}


PRODUCT = "nvidia.com/gpu.product"


@pytest.mark.parametrize(
    ("more", "models"),
    [
        pytest.param({}, set(), id="any"),
        pytest.param({"nodeSelector": {PRODUCT: "Tesla-T4"}}, {"T4"}, id="selector"),
        pytest.param(
            {"nodeSelector": {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}}, {"T4"}, id="selector of GKE"
        ),
        pytest.param(affinity([(PRODUCT, "In", ["Tesla-T4", "NVIDIA-A10"])]), {"T4", "A10"}, id="one term"),
        pytest.param(
            affinity([(PRODUCT, "In", ["Tesla-T4"])], [(PRODUCT, "In", ["NVIDIA-A10"])]), {"T4", "A10"}, id="any term"
        ),
        pytest.param(
            affinity([(PRODUCT, "In", ["Tesla-T4", "NVIDIA-A10"]), (PRODUCT, "In", ["NVIDIA-A10"])]),
            {"A10"},
            id="within a term all hold",
        ),
        pytest.param(
            {"nodeSelector": {PRODUCT: "Tesla-T4"}} | affinity([(PRODUCT, "In", ["Tesla-T4", "NVIDIA-A10"])]),
            {"T4"},
            id="both",
        ),
    ],
)
def test_card_models_come_from_selector_and_affinity(read, more, models):
    history = read(node(), whole(**more))
    assert (only_shape(history).models, history.notes) == (frozenset(models), ())


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"nodeSelector": {"pool": "a"}}, id="selector"),
        pytest.param(affinity([(PRODUCT, "In", ["Tesla-T4"])], [("pool", "Exists", [])]), id="a term leaves it open"),
        pytest.param(affinity([(PRODUCT, "NotIn", ["Tesla-T4"])]), id="not in"),
    ],
)
def test_what_is_not_read_of_selector_and_affinity_is_noted(read, more):
    history = read(node(), whole(name="p", **more))
    assert only_shape(history).models == frozenset()
    assert history.notes == ("Node selectors and affinities are read for card models only: team-a/p.",)


def test_a_pod_whose_selectors_leave_no_model_is_left_out_with_a_note(read):
    more = {"nodeSelector": {PRODUCT: "Tesla-T4"}} | affinity([(PRODUCT, "In", ["NVIDIA-A10"])])
    why = "nvidia.com/gpu.product: selector and affinity leave no card model"
    assert read(node(), gpu_pod({"nvidia.com/gpu": "1"}, "p", **more)).notes == (
        f"Pods that could fit no node were left out: team-a/p ({why}).",
    )


# ---------------------------------------------------------------- who a pod is, where and when it ran


def test_a_pod_is_known_by_namespace_and_name(read):
    names = [record.request.name for record in read(node(), pod("p"), pod("p", namespace="team-b")).pods]
    assert names == ["team-a/p", "team-b/p"]


def test_replicas_of_a_deployment_are_one_service_over_its_rollouts(read):
    old = deployment_pod(pod("a"), "resnet-v2", "6c9f4d7b8")
    new = deployment_pod(pod("b"), "resnet-v2", "59d8c7f6b")
    assert {record.request.service for record in read(node(), old, new).pods} == {"team-a/resnet-v2"}


@pytest.mark.parametrize(
    ("owner", "service"),
    [
        pytest.param(("StatefulSet", "db"), "team-a/db", id="stateful set"),
        pytest.param(("Job", "train-17"), "team-a/train-17", id="job"),
        pytest.param(("ReplicaSet", "bare-v2"), "team-a/bare-v2", id="replica set of its own"),
        pytest.param(("Node", "gpu-1"), "", id="static pod"),
        pytest.param(None, "", id="no owner"),
    ],
)
def test_a_pods_service_is_its_owner(read, owner, service):
    (record,) = read(node(), pod("p", owner=owner)).pods
    assert record.request.service == service


def test_times_count_from_the_first_living_pod(read):
    history = read(
        node(),
        pod("done", created="2026-10-01T00:00:00Z", phase="Succeeded"),
        pod("b", created="2026-11-01T10:00:30Z"),
        pod("a", created="2026-11-01T10:00:00Z"),
        pod("unknown", created=None),
    )
    times = [(record.request.name, record.created_s, record.deleted_s) for record in history.pods]
    assert times == [("team-a/b", 30.0, None), ("team-a/a", 0.0, None), ("team-a/unknown", None, None)]


def test_finished_pods_hold_nothing_and_are_noted(read):
    history = read(node(), *(pod(f"p{i}", phase="Failed") for i in range(5)), pod("living"))
    assert [record.request.name for record in history.pods] == ["team-a/living"]
    assert history.notes == (
        "Finished pods hold nothing and were left out: team-a/p0, team-a/p1, team-a/p2 and 2 more.",
    )


@pytest.mark.parametrize(
    ("node_name", "told", "notes"),
    [
        pytest.param("gpu-1", "gpu-1", (), id="bound"),
        pytest.param("", "", (), id="pending"),
        pytest.param(
            "gone",
            "",
            ("Pods on nodes that the dump does not have count as not placed: team-a/p on gone.",),
            id="unknown node",
        ),
    ],
)
def test_a_pods_node_is_told_where_the_dump_has_it(read, node_name, told, notes):
    history = read(node(), pod("p", node=node_name))
    assert ([record.node for record in history.pods], history.notes) == ([told], notes)


@pytest.mark.parametrize(
    ("item", "note"),
    [
        pytest.param(
            gpu_pod({"nvidia.com/mig-1g.5gb": "1"}, "p"),
            "The resource nvidia.com/mig-1g.5gb is not read: team-a/p.",
            id="MIG resource",
        ),
        pytest.param(
            gpu_pod({"nvidia.com/gpu-memory": "4096"}, "p"),
            "The resource nvidia.com/gpu-memory is not read: team-a/p.",
            id="misspelt (C23)",
        ),
        pytest.param(
            pod("p", resourceClaims=[{"name": "gpu", "resourceClaimName": "x"}]),
            "Resource claims (DRA) are not read: team-a/p.",
            id="DRA",
        ),
        pytest.param(
            whole(name="p", annotations={"nvidia.com/use-gputype": "A10"}),
            "HAMi's annotations that choose card models are not read: team-a/p.",
            id="HAMi's type",
        ),
    ],
)
def test_an_ask_that_is_not_read_is_noted(read, item, note):
    assert read(node(), item).notes == (note,)


def test_a_pod_on_a_time_sliced_node_is_a_whole_card_with_a_note(read):
    history = read(node(gpus="16", labels=T4_LABELS | {"nvidia.com/gpu.replicas": "4"}), whole(name="p"))
    assert only_shape(history).whole
    assert history.notes == (
        "Pods that share cards by count are read as whole cards; tell their size: team-a/p.",
        "Which cards these pods share today is not told, so cards in use are not counted: team-a/p.",
    )


def test_whole_cards_are_held_each_by_its_pod(read):
    history = read(node(), whole(name="p"))
    assert history.pods[0].cards_held == {"team-a/p#0"}


def test_hami_tells_which_cards_pods_share(read):
    allocated = {"hami.io/vgpu-devices-allocated": ";GPU-1,NVIDIA,4096,20:GPU-2,NVIDIA,4096,20:;"}
    history = read(node(), pod("p", slice_container("4096", "20"), annotations=allocated))
    assert history.pods[0].cards_held == {"GPU-1", "GPU-2"}


def test_notes_have_no_control_characters(read):
    history = read(node(), whole(), sizes=[SizeRule("*/\x1b[31m\nx", 4096, 20)])
    assert history.notes == (r"No pod with whole cards matches --slice: */\x1b[31m\nx.",)


def test_a_pod_that_waits_holds_nothing(read):
    history = read(node(), pod("p", WHOLE, node="", phase="Pending"))
    assert history.pods[0].cards_held == frozenset()


def test_a_size_rule_does_not_change_what_is_held_today(read):
    history = read(node(), whole(name="p"), sizes=[SizeRule("team-a/*", 4096, 20)])
    assert (only_shape(history).is_slice, history.pods[0].cards_held) == (True, {"team-a/p#0"})


def test_items_of_other_kinds_are_passed_over(read):
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"containers": 3}}
    assert len(read(node(), service, pod()).pods) == 1


# ---------------------------------------------------------------- size rules

RULE = SizeRule("team-a/resnet*", 4096, 20)


@pytest.mark.parametrize(
    ("item", "shape"),
    [
        pytest.param(whole(2), Shape(2, memory_mib=4096, compute_milli=200), id="by pod, per card"),
        pytest.param(deployment_pod(whole(name="x")), Shape(1, memory_mib=4096, compute_milli=200), id="by service"),
        pytest.param(whole(namespace="team-b"), Shape(1, whole=True), id="other namespace"),
        pytest.param(gpu_pod({"nvidia.com/gpumem": "1000"}), Shape(1, memory_mib=1000), id="a slice stays"),
        pytest.param(pod("resnet", container()), Shape(0), id="no card"),
        pytest.param(pod("resnet", WHOLE, slice_container("1", "1")), Shape(2, whole=True), id="mixed stays"),
    ],
)
def test_a_size_rule_turns_whole_cards_into_slices(read, item, shape):
    got = only_shape(read(node(), item, sizes=[RULE]))
    assert (got.cards, got.memory_mib, got.compute_milli, got.whole) == (
        shape.cards,
        shape.memory_mib,
        shape.compute_milli,
        shape.whole,
    )


def test_the_first_size_rule_that_matches_counts(read):
    rules = [SizeRule("team-b/*", 1, 1), SizeRule("*", 2048, 10), RULE]
    history = read(node(), whole(name="resnet"), sizes=rules)
    assert only_shape(history).memory_mib == 2048
    assert history.notes == (
        "Whole cards became slices of 2048 MiB and 10 %: team-a/resnet.",
        "No pod with whole cards matches --slice: team-b/*, team-a/resnet*.",
    )


@pytest.mark.parametrize(
    ("memory", "mib"),
    [("4Gi", 4096), ("4096", 4096), ("4G", 3815), ("4096Mi", 4096), ("1", 1), ("1Ti", 2**20)],
)
def test_a_size_rule_takes_memory_as_users_write_it(memory, mib):
    assert parse_size_rule(f"team-a/resnet-*={memory}:20") == SizeRule("team-a/resnet-*", mib, 20)


@pytest.mark.parametrize("memory", ["5k", "-1", "NaN", "0", "4.5", "16Ei", "", " 4096", "1e3", "2Ti", "4Ki", "٤"])
def test_a_size_rule_refuses_other_memory_with_the_accepted_forms(memory):
    with pytest.raises(UserError) as caught:
        parse_size_rule(f"a/b={memory}:20")
    rule = f"a/b={memory}:20"
    assert str(caught.value) == f"--slice {rule!r}: {memory!r} is not an amount of card memory; {MEMORY_FORMS}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a/b=4096:0", "'0' is not a percentage; write a whole number, 1 to 100"),
        ("a/b=4096:101", "'101' is not a percentage; write a whole number, 1 to 100"),
        ("a/b=4096:20%", "'20%' is not a percentage; write a whole number, 1 to 100"),
        ("a/b=4096:", "'' is not a percentage; write a whole number, 1 to 100"),
        ("a/b=4096", RULE_FORM),
        ("=4096:20", RULE_FORM),
        ("", RULE_FORM),
        (
            "resnet-*=4096:20",
            f"'resnet-*' names no namespace and matches no pod; {RULE_FORM}",
        ),
    ],
)
def test_a_size_rule_that_cannot_be_meant_is_refused(text, message):
    with pytest.raises(UserError) as caught:
        parse_size_rule(text)
    assert str(caught.value) == f"--slice {text!r}: {message}"


def test_card_memory_is_told_by_product():
    assert parse_card_memory(["Tesla-T4=14910", "NVIDIA-A10=22Gi"]) == {"Tesla-T4": 14910, "NVIDIA-A10": 22528}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["Tesla-T4"], "card memory 'Tesla-T4': write PRODUCT=MIB, such as Tesla-T4=15360"),
        (["=15360"], "card memory '=15360': write PRODUCT=MIB, such as Tesla-T4=15360"),
        (["T4=0"], f"card memory 'T4=0': '0' is not an amount of card memory; {MEMORY_FORMS}"),
        (["T4=1", "T4=2"], "card memory 'T4=2': 'T4' is told twice, by 'T4=1' too; keep one"),
        (
            ["Tesla-T4=1", "t4=2"],
            "card memory 't4=2': 't4' is told twice, by 'Tesla-T4=1' too; keep one",
        ),
    ],
)
def test_card_memory_that_cannot_be_meant_is_refused(texts, message):
    with pytest.raises(UserError) as caught:
        parse_card_memory(texts)
    assert str(caught.value) == message


# ---------------------------------------------------------------- wrong files

GOOD = dump_text(node(), pod())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, f"dump.json: no such file; give {WANT}", id="missing"),
        pytest.param("", f"dump.json: is empty; give {WANT}", id="empty"),
        pytest.param(" \n\n", f"dump.json: is empty; give {WANT}", id="blank"),
        pytest.param(
            gzip.compress(GOOD.encode()),
            f"dump.json: is gzip-compressed; run gunzip first and give {WANT}",
            id="gzip",
        ),
        pytest.param(
            GOOD.encode("utf-16"),
            f"dump.json: is UTF-16 (Windows PowerShell's `>` writes that); save it as UTF-8, give {WANT}",
            id="PowerShell",
        ),
        pytest.param(
            b'{"kind": "List",\n"items": ["\xe9"]}',
            f"dump.json:2: byte 0xe9 is not UTF-8; save the file as UTF-8, give {WANT}",
            id="latin-1",
        ),
        pytest.param(
            "apiVersion: v1\nitems:\n- kind: Node\n",
            f"dump.json: is YAML, it begins with 'apiVersion: v1\\nitems'; give {WANT}",
            id="YAML",
        ),
        pytest.param(
            "NAME   STATUS\nn1     Ready\n",
            f"dump.json: is not JSON, it begins with 'NAME   STATUS\\nn1    '; give {WANT}",
            id="a printed table",
        ),
        pytest.param(
            GOOD[:1000],
            f"dump.json:{GOOD[:1000].rstrip().count(chr(10)) + 1}: the JSON ends in the middle: kubectl or the copy "
            f"was cut off; write {WANT} again",
            id="truncated",
        ),
        pytest.param(
            '{"kind": "List",\n "items": [\n  {"kind": "Pod"}}]}',
            f"dump.json:3: column 18: JSON is malformed: expected ',' or ']'; give {WANT} as kubectl wrote it",
            id="malformed",
        ),
        pytest.param(
            GOOD + GOOD,
            f"dump.json:{GOOD.count(chr(10)) + 1}: column 1: JSON is malformed: trailing characters; give {WANT} as "
            "kubectl wrote it",
            id="two dumps joined",
        ),
        pytest.param("[]", f"dump.json: Expected `object`, got `array`; give {WANT} as kubectl wrote it", id="array"),
        pytest.param(
            json.dumps(listing(node(), pod(), kind="Table")),
            f"dump.json: kind: is 'Table', not a List; give {WANT}",
            id="Table",
        ),
        pytest.param(json.dumps(node()), f"dump.json: kind: is 'Node', not a List; give {WANT}", id="one object"),
        pytest.param("{}", f"dump.json: kind: is '', not a List; give {WANT}", id="no kind"),
        pytest.param('{"kind": "List"}', f"dump.json: items: missing; give {WANT}", id="no items"),
        pytest.param(dump_text(pod()), f"dump.json: items: has no item of kind Node; give {WANT}", id="no node"),
        pytest.param(dump_text(node()), f"dump.json: items: has no item of kind Pod; give {WANT}", id="no pod"),
        pytest.param(
            dump_text(cpu_node(), pod()),
            "dump.json: items: no node offers nvidia.com/gpu; give a dump of a cluster with GPU nodes and their device "
            f"plugin: {WANT}",
            id="no GPU node",
        ),
        pytest.param(
            json.dumps(listing({"kind": "Node"}, pod())),
            f"dump.json:1: Object missing required field `metadata`; give {WANT} as kubectl wrote it",
            id="a node without a name",
        ),
        pytest.param(
            json.dumps(listing(node(), pod("p", nodeName=7))),
            f"dump.json:1: spec.nodeName: Expected `str`, got `int`; give {WANT} as kubectl wrote it",
            id="a field of another type",
        ),
    ],
)
def test_a_wrong_file_is_one_clear_sentence(refused, content, message):
    assert refused(content) == message


RICH = dump_text(
    node(annotations=hami_cards({}, {})),
    node("gpu-2", gpus="16", labels=T4_LABELS | {"nvidia.com/gpu.replicas": "4"}),
    deployment_pod(whole(2), "resnet"),
    gpu_pod({"nvidia.com/gpumem": "4Gi", "nvidia.com/gpucores": "20"}, init=[sidecar("500m", "1Gi")], node="gpu-2"),
).encode()


@given(
    st.integers(0, len(RICH)),
    st.integers(0, 12),
    st.one_of(st.binary(max_size=6), st.sampled_from(list(b'0-9"{}[],:NaN'))),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_dump_is_read_or_refused_but_never_a_traceback(tmp_path, at, length, instead):
    path = tmp_path / "dump.json"
    path.write_bytes(RICH[:at] + (bytes([instead]) if isinstance(instead, int) else instead) + RICH[at + length :])
    with contextlib.suppress(InputError):
        Cluster.build(read_dump(path).nodes)


def test_a_directory_is_refused(tmp_path):
    with pytest.raises(InputError, match=f"is a directory; give {re.escape(WANT)}$"):
        read_dump(tmp_path)


def line_of(text: str, kind: str, occurrence: int = 1) -> int:
    """Line of the opening brace of the n-th item of a kind: two lines above its ``kind``, after ``apiVersion``."""
    return [i for i, line in enumerate(text.splitlines(), 1) if f'"kind": "{kind}"' in line][occurrence - 1] - 2


FOREIGN = {"nvidia.com/gpu.product": "Foo-9000"}


@pytest.mark.parametrize(
    ("items", "kind", "message"),
    [
        pytest.param(
            [node(labels=FOREIGN), pod()],
            "Node",
            "node gpu-1, label nvidia.com/gpu.memory: missing, and 'Foo-9000' is no card that cardwise knows; add the "
            "label with the MiB of one card, or pass --card-memory Foo-9000=24576 with the MiB of yours",
            id="card of unknown memory",
        ),
        pytest.param(
            [node(labels={}), pod()],
            "Node",
            "node gpu-1, label nvidia.com/gpu.memory: missing, and 'UNKNOWN' is no card that cardwise knows; add the "
            "label with the MiB of one card, or pass --card-memory UNKNOWN=24576 with the MiB of yours",
            id="card of unknown model",
        ),
        pytest.param(
            [node(labels=T4_LABELS | {"nvidia.com/gpu.memory": "many"}), pod()],
            "Node",
            f"node gpu-1, label nvidia.com/gpu.memory: 'many' is not an amount of card memory; {MEMORY_FORMS}",
            id="memory label",
        ),
        pytest.param(
            [node(labels=T4_LABELS | {"nvidia.com/gpu.count": "-4"}), pod()],
            "Node",
            f"node gpu-1, label nvidia.com/gpu.count: '-4' is not a quantity; {QUANTITY_FORMS}",
            id="count label",
        ),
        pytest.param(
            [node(gpus="800", labels={"nvidia.com/gpu.product": "Tesla-T4"}), pod()],
            "Node",
            "node gpu-1, nvidia.com/gpu: 800 cards in one node; if cards are shared, add the label "
            "nvidia.com/gpu.count=<real cards>",
            id="shares counted as cards",
        ),
        pytest.param(
            [node(allocatable={"cpu": "NaN", "memory": "1Gi"}), pod()],
            "Node",
            f"node gpu-1, status.allocatable.cpu: 'NaN' is not a quantity; {QUANTITY_FORMS}",
            id="node CPU",
        ),
        pytest.param(
            [node(allocatable={"cpu": "1", "memory": "-1Gi"}), pod()],
            "Node",
            f"node gpu-1, status.allocatable.memory: '-1Gi' is not a quantity; {QUANTITY_FORMS}",
            id="node memory",
        ),
        pytest.param(
            [node(allocatable={"cpu": "1"}, capacity={}), pod()],
            "Node",
            "node gpu-1, status.allocatable.memory: missing; give the dump as kubectl wrote it",
            id="node without memory",
        ),
        pytest.param(
            [node(annotations={"hami.io/node-nvidia-register": "[{]"}), pod()],
            "Node",
            "node gpu-1, annotation hami.io/node-nvidia-register: is not HAMi's list of cards (JSON is malformed: "
            "object keys must be strings (byte 2)); restart HAMi's device plugin",
            id="HAMi's list broken",
        ),
        pytest.param(
            [node(annotations=hami_cards({"devmem": 0})), pod()],
            "Node",
            "node gpu-1, annotation hami.io/node-nvidia-register: card 0 has id 'GPU-0' and devmem 0, which is no "
            "card's MiB; restart HAMi's device plugin, or remove the annotation",
            id="HAMi's card without memory",
        ),
        pytest.param(
            [node(annotations=hami_cards({"devmem": 10**30})), pod()],
            "Node",
            f"node gpu-1, annotation hami.io/node-nvidia-register: card 0 has id 'GPU-0' and devmem {10**30}, which is "
            "no card's MiB; restart HAMi's device plugin, or remove the annotation",
            id="HAMi's card of too much memory",
        ),
        pytest.param(
            [node(annotations=hami_cards(*[{}] * 65)), pod()],
            "Node",
            "node gpu-1, annotation hami.io/node-nvidia-register: 65 cards in one node, at most 64 are possible; "
            "restart HAMi's device plugin, or remove the annotation",
            id="too many of HAMi's cards",
        ),
        pytest.param(
            [node(), pod("p" * 254)],
            "Pod",
            f"pod, metadata.name: '{('team-a/' + 'p' * 254)[:59]}… is no name; at most 253 printable characters, give "
            f"{WANT} as kubectl wrote it",
            id="pod name too long",
        ),
        pytest.param(
            [node("gpu\x1b[31m"), pod()],
            "Node",
            f"node, metadata.name: 'gpu\\x1b[31m' is no name; at most 253 printable characters, give {WANT} as kubectl "
            "wrote it",
            id="node name with control characters",
        ),
        pytest.param(
            [node(annotations=hami_cards({}, {"id": "GPU-0"})), pod()],
            "Node",
            "node gpu-1, card: 'GPU-0' is already a card of node gpu-1; remove the stale one",
            id="card listed twice",
        ),
        pytest.param(
            [node(), pod("p", container("NaN"))],
            "Pod",
            f"pod team-a/p: cpu: 'NaN' is not a quantity; {QUANTITY_FORMS}",
            id="pod CPU",
        ),
        pytest.param(
            [node(), gpu_pod({"nvidia.com/gpu": "-1"}, "p")],
            "Pod",
            f"pod team-a/p: nvidia.com/gpu: '-1' is not a quantity; {QUANTITY_FORMS}",
            id="pod cards",
        ),
    ],
)
def test_a_wrong_field_is_named_with_line_object_and_remedy(refused, items, kind, message):
    text = dump_text(*items)
    assert refused(text) == f"dump.json:{line_of(text, kind)}: {message}"


@pytest.mark.parametrize(
    ("items", "kind", "name"),
    [
        pytest.param([node(), node(), pod()], "Node", "node gpu-1", id="nodes"),
        pytest.param([node(), pod("p"), pod("p")], "Pod", "pod team-a/p", id="pods"),
    ],
)
def test_an_object_told_twice_is_refused(refused, items, kind, name):
    text = dump_text(*items)
    first, second = (line_of(text, kind, n) for n in (1, 2))
    assert refused(text) == f"dump.json:{second}: {name}: is already at line {first}; give one dump, not several joined"


def test_one_card_on_two_nodes_is_refused(refused):
    text = dump_text(node(annotations=hami_cards({})), node("gpu-2", annotations=hami_cards({})), pod())
    assert refused(text).endswith("node gpu-2, card: 'GPU-0' is already a card of node gpu-1; remove the stale one")
