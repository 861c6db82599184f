"""Quotas on a real API server with Kueue's published custom resources, and with its controller where that is built."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import re
import subprocess
import sys

import msgspec
import pytest
from click.testing import CliRunner

from cardwise.adapters import wire
from cardwise.adapters.kube.client import connect
from cardwise.adapters.kube_objects import Pod
from cardwise.adapters.kueue import configuration
from cardwise.adapters.kueue_pending import queue_state
from cardwise.adapters.quantity import parse_quantity
from cardwise.adapters.quota_file import (
    AmountsTable,
    CardTable,
    LimitsTable,
    QuotaFile,
    TeamTable,
    WindowLimits,
    WindowTable,
    quota_file_text,
)
from cardwise.cli.explain import explain_command
from cardwise.cli.quota import quota_command
from cardwise.controller.quotas import Quotas
from cardwise.core.claim import LatencyClass
from cardwise.errors import CardwiseError, UserError
from cardwise.scheduler.webhook import admit
from tests.controlplane import kueue_build
from tests.controlplane.binaries import BinariesMissingError
from tests.controlplane.cluster import ApiError
from tests.controlplane.given import given
from tests.controlplane.kueue_plane import APIS, KueuePlane
from tests.e2e.cardwise_plane import wait_for
from tests.scheduler.fake_cluster import patch_applied

pytestmark = pytest.mark.controlplane
CARD_MIB = 40000
MERGE = "application/merge-patch+json"
DAY, NIGHT = dt.datetime(2026, 1, 5, 12, tzinfo=dt.UTC), dt.datetime(2026, 1, 5, 23, tzinfo=dt.UTC)


def amounts(mib, pct=100, slots=16):
    return AmountsTable(slots, mib, pct)


def team(name, mib, more_mib=0, **more):
    """A team in a namespace of its name; one that borrows is best-effort."""
    if more_mib:
        more["latency"] = LatencyClass.BEST_EFFORT
    limits = LimitsTable("A10", amounts(mib), amounts(more_mib, 100 if more_mib else 0, 16 if more_mib else 0))
    return TeamTable(name, [name], limits=[limits], **more)


def quota_file(*teams, cohort="main", cards=4, windows=()):
    card = CardTable("A10", CARD_MIB, AmountsTable(16 * cards, CARD_MIB * cards, 100 * cards), {"model": "a10"})
    return QuotaFile(cohort, cards=[card], teams=list(teams), windows=list(windows))


class Quota:
    """The command line on a plane, with a file of a test's own."""

    def __init__(self, plane, folder):
        self.plane, self.path = plane, folder / "quota.toml"

    def write(self, told):
        self.path.write_text(quota_file_text(told))

    def __call__(self, *args, code=0):
        """What the command prints; in this process, for a start of Python costs more than most commands."""
        done = CliRunner().invoke(quota_command, [*args, "--kubeconfig", str(self.plane.kubeconfig)])
        ended = {type(None): 0, UserError: 2}.get(type(done.exception), 1)
        if done.exception is not None and not isinstance(done.exception, CardwiseError):
            raise done.exception
        assert ended == code, (done.output, done.exception)
        return f"{done.output}{done.exception or ''}"

    def apply(self, told, *args, code=0):
        self.write(told)
        for each in told.teams:
            for name in each.namespaces:
                if self.plane.answer("GET", f"/api/v1/namespaces/{name}")[0] == 404:
                    self.plane.namespace(name)
                    labels = {"metadata": {"labels": {"kueue": "yes"}}}
                    self.plane.api("PATCH", f"/api/v1/namespaces/{name}", labels, content_type=MERGE)
        return self("apply", "-f", str(self.path), "--yes", *args, code=code)

    def get(self, plural, name):
        return self.plane.api("GET", f"{APIS}/{plural}/{name}")

    def quota(self, name, resource=wire.OWN_MEMORY):
        """Nominal quota, borrowing limit and lending limit of a ClusterQueue's only flavor."""
        (flavor,) = self.get("clusterqueues", name)["spec"]["resourceGroups"][0]["flavors"]
        found = next(each for each in flavor["resources"] if each["name"] == resource)
        return tuple(int(found[key]) for key in ("nominalQuota", "borrowingLimit", "lendingLimit"))

    def theirs(self, name):
        """A ClusterQueue that somebody else made."""
        told = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": name}, "spec": {}}
        self.plane.api("POST", f"{APIS}/clusterqueues", told)

    def set_nominal(self, name, amount):
        """As a person does with `kubectl edit`."""
        spec = self.get("clusterqueues", name)["spec"]
        spec["resourceGroups"][0]["flavors"][0]["resources"][1]["nominalQuota"] = str(amount)
        path = f"{APIS}/clusterqueues/{name}?fieldManager=kubectl-edit"
        self.plane.api("PATCH", path, {"spec": {"resourceGroups": spec["resourceGroups"]}}, content_type=MERGE)


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """Kueue's custom resources without its controller."""
    if given()[0]:
        pytest.skip("starts its own API server: the cluster of KUBECONFIG is given as is")
    with KueuePlane(tmp_path_factory.mktemp("bare")) as plane:
        yield plane


