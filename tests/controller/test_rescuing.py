"""The rescuing loop on a hollow cluster: services leave what is sick, and nobody is missed (SPEC G1)."""

from __future__ import annotations

import msgspec
import pytest

from cardwise.adapters import wire
from cardwise.errors import ClusterError
from tests.controller.preempting_world import Killed
from tests.controller.rescuing_world import HASH, SETTINGS, RescueWorld

BUDGET = {"metadata": {"name": "keep"}, "spec": {"selector": {"matchLabels": {"app": "web"}}}}


async def fenced_after_deploying(world, nodes=("n0", "n1", "n2"), **more):
    """A service of two on two nodes, and the card of the first node is fenced."""
    for name in nodes:
        world.node(name)
    await world.deploy("web", **more)
    sick = world.where("web")["web-1"]
    world.fence(sick)
    return sick


async def test_a_service_leaves_a_fenced_card_and_two_replicas_are_ready_all_the_time():
    async with RescueWorld() as world:
        world.slow = 3
        sick = await fenced_after_deploying(world)
        await world.turns(15)
        assert world.lowest["web"] == 2
        assert sick not in world.where("web").values()
        assert len(set(world.where("web").values())) == len(world.where("web")) == 2


async def test_the_pod_that_leaves_serves_until_its_successor_is_ready():
    async with RescueWorld() as world:
        world.slow = 5
        await fenced_after_deploying(world)
        await world.turns(3)
        assert world.moving() == ["web-1"]
        labels = world.get("web-1").metadata.labels
        assert (labels["app"], HASH in labels) == ("web", False)
        assert not world.is_going("web-1")


async def test_a_pod_that_was_released_goes_with_its_replicaset_for_it_still_names_it_as_an_owner():
    async with RescueWorld() as world:
        world.slow = 5
        await fenced_after_deploying(world)
        await world.turns(2)
        (owner,) = world.get("web-1").metadata.owner_references
        assert (owner.uid, owner.controller) == ("uid-web", False)


async def test_both_replicas_leave_two_fenced_cards_and_never_fewer_than_two_are_ready():
    async with RescueWorld() as world:
        world.slow = 2
        for name in ("n0", "n1", "n2", "n3"):
            world.node(name)
        await world.deploy("web")
        for name in set(world.where("web").values()):
            world.fence(name)
        left = set(world.where("web").values())
        await world.turns(25)
        assert world.lowest["web"] == 2
        assert not left & set(world.where("web").values())
        assert len(set(world.where("web").values())) == 2


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("dies_at", range(8))
async def test_a_controller_killed_at_any_write_and_started_again_moves_nobody_twice(dies_at, before):
    async with RescueWorld() as world:
        world.slow = 3
        sick = await fenced_after_deploying(world)
        world.gate.dies_at, world.gate.before = dies_at, before
        for _ in range(30):
            try:
                await world.turn()
            except Killed:
                await world.start_controller()
        assert world.lowest["web"] == 2
        assert sick not in world.where("web").values()
        assert world.deployments[0].made == 3, "one successor was made, not two"
        assert world.moving() == []


async def test_without_room_nobody_is_touched_and_it_is_said_on_the_pod_the_node_and_as_a_metric():
    async with RescueWorld() as world:
        sick = await fenced_after_deploying(world, ("n0", "n1"), mib=20000)
        await world.turns(5)
        assert world.where("web")["web-1"] == sick
        status, reason, text = world.told(sick)
        assert (status, reason) == ("False", "Stuck")
        assert "default/web-1: no other node has room for it" in text
        assert len(world.events("web-1", "CardwiseCannotMove")) == 1
        assert "no other node has room" in world.get("web-1").metadata.annotations[wire.ANNOTATION_STAYS]
        assert world.metric("cardwise_rescue_pods_left", because="no_room") == 1


async def stuck_and_well_again(world):
    """Nobody could leave the node of a fenced card, and the card is well by now; the node's name."""
    sick = await fenced_after_deploying(world, ("n0", "n1"), mib=20000)
    await world.turns(3)
    world.fence(sick, healthy=True)
    await world.turns(3)
    return sick


