"""What may come between while replicas move for a pod that waits: nobody moves in vain, too long, or for nobody."""

from __future__ import annotations

import copy

import msgspec

from cardwise.adapters import wire
from cardwise.adapters.nominations import Nomination, Victim, encode_nomination
from cardwise.controller.consolidation.steps import IDLE_S, Consolidation
from cardwise.errors import ClusterError
from tests.builders import card
from tests.controller.consolidating_world import MOVES, ConsolidatingWorld
from tests.controller.preempting_world import SETTINGS as PREEMPTION
from tests.controller.test_consolidating import JOB, WAITS_MIB, two_pieces, until, waits

URGENT = {"priority": 100}


async def alone(world, seconds=1.0):
    """Only the loop that decides takes a turn; nobody moves."""
    world.now_s += seconds
    await world.heard()
    await world.preempting.turn()
    await world.schedule()


async def decided(world):
    """It has chosen who moves for w-1."""
    for _ in range(150):
        await alone(world)
        if world.nomination("w-1"):
            return
    raise AssertionError("nobody was chosen")


async def spread_on(world, name, nodes, **more):
    """A service with a replica on each of these nodes."""
    await world.deploy_on(name, nodes[0], **more)
    for count, node in enumerate(nodes[1:], 2):
        for each in list(world.cluster._nodes):
            world.cordon(each, cordoned=each != node)
        world.scale(name, count)
        for _ in range(3):
            await world.live()
    for each in list(world.cluster._nodes):
        world.cordon(each, cordoned=False)
    await world.heard()
    assert sorted(world.where(name).values()) == sorted(nodes)


async def test_a_leader_that_comes_back_moves_nobody_whom_it_had_approved_before():
    async with ConsolidatingWorld() as world:
        await two_pieces(world)
        await waits(world)
        await decided(world)
        await alone(world)
        assert world.preempting.movers
        world.scale("w", 0)  # somebody else leads meanwhile
        await world.live()
        world.now_s += 3600
        await world.heard()
        await world.rescuing.turn()
        await world.live()
        assert world.moving() == []


async def forged(world, *more, without=()):
    """Somebody writes on w-1 that b-1 is to move for it, and these; with the places of ``without`` free."""
    await world.turn()
    pod, victim = world.get("w-1"), world.get("b-1")
    gone = [victim.metadata.uid, *without]
    kept = world.preempting.ledger.suppose_without(
        world.preempting.watching.pending[pod.metadata.uid], victim.spec.node_name, gone
    )
    victims = (Victim(victim.metadata.uid, "default/b-1"), *more)
    told = encode_nomination(Nomination(kept.allocation, victims, world.now_s, 600.0, moves=True))
    await world.cluster.annotate_pod("default", "w-1", pod.metadata.uid, {wire.ANNOTATION_NOMINATED: told})


async def test_a_mover_that_is_not_there_makes_nobody_else_move_in_vain():
    async with ConsolidatingWorld() as world:
        await two_pieces(world)
        await world.deploy_on("c", "n1", mib=9000, kind="StatefulSet")
        await waits(world)
        await forged(world, Victim("nobody", "default/x"), without=world.preempting.ledger.pods)
        await world.turns(15)
        assert world.where("b") == {"b-1": "n1"}


async def test_who_wrote_down_that_a_replica_moves_does_not_wake_a_service_that_rests():
    async with ConsolidatingWorld() as world:
        await two_pieces(world)
        await waits(world)
        await until(world, lambda: world.where("w")["w-1"])
        world.scale("w", 0)
        world.scale("b", 0)
        await world.turns(5)
        made = world.deployments[1].made
        await spread_on(world, "b2", ["n1"], mib=8000)
        uid = world.get("b2-1").metadata.uid
        line = f'[{{"at":"1970-01-01T00:20:00Z","uid":"other-{uid}","service":"default/b2"}}]'
        await world.cluster.annotate_node("n0", {wire.ANNOTATION_MOVES: line})
        await world.turns(31)
        await world.deploy("w2", 1, mib=WAITS_MIB)
        await world.turn()
        pod = world.get("w2-1")
        claim = world.preempting.watching.pending[pod.metadata.uid]
        kept = world.preempting.ledger.suppose_without(claim, "n1", [uid])
        told = encode_nomination(Nomination(kept.allocation, (Victim(uid, "b2"),), world.now_s, 600.0, moves=True))
        await world.cluster.annotate_pod("default", "w2-1", pod.metadata.uid, {wire.ANNOTATION_NOMINATED: told})
        await world.turns(10)
        assert world.where("b2") == {"b2-1": "n1"}
        assert world.deployments[1].made == made


