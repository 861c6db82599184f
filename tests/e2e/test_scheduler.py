"""cardwise's scheduler on a real control plane: nothing is mocked between a manifest and the card in its annotation."""

from __future__ import annotations

import json
import random
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from cardwise.adapters import wire
from cardwise.adapters.allocations import encode
from cardwise.core.allocation import Allocation, Share
from tests.builders import card
from tests.controlplane.given import any_cluster
from tests.e2e.cardwise_plane import Cardwise, wait_for

pytestmark = pytest.mark.controlplane

HAMI = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}
SIDECAR = {"restartPolicy": "Always"}


def asks(mib, pct=10, cards=1):
    return {wire.GPU: cards, wire.USER_MEMORY: mib, wire.USER_CORES: pct}


@pytest.fixture(scope="module")
def installed(request, tmp_path_factory):
    """One cardwise at a time, for a given cluster has room for one; the parameter is its number of replicas."""
    folder = tmp_path_factory.mktemp("cardwise")
    with Cardwise(folder, getattr(request, "param", 1), any_cluster(folder / "plane")) as cardwise:
        yield cardwise


@pytest.fixture
def cw(installed):
    """An empty cluster."""
    yield installed
    installed.api_wire.cut = installed.api_wire.mute = False
    installed.delete_all()


@pytest.fixture
def webhook(cw):
    """For tests of what the API server sends to the webhook."""
    if not cw.webhook:
        pytest.skip("the given cluster's API server does not reach a webhook on the loopback of this machine")


@pytest.fixture
def api_wire(cw):
    """The wire between cardwise and the API server, to be cut."""
    if not cw.plane.on_loopback:
        pytest.skip("the given cluster's API server is not on loopback: the wire to it cannot be cut")
    return cw.api_wire


def uuids(allocation):
    return [share.uuid for share in allocation.shares]


# ---------------------------------------------------------------- placing


def test_a_24_gib_card_takes_five_slices_and_the_sixth_waits_with_the_reason(cw):
    cw.node("n0")
    for i in range(5):
        cw.pod(f"p{i}")
    assert {uuid for i in range(5) for uuid in uuids(cw.bound(f"p{i}"))} == {"n0-0"}
    cw.pod("p5")
    cw.waits_for("p5", "too little card")
    explained = json.loads(cw.leader.get("/explain/default/p5"))
    (node,) = [each for each in explained["nodes"] if each["name"] == "n0"]
    assert node["cards"][0]["reason"]["code"] in {"card-memory", "card-compute"}


def test_a_waiting_pod_is_bound_as_soon_as_a_slice_is_free(cw):
    cw.node("n0")
    cw.pod("old", asks(20000))
    cw.bound("old")
    cw.pod("new", asks(20000))
    cw.waits_for("new", "too little card")
    cw.delete("old")
    assert uuids(cw.bound("new")) == ["n0-0"]


def test_mixed_asks_land_on_cards_that_have_room_for_them(cw):
    cw.node("n0", card(memory_mib=24576), card(model="A100", memory_mib=81920))
    cw.pod("large", asks(40960))
    cw.pod("whole", {wire.GPU: 1}, annotations={wire.ANNOTATION_GPU_MODEL: "a10"})
    cw.pod("small", asks(1000))
    assert uuids(cw.bound("large")) == ["n0-1"]
    assert uuids(cw.bound("whole")) == ["n0-0"]
    assert uuids(cw.bound("small")) == ["n0-1"]


def test_several_containers_of_one_pod_get_their_own_cards(cw):
    cw.node("n0", card(), card())
    cw.pod("p", containers={"a": asks(20000, 80), "b": asks(20000, 80), "c": {}})
    allocation = cw.bound("p")
    assert [name for name, _ in allocation.containers] == ["a", "b"]
    assert len(set(uuids(allocation))) == 2


