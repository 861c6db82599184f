"""Preemption, from a pod that waits to its binding, with a controller that may die at any step."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from cardwise.adapters import wire
from cardwise.adapters.allocations import told_allocation
from cardwise.adapters.watching import Watching
from cardwise.controller.preempting import AGAIN_S, MOST_DECIDED
from cardwise.core.allocation import Allocation
from cardwise.core.ledger import Ledger
from cardwise.core.reasons import Reason
from cardwise.errors import ClusterError
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


# ---------------------------------------------------------------- hostile objects, and objects that change meanwhile


async def nominated_by_hand(world, victims, at="2026-01-01T00:00:00Z", keep=600.0):
    """Whatever wrote it, the pod that waits carries a nomination of n0 with these victims."""
    uid = world.get("high").metadata.uid
    claim = world.preempting.watching.pending[uid]
    world.preempting.ledger.rebuild()
    kept = world.preempting.ledger.suppose_without(claim, "n0", [world.get("low").metadata.uid])
    told = msgspec.to_builtins(told_allocation(kept.allocation))
    text = msgspec.json.encode({"v": 1, "at": at, "keep": keep, "alloc": told, "victims": victims}).decode()
    await world.cluster.annotate_pod("default", "high", uid, {wire.ANNOTATION_NOMINATED: text})


@pytest.mark.parametrize(
    "becomes",
    [
        pytest.param({wire.ANNOTATION_CLASS: "latency-sensitive"}, id="latency-sensitive"),
        pytest.param({wire.ANNOTATION_PREEMPTIBLE: "false"}, id="says no"),
    ],
)
async def test_who_may_go_no_more_stays_though_others_went_for_the_same_pod(world, becomes):
    world.node("n0")
    await world.runs("low", 20000, owner="batch")
    world.now_s += SETTINGS.settle_s
    world.pod("high", 20000, HIGH, owner="service", annotations=SENSITIVE)
    await world.schedule()
    uid = world.get("low").metadata.uid
    await nominated_by_hand(world, [[uid, "default/low"], ["uid-of-one-that-went", "default/went"]])
    await world.cluster.annotate_pod("default", "low", uid, becomes)
    for _ in range(30):
        await world.turn()
    assert world.going() == []


@pytest.mark.parametrize("at", ["9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00"])
async def test_a_nomination_of_a_time_that_cannot_be_written_again_is_none(world, at):
    await low_and_high(world)
    await nominated_by_hand(world, [], at, keep=1.0)
    await until(world, lambda: world.is_going("low"))


async def test_pods_that_are_deleted_in_the_middle_of_a_turn_end_nothing(world):
    """Two nominations are over; while the first is given up, the pod of the second goes."""
    world.node("n0")
    await world.runs("low", 20000, owner="batch")
    for name in ("high", "other"):
        world.pod(name, 20000, HIGH, annotations=SENSITIVE)
    await world.heard()
    await nominated_by_hand(world, [], keep=0.0)
    text = world.get("high").metadata.annotations[wire.ANNOTATION_NOMINATED]
    await world.cluster.annotate_pod(
        "default", "other", world.get("other").metadata.uid, {wire.ANNOTATION_NOMINATED: text}
    )
    await world.heard()
    await goes_at(world, "annotate_pod", ("high", "other"))


async def test_marked_pods_that_are_deleted_in_the_middle_of_a_turn_end_nothing(world):
    world.node("n0")
    for name in ("a", "b"):
        await world.runs(name, 1000, owner=name)
        uid = world.get(name).metadata.uid
        await world.cluster.annotate_pod("default", name, uid, {wire.ANNOTATION_PREEMPTED_FOR: "default/x u"})
    await world.heard()
    await goes_at(world, "annotate_pod", ("a", "b"))


async def test_a_node_that_is_deleted_in_the_middle_of_a_preemption_ends_nothing(world):
    await low_and_high(world)
    await until(world, lambda: world.nomination("high"))
    call = world.gate._cluster.evict

    async def evict(evictee, *, dry_run=False):
        world.cluster.delete_node("n0")
        await world.heard()
        await call(evictee, dry_run=dry_run)

    world.gate.evict = evict
    await world.preempting.turn()
    assert world.going() == []


async def goes_at(world, call, names):
    """A turn; with the first of these calls about one of these pods the others are deleted."""
    made = getattr(world.gate, call)

    async def gated(namespace, name, *args):
        for other in set(names) - {name}:
            if world.get(other):
                world.end(other)
        await world.heard()
        await made(namespace, name, *args)

    setattr(world.gate, call, gated)
    await world.preempting.turn()
    assert len([name for name in names if world.get(name)]) == 1


async def test_a_mark_that_cannot_be_taken_off_keeps_nobody_waiting(world):
    """Somebody's admission policy denies every change of this pod."""
    world.node("n1")
    await world.runs("odd", 1000, owner="odd", annotations=SENSITIVE)
    uid = world.get("odd").metadata.uid
    await world.cluster.annotate_pod("default", "odd", uid, {wire.ANNOTATION_PREEMPTED_FOR: "default/x u"})
    made = world.gate.annotate_pod

    async def denied(namespace, name, *args):
        if name == "odd":
            raise ClusterError("denied", retry=False)
        await made(namespace, name, *args)

    world.gate.annotate_pod = denied
    world.node("n0")
    await world.runs("low", 24000, owner="batch")
    await world.heard()
    world.now_s += SETTINGS.settle_s
    world.pod("high", 24000, HIGH, annotations=SENSITIVE)
    await until(world, lambda: world.is_going("low"))