async def test_what_was_said_is_taken_back_when_the_card_is_well_again():
    async with RescueWorld() as world:
        sick = await stuck_and_well_again(world)
        assert world.told(sick)[0] == "True"
        assert wire.ANNOTATION_STAYS not in world.get("web-1").metadata.annotations
        assert world.metric("cardwise_rescue_pods_left", because="no_room") == 0


async def test_a_budget_that_refuses_is_respected_and_asked_again_later():
    async with RescueWorld() as world:
        sick = await fenced_after_deploying(world, mib=20000, kind="StatefulSet")
        world.cluster.put_budget({**BUDGET, "status": {"disruptionsAllowed": 0}})
        await world.turns(5)
        assert world.where("web")["web-1"] == sick
        asked = [name for name, _ in world.gate.calls if name == "evict"]
        assert len(asked) == 1
        world.cluster.put_budget({**BUDGET, "status": {"disruptionsAllowed": 1}})
        await world.turns(10)
        assert sick not in world.where("web").values()


async def test_a_stateful_service_goes_one_by_one_and_is_said_to_be_short():
    async with RescueWorld() as world:
        world.slow = 3
        for name in ("n0", "n1", "n2", "n3"):
            world.node(name)
        await world.deploy("db", kind="StatefulSet")
        for name in set(world.where("db").values()):
            world.fence(name)
        await world.turns(60)
        assert world.lowest["db"] == 1
        assert any("one short" in text for text in world.events("db-1", "CardwiseMoved"))
        assert {world.is_lost(name) for name in world.where("db").values()} == {False}


async def web_on_a_lost_node(world):
    """Two replicas on three nodes; the node of one is lost by now."""
    for name in ("n0", "n1", "n2"):
        world.node(name)
    await world.deploy("web")
    await world.condition(world.where("web")["web-1"])


async def test_a_lost_node_is_left_after_its_patience_and_its_pods_are_marked_not_removed():
    async with RescueWorld() as world:
        await web_on_a_lost_node(world)
        await world.turns(28)
        assert not world.is_going("web-1")
        await world.turns(5)
        assert world.get("web-1").metadata.deletion_timestamp is not None
        assert world.ready("web") == 2


async def test_who_did_not_look_for_a_while_waits_the_whole_patience():
    """As a replica that led, lost the lease, and leads again: the node was well meanwhile."""
    async with RescueWorld() as world:
        await web_on_a_lost_node(world)
        await world.turns(5)
        world.now_s += 3600
        await world.turns(28)
        assert not world.is_going("web-1")
        await world.turns(5)
        assert world.is_going("web-1")


async def test_what_another_leader_said_of_a_node_meanwhile_is_not_left_there():
    async with RescueWorld() as world:
        sick = await stuck_and_well_again(world)
        assert world.told(sick)[1] == "NobodyLeft"
        told = {"type": wire.CONDITION_RESCUED, "status": "False", "reason": "Stuck", "message": "1 pods are left"}
        await world.cluster.set_node_condition(sick, told)
        await world.turn(3600)
        assert world.told(sick)[1] == "NobodyLeft"


async def test_a_node_that_toggles_moves_nobody():
    async with RescueWorld() as world:
        for name in ("n0", "n1", "n2"):
            world.node(name)
        await world.deploy("web")
        lost = world.where("web")["web-1"]
        for _ in range(4):
            await world.condition(lost)
            await world.turns(20)
            await world.condition(lost, status="True")
            await world.turns(5)
        assert (world.deployments[0].made, world.moving()) == (2, [])


async def test_pods_under_a_dead_mps_daemon_leave_and_no_other_goes_there():
    async with RescueWorld() as world:
        for name in ("n0", "n1", "n2"):
            world.node(name)
        await world.deploy("web")
        sick = world.where("web")["web-1"]
        raw = world.cluster._nodes[sick]
        told = raw["metadata"]["annotations"][wire.ANNOTATION_CARDS]
        await world.cluster.annotate_node(sick, {wire.ANNOTATION_CARDS: told.replace('"mib"', '"mode":"mps","mib"')})
        await world.condition(sick, wire.CONDITION_MPS, "False")
        await world.turns(70)
        assert sick not in world.where("web").values()
        assert world.lowest["web"] == 2


