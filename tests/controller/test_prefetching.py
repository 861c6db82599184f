"""The prefetching loop on a hollow cluster: weights are where the next replica goes, before it comes (SPEC F1)."""

from __future__ import annotations

import copy

import msgspec
from structlog.testing import capture_logs

from cardwise.adapters import wire
from cardwise.adapters.kube_objects import Pod
from cardwise.adapters.prefetches import PodTemplate
from cardwise.controller.prefetching import Prefetching, PrefetchSettings
from cardwise.errors import ClusterError, NotFoundError
from tests.controller.preempting_world import World

NOTES = {
    wire.ANNOTATION_MODEL: "llama",
    wire.ANNOTATION_PREFETCH_FOR: "web",
    wire.ANNOTATION_PREFETCH_NODES: "1",
    wire.ANNOTATION_PREFETCH_SIZE: "16Gi",
}
SETTINGS = PrefetchSettings(rest_s=900.0, pending_s=300.0)


def template(notes=NOTES):
    meta = {"name": "load", "namespace": "default", "uid": "t1", "annotations": dict(notes)}
    spec = {"containers": [{"name": "load", "image": "loader"}]}
    return msgspec.convert({"metadata": meta, "template": {"spec": spec}}, PodTemplate)


class Port:
    """The hollow cluster with what prefetching asks of an API server besides."""

    def __init__(self, cluster):
        self._cluster, self.templates = cluster, [template()]

    def __getattr__(self, name):
        return getattr(self._cluster, name)

    async def list_templates(self):
        return self.templates

    async def list_loads(self):
        pods = [msgspec.convert(raw, Pod) for raw in self._cluster._pods.values()]
        return [pod for pod in pods if wire.LABEL_PREFETCH in pod.metadata.labels]

    async def create_pod(self, _namespace, body):
        self._cluster.create_pod(body)

    async def delete_pod(self, namespace, name, uid):
        if self._cluster._stored(namespace, name)["metadata"]["uid"] != uid:
            raise NotFoundError("another", retry=False)
        self._cluster.delete_pod(namespace, name)


class PrefetchWorld(World):
    async def start_controller(self):
        await super().start_controller()
        other = self.preempting
        self.port = Port(self.cluster)
        self.prefetching = Prefetching(
            self.port, other.ledger, other.watching, other.seen, self.clock, lambda: True, SETTINGS
        )

    async def look(self, seconds=10.0):
        self.now_s += seconds
        await self.heard()
        await self.prefetching.turn()

    async def loads(self):
        """Node and name of each load."""
        listed = await self.port.list_loads()
        return {pod.metadata.annotations[wire.ANNOTATION_PREFETCH_NODE]: pod.metadata.name for pod in listed}

    async def agent_tells(self, node, models):
        await self.cluster.annotate_node(node, {wire.ANNOTATION_CACHED_MODELS: models})

    def said(self, reason):
        return [each["message"] for each in self.cluster.events if each["reason"] == reason]

    async def serving(self):
        """Three nodes, and one replica of the service."""
        for name in ("n0", "n1", "n2"):
            self.node(name)
        await self.runs("web-1", 8192, owner="web", annotations={wire.ANNOTATION_MODEL: "llama"})


async def test_what_was_loaded_is_where_the_next_replica_goes_and_the_load_is_removed():
    async with PrefetchWorld() as world:
        await world.serving()
        await world.look()
        ((node, name),) = (await world.loads()).items()
        assert node != world.node_of("web-1")
        world.cluster.end_pod("default", name)
        await world.look()
        assert await world.loads() == {node: name}, "its agent has not told of it yet"
        await world.agent_tells(node, "llama")
        await world.look()
        assert await world.loads() == {}
        await world.runs("web-2", 8192, owner="web", annotations={wire.ANNOTATION_MODEL: "llama"})
        assert world.node_of("web-2") == node


async def test_a_load_is_begun_once_also_by_a_controller_that_was_started_again():
    async with PrefetchWorld() as world:
        await world.serving()
        await world.look()
        first = await world.loads()
        await world.start_controller()
        await world.look()
        assert await world.loads() == first
        assert len(world.said("CardwiseLoading")) == 1


async def test_a_node_on_which_it_failed_is_passed_over_and_that_is_said_once():
    async with PrefetchWorld() as world:
        await world.serving()
        await world.look()
        ((node, name),) = (await world.loads()).items()
        world.cluster.end_pod("default", name, "Failed")
        await world.look()
        await world.look()
        (other,) = set(await world.loads()) - {node}
        (text,) = world.said("CardwiseLoadFailed")
        assert f"the load on {node}" in text
        world.cluster.end_pod("default", (await world.loads())[other])
        await world.agent_tells(other, "llama")
        await world.look(SETTINGS.rest_s)
        assert await world.loads() == {}, "the memory of the failure goes after its rest"


async def test_weights_that_the_agent_does_not_find_count_as_a_failure_that_says_where_to_look():
    async with PrefetchWorld() as world:
        await world.serving()
        await world.look()
        ((node, name),) = (await world.loads()).items()
        world.cluster.end_pod("default", name)
        await world.look()
        await world.look(200)
        (text,) = world.said("CardwiseLoadFailed")
        assert "does not tell of the model" in text
        assert set(await world.loads()) - {node}, "another node is tried"


async def test_without_a_pod_of_the_service_nothing_is_loaded_and_that_is_said():
    async with PrefetchWorld() as world:
        world.node("n0")
        await world.look()
        await world.look()
        assert await world.loads() == {}
        assert len(world.said("CardwiseNotLoading")) == 1


async def test_a_wish_that_cannot_be_read_is_said_and_the_others_go_on():
    async with PrefetchWorld() as world:
        await world.serving()
        wrong = template({**NOTES, wire.ANNOTATION_PREFETCH_NODES: "many"})
        wrong = msgspec.structs.replace(wrong, metadata=msgspec.structs.replace(wrong.metadata, name="wrong"))
        world.port.templates.append(wrong)
        await world.look()
        assert len(await world.loads()) == 1
        assert "cardwise.dev/prefetch-nodes" in world.said("CardwiseWishUnreadable")[0]


async def test_loads_go_when_nobody_wishes_them_any_more():
    async with PrefetchWorld() as world:
        await world.serving()
        await world.look()
        world.port.templates.clear()
        await world.look()
        assert await world.loads() == {}


async def test_a_load_that_cannot_be_removed_is_tried_at_every_turn_and_said_once():
    async with PrefetchWorld() as world:
        await world.serving()
        await world.look()
        world.port.templates.clear()
        tried = []

        async def away(*what):
            tried.append(what)
            raise ClusterError("the API server is away", retry=True)

        world.port.delete_pod = away
        with capture_logs() as logs:
            for _ in range(5):
                await world.look()
        assert (len(tried), len(logs)) == (5, 1)


class Walked(dict):
    """Pods that count how often all of them are walked through."""

    walks = 0

    def values(self):
        self.walks += 1
        return super().values()


async def test_pods_are_not_walked_through_once_for_each_node():
    async with PrefetchWorld() as world:
        for i in range(20):
            world.node(f"n{i}")
            raw = copy.deepcopy(world.cluster._nodes[f"n{i}"])
            raw["status"]["allocatable"]["ephemeral-storage"] = "1Ti"
            world.cluster.put_node(raw)
        await world.heard()
        seen = world.prefetching.seen
        seen.pods = pods = Walked(seen.pods)
        await world.prefetching.turn()
        assert pods.walks <= 2
