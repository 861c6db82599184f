"""A pod waits beside free pieces of cards: healthy replicas move, nobody is missed, and it is bound."""

from __future__ import annotations

import msgspec
import pytest

from cardwise.adapters import wire
from cardwise.adapters.nominations import Nomination, Victim, encode_nomination
from cardwise.controller.consolidation.steps import AGAIN_S
from tests.controller.consolidating_world import MOVES, ConsolidatingWorld
from tests.controller.preempting_world import SETTINGS as PREEMPTION
from tests.controller.preempting_world import Killed

BUDGET = {"metadata": {"name": "keep"}, "spec": {"selector": {"matchLabels": {"app": "b"}}}}
WAITS_MIB = 20000
WELL = ("True", "NobodyLeft", "no card here is fenced, and the node is ready")
MOVES_ONLY = msgspec.structs.replace(PREEMPTION, enabled=False)


async def two_pieces(world, mib=8000, **more):
    """A card with a service of 16000 MiB and one with a small one, and nowhere 20000 free."""
    world.node("n0")
    world.node("n1")
    await world.deploy_on("a", "n0", mib=16000, kind="StatefulSet")
    return await world.deploy_on("b", "n1", mib=mib, **more)


async def waits(world, **more):
    """A service whose one replica finds no place."""
    made = await world.deploy("w", 1, mib=WAITS_MIB, **more)
    assert world.where("w") == {"w-1": None}
    return made


async def until(world, done, turns=200):
    for _ in range(turns):
        await world.turn()
        if done():
            return
    raise AssertionError(f"nothing after {turns} turns; {list(world.cluster.events)}")


async def test_a_replica_moves_nobody_misses_it_and_the_pod_that_waited_is_bound():
    async with ConsolidatingWorld() as world:
        await two_pieces(world)
        world.slow = 5
        await waits(world)
        await until(world, lambda: world.where("w")["w-1"])
        assert world.where("w") == {"w-1": "n1"}
        assert world.where("b") == {"b-2": "n0"}
        assert world.lowest["b"] == 1, "its successor was ready before it went"
        (told,) = world.events("w-1", "CardwiseMakingRoom")
        assert told == (
            "on n1 these move for it, by the ledger: default/b-1 to n0; each serves until its successor is ready"
        )
        (moved,) = world.events("b-1", "CardwiseMoving")
        assert moved.startswith("it stands in the way of a pod that waits: another is made beside it")
        assert world.metric("cardwise_consolidation_nominations_total") == 1
        assert world.told("n1") in {None, WELL}


async def test_nobody_moves_before_the_pod_has_waited_its_while():
    async with ConsolidatingWorld() as world:
        await two_pieces(world)
        await waits(world)
        since_s = world.now_s
        await until(world, lambda: world.moving() == ["b-1"])
        assert world.now_s - since_s >= MOVES.wait_s - 1


async def test_who_may_be_evicted_is_evicted_for_it_and_nobody_moves():
    async with ConsolidatingWorld() as world:
        await two_pieces(world, notes={wire.ANNOTATION_CLASS: "best-effort"})
        await waits(world, priority=100)
        await until(world, lambda: world.where("w").get("w-1"))
        assert world.metric("cardwise_consolidation_nominations_total") == 0
        assert world.metric("cardwise_preemption_evictions_total", namespace="default") == 1


JOB = {"notes": {wire.ANNOTATION_CLASS: "best-effort"}, "kind": "StatefulSet"}


@pytest.mark.parametrize("beside", [0, 6000], ids=["for the successor", "and for the pod that waits"])
async def test_where_best_effort_work_fills_the_pieces_it_is_evicted_for_successors(beside):
    """Evictions alone do not help: what would be free is in two pieces, too."""
    async with ConsolidatingWorld() as world:
        await two_pieces(world, priority=10)
        await world.deploy_on("job", "n0", mib=8000, **JOB)
        if beside:
            await world.deploy_on("work", "n1", mib=beside, **JOB)
        world.slow = 4
        await waits(world, priority=10)
        await until(world, lambda: world.where("w").get("w-1"), 400)
        assert world.where("w") == {"w-1": "n1"}
        assert world.where("b") == {"b-2": "n0"}
        assert world.lowest["b"] == 1
        (told,) = world.events("w-1", "CardwiseMakingRoom")
        assert told.endswith("best-effort pods are evicted besides, for it or for them")
        evicted = world.metric("cardwise_preemption_evictions_total", namespace="default")
        assert evicted == (2 if beside else 1)