@pytest.fixture
def quota(bare, tmp_path):
    """A cohort of nobody's yet: what earlier tests made is gone."""
    yield Quota(bare, tmp_path)
    for plural in ("clusterqueues", "cohorts", "resourceflavors", "workloadpriorityclasses"):
        bare.api("DELETE", f"{APIS}/{plural}")
    for item in bare.api("GET", f"{APIS}/localqueues")["items"]:
        metadata = item["metadata"]
        bare.api("DELETE", f"{APIS}/namespaces/{metadata['namespace']}/localqueues/{metadata['name']}")


# ---------------------------------------------------------------- the command line, and the loop


def test_without_yes_all_is_told_and_nothing_written(quota):
    quota.plane.namespace("quiet")
    quota.write(quota_file(team("quiet", 80000)))
    told = quota("apply", "-f", str(quota.path))
    assert "+ ClusterQueue quiet" in told
    assert "nothing was written; pass --yes" in told
    assert quota.plane.api("GET", f"{APIS}/clusterqueues")["items"] == []


def test_a_namespace_that_is_not_there_is_told_before_anything_is_written(quota):
    quota.write(quota_file(team("nowhere", 80000)))
    told = quota("apply", "-f", str(quota.path), "--yes", code=1)
    assert "! LocalQueue nowhere/nowhere: " in told
    assert 'namespaces "nowhere" not found' in told
    assert quota.plane.api("GET", f"{APIS}/clusterqueues")["items"] == []


def test_what_is_applied_is_what_the_file_says_and_then_there_is_nothing_left_to_do(quota):
    told = quota_file(team("search", 80000), team("batch", 20000, 60000), team("pay", 40000, critical=True))
    quota.apply(told)
    assert quota.quota("search") == (80000, 0, 80000)
    assert quota.quota("batch") == (20000, 60000, 20000)
    assert quota.quota("pay") == (40000, 0, 0)
    (flavor,) = quota.get("cohorts", "main")["spec"]["resourceGroups"][0]["flavors"]
    assert [int(each["nominalQuota"]) for each in flavor["resources"]] == [16, 20000, 100]
    assert "0 to create, 0 to change, 0 to delete, 10 as they shall be" in quota("diff", "-f", str(quota.path))


def test_a_change_is_told_field_by_field(quota):
    quota.apply(quota_file(team("search", 80000)))
    quota.write(quota_file(team("search", 90000)))
    told = quota("diff", "-f", str(quota.path))
    assert "~ ClusterQueue search" in told
    assert "[a10].resources[cardwise.dev/gpu-memory].nominalQuota: 80000 → 90000" in told
    assert quota.quota("search")[0] == 80000


def test_a_field_that_somebody_else_set_is_a_conflict_and_nothing_is_written(quota):
    quota.apply(quota_file(team("search", 80000), team("batch", 20000)))
    quota.set_nominal("search", 70000)
    told = quota.apply(quota_file(team("search", 90000), team("batch", 30000)), code=1)
    assert "! ClusterQueue search" in told
    assert "kubectl-edit" in told
    assert (quota.quota("search")[0], quota.quota("batch")[0]) == (70000, 20000)
    quota.apply(quota_file(team("search", 90000), team("batch", 30000)), "--force")
    assert (quota.quota("search")[0], quota.quota("batch")[0]) == (90000, 30000)


def test_an_object_that_cardwise_did_not_make_is_left_alone(quota):
    quota.theirs("search")
    told = quota.apply(quota_file(team("search", 80000)), code=1)
    assert "! ClusterQueue search: is there, and cardwise did not make it" in told
    assert "cohortName" not in quota.get("clusterqueues", "search")["spec"]