async def test_a_move_whose_successor_finds_no_node_is_taken_back_and_rests():
    async with RescueWorld() as world:
        sick = await fenced_after_deploying(world)
        third = ({"n0", "n1", "n2"} - set(world.where("web").values())).pop()
        await world.heard()
        await world.rescuing.turn()
        assert world.get("web-1").metadata.labels.get(HASH) is None
        world.fence(third)  # the room that the ledger saw is gone
        await world.turns(70)
        assert world.get("web-1").metadata.labels[HASH] == "h1"
        assert world.where("web") == {"web-1": sick, "web-2": world.where("web")["web-2"]}
        assert world.lowest["web"] == 2
        world.fence(third, healthy=True)
        await world.turns(20)
        assert world.moving() == [], "it rests first"
        await world.turns(100)
        assert sick not in world.where("web").values()


async def test_a_bare_pod_is_never_evicted_and_that_is_said():
    async with RescueWorld() as world:
        world.node("n0")
        world.node("n1")
        await world.runs("bare", 4096, annotations={})
        world.fence(world.node_of("bare"))
        await world.turns(3)
        assert not world.is_going("bare")
        assert "nothing would make it anew" in world.events("bare", "CardwiseCannotMove")[0]


async def test_a_node_that_the_pod_does_not_tolerate_is_no_room():
    async with RescueWorld() as world:
        for name in ("n0", "n1"):
            world.node(name)
        world.node("n2", taints=[{"key": "keep", "effect": "NoSchedule"}])
        await world.deploy("web")
        sick = world.where("web")["web-1"]
        assert "n2" not in world.where("web").values()
        world.fence(sick)
        await world.turns(3)
        assert world.moving() == []
        assert world.told(sick)[1] == "Stuck"


async def test_a_step_that_the_api_server_forbids_is_said_and_not_tried_every_second():
    async with RescueWorld() as world:
        sick = await fenced_after_deploying(world)
        asked = []

        async def forbidden(release, _notes):
            asked.append(release.name)
            raise ClusterError("403: forbidden", retry=False)

        world.gate.release_pod = forbidden
        await world.turns(25)
        assert asked == ["web-1", "web-1"], "at once, and after 10 s; next after 20 more"
        assert "did not take the last step" in world.events("web-1", "CardwiseCannotMove")[0]
        del world.gate.release_pod
        await world.turns(20)
        assert sick not in world.where("web").values()


# ---------------------------------------------------------------- hostile objects, and objects that change meanwhile


async def test_a_node_that_is_deleted_in_the_middle_of_a_turn_ends_nothing():
    async with RescueWorld() as world:
        sick = await fenced_after_deploying(world, kind="StatefulSet", replicas=1)
        await world.heard()
        call = world.gate.evict

        async def evict(evictee, *, dry_run=False):
            if dry_run:
                world.cluster.delete_node(sick)
                await world.heard()
            await call(evictee, dry_run=dry_run)

        world.gate.evict = evict
        world.now_s += 1
        await world.rescuing.turn()
        assert sick not in world.rescuing.seen.nodes


def moving(service, hash_="h1"):
    at = "2026-01-01T00:00:00Z"
    told = {"v": 1, "at": at, "ready": 9, "service": service, "owner": "uid-web", "hash": hash_}
    return msgspec.json.encode(told).decode()