async def test_of_a_large_workload_half_may_rest_and_what_is_in_the_way_still_goes_at_once():
    """How large it is, the whole cluster tells, not the one node."""
    async with ConsolidatingWorld() as world:
        await two_pieces(world, priority=10)
        await world.deploy_on("job", "n0", mib=8000, **JOB)
        await world.one_more_on("job", "n1")
        for name in ("n2", "n3", "n4", "n5"):
            world.node(name)
            await world.deploy_on(f"full-{name}", name, mib=16000, kind="StatefulSet")
            await world.one_more_on("job", name)
        await waits(world, priority=10)
        await until(world, lambda: world.events("b-1", "CardwiseMoved"), 400)
        since_s = world.now_s
        await until(world, lambda: world.where("w").get("w-1"), 400)
        assert world.now_s - since_s < world.preempting.settings.pause_s


async def test_best_effort_work_of_the_same_priority_is_not_evicted_for_a_successor():
    async with ConsolidatingWorld() as world:
        await two_pieces(world)
        await world.deploy_on("job", "n0", mib=8000, **JOB)
        await waits(world)
        await world.turns(100)
        assert world.deployments[1].made == 1
        assert world.events("w-1", "CardwiseNotMoving")


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"notes": {wire.ANNOTATION_PREEMPTIBLE: "false"}}, id="says that it stays"),
        pytest.param({"priority": 5}, id="of higher priority"),
        pytest.param({"kind": "StatefulSet"}, id="of a StatefulSet"),
        pytest.param({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}, id="with a claim"),
        pytest.param({"notes": {wire.ANNOTATION_WORKLOAD: "training"}}, id="training"),
    ],
)
async def test_such_a_replica_stays(more):
    async with ConsolidatingWorld() as world:
        await two_pieces(world, **more)
        await waits(world)
        await world.turns(60)
        assert world.where("b") == {"b-1": "n1"}
        assert not world.where("w")["w-1"]
        (told,) = world.events("w-1", "CardwiseNotMoving")
        assert told.startswith("no replicas can make room for it")
        assert world.metric("cardwise_consolidation_refusals_total", reason="move-nobody") >= 1


async def test_a_claim_that_two_nodes_use_already_is_no_hindrance():
    async with ConsolidatingWorld() as world:
        volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "shared"}}]
        await two_pieces(world, volumes=volumes)
        world.node("n2")
        world.node("n3")
        await world.deploy_on("full", "n3", mib=15000)
        for name in ("n0", "n1", "n3"):
            world.cordon(name)
        world.scale("b", 2)
        for _ in range(3):
            await world.live()
        for name in ("n0", "n1", "n3"):
            world.cordon(name, cordoned=False)
        await world.heard()
        assert sorted(world.where("b").values()) == ["n1", "n2"]
        await waits(world)
        await until(world, lambda: world.where("w")["w-1"])
        assert world.lowest["b"] == 2


async def test_best_effort_work_moves_no_latency_sensitive_service():
    async with ConsolidatingWorld() as world:
        await two_pieces(world)
        await waits(world, notes={wire.ANNOTATION_CLASS: "best-effort"})
        await world.turns(60)
        assert world.moving() == []
        assert not world.where("w")["w-1"]


async def test_a_budget_that_lets_nobody_go_is_asked_before_anybody_is_released():
    async with ConsolidatingWorld() as world:
        await two_pieces(world)
        world.cluster.put_budget({**BUDGET, "status": {"disruptionsAllowed": 0}})
        await waits(world)
        await world.turns(60)
        assert world.deployments[1].made == 1


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("dies_at", range(10))
async def test_a_controller_killed_at_any_write_and_started_again_moves_nobody_twice(dies_at, before):
    async with ConsolidatingWorld() as world:
        await two_pieces(world)
        world.slow = 3
        await waits(world)
        world.gate.dies_at, world.gate.before = dies_at, before
        for _ in range(250):
            try:
                await world.turn()
            except Killed:
                await world.start_controller()
        assert world.where("w") == {"w-1": "n1"}
        assert world.lowest["b"] == 1
        assert world.deployments[1].made == 2, "one successor was made, not two"
        assert world.moving() == []
        assert len(world.gate.calls) > dies_at, "it died"


async def test_who_leaves_while_it_is_decided_leaves_nobody_moving_for_it():
    async with ConsolidatingWorld() as world:
        await two_pieces(world)
        world.slow = 4
        await waits(world)
        await until(world, lambda: world.moving() == ["b-1"])
        await world.turn()
        assert world.told("n1") in {None, WELL}, "nothing is wrong with the node"
        assert wire.ANNOTATION_STAYS not in world.get("b-1").metadata.annotations
        world.scale("w", 0)
        await world.turns(20)
        assert world.preempting.movers == {}
        assert world.lowest["b"] == 1
        assert len(world.where("b")) == 1, "what was begun is finished"


