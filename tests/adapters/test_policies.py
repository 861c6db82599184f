"""A ServicePolicy is read whole, or says by its field's path what is wrong; one does not hide the others."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from cardwise.adapters.kube_objects import Expression, Selector
from cardwise.adapters.policies import FIELD_MANAGER, Policies, selector_text
from cardwise.adapters.service_policy import annotations_of, in_force, limits_of, read_policy
from cardwise.core.fleet.windows import Cron, Hours
from cardwise.errors import NotFoundError

DAY = {"name": "day", "timezone": "Europe/Berlin", "begin": "08:00", "end": "20:00", "days": ["mon"]}
SPEC = {"scaleTargetRef": {"name": "vllm"}, "replicas": {"min": 2, "max": 8}}
MONDAY_NOON, MONDAY_NIGHT = datetime(2026, 6, 1, 10, tzinfo=UTC), datetime(2026, 6, 1, 21, tzinfo=UTC)


def policy(**spec):
    metadata = {"name": "chat", "namespace": "models", "uid": "u", "generation": 3}
    return read_policy(msgspec.json.encode({"metadata": metadata, "spec": {**SPEC, **spec}}))


def test_what_is_left_out_is_the_default():
    read = policy()
    limits = limits_of(read.spec, read.spec.replicas)
    assert (read.key, read.generation, read.fault) == ("models/chat", 3, "")
    assert (limits.min_replicas, limits.max_replicas, limits.per_replica, limits.cool_down_s) == (2, 8, None, 300.0)


def test_windows_are_read_in_both_ways():
    cron = {"name": "night", "timezone": "UTC", "startCron": "0 22 * * *", "endCron": "0 6 * * *"}
    assert [each.when for each in policy(windows=[DAY, cron]).windows] == [
        Hours(480, 1200, frozenset({0})),
        Cron("0 22 * * *", "0 6 * * *"),
    ]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            {"windows": [{**DAY, "timezone": "Europe/Berln"}]},
            "spec.windows[0].timezone: 'Europe/Berln' is no time zone",
        ),
        ({"windows": [{**DAY, "timezone": "Europe"}]}, "spec.windows[0].timezone: 'Europe' is no time zone"),
        ({"windows": [{**DAY, "timezone": "../etc/passwd"}]}, "spec.windows[0].timezone"),
        (
            {"windows": [{"name": "x", "timezone": "UTC", "startCron": "0 8 * * 8", "endCron": "0 9 * * 1"}]},
            "spec.windows[0]: start '0 8 * * 8' is no cron expression: Bad day-of-week",
        ),
        ({"replicas": {"min": 0}}, "spec.replicas.min: is 0; write a whole number from 1 to 1000000"),
        ({"replicas": {"min": 5, "max": 4}}, "spec.min 5 must be at least 1 and at most max 4"),
        ({"load": {"query": "x", "perReplica": 0}}, "spec.load.perReplica: is 0; write a number above 0"),
        ({"scaleTargetRef": {}}, "spec.scaleTargetRef.name: is missing"),
        ({"twoNodes": True, "replicas": {"min": 1, "max": 1}}, "min 2 must be"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_is_wrong_is_told_by_its_path(spec, said):
    read = policy(**spec)
    assert read.spec is None
    assert said in read.fault


def test_a_window_brings_its_own_numbers_and_gives_them_back():
    gateway = {"service": "vllm", "maxBatch": 8, "depth": 24}
    window = {**DAY, "replicas": {"min": 4, "max": 12}, "gateway": {"maxBatch": 32}}
    read = policy(windows=[window], gateway=gateway)
    noon, night = in_force(read, MONDAY_NOON), in_force(read, MONDAY_NIGHT)
    assert (noon.window, noon.replicas.min, noon.until) == ("day", 4, datetime(2026, 6, 1, 18, tzinfo=UTC))
    assert (night.window, night.replicas.min, night.until) == ("", 2, datetime(2026, 6, 8, 6, tzinfo=UTC))
    told = [annotations_of(each.gateway) for each in (noon, night)]
    assert told == [
        {"cardwise.dev/gateway-max-batch": "32", "cardwise.dev/gateway-depth": "24"},
        {"cardwise.dev/gateway-max-batch": "8", "cardwise.dev/gateway-depth": "24"},
    ]


def test_a_window_without_replicas_keeps_the_others():
    read = policy(windows=[{**DAY, "gateway": {"maxBatch": 4}}], gateway={"service": "s", "maxBatch": 1})
    assert in_force(read, MONDAY_NOON).replicas.max == 8


def test_two_nodes_need_two_replicas():
    read = policy(twoNodes=True)
    assert limits_of(read.spec, msgspec.structs.replace(read.spec.replicas, min=1)).min_replicas == 2


def test_numbers_reach_the_gateway_as_it_reads_them():
    gateway = {"service": "s", "maxBatch": 1000000, "maxWaitMs": 2.5, "depth": 1}
    assert list(annotations_of(in_force(policy(gateway=gateway), MONDAY_NOON).gateway).values()) == [
        "1000000",
        "2.5",
        "1",
    ]


def test_a_status_that_somebody_mangled_is_as_none():
    read = read_policy(b'{"metadata":{"name":"a","uid":"u"},"spec":{},"status":{"replicas":"many"}}')
    assert read.status.replicas is None


def test_a_selector_is_asked_as_a_query_has_it():
    expressions = [Expression("a", "In", ["x", "y"]), Expression("b", "DoesNotExist"), Expression("c", "Exists")]
    assert selector_text(Selector({"app": "vllm"}, expressions)) == "app=vllm,a in (x,y),!b,c"


# ---------------------------------------------------------------- requests


class Api:
    """Answers by path."""

    def __init__(self, **answers):
        self.answers, self.asked = answers, []

    async def request(self, method, path, body=None, *_args, **_more):
        self.asked.append((method, path, body))
        answer = self.answers.get(path.rpartition("/")[2])
        if answer is None:
            raise NotFoundError(path, retry=False)
        return msgspec.json.encode(answer)


async def test_without_the_definition_there_are_none():
    assert await Policies(Api()).all() is None


async def test_a_policy_that_cannot_be_read_does_not_hide_the_others():
    wrong = {"metadata": {"name": "a", "uid": "1"}, "spec": {"replicas": 3}}
    right = {"metadata": {"name": "b", "uid": "2"}, "spec": SPEC}
    found = await Policies(Api(servicepolicies={"items": [wrong, right]})).all()
    assert [(each.name, bool(each.fault)) for each in found] == [("a", True), ("b", False)]


def fields(manager, *held):
    return {"manager": manager, "operation": "Update", "fieldsV1": {"f:spec": {f"f:{each}": {} for each in held}}}


@pytest.mark.parametrize(
    ("managed", "writer"),
    [
        ([fields("kubectl", "template"), fields(FIELD_MANAGER, "replicas")], FIELD_MANAGER),
        ([fields("helm", "replicas", "template")], "helm"),
        ([fields(FIELD_MANAGER, "replicas"), fields("argocd", "replicas")], "argocd"),
        ([fields("kubectl", "template")], ""),
        ([], ""),
    ],
    ids=["ours", "another", "both", "nobody", "nothing known"],
)
async def test_who_wrote_the_number_of_replicas_is_known(managed, writer):
    made = {"metadata": {"name": "vllm", "uid": "t", "managedFields": managed}, "spec": {"replicas": 3}}
    target = await Policies(Api(vllm=made)).target("models", "vllm")
    assert (target.writer, target.replicas) == (writer, 3)


async def test_no_name_leads_elsewhere():
    api = Api()
    with pytest.raises(NotFoundError):
        await Policies(api).target("models", "../../secrets/x")
    assert api.asked[0][1] == "/apis/apps/v1/namespaces/models/deployments/..%2F..%2Fsecrets%2Fx"