async def test_a_pod_of_another_namespace_that_says_it_was_released_of_a_service_holds_up_nobody():
    """The mark is an annotation of the pod, and whose pod it is writes what they please."""
    async with RescueWorld() as world:
        for i in range(4):
            world.node(f"n{i}")
        await world.deploy("web")
        for i in range(SETTINGS.at_once):
            asked = {wire.GPU: "1", wire.USER_MEMORY: "1000", wire.USER_CORES: "5"}
            metadata = {"name": f"liar{i}", "namespace": "elsewhere", "labels": {}, "annotations": {}}
            containers = [{"name": "app", "resources": {"limits": asked}}]
            world.cluster.create_pod({"metadata": metadata, "spec": {"containers": containers}})
        await world.turns(2)
        for i in range(SETTINGS.at_once):
            uid = world.cluster._pods["elsewhere", f"liar{i}"]["metadata"]["uid"]
            mark = {wire.ANNOTATION_MOVING: moving("default/web")}
            await world.cluster.annotate_pod("elsewhere", f"liar{i}", uid, mark)
            world.cluster.ready_pod("elsewhere", f"liar{i}")
        world.fence(world.where("web")["web-1"])
        await world.turn()
        assert "web-1" in world.moving()


async def test_a_pod_that_still_has_its_controller_was_not_released_whatever_it_says():
    """Somebody copied the annotation into the template: every pod of it would be evicted, again and again."""
    async with RescueWorld() as world:
        world.node("n0")
        world.node("n1")
        await world.deploy("web")
        for name in list(world.of("web")):
            uid = world.get(name).metadata.uid
            mark = {wire.ANNOTATION_MOVING: moving("default/web").replace('"ready":9', '"ready":0')}
            await world.cluster.annotate_pod("default", name, uid, mark)
        before = set(world.of("web"))
        await world.turns(30)
        assert set(world.of("web")) == before


@pytest.mark.parametrize("retry", [True, False], ids=["no answer", "denied"])
async def test_why_a_pod_stays_is_not_told_each_second_where_it_cannot_be_noted_on_the_pod(retry):
    async with RescueWorld() as world:
        await fenced_after_deploying(world, nodes=("n0", "n1"), mib=20000)

        async def refused(*_args):
            raise ClusterError("no", retry=retry)

        world.gate.annotate_pod = refused
        await world.turns(30)
        told = [each for each in world.cluster.events if each["reason"] == "CardwiseCannotMove"]
        assert len(told) <= 1


async def test_a_pod_that_was_released_serves_on_while_its_successor_died_and_the_watch_is_cut():
    async with RescueWorld() as world:
        await fenced_after_deploying(world)
        while len(world.of("web")) < 3 or not all(world.rescuing.seen.pods[uid].ready for uid in uids(world)):
            world.now_s += 1
            await world.rescuing.turn()
            await world.live()
        world._controller.cancel()
        await world.heard()
        world.cluster.ready_pod("default", "web-3", ready=False)
        for _ in range(3):
            world.now_s += 10
            await world.rescuing.turn()
        assert not world.is_going("web-1")
        assert world.ready("web") == 2


def uids(world):
    return [raw["metadata"]["uid"] for raw in world.of("web").values()]


async def told_by_the_agent(world, node, more):
    """As agents tell of a card that takes nothing new."""
    told = world.cluster._nodes[node]["metadata"]["annotations"][wire.ANNOTATION_CARDS]
    await world.cluster.annotate_node(node, {wire.ANNOTATION_CARDS: told.replace('"mib"', f'{more},"mib"')})


async def test_what_runs_on_a_card_that_only_takes_nothing_new_stays_there():
    """Case C34: an unknown Xid is no reason to go."""
    async with RescueWorld() as world:
        for name in ("n0", "n1", "n2"):
            world.node(name)
        await world.deploy("web")
        before = world.where("web")
        await told_by_the_agent(world, before["web-1"], '"healthy":false,"stays":true')
        await world.turns(70)
        assert (world.where("web"), world.moving()) == (before, [])


async def test_a_daemon_that_is_back_within_its_minute_moves_nobody_though_its_card_takes_nothing_meanwhile():
    async with RescueWorld() as world:
        for name in ("n0", "n1", "n2"):
            world.node(name)
        await world.deploy("web")
        before = world.where("web")
        await told_by_the_agent(world, before["web-1"], '"mode":"mps","healthy":false,"stays":true')
        await world.condition(before["web-1"], wire.CONDITION_MPS, "False")
        await world.turns(50)
        assert world.where("web") == before
        await world.turns(20)
        assert before["web-1"] not in world.where("web").values()
