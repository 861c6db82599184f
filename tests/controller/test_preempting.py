"""Preemption, from a pod that waits to its binding, with a controller that may die at any step."""

from __future__ import annotations

import pytest

from cardwise.adapters import wire
from cardwise.adapters.watching import Watching
from cardwise.controller.preempting import AGAIN_S, MOST_DECIDED
from cardwise.core.allocation import Allocation
from cardwise.core.ledger import Ledger
from cardwise.core.reasons import Reason
from cardwise.scheduler.settings import Settings, policies_of
from tests.builders import card
from tests.controller.preempting_world import BEST_EFFORT, SETTINGS, Killed, World

HIGH = 100
SENSITIVE = {}
FULL = 24576


@pytest.fixture
async def world():
    async with World() as made:
        yield made


async def until(world, done, turns=200):
    for _ in range(turns):
        await world.turn()
        if done():
            return
    raise AssertionError(f"nothing after {turns} turns; {list(world.cluster.events)}")


async def low_and_high(world, low=20000, high=20000, **more):
    """Case C40: a best-effort pod fills the card, and one of higher priority waits."""
    world.node("n0")
    await world.runs("low", low, owner="batch")
    world.now_s += SETTINGS.settle_s
    world.pod("high", high, HIGH, owner="service", annotations=SENSITIVE, **more)
    await world.schedule()


async def test_case_c40_one_victim_is_told_graced_and_goes_then_the_high_one_is_bound(world):
    await low_and_high(world)
    await until(world, lambda: world.is_going("low"))
    low = world.get("low")
    assert low.metadata.annotations[wire.ANNOTATION_PREEMPTED_FOR] == f"default/high {world.get('high').metadata.uid}"
    assert wire.ANNOTATION_PREEMPTED_BY in low.metadata.annotations
    assert world.get("high").status.nominated_node_name == "n0"
    assert not world.node_of("high")
    world.end("low")
    await world.turn()
    assert world.node_of("high") == "n0"
    (line,) = world.noted("n0")
    assert (line.eviction.owner, line.eviction.by) == ("default/batch", "default/service")
    assert world.events("low", "CardwisePreempted") == [
        "evicted for default/high, whose priority is 100; it has 10 s to end"
    ]
    assert world.metric("cardwise_preemption_evictions_total", namespace="default") == 1.0


async def test_if_evicting_all_lower_work_would_not_make_room_nobody_is_evicted(world):
    world.node("n0")
    await world.runs("low", 8000)
    await world.runs("other", 12000, annotations=SENSITIVE)
    world.now_s += SETTINGS.settle_s
    world.pod("high", 20000, HIGH, annotations=SENSITIVE)
    for _ in range(60):
        await world.turn()
    assert world.going() == []
    (told,) = world.events("high", "CardwiseNotPreempting")
    assert told.startswith("evictions would not help: on 1 nodes")


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"annotations": SENSITIVE}, id="latency-sensitive"),
        pytest.param({"annotations": {**BEST_EFFORT, wire.ANNOTATION_PREEMPTIBLE: "false"}}, id="says no"),
        pytest.param({"priority": HIGH}, id="of the same priority"),
        pytest.param({"labels": {wire.LABEL_KUEUE_QUEUE: "team-a"}}, id="of another queue"),
    ],
)
async def test_such_a_pod_is_left_alone(world, more):
    world.node("n0")
    await world.runs("low", 20000, **more)
    world.now_s += SETTINGS.settle_s
    world.pod("high", 20000, HIGH, annotations=SENSITIVE)
    for _ in range(60):
        await world.turn()
    assert world.going() == []


async def test_two_pods_of_the_same_priority_never_evict_each_other(world):
    world.node("n0")
    await world.runs("a", 20000, HIGH)
    world.now_s += SETTINGS.settle_s
    world.pod("b", 20000, HIGH)
    for _ in range(120):
        await world.turn()
    assert world.node_of("a") == "n0"
    assert not world.node_of("b")
    assert world.metric("cardwise_preemption_nominations_total") == 0.0


async def test_a_pod_that_has_been_ready_for_a_short_while_only_is_not_evicted_yet(world):
    world.node("n0")
    await world.runs("low", 20000)
    world.pod("high", 20000, HIGH, annotations=SENSITIVE)
    since_s = world.now_s
    await until(world, lambda: world.is_going("low"))
    assert world.now_s - since_s >= SETTINGS.settle_s


async def test_a_pod_that_is_not_ready_counts_as_starting_only_for_so_long(world):
    world.node("n0")
    world.pod("stuck", 20000)
    world.pod("high", 20000, HIGH, annotations=SENSITIVE)
    world.cycle.unpark()
    await world.schedule()
    assert world.node_of("high") == "n0"  # it came first: priority
    world.node("n1")
    await world.schedule()
    world.pod("next", 20000, HIGH, annotations=SENSITIVE)
    await world.turn(SETTINGS.starting_s - 100)
    assert not world.is_going("stuck")
    world.now_s += 200
    await until(world, lambda: world.is_going("stuck"))


