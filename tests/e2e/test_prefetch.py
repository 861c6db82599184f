"""Prefetching on a real control plane: the pod that loads is Kubernetes' to take, and the next replica follows it."""

from __future__ import annotations

import asyncio
import time

import pytest

from cardwise.adapters import wire
from cardwise.adapters.kube.client import connect
from cardwise.adapters.watching import Watching
from cardwise.controller.preemption.seeing import Seen
from cardwise.controller.prefetching import Prefetching
from cardwise.core.ledger import Ledger
from cardwise.scheduler.settings import Settings, policies_of
from tests.controlplane.given import any_cluster
from tests.e2e.cardwise_plane import Cardwise, wait_for

pytestmark = pytest.mark.controlplane

TEMPLATES = "/api/v1/namespaces/default/podtemplates"
PODS = "/api/v1/namespaces/default/pods"
MODEL = {"annotations": {wire.ANNOTATION_MODEL: "llama"}}


@pytest.fixture
def cw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cardwise")
    with Cardwise(folder, 1, any_cluster(folder / "plane")) as cardwise:
        yield cardwise
        cardwise.plane.api("DELETE", TEMPLATES)
        cardwise.delete_all()


def turn(cw):
    """One turn of a controller that was started just now: it knows what the objects say."""

    async def one():
        ledger, seen = Ledger(policies_of(Settings())), Seen(time.monotonic)
        watching = Watching(ledger, time.monotonic, (seen,))
        async with connect(cw.plane.kubeconfig) as port, asyncio.TaskGroup() as tasks:
            following = tasks.create_task(watching.follow(port))
            while not watching.synced:
                await asyncio.sleep(0.05)
            await Prefetching(port, ledger, watching, seen, time.monotonic, lambda: True).turn()
            following.cancel()

    asyncio.run(one())


def loads(cw):
    told = cw.plane.api("GET", f"{PODS}?labelSelector={wire.LABEL_PREFETCH.replace('/', '%2F')}")["items"]
    return [each for each in told if "deletionTimestamp" not in each["metadata"]]


def test_weights_are_loaded_on_a_node_and_the_next_replica_goes_there(cw):
    for name in ("n0", "n1", "n2"):
        cw.node(name)
    owner = cw.owner("web")
    cw.pod("web-1", ownerReferences=[owner], **MODEL)
    first = cw.bound("web-1").node
    spec = {"schedulerName": wire.SCHEDULER_NAME, "containers": [{"name": "load", "image": "loader"}]}
    notes = {
        **MODEL["annotations"],
        wire.ANNOTATION_PREFETCH_FOR: "web",
        wire.ANNOTATION_PREFETCH_NODES: "1",
        wire.ANNOTATION_PREFETCH_SIZE: "16Gi",
    }
    metadata = {"name": "load-llama", "labels": {wire.LABEL_PREFETCH: "true"}, "annotations": notes}
    cw.plane.api("POST", TEMPLATES, {"metadata": metadata, "template": {"spec": spec}})
    turn(cw)
    turn(cw)
    (load,) = loads(cw)
    node = load["metadata"]["annotations"][wire.ANNOTATION_PREFETCH_NODE]
    assert node != first
    name = load["metadata"]["name"]
    wait_for(lambda: cw.get(name)["spec"].get("nodeName") == node)
    done = {"status": {"phase": "Succeeded"}}
    cw.plane.api("PATCH", f"{PODS}/{name}/status", done, content_type="application/strategic-merge-patch+json")
    cw.annotate("nodes", node, {wire.ANNOTATION_CACHED_MODELS: "llama"})
    turn(cw)
    assert loads(cw) == []
    cw.pod("web-2", ownerReferences=[owner], **MODEL)
    assert cw.bound("web-2").node == node