def test_init_sidecar_and_app_hold_what_runs_at_once(cw):
    """Case C20."""
    cw.node("n0")
    inits = [("side", asks(4096), SIDECAR), ("init", asks(10240), {})]
    cw.pod("p", asks(8192), inits=inits)
    cw.bound("p")
    assert wait_for(cw.used_mib) == 14336
    status = {"status": {"conditions": [{"type": "Initialized", "status": "True"}]}}
    path = "/api/v1/namespaces/default/pods/p/status"
    cw.plane.api("PATCH", path, status, content_type="application/strategic-merge-patch+json")
    wait_for(lambda: cw.used_mib() == 12288)


def test_hami_manifests_run_unchanged(cw, webhook):
    cw.node("n0")
    cw.pod("p", HAMI)
    (share,) = cw.bound("p").shares
    assert (share.memory_mib, share.compute_pct) == (3000, 30)
    resources = cw.get("p")["spec"]["containers"][0]["resources"]
    own = {wire.OWN_COUNT: "1", wire.OWN_MEMORY: "3k", wire.OWN_CORES: "30"}
    assert resources["limits"] == resources["requests"] == own


def test_a_pod_without_an_ask_is_left_to_the_default_scheduler(cw, webhook):
    cw.node("n0")
    cw.pod("cpu", {"cpu": "1"})
    assert cw.get("cpu")["spec"]["schedulerName"] == "default-scheduler"


def test_two_replicas_of_a_service_run_on_two_nodes(cw):
    cw.node("n0", card(), card())
    cw.node("n1", card(), card())
    owner = cw.owner("web")
    for name in ("a", "b"):
        cw.pod(name, ownerReferences=[owner])
    assert cw.bound("a").node != cw.bound("b").node


def test_an_engines_share_is_a_variable_at_admission_and_a_number_of_the_chosen_card_with_the_binding(cw, webhook):
    """Case C36."""
    cw.node("n0", card(model="A100", memory_mib=81920))
    engine = {"name": "app", "image": "none", "args": ["serve", "m", "--gpu-memory-utilization", "0.9"]}
    spec = {"containers": [{**engine, "resources": {"limits": asks(8192)}}]}
    cw.pod("p", spec=spec, annotations={wire.ANNOTATION_ENGINE: "vllm"})
    cw.bound("p")
    made = cw.get("p")
    assert made["spec"]["containers"][0]["args"] == ["serve", "m", "--gpu-memory-utilization=$(CARDWISE_ENGINE_SHARE)"]
    assert made["metadata"]["annotations"][wire.ANNOTATION_ENGINE_SHARE] == "0.0937"
    (event,) = wait_for(lambda: cw.events("p", "CardwiseEngineShare"))
    assert "0.0937 of what it sees of its card, instead of --gpu-memory-utilization 0.9" in event


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({wire.GPU: 1, wire.USER_MEMORY: "4500m"}, "write 4096 (MiB)"),
        ({wire.GPU: 1, wire.USER_MEMORY: "0"}, "'0' is no share of a card"),
        ({wire.GPU: 1, wire.USER_MEMORY: "16Ei"}, "write 4096 (MiB)"),
        ({wire.GPU: 1, wire.USER_CORES: 101}, "101 % is more than one card has"),
        ({"nvidia.com/gpu.memroy": 4096}, "write nvidia.com/gpu.memory"),
    ],
)
def test_an_ask_that_no_card_can_meet_is_denied_with_what_to_write(cw, webhook, limits, told):
    assert told in cw.denied("p", limits)


@pytest.mark.parametrize(
    ("text", "mib"), [("4Gi", 4096), ("4096", 4096), ("4G", 3815), ("4096Mi", 4096), ("5000", 5000)]
)
def test_card_memory_is_read_exactly(cw, text, mib):
    """Case C22."""
    cw.node("n0")
    cw.pod("p", {wire.GPU: 1, wire.USER_MEMORY: text})
    assert [share.memory_mib for share in cw.bound("p").shares] == [mib]


def test_an_ask_in_an_annotation_is_denied_and_so_is_a_forged_allocation(cw, webhook):
    """Case C23."""
    told = cw.denied("p", {wire.GPU: 1}, annotations={wire.USER_MEMORY: "4096", wire.ANNOTATION_ALLOC: "{}"})
    assert "write it under a container's resources.limits" in told
    assert "written by the scheduler alone" in told