async def test_what_is_freed_is_kept_from_others_until_the_pod_is_bound(world):
    world.node("n0")
    await world.runs("a", 12000, owner="a")
    await world.runs("b", 12000, owner="b")
    world.now_s += SETTINGS.settle_s
    world.pod("high", 24000, HIGH, annotations=SENSITIVE)
    await world.schedule()
    await until(world, lambda: world.going() == ["a", "b"])
    world.pod("thief", 12000, HIGH, annotations=SENSITIVE)  # as important, and small enough for the first half
    world.end("a")
    await world.turn()
    assert not world.node_of("thief")
    world.end("b")
    await world.turn()
    assert world.node_of("high") == "n0"
    assert not world.node_of("thief")


async def test_a_scheduler_that_is_started_anew_still_keeps_it(world):
    await low_and_high(world)
    await until(world, lambda: world.is_going("low"))
    world.end("low")
    await world.heard()
    world.pod("thief", 20000, 2 * HIGH, annotations=SENSITIVE)
    await world.heard()
    seen = world.preempting.seen
    ledger = Ledger(policies_of(Settings()))
    watching = Watching(ledger, world.clock)
    watching.hear_all(tuple(seen.nodes.values()), tuple(seen.pods.values()))
    high, thief = (watching.pending[watching.uids[f"default/{name}"]] for name in ("high", "thief"))
    assert isinstance(ledger.hold(thief, "n0"), Reason)
    assert isinstance(ledger.hold(high, "n0"), Allocation)


async def test_a_pod_that_does_not_take_its_share_loses_it_at_the_deadline_and_asks_again_after_a_pause(world):
    await low_and_high(world)
    await until(world, lambda: world.is_going("low"))
    world.pod("next", 20000, annotations=BEST_EFFORT)
    high = world.cluster._pods["default", "high"]
    high["spec"]["schedulerName"] = "somebody-else"  # whatever it is that keeps it off, we do not see it
    world.cluster._store_pod({**high, "metadata": {**high["metadata"], "labels": {"x": "y"}}})
    world.end("low")
    await world.turn()
    assert not world.node_of("next")
    await until(world, lambda: world.node_of("next"))
    assert world.nomination("high").over
    assert world.events("high", "CardwiseNotPreempting")[-1].startswith("evictions did not help")
    assert not world.get("high").status.nominated_node_name


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
async def test_a_controller_that_is_killed_at_any_step_and_started_again_does_nothing_twice(before):
    async with World() as world:
        await low_and_high(world)
        await until(world, lambda: world.is_going("low"))
        calls = len(world.gate.calls)
    assert calls >= 6
    for step in range(calls):
        async with World() as world:
            world.gate.dies_at, world.gate.before = step, before
            await low_and_high(world)
            with pytest.raises(Killed):
                await until(world, lambda: False)
            world.gate.dies_at = None
            await world.start_controller()
            await until(world, lambda: world.is_going("low"))
            world.end_going()
            await world.turn()
            assert world.node_of("high") == "n0", step
            assert len(world.noted("n0")) == 1, step
            for _ in range(5):
                await world.turn()
            writes = [args for name, args in world.gate.calls if name == "annotate_pod" and args[1] == "high"]
            assert len(writes) == 1 + (step == 0 and before), step  # decided once
            evicted = [args[0].name for name, args in world.gate.calls if name == "evict"]
            assert set(evicted) == {"low"}, step


async def test_a_budget_that_forbids_it_makes_another_go(world):
    world.node("n0", card(memory_mib=FULL), card(memory_mib=FULL))
    await world.runs("a", 20000, labels={"app": "a"}, owner="a")
    await world.runs("b", 20000, labels={"app": "b"}, owner="b")
    world.now_s += SETTINGS.settle_s
    world.cluster.put_budget(
        {"metadata": {"name": "pdb"}, "spec": {"selector": {"matchLabels": {"app": "a"}}}, "status": {}}
    )
    world.pod("high", 20000, HIGH, annotations=SENSITIVE)
    await until(world, world.going)
    assert world.going() == ["b"]


async def test_a_budget_that_was_used_up_since_the_decision_takes_the_nomination_back_and_nobody_goes(world):
    await low_and_high(world, labels={})
    await until(world, lambda: world.nomination("high"))
    everyone = {"metadata": {"name": "pdb"}, "spec": {"selector": {}}, "status": {"disruptionsAllowed": 0}}
    world.cluster.put_budget(everyone)
    await world.turn()
    assert world.nomination("high") is None
    assert world.going() == []
    assert world.noted("n0") == ()
    assert "PodDisruptionBudget" in world.events("high", "CardwiseNotPreempting")[-1]
    world.cluster.put_budget({**everyone, "status": {"disruptionsAllowed": 1}})
    await until(world, lambda: world.going() == ["low"])