def test_pruning_deletes_what_cardwise_made_for_this_cohort_and_nothing_else(quota):
    quota.theirs("theirs")
    quota.apply(quota_file(team("search", 80000), team("batch", 20000)))
    told = quota.apply(quota_file(team("search", 80000)))
    assert "0 to delete" in told
    told = quota.apply(quota_file(team("search", 80000)), "--prune")
    assert "deleted: LocalQueue batch/batch\ndeleted: ClusterQueue batch" in told
    names = {each["metadata"]["name"] for each in quota.plane.api("GET", f"{APIS}/clusterqueues")["items"]}
    assert names == {"theirs", "search"}


def test_a_cluster_without_kueue_is_told_to_install_it(control_plane, tmp_path):
    quota = Quota(control_plane, tmp_path)
    quota.write(quota_file(team("search", 80000)))
    command = [sys.executable, "-m", "cardwise", "quota", "diff", "-f", str(quota.path)]
    command += ["--kubeconfig", str(control_plane.kubeconfig)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "install Kueue 0.15 or newer" in done.stderr


def test_a_window_changes_the_limits_and_they_are_back_when_it_is_over_even_after_a_restart(quota):
    night = WindowTable("night", "UTC", [WindowLimits("A10", amounts(60000), team="batch")], begin="22:00", end="06:00")
    told = quota_file(team("search", 80000), team("batch", 20000, 60000), windows=[night])
    quota.apply(told, "--window", "none")
    turned(quota, NIGHT)
    assert quota.quota("batch") == (60000, 0, 60000)
    assert quota.quota("search") == (80000, 0, 80000)
    turned(quota, DAY)  # another process, that remembers nothing
    assert quota.quota("batch") == (20000, 60000, 20000)
    texts = [each["message"] for each in events(quota.plane, "batch")]
    assert any("night: " in text and "nominalQuota: 20000 → 60000" in text for text in texts)


def test_the_loop_makes_a_queue_that_was_deleted_again_and_writes_nothing_that_is_as_it_shall_be(quota):
    quota.apply(quota_file(team("search", 80000), team("batch", 20000)))
    quota.plane.api("DELETE", f"{APIS}/clusterqueues/batch")
    before = quota.get("clusterqueues", "search")["metadata"]["resourceVersion"]
    turned(quota, DAY)
    assert quota.quota("batch")[0] == 20000
    assert quota.get("clusterqueues", "search")["metadata"]["resourceVersion"] == before


def test_the_loop_leaves_a_field_of_somebody_else_and_tells_it_once(quota):
    quota.apply(quota_file(team("search", 80000)))
    quota.set_nominal("search", 70000)
    loop = turned(quota, DAY, turns=3)
    assert quota.quota("search")[0] == 70000
    assert loop.registry.get_sample_value("cardwise_quota_writes_total", {"outcome": "conflict"}) == 3
    refused = [each for each in events(quota.plane, "search") if each["reason"] == "QuotaRefused"]
    assert len([each for each in refused if "kubectl-edit" in each["message"]]) == 1


def test_the_loop_leaves_an_object_that_cardwise_did_not_make(quota):
    quota.apply(quota_file(team("search", 80000)))
    quota.theirs("batch")
    quota.write(quota_file(team("search", 80000), team("batch", 1000)))
    turned(quota, DAY)
    assert "cohortName" not in quota.get("clusterqueues", "batch")["spec"]


def test_the_loop_leaves_the_queues_as_they_are_while_the_file_is_wrong(quota):
    quota.apply(quota_file(team("search", 80000)))
    quota.path.write_text("cohort = 7\n")
    loop = turned(quota, DAY)
    assert loop.registry.get_sample_value("cardwise_quota_file_unreadable") == 1
    assert quota.quota("search")[0] == 80000


def turned(quota, now, turns=1):
    """A new controller that looks so often."""

    async def turn():
        async with connect(quota.plane.kubeconfig) as client:
            loop = Quotas(client, client, quota.path, lambda: now, lambda: 0.0, lambda: True)
            for _ in range(turns):
                await loop.turn()
            return loop

    return asyncio.run(turn())


def events(plane, name):
    items = plane.api("GET", "/api/v1/namespaces/default/events")["items"]
    return [each for each in items if each["involvedObject"]["name"] == name]


# ---------------------------------------------------------------- with Kueue's controller


@pytest.fixture(scope="module")
def kueue(tmp_path_factory):
    """Kueue itself, with the configuration that `quota plan -o configuration` writes."""
    if given()[0]:
        pytest.skip("starts its own API server: the cluster of KUBECONFIG is given as is")
    try:
        kueue_build.program()
    except BinariesMissingError as error:
        pytest.skip(str(error))
    told = configuration(quota_file())
    with KueuePlane(tmp_path_factory.mktemp("kueue")) as plane:
        plane.start_kueue({key: told[key] for key in ("resources", "fairSharing", "waitForPodsReady")})
        yield plane


class Queues(Quota):
    """Teams of one test, and their pods."""

    def pod(self, team, name, *limits, priority="", inits=()):
        """A pod of containers with these limits, in the names that users write, as cardwise's webhook leaves it."""
        containers = [container(f"app-{i}", each) for i, each in enumerate(limits)]
        labels = {"kueue.x-k8s.io/queue-name": team} | ({"kueue.x-k8s.io/priority-class": priority} if priority else {})
        spec = {
            "containers": containers,
            "initContainers": [container(f"init-{i}", each) for i, each in enumerate(inits)],
        }
        body = {"metadata": {"name": name, "namespace": team, "labels": labels}, "spec": spec}
        body = patch_applied(body, admit(msgspec.convert(body, Pod), body))
        return self.plane.api("POST", f"/api/v1/namespaces/{team}/pods", body)

    def mib(self, team, name, mib, pct=10, **more):
        return self.pod(team, name, {wire.USER_MEMORY: mib, wire.USER_CORES: pct}, **more)

    def workload(self, team, name):
        """The Workload of a pod, once Kueue has made it."""
        uid = self.plane.api("GET", f"/api/v1/namespaces/{team}/pods/{name}")["metadata"]["uid"]

        def find():
            items = self.plane.api("GET", f"{APIS}/namespaces/{team}/workloads")["items"]
            return next((each for each in items if each["metadata"]["ownerReferences"][0]["uid"] == uid), None)

        return wait_for(find)

    def condition(self, team, name, kind):
        conditions = self.workload(team, name).get("status", {}).get("conditions", [])
        return next((each for each in conditions if each["type"] == kind), None)

    def admitted(self, team, name):
        """Wait until the pod's gate is gone."""
        path = f"/api/v1/namespaces/{team}/pods/{name}"
        return wait_for(lambda: not (pod := self.plane.api("GET", path))["spec"].get("schedulingGates") and pod)

    def why_not(self, team, name):
        """Kueue's words for why the pod has no quota, once it has tried."""

        def words():
            found = self.condition(team, name, "QuotaReserved")
            return found and found["status"] == "False" and found["message"]

        return wait_for(words)

    def living(self, team):
        """Names of the pods that nobody has deleted."""
        pods = self.plane.api("GET", f"/api/v1/namespaces/{team}/pods")["items"]
        return {each["metadata"]["name"] for each in pods if "deletionTimestamp" not in each["metadata"]}

    def used(self, team):
        """What the ClusterQueue has reserved, by resource."""
        status = self.get("clusterqueues", team)["status"]
        flavors = status.get("flavorsReservation") or [{"resources": []}]
        return {each["name"]: int(parse_quantity(each["total"])) for each in flavors[0]["resources"]}

    def state(self, team, name):
        async def ask():
            async with connect(self.plane.kubeconfig) as client:
                return await queue_state(client, await client.get_pod(team, name))

        return asyncio.run(ask())


def container(name, limits):
    return {"name": name, "image": "none", "resources": {"limits": {key: str(value) for key, value in limits.items()}}}


@pytest.fixture
def queues(kueue, tmp_path):
    """Flavors are shared by all tests, so each makes a cohort of its own of them."""
    made = Queues(kueue, tmp_path)
    yield made
    for pod in kueue.api("GET", "/api/v1/pods")["items"]:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        kueue.answer("PATCH", path, {"metadata": {"finalizers": None}}, content_type=MERGE)
        kueue.answer("DELETE", path, {"gracePeriodSeconds": 0})
    wait_for(lambda: not all_of(kueue, "pods"))
    for plural in ("workloads", "localqueues", "clusterqueues", "cohorts"):
        for item in all_of(kueue, f"{APIS}/{plural}"):
            metadata = item["metadata"]
            within = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
            path = f"{APIS}{within}/{plural}/{metadata['name']}"
            kueue.answer("DELETE", path)
            if plural == "workloads":  # the garbage collector's part; Kueue forgets one without a pod
                kueue.answer("PATCH", path, {"metadata": {"finalizers": None}}, content_type=MERGE)
    wait_for(lambda: not all_of(kueue, f"{APIS}/clusterqueues"))


def all_of(plane, path):
    return plane.api("GET", path if path.startswith("/") else f"/api/v1/{path}")["items"]


def test_two_cards_of_1024_are_charged_2_cards_and_2048_mib(queues):
    """Case C44."""
    queues.apply(quota_file(team("search", 80000)))
    queues.pod("search", "a", {wire.GPU: 2, wire.USER_MEMORY: 1024, wire.USER_CORES: 10})
    queues.admitted("search", "a")
    wanted = {wire.OWN_COUNT: 2, wire.OWN_MEMORY: 2048, wire.OWN_CORES: 20}
    wait_for(lambda: queues.used("search") == wanted)


def test_an_admitted_pod_is_bound_to_its_card_type(queues):
    queues.apply(quota_file(team("search", 80000)))
    queues.mib("search", "a", 4096)
    assert queues.admitted("search", "a")["spec"]["nodeSelector"] == {"model": "a10"}


@pytest.mark.parametrize("inits", [(), ({"cpu": "1"},)], ids=["alone", "with a CPU-only init container"])
def test_two_containers_of_40_percent_of_memory_do_not_pass_a_quota_of_24000_mib(queues, inits):
    """Case C19: a card has 40000 MiB, so they ask for 32000."""
    queues.apply(quota_file(team("search", 24000)))
    share = {wire.HAMI_MEMORY_PCT: 40, wire.HAMI_CORES: 10}
    queues.pod("search", "both", share, share, inits=inits)
    why = queues.why_not("search", "both")
    assert wire.OWN_MEMORY in why
    assert re.search(r"\b32(k|000)\b", why), why
    queues.pod("search", "one", share, inits=inits)
    queues.admitted("search", "one")
    wait_for(lambda: queues.used("search").get(wire.OWN_MEMORY) == 16000)


def test_a_head_that_can_neither_fit_nor_preempt_holds_up_no_other_queue_and_is_not_tried_on_and_on(queues):
    """Case C43."""
    queues.apply(quota_file(team("search", 40000), team("batch", 40000)))
    queues.mib("search", "head", 39000, 90)
    queues.admitted("search", "head")
    queues.mib("search", "stuck", 30000)
    queues.why_not("search", "stuck")
    queues.mib("batch", "other", 10000)
    queues.admitted("batch", "other")
    queues.mib("search", "small", 1000, 1)  # nor those behind it in its own queue
    queues.admitted("search", "small")
    tried = [
        each
        for each in all_of(queues.plane, "events")
        if each["reason"] == "Pending" and "stuck" in each["involvedObject"]["name"]
    ]
    assert (
        1 <= sum(each.get("count", 1) for each in tried) <= 4
    )  # once, and once for each pod that came or was admitted


def test_idle_quota_is_borrowed_and_taken_back_by_its_owner_and_then_there_is_peace(queues):
    queues.apply(quota_file(team("search", 40000), team("batch", 20000, 100000), cards=2))
    for name in ("b1", "b2", "b3", "b4"):
        queues.mib("batch", name, 20000)
        queues.admitted("batch", name)
    wait_for(lambda: queues.used("batch").get(wire.OWN_MEMORY) == 80000)
    queues.mib("search", "s1", 20000)
    queues.admitted("search", "s1")
    names = wait_for(lambda: len(left := queues.living("batch")) == 3 and left)
    (victim,) = {"b1", "b2", "b3", "b4"} - names
    queues.mib("batch", "again", 20000)  # as its ReplicaSet does
    queues.why_not("batch", "again")
    queues.mib("search", "s2", 1000, 1)  # and the queues go on being tried
    queues.admitted("search", "s2")
    assert not queues.plane.api("GET", "/api/v1/namespaces/search/pods/s1")["spec"].get("schedulingGates")
    told = [each for each in all_of(queues.plane, "events") if each["reason"] == "Preempted"]
    about = {each["involvedObject"]["name"] for each in told if each["involvedObject"]["namespace"] == "batch"}
    assert len([name for name in about if name.startswith(f"pod-{victim}-")]) == 1
    assert not any(each["involvedObject"]["namespace"] == "search" for each in told)
    others = [name for name in about if name.startswith(tuple(f"pod-{other}-" for other in names))]
    assert not others, [(each["involvedObject"]["name"], each["message"]) for each in told]


def test_nobody_is_taken_from_a_latency_sensitive_team(queues):
    told = quota_file(team("search", 40000), team("pay", 40000, critical=True), cards=2)
    queues.apply(told)
    for name in ("s1", "s2"):
        queues.mib("search", name, 20000, priority="cardwise-best-effort")
        queues.admitted("search", name)
    queues.mib("search", "urgent", 20000, priority="cardwise-latency-sensitive")
    queues.why_not("search", "urgent")
    queues.mib("pay", "p", 20000)
    queues.admitted("pay", "p")
    left = queues.living("search")
    assert left == {"s1", "s2", "urgent"}


def test_what_is_reserved_for_a_critical_team_is_lent_to_nobody(queues):
    queues.apply(quota_file(team("pay", 40000, critical=True), team("batch", 20000, 60000), cards=2))
    queues.mib("batch", "fits", 40000)
    queues.admitted("batch", "fits")
    queues.mib("batch", "reserved", 10000)
    assert "insufficient" in queues.why_not("batch", "reserved")


def test_why_a_pod_waits_is_told_with_its_place(queues):
    queues.apply(quota_file(team("search", 20000)))
    queues.mib("search", "a", 20000)
    queues.admitted("search", "a")
    for name, latency in (("b", "latency-sensitive"), ("c", "best-effort")):
        queues.mib("search", name, 20000, priority=f"cardwise-{latency}")
        queues.why_not("search", name)
    told = wait_for(lambda: (state := queues.state("search", "c")).position and state)
    assert (told.queue, told.cluster_queue, told.admitted) == ("search", "search", False)
    assert (told.position, told.of) == (2, 2)
    out = queues("why", "search/c")
    assert out.startswith("queue search, ClusterQueue search: waits for quota, 2 of 2 that wait\n")
    assert f"insufficient unused quota for {wire.OWN_MEMORY} in flavor a10" in out
    assert queues.state("search", "a").admitted
    assert json.loads(queues("why", "search/a", "--json"))["admitted"]


def test_explain_tells_the_queue_first(queues):
    queues.apply(quota_file(team("search", 20000)))
    queues.mib("search", "big", 30000)
    why = queues.why_not("search", "big")
    done = CliRunner().invoke(explain_command, ["search/big", "--kubeconfig", str(queues.plane.kubeconfig)])
    assert done.exit_code == 0, done.output
    assert "  queue search, ClusterQueue search: waits for quota" in done.stdout
    assert f"  QuotaReserved False (Pending): {why}" in done.stdout


def test_a_pod_of_a_queue_that_is_not_there_says_so(queues):
    queues.apply(quota_file(team("search", 20000)))
    body = {"metadata": {"name": "lost", "labels": {"kueue.x-k8s.io/queue-name": "serach"}}}
    queues.plane.api("POST", "/api/v1/namespaces/search/pods", {**body, "spec": {"containers": [container("app", {})]}})
    queues.workload("search", "lost")
    assert "there is no LocalQueue serach in search" in queues("why", "search/lost")


def test_a_lower_limit_evicts_nobody_and_lets_nobody_in(queues):
    queues.apply(quota_file(team("search", 40000)))
    queues.mib("search", "a", 30000)
    queues.admitted("search", "a")
    queues.apply(quota_file(team("search", 20000)))
    queues.mib("search", "b", 1000, 1)
    queues.why_not("search", "b")
    queues.admitted("search", "a")


def test_kueue_refuses_none_of_our_objects_and_more_lent_than_there_is(queues):
    """Its webhooks are asked at all: an object that they refuse is refused."""
    queues.apply(quota_file(team("search", 40000)))
    spec = queues.get("clusterqueues", "search")["spec"]
    spec["resourceGroups"][0]["flavors"][0]["resources"][0]["lendingLimit"] = "1000"
    with pytest.raises(ApiError, match="lendingLimit"):
        queues.plane.api("PATCH", f"{APIS}/clusterqueues/search", {"spec": spec}, content_type=MERGE)