async def test_for_two_pods_that_wait_two_replicas_of_one_service_are_not_chosen():
    async with ConsolidatingWorld(msgspec.structs.replace(MOVES, at_once=2)) as world:
        for name in ("n0", "n1", "n2", "n3"):
            world.node(name)
        await world.deploy_on("a", "n0", mib=11000, kind="StatefulSet")
        await world.deploy_on("c", "n1", mib=11000, kind="StatefulSet")
        await spread_on(world, "b", ["n2", "n3"], mib=13000)
        await world.turns(31)
        await world.deploy("w", 2, mib=WAITS_MIB)
        for _ in range(100):
            await alone(world)
        assert sum(world.nomination(name) is not None for name in world.where("w")) == 1


async def test_nobody_moves_for_a_pod_that_is_being_deleted():
    async with ConsolidatingWorld() as world:
        await two_pieces(world)
        await waits(world)
        await decided(world)
        raw = copy.deepcopy(world.cluster._pods["default", "w-1"])
        raw["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/tracking"]}
        world.scale("w", 0)
        world.cluster._store_pod(raw)
        for _ in range(5):
            await alone(world)
            await world.rescuing.turn()
        assert world.moving() == []


async def test_where_the_node_is_lost_meanwhile_others_are_evicted_elsewhere_soon():
    async with ConsolidatingWorld() as world:
        await two_pieces(world, **URGENT)
        world.node("n2")
        await world.deploy_on("work", "n2", mib=16000, **JOB)
        budget = {"metadata": {"name": "keep"}, "spec": {"selector": {"matchLabels": {"app": "work"}}}}
        world.cluster.put_budget({**budget, "status": {"disruptionsAllowed": 0}})
        world.slow = 10_000
        await waits(world, **URGENT)
        await until(world, lambda: world.moving() == ["b-1"])
        await world.condition("n1")
        world.cluster.put_budget({**budget, "status": {"disruptionsAllowed": 1}})
        since_s = world.now_s
        await until(world, lambda: world.where("w")["w-1"] == "n2", 300)
        assert world.now_s - since_s < 120


async def given_up(world):
    """A move whose successor does not come, and which is over before its time."""
    await two_pieces(world)
    await waits(world)
    world.slow = 10_000
    world.rescuing.settings = msgspec.structs.replace(world.rescuing.settings, starting_s=20.0)
    await until(world, lambda: world.moving() == ["b-1"])
    await until(world, lambda: world.nomination("w-1").over)


async def test_what_is_given_up_early_keeps_nobody_waiting_until_it_would_have_ended():
    async with ConsolidatingWorld() as world:
        await given_up(world)
        since_s, name = world.now_s, "cardwise_consolidation_refusals_total"
        before = world.metric(name, reason="move-nobody")
        await until(world, lambda: world.metric(name, reason="move-nobody") > before)
        pause_s = PREEMPTION.fruitless_pause_s(1)
        assert pause_s <= world.now_s - since_s < pause_s + 10


async def test_a_more_important_pod_that_came_later_is_bound_to_what_is_kept_for_another():
    async with ConsolidatingWorld() as world:
        await two_pieces(world)
        await waits(world)
        await decided(world)
        await alone(world)
        await world.deploy("x", 1, mib=14000, **URGENT)
        assert not world.where("x")["x-1"]
        await world.turns(5)
        assert world.where("x")["x-1"] == "n1"


