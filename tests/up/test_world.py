"""A world that changes: files are followed, freed cards wake pods that wait, and the ledger equals the cluster."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from cardwise.adapters.manifests import read_manifests
from cardwise.core.ledger import Ledger
from cardwise.up.hardware import uniform
from cardwise.up.session import Session
from cardwise.up.sources import Sources
from cardwise.up.state import state_of
from cardwise.up.world import World

NOW = datetime(2026, 1, 2, tzinfo=UTC)
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: %s}
spec:
  replicas: %d
  template:
    spec:
      containers:
        - name: main
          image: %s
          resources: {limits: {nvidia.com/gpu.memory: 4096, nvidia.com/gpu.cuda-cores: 20}}
"""


def deployments(*told):
    return "---".join(DEPLOYMENT % (name, replicas, image) for name, replicas, image in told)


@asynccontextmanager
async def world(nodes=1, cards=1):
    made = World.build(uniform(nodes, cards, "A10", 24576), {}, lambda: 0.0, lambda: NOW)
    async with made.running():
        yield made


async def apply(made, *told):
    await made.apply(read_manifests({"f.yaml": deployments(*told)}))
    return state_of(made)


def pods(state):
    slices = [each for node in state["nodes"] for card in node["cards"] for each in card["slices"]]
    return sorted(each["pod"].partition("/")[2].split("-")[0] for each in slices)


async def test_a_pod_that_waits_takes_the_place_that_another_gives_up():
    async with world() as made:
        before = await apply(made, ("a", 5, "x"), ("b", 1, "x"))
        after = await apply(made, ("a", 4, "x"), ("b", 1, "x"))
    assert (pods(before), [each["service"] for each in before["pending"]]) == (["a"] * 5, ["default/b"])
    assert (pods(after), after["pending"]) == (["a"] * 4 + ["b"], [])


async def test_a_changed_template_replaces_the_pods_of_its_deployment_only():
    async with world() as made:
        first = await apply(made, ("a", 2, "x"), ("b", 1, "x"))
        second = await apply(made, ("a", 2, "y"), ("b", 1, "x"))
    names = [
        {each["pod"] for node in told["nodes"] for card in node["cards"] for each in card["slices"]}
        for told in (first, second)
    ]
    assert len(names[0] & names[1]) == 1
    assert pods(first) == pods(second) == ["a", "a", "b"]


async def test_the_same_files_again_change_nothing():
    async with world() as made:
        first = await apply(made, ("a", 6, "x"))
        assert await apply(made, ("a", 6, "x")) == first


async def test_the_ledger_equals_one_that_is_read_from_the_cluster_afresh():
    async with world(nodes=3, cards=2) as made:
        for told in ((("a", 9, "x"),), (("a", 3, "x"), ("b", 20, "x")), (("b", 7, "y"),)):
            await apply(made, *told)
        afresh = Ledger(made.ledger.make_policies)
        afresh.reset(made.ledger.nodes.values(), made.ledger.pods.values())
        assert (made.ledger.cluster.memory_free_mib == afresh.cluster.memory_free_mib).all()
        assert (made.ledger.cluster.compute_free_milli == afresh.cluster.compute_free_milli).all()
        assert made.ledger.under_way == {}
        assert made.ledger.conflicts == {}


async def test_files_are_followed_and_a_mistake_leaves_the_cluster_as_it_was(tmp_path):
    file, told = tmp_path / "f.yaml", asyncio.Queue()

    def write(text, tick):
        file.write_text(text)
        os.utime(file, (tick, tick))

    write(deployments(("a", 1, "x")), 1)
    async with world() as made:
        session, stop = Session(made, Sources((str(file),)), told.put_nowait), asyncio.Event()
        await session.refresh()
        task = asyncio.create_task(session.run(stop))
        write("kind: [", 2)
        broken = await asyncio.wait_for(told.get(), 30)
        write(deployments(("a", 2, "x")), 3)
        mended = await asyncio.wait_for(told.get(), 30)
        stop.set()
        await task
    assert (pods(broken), broken["version"]) == (["a"], 2)
    assert "f.yaml:1" in broken["problem"]
    assert (pods(mended), mended["problem"], mended["version"]) == (["a", "a"], "", 3)