async def test_a_place_that_comes_free_meanwhile_is_taken_and_nobody_moves():
    async with ConsolidatingWorld() as world:
        await two_pieces(world)
        await waits(world)
        await until(world, lambda: world.nomination("w-1"))
        assert world.moving() in ([], ["b-1"])
        assert world.nomination("w-1").moves
        assert world.get("w-1").status.nominated_node_name == "n1"


async def test_a_place_that_comes_free_before_anybody_is_released_takes_it_back():
    async with ConsolidatingWorld() as world:
        await two_pieces(world)
        await waits(world)
        for _ in range(150):  # the loop that decides alone
            world.now_s += 1
            await world.heard()
            await world.preempting.turn()
            await world.schedule()
            if world.nomination("w-1"):
                break
        assert world.nomination("w-1").moves
        world.node("n9")
        await world.turns(3)
        assert world.where("w") == {"w-1": "n9"}
        assert world.where("b") == {"b-1": "n1"}


async def test_a_successor_that_never_starts_is_taken_back_and_the_pod_asks_again_after_a_pause():
    async with ConsolidatingWorld() as world:
        await two_pieces(world)
        await waits(world)
        world.slow = 10_000
        await until(world, lambda: world.moving() == ["b-1"])
        await world.turns(700)
        assert world.lowest["b"] == 1
        assert world.moving() == []
        assert world.where("b") == {"b-1": "n1"}
        assert world.events("b-1", "CardwiseMovedInVain")
        assert any(text.startswith("moves did not help") for text in world.events("w-1", "CardwiseNotMoving"))
        assert world.nomination("w-1").over
        assert world.deployments[1].made == 2


async def test_a_service_that_moved_is_left_alone_for_a_while():
    async with ConsolidatingWorld() as world:
        await two_pieces(world)
        await waits(world)
        await until(world, lambda: world.where("w")["w-1"])
        world.scale("w", 0)
        await world.turns(3)
        await world.deploy("x", 1, mib=12000)  # on n1, and then two pieces are free again: 8000 fewer, and 12000
        world.node("n2")
        await world.deploy_on("y", "n2", mib=17000)
        moved = world.deployments[1].made
        await world.deploy("z", 1, mib=WAITS_MIB)
        await world.turns(60)
        assert world.deployments[1].made == moved


async def test_what_somebody_wrote_on_a_pod_that_waits_moves_nobody_that_may_not_move():
    """Annotations are written by whoever may edit pods: the rules are asked again."""
    async with ConsolidatingWorld() as world:
        await two_pieces(world, notes={wire.ANNOTATION_PREEMPTIBLE: "false"})
        await waits(world)
        await world.turn()
        pod, victim = world.get("w-1"), world.get("b-1")
        kept = world.preempting.ledger.suppose_without(
            world.preempting.watching.pending[pod.metadata.uid], "n1", [victim.metadata.uid]
        )
        forged = Nomination(kept.allocation, (Victim(victim.metadata.uid, "b"),), world.now_s, 600.0, moves=True)
        told = {wire.ANNOTATION_NOMINATED: encode_nomination(forged)}
        await world.cluster.annotate_pod("default", "w-1", pod.metadata.uid, told)
        await world.turns(30)
        assert world.where("b") == {"b-1": "n1"}
        assert world.moving() == []


async def test_without_preemption_healthy_replicas_still_move():
    async with ConsolidatingWorld(preemption=MOVES_ONLY) as world:
        await two_pieces(world)
        await waits(world)
        await until(world, lambda: world.where("w")["w-1"])
        assert world.events("w-1", "CardwiseNotPreempting") == []


async def test_where_it_is_off_nobody_moves():
    async with ConsolidatingWorld(moving=msgspec.structs.replace(MOVES, enabled=False)) as world:
        await two_pieces(world)
        await waits(world)
        await world.turns(60)
        assert world.deployments[1].made == 1
        assert world.events("w-1", "CardwiseNotMoving") == []


async def test_why_nobody_moves_is_looked_for_once_in_a_while():
    async with ConsolidatingWorld() as world:
        await two_pieces(world, kind="StatefulSet")
        await waits(world)
        await world.turns(int(MOVES.wait_s + 3 * AGAIN_S))
        assert world.metric("cardwise_consolidation_refusals_total", reason="move-nobody") in {3.0, 4.0}