async def test_nodes_whose_memory_of_evictions_cannot_be_read_do_not_keep_the_others_from_giving_up(world):
    await low_and_high(world)
    for i in range(SETTINGS.most):
        world.node(f"sick{i}", card(memory_mib=1024))
        await world.cluster.annotate_node(f"sick{i}", {wire.ANNOTATION_PREEMPTIONS: "nonsense"})
    await until(world, lambda: world.is_going("low"))


@pytest.mark.parametrize("way", ["given up", "taken back"])
async def test_the_nominated_node_is_taken_back_though_the_first_try_fails(world, way):
    """Else kube-scheduler counts the pod on a node for which nothing is kept any more."""
    await low_and_high(world)
    await until(world, lambda: world.nomination("high"))
    if way == "taken back":
        everyone = {"metadata": {"name": "pdb"}, "spec": {"selector": {}}, "status": {"disruptionsAllowed": 0}}
        world.cluster.put_budget(everyone)
    else:
        world.preempting.steps.settings = world.preempting.settings
        world.now_s += SETTINGS.grace_s + SETTINGS.keep_s + 1
    made, failed = world.gate.nominate, []

    async def nominate(namespace, name, uid, node):
        if not node and not failed:
            failed.append(name)
            raise ClusterError("no answer in time", retry=True)
        await made(namespace, name, uid, node)

    world.gate.nominate = nominate
    for _ in range(3):
        await world.preempting.turn()
        await world.heard()
    assert failed
    assert not world.get("high").status.nominated_node_name


async def test_a_clock_that_was_set_back_a_little_releases_no_brake(world):
    """Or the next leader's is behind by so much."""
    world.node("n0")
    for i in range(3):
        await world.runs(f"low{i}", 8000, owner=f"batch{i}")
    await world.heard()
    utc = datetime.fromtimestamp(world.now_s + 90, UTC)
    lines = [{"at": utc.isoformat(), "uid": f"u{i}", "owner": f"o{i}", "by": "b"} for i in range(2)]
    await world.cluster.annotate_node("n0", {wire.ANNOTATION_PREEMPTIONS: msgspec.json.encode(lines).decode()})
    world.now_s += SETTINGS.settle_s
    world.pod("high", 8100, HIGH, annotations=SENSITIVE)
    for _ in range(20):
        await world.turn()
    assert world.going() == []


UNWELL = [
    pytest.param("CardwiseConsistent", "False", id="its agent is silent"),
    pytest.param("Ready", "Unknown", id="it is not ready"),
    pytest.param("CardwiseMPSReady", "False", id="its MPS daemon is down"),
]


@pytest.mark.parametrize(("kind", "status"), UNWELL)
async def test_nobody_goes_on_a_node_that_takes_nobody_now(world, kind, status):
    await low_and_high(world)
    await world.cluster.set_node_condition("n0", {"type": kind, "status": status})
    world.ledger.silence("n0", "so the scheduler takes it")
    for _ in range(30):
        await world.turn()
    assert world.going() == []
    await world.cluster.set_node_condition("n0", {"type": kind, "status": "True"})
    world.ledger.silence("n0", "")
    await until(world, lambda: world.is_going("low"))


@pytest.mark.parametrize(("kind", "status"), UNWELL)
async def test_a_node_that_fails_after_the_choice_spares_its_pods(world, kind, status):
    await low_and_high(world)
    await until(world, lambda: world.nomination("high"))
    await world.cluster.set_node_condition("n0", {"type": kind, "status": status})
    world.ledger.silence("n0", "so the scheduler takes it")
    for _ in range(30):
        await world.turn()
    assert world.going() == []
    assert world.nomination("high") is None


@pytest.mark.parametrize(
    "becomes", [{wire.ANNOTATION_CLASS: "latency-sensitive"}, {wire.ANNOTATION_PREEMPTIBLE: "false"}], ids=str
)
async def test_who_may_go_no_more_stays_though_the_watch_is_cut_and_does_not_tell(world, becomes):
    await low_and_high(world)
    await until(world, lambda: world.nomination("high"))
    await world.heard()
    world._controller.cancel()
    await world.heard()
    await world.cluster.annotate_pod("default", "low", world.get("low").metadata.uid, becomes)
    for _ in range(5):
        world.now_s += 1
        await world.preempting.turn()
    assert world.going() == []
    assert world.nomination("high") is None


@pytest.mark.parametrize("call", ["evict", "annotate_pod"])
async def test_a_victim_that_somebodys_admission_denies_keeps_nobody_waiting(world, call):
    """Its eviction is denied: another goes. Its mark is denied: it goes without."""
    for name in ("n0", "n1"):
        world.node(name)
    await world.runs("low0", 19000, owner="a")
    await world.runs("low1", 20000, owner="b")
    made = getattr(world.gate, call)

    async def denied(*args, **more):
        if "low0" in {args[0] if call == "evict" else args[1], getattr(args[0], "name", "")}:
            raise ClusterError("403: denied", retry=False)
        await made(*args, **more)

    setattr(world.gate, call, denied)
    world.now_s += SETTINGS.settle_s
    world.pod("high", 20000, HIGH, annotations=SENSITIVE)
    await until(world, world.going)
    assert world.going() == (["low1"] if call == "evict" else ["low0"])