def test_card_models_are_compared_whole_and_an_unknown_one_is_told_what_there_is(cw):
    """Case C24."""
    cw.node("n0", card(model="Tesla T4", memory_mib=15360), card(model="A100"))
    cw.pod("t4", asks(1000), annotations={wire.ANNOTATION_GPU_MODEL: "tesla-t4"})
    assert uuids(cw.bound("t4")) == ["n0-0"]
    cw.pod("a10", asks(1000), annotations={wire.ANNOTATION_GPU_MODEL: "A10"})
    cw.waits_for("a10", "no card here is of model A10, there are A100, T4")


# ---------------------------------------------------------------- what goes wrong


def test_six_pods_in_the_same_second_do_not_wait_for_each_other(cw):
    """Case C1."""
    cw.node("n0", *[card() for _ in range(3)])
    with ThreadPoolExecutor(6) as many:
        list(many.map(lambda i: cw.pod(f"p{i}", asks(8192, 30)), range(6)))
    for i in range(6):
        cw.bound(f"p{i}")
    assert cw.used_mib() == cw.told_mib() == 6 * 8192


def test_two_hundred_pods_come_and_go_and_nothing_is_left_held(cw):
    """Case C7."""
    cw.node("n0", card(memory_mib=4096))
    for i in range(200):
        cw.pod(f"p{i}", asks(3000))
        cw.bound(f"p{i}")
        cw.delete(f"p{i}")
    wait_for(lambda: cw.used_mib() == 0)
    cw.pod("last", asks(3000))
    cw.bound("last")


def test_kills_at_any_moment_lose_no_pod_and_oversell_no_card(cw):
    for i in range(4):
        cw.node(f"n{i}", card(), card())
    chance = random.Random(7)  # noqa: S311
    for i in range(40):
        cw.pod(f"p{i}", asks(4096, 20))
        if i % 5 == 4:
            time.sleep(chance.uniform(0.0, 0.2))
            cw.replicas[0].kill()
            cw.replicas[0].start()
            assert cw.leader
    wait_for(lambda: all(cw.is_bound(f"p{i}") for i in range(40)), 60)
    wait_for(lambda: cw.used_mib() == cw.told_mib() == 40 * 4096)
    assert not cw.leader.state()["conflicts"]


def test_a_pod_that_goes_while_the_watch_is_cut_gives_its_cards_back(cw, api_wire):
    """Case C6."""
    cw.node("n0", *[card() for _ in range(8)])
    cw.pod("big", {wire.GPU: 8})
    cw.bound("big")
    api_wire.cut = True
    api_wire.drop()
    cw.delete("big")
    api_wire.cut = False
    wait_for(lambda: cw.used_mib() == 0)
    cw.pod("next", {wire.GPU: 8})
    assert len(uuids(cw.bound("next"))) == 8


def test_a_binding_whose_answer_comes_too_late_is_counted_once(cw, api_wire):
    cw.node("n0")
    cw.pod("warm", asks(1000))
    cw.bound("warm")
    api_wire.mute = True
    cw.pod("late", asks(20000, 50))
    wait_for(lambda: cw.is_bound("late"))
    time.sleep(6)
    api_wire.mute = False
    wait_for(lambda: cw.used_mib() == cw.told_mib() == 21000)


def test_an_allocation_that_another_hand_wrote_fences_the_node_until_it_is_gone(cw):
    cw.node("n0")
    cw.pod("honest", asks(20000))
    cw.bound("honest")
    forged = Allocation("n0", (("app", (Share("n0-0", 20000, 10),)),), 999, 1)
    cw.plane.api("POST", "/api/v1/namespaces/default/pods", _foreign("forged"))
    metadata = {"name": "forged", "annotations": {wire.ANNOTATION_ALLOC: encode(forged)}}
    body = {"metadata": metadata, "target": {"kind": "Node", "name": "n0"}}
    cw.plane.api("POST", "/api/v1/namespaces/default/pods/forged/binding", body)
    condition = wait_for(lambda: _condition(cw, "n0", "False"))
    assert "default/forged" in condition["message"]
    cw.pod("next", asks(1000))
    cw.waits_for("next", "node fenced")
    cw.delete("forged")
    cw.bound("next")
    assert wait_for(lambda: _condition(cw, "n0", "True"))


