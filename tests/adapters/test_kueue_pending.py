"""Where a pod stands with Kueue, where the API server tells only a part. With all of it: tests/e2e/test_quota.py."""

from __future__ import annotations

import msgspec
import pytest

from cardwise.adapters.kube_objects import Pod
from cardwise.adapters.kueue_pending import queue_state
from cardwise.errors import ClusterError, NotFoundError

WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/namespaces/ns/workloads"
QUEUE = "/apis/kueue.x-k8s.io/v1beta2/namespaces/ns/localqueues/search"
PENDING = "/apis/visibility.kueue.x-k8s.io/v1beta2/clusterqueues/shared/pendingworkloads"
LOCAL_QUEUE = {"spec": {"clusterQueue": "shared"}}
POD = msgspec.convert(
    {"metadata": {"name": "a", "namespace": "ns", "uid": "u", "labels": {"kueue.x-k8s.io/queue-name": "search"}}}, Pod
)


class Answers:
    """An API server that knows these paths. An error stands for itself; other paths are not found."""

    def __init__(self, **more):
        self.known = {WORKLOADS: {"items": [workload()]}, QUEUE: LOCAL_QUEUE, PENDING: {"items": [waiting("w", 0)]}}
        self.known |= more

    async def request(self, _method, path, *_args, **_options):
        found = self.known.get(path) or NotFoundError(f"GET {path}: 404: no", retry=False)
        if isinstance(found, Exception):
            raise found
        return msgspec.json.encode(found)


def workload(uid="u", spec=None, **status):
    metadata = {"name": "w", "namespace": "ns", "ownerReferences": [{"kind": "Pod", "name": "a", "uid": uid}]}
    return {"metadata": metadata, "spec": {"queueName": "search", **(spec or {})}, "status": status}


def waiting(name, place):
    return {"metadata": {"name": name, "namespace": "ns"}, "positionInClusterQueue": place, "positionInLocalQueue": 0}


async def lines(**more):
    return "\n".join((await queue_state(Answers(**more), POD)).lines())


async def test_a_pod_without_a_queue_is_none_of_kueues():
    assert await queue_state(Answers(), msgspec.convert({"metadata": {"name": "a", "uid": "u"}}, Pod)) is None


async def test_its_place_is_counted_from_1_among_all_that_wait():
    told = await lines(**{PENDING: {"items": [waiting("other", 0), waiting("w", 1), waiting("third", 2)]}})
    assert told == "queue search, ClusterQueue shared: waits for quota, 2 of 3 that wait"


@pytest.mark.parametrize("code", [403, 404, 503])
async def test_without_the_visibility_api_only_the_place_is_missing(code):
    kind = NotFoundError if code == 404 else ClusterError
    told = await lines(**{PENDING: kind(f"GET {PENDING}: {code}: no", retry=code == 503)})
    assert "waits for quota\n" in told
    assert "Kueue's visibility API is not served here" in told


async def test_another_failure_is_not_taken_for_an_answer():
    with pytest.raises(ClusterError, match="no answer in time"):
        await lines(**{PENDING: ClusterError("GET: no answer in time", retry=True)})


async def test_kueues_own_words_are_told_and_when_it_tries_again():
    condition = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": "insufficient quota"}
    status = {"conditions": [condition], "requeueState": {"count": 2, "requeueAt": "2026-01-05T12:00:00Z"}}
    told = await lines(**{WORKLOADS: {"items": [workload(**status)]}})
    assert "  QuotaReserved False (Pending): insufficient quota\n" in told
    assert told.endswith("Kueue tries again at 2026-01-05T12:00:00Z")


async def test_what_has_quota_is_admitted_and_has_no_place():
    condition = {"type": "Admitted", "status": "True", "reason": "Admitted", "message": "The workload is admitted"}
    told = await lines(
        **{WORKLOADS: {"items": [workload(conditions=[condition], admission={"clusterQueue": "other"})]}}
    )
    assert told.startswith("queue search, ClusterQueue other: admitted\n")


async def test_a_deactivated_workload_says_so():
    told = await lines(**{WORKLOADS: {"items": [workload(spec={"active": False})]}})
    assert "the Workload is deactivated: Kueue does not try it again" in told


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({WORKLOADS: {"items": [workload("another")]}}, "ClusterQueue shared: Kueue has made no Workload of this pod"),
        ({WORKLOADS: {"items": []}, QUEUE: None}, "no Workload of this pod: there is no LocalQueue search"),
        ({WORKLOADS: None}, "queue search: Kueue's API v1beta2 is not served here, so nothing admits the pod"),
    ],
    ids=["no workload", "no queue", "no Kueue"],
)
async def test_what_is_missing_is_named(more, told):
    assert told in await lines(**more)