async def test_a_pod_that_found_room_before_anybody_went_spares_its_victims(world):
    await low_and_high(world)
    await until(world, lambda: world.nomination("high"))
    world.node("n1")
    await world.turn()
    assert world.node_of("high") == "n1"
    for _ in range(5):
        await world.turn()
    assert world.going() == []
    assert wire.ANNOTATION_PREEMPTED_FOR not in world.get("low").metadata.annotations


async def test_a_victim_that_is_needed_no_longer_is_spared(world):
    world.node("n0")
    await world.runs("a", 12000, owner="a")
    await world.runs("b", 12000, owner="b")
    world.now_s += SETTINGS.settle_s
    world.pod("high", 24000, HIGH, annotations=SENSITIVE)
    await until(world, lambda: world.nomination("high"))
    world.end("a")
    await world.turn()
    assert world.going() == ["b"]


async def test_a_node_that_kube_scheduler_would_not_use_gives_up_nobody(world):
    world.node("n0", taints=[{"key": "maintenance", "effect": "NoSchedule", "value": "yes"}])
    world.node("n1", labels={"zone": "b"})
    tolerates = [{"key": "maintenance", "operator": "Exists"}]
    await world.runs("low0", 20000, tolerations=tolerates, owner="a")
    await world.runs("low1", 20000, tolerations=tolerates, owner="b")
    assert {world.node_of("low0"), world.node_of("low1")} == {"n0", "n1"}
    world.now_s += SETTINGS.settle_s
    world.pod("high", 20000, HIGH, annotations=SENSITIVE, nodeSelector={"zone": "a"})
    for _ in range(30):
        await world.turn()
    assert world.going() == []


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"preemptionPolicy": "Never"}, id="its class never preempts"),
        pytest.param({"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}, id="it is gated"),
    ],
)
async def test_for_such_a_pod_nobody_goes(world, spec):
    await low_and_high(world, **spec)
    for _ in range(30):
        await world.turn()
    assert world.going() == []


async def test_a_pod_whose_workload_kueue_evicts_asks_for_nobody(world):
    await low_and_high(world, labels={wire.LABEL_KUEUE_QUEUE: "q"})
    evicted = {"type": "Evicted", "status": "True"}
    owners = [{"kind": "Job", "name": "service", "uid": "uid-service"}]
    workload = {"metadata": {"name": "w", "ownerReferences": owners}, "status": {"conditions": [evicted]}}
    world.cluster.put_workload(workload)
    for _ in range(30):
        await world.turn()
    assert world.going() == []
    world.cluster.put_workload({**workload, "status": {}})
    await until(world, lambda: world.going() == ["low"])


async def test_pods_of_one_kueue_queue_go_for_each_other(world):
    world.node("n0")
    queue = {wire.LABEL_KUEUE_QUEUE: "q"}
    await world.runs("low", 20000, labels=queue)
    world.now_s += SETTINGS.settle_s
    world.pod("high", 20000, HIGH, annotations=SENSITIVE, labels=queue)
    await until(world, lambda: world.going() == ["low"])


async def test_who_was_evicted_and_comes_back_waits_its_pause_and_never_evicts_who_evicted_it(world):
    await low_and_high(world)
    await until(world, lambda: world.is_going("low"))
    world.end("low")
    await world.turn()
    world.pod("low-again", 20000, 2 * HIGH, owner="batch")  # somebody raised its priority
    await world.schedule()
    for _ in range(100):
        await world.turn(30.0)
    assert world.node_of("high") == "n0"
    assert not world.is_going("high")


async def test_a_node_whose_memory_of_evictions_cannot_be_read_gives_up_nobody(world):
    await low_and_high(world)
    await world.cluster.annotate_node("n0", {wire.ANNOTATION_PREEMPTIONS: "nonsense"})
    for _ in range(30):
        await world.turn()
    assert world.going() == []
    await world.cluster.annotate_node("n0", {wire.ANNOTATION_PREEMPTIONS: None})
    await until(world, lambda: world.going() == ["low"])


async def test_pods_for_whom_nobody_can_go_keep_nobody_waiting_and_are_asked_about_once_per_step(world):
    """As case C43: the head of the line cannot be helped, and the next one is."""
    world.node("n0")
    await world.runs("low", 20000)
    world.now_s += SETTINGS.settle_s
    elsewhere = {wire.ANNOTATION_GPU_MODEL: "H100"}
    for i in range(3 * MOST_DECIDED):
        world.pod(f"hopeless{i}", 20000, 10 * HIGH, annotations=elsewhere)
    world.pod("high", 20000, HIGH, annotations=SENSITIVE)
    await world.schedule()
    world.now_s += SETTINGS.wait_s
    for _ in range(int(AGAIN_S)):
        await world.turn()
    assert world.nomination("high")
    refused = world.metric("cardwise_preemption_refusals_total", reason="preempt-no-help")
    assert refused == 3 * MOST_DECIDED