def test_a_node_that_reports_another_card_takes_nothing_until_the_old_cards_pod_is_gone(cw):
    """Case C10."""
    cw.node("n0")
    cw.pod("old", asks(1000))
    cw.bound("old")
    cw.report("n0", card("replacement"))
    condition = wait_for(lambda: _condition(cw, "n0", "False"))
    assert "default/old: n0 reports no card n0-0" in condition["message"]
    cw.delete("old")
    cw.pod("new", asks(1000))
    assert uuids(cw.bound("new")) == ["replacement"]


def _condition(cw, node, status):
    conditions = cw.plane.api("GET", f"/api/v1/nodes/{node}")["status"]["conditions"]
    wanted = [each for each in conditions if each["type"] == wire.CONDITION_CONSISTENT and each["status"] == status]
    return wanted[0] if wanted else None


def _foreign(name):
    spec = {"schedulerName": "somebody-else", "containers": [{"name": "app", "image": "none"}]}
    return {"metadata": {"name": name}, "spec": spec}


# ---------------------------------------------------------------- who may ask


def test_a_stranger_without_a_certificate_can_have_nothing_bound(cw):
    cw.node("n0")
    cw.pod("p", asks(90000))
    stranger = ssl.create_default_context(cafile=str(cw.plane.authority.ca))
    body = json.dumps({"PodName": "p", "PodNamespace": "default", "PodUID": "x", "Node": "n0"}).encode()
    with pytest.raises(urllib.error.HTTPError, match="403") as refused:
        urllib.request.urlopen(f"https://127.0.0.1:{cw.leader.port}/bind", body, timeout=60, context=stranger)
    refused.value.close()
    with urllib.request.urlopen(f"https://127.0.0.1:{cw.leader.port}/healthz", timeout=60, context=stranger) as answer:
        assert answer.read() == b"ok\n"


# ---------------------------------------------------------------- why


def explain(cw, *args):
    command = [sys.executable, "-m", "cardwise", "explain", *args, "--kubeconfig", str(cw.plane.kubeconfig)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_explain_tells_from_the_cluster_itself_why_a_pod_waits(cw):
    cw.node("n0")
    cw.pod("first", asks(20000))
    cw.bound("first")
    cw.pod("second", asks(5000))
    cw.waits_for("second", "too little card")
    said = explain(cw, "second")
    assert said.returncode == 0, said.stderr
    assert "4576 of 24576 MiB are free on the card, the pod asks for 5000 on one card" in " ".join(said.stdout.split())
    told = json.loads(explain(cw, "default/second", "--json").stdout)
    assert {"code": "card-memory", "short": "too little card memory", "nodes": 1} in told["refusals"]
    assert json.loads(explain(cw, "first", "--json").stdout)["bound_to"] == "n0"


def test_explain_of_a_pod_that_is_not_there_says_what_to_write(cw):
    said = explain(cw, "nobody")
    assert said.returncode == 2
    assert said.stderr == "error: no pod is called default/nobody; write NAMESPACE/POD or pass -n NAMESPACE\n"


# ---------------------------------------------------------------- two replicas


@pytest.mark.parametrize("installed", [2], indirect=True, ids=["two-replicas"])
def test_when_the_leader_dies_the_other_sees_the_same_cards_and_goes_on(cw):
    """Case C11."""
    cw.node("n0", card(), card())
    cw.pod("a", asks(20000, 50))
    cw.bound("a")
    first = cw.leader
    before = first.state()["nodes"]
    first.kill(signal.SIGKILL)
    cw.pod("b", asks(20000, 50))
    second = cw.leader
    assert second.name != first.name
    assert uuids(cw.bound("b", 60)) != uuids(cw.bound("a"))
    cw.delete("b")
    wait_for(lambda: second.state()["nodes"] == before)