async def test_a_release_that_is_denied_holds_nothing_for_long():
    async with ConsolidatingWorld() as world:
        await two_pieces(world)
        await waits(world)

        async def denied(*_args, **_more):
            raise ClusterError("denied by admission", retry=False)

        world.cluster.release_pod = denied
        await decided(world)
        since_s = world.now_s
        await until(world, lambda: world.nomination("w-1").over, 400)
        assert IDLE_S <= world.now_s - since_s < IDLE_S + 10
        assert world.where("b") == {"b-1": "n1"}


async def test_those_behind_many_for_whom_nobody_can_move_are_asked_about_too():
    async with ConsolidatingWorld() as world:
        await two_pieces(world)
        world.node("n2", card(memory_mib=80000))
        await world.deploy_on("big", "n2", mib=70000, kind="StatefulSet")
        world.slow = 2
        await world.deploy("helpless", 60, mib=75000, priority=1)
        await waits(world)
        await until(world, lambda: world.where("w")["w-1"], 250)


async def test_the_second_of_two_moves_is_begun_once_the_first_has_its_place():
    """In the order of their names the small one would take the only place of the large one."""
    async with ConsolidatingWorld() as world:
        for name, mib in (("n0", 24000), ("n1", 24000), ("n2", 24000)):
            world.node(name, card(memory_mib=mib))
        await world.deploy_on("s", "n1", mib=13000, kind="StatefulSet")
        await world.deploy_on("t", "n2", mib=19000, kind="StatefulSet")
        await world.deploy_on("a", "n0", mib=5000)
        await world.deploy_on("b", "n0", mib=9000)
        await world.turns(31)
        world.slow = 4
        await world.deploy("w", 1, mib=24000)
        await until(world, lambda: world.where("w")["w-1"], 200)
        assert world.where("w") == {"w-1": "n0"}
        assert (world.lowest["a"], world.lowest["b"]) == (1, 1)
        assert world.metric("cardwise_consolidation_nominations_total") == 1


async def test_while_the_watch_does_not_tell_of_one_choice_no_other_is_made():
    async with ConsolidatingWorld() as world:
        await two_pieces(world)
        for name in ("n2", "n3"):
            world.node(name)
        await world.deploy_on("c", "n2", mib=16000, kind="StatefulSet")
        await world.deploy_on("d", "n3", mib=8000)
        await world.turns(31)
        await world.deploy("w", 2, mib=WAITS_MIB)
        chosen = set()

        async def late(_namespace, name, _uid, _notes):
            chosen.add(name)

        world.cluster.annotate_pod = late
        for _ in range(40):
            await alone(world)
        assert len(chosen) == 1


async def test_a_clock_that_is_set_back_by_hours_keeps_nobody_from_asking_again():
    async with ConsolidatingWorld() as world:
        await given_up(world)
        back_s, told = 7200.0, world.nomination("w-1")
        world.preempting.utc_s = lambda: world.now_s - back_s
        world.now_s += PREEMPTION.fruitless_pause_s(1)
        asking = world.preempting._asking({world.get("w-1").metadata.uid: told})
        assert [pod.name for pod in asking] == ["default/w-1"]


async def test_where_each_search_takes_long_those_who_wait_have_their_turn_one_after_the_other(monkeypatch):
    async with ConsolidatingWorld() as world:
        await two_pieces(world)
        world.node("n2", card(memory_mib=80000))
        await world.deploy_on("big", "n2", mib=70000, kind="StatefulSet")
        await world.deploy("helpless", 12, mib=75000, priority=1)
        await waits(world)
        search, asked = Consolidation._search, []

        async def slow(consolidation, claim, *more):
            asked.append(claim.uid)
            world.now_s += 5
            return await search(consolidation, claim, *more)

        monkeypatch.setattr(Consolidation, "_search", slow)
        await until(world, lambda: world.where("w")["w-1"], 400)
        assert len(set(asked)) == 13
