"""Who leaves bad ground, in which order, and what is kept meanwhile (SPEC G1)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cardwise.core.allocation import BoundPod
from cardwise.core.claim import Claim, ContainerAsk, LatencyClass, Stage
from cardwise.core.fleet.grounds import Why
from cardwise.core.fleet.rescue import (
    Because,
    Freed,
    Moved,
    Replica,
    RescuePolicy,
    Step,
    Way,
    World,
    rescue,
)
from cardwise.core.fleet.room import Room
from cardwise.core.ledger import Ledger
from cardwise.core.placement.policies import make_policy
from tests.builders import node, slice_of

NOW_S = 1000.0


def replica(name="web-0", *, service="ns/web", at="n0", way=Way.BESIDE, ready=True, ground=None, **more):
    return Replica(name, f"ns/{name}", service, at, way, ready, ground=ground, **more)


def sick(name="web-0", **more):
    return replica(name, ground=more.pop("ground", Why.FENCED), **more)


def plan(*replicas, room="n9", beside=True, **world):
    """What is decided where there is always room, or never."""

    def take(_uid, is_beside):
        return room if beside or not is_beside else None

    return rescue(replicas, take, World(NOW_S, **world))


def steps(made):
    return [(move.replica.uid, move.step) for move in made.moves]


def whys(made):
    return {stay.replica.uid: stay.because for stay in made.stays}


# ---------------------------------------------------------------- beginning


def test_a_replica_that_serves_is_released_first_and_serves_on():
    made = plan(sick(), replica("web-1", at="n1"))
    assert steps(made) == [("web-0", Step.RELEASE)]
    assert (made.moves[0].to, made.moves[0].ready, made.moves[0].short) == ("n9", 2, False)


def test_without_room_for_both_it_goes_first_and_its_service_is_said_to_be_short():
    made = plan(sick(), replica("web-1", at="n1"), beside=False)
    assert steps(made) == [("web-0", Step.EVICT)]
    assert made.moves[0].short


def test_without_any_room_it_stays_and_that_is_reported():
    made = plan(sick(), room=None)
    assert (steps(made), whys(made)) == ([], {"web-0": Because.NO_ROOM})


def test_what_nothing_would_make_anew_is_never_evicted():
    made = plan(sick(way=Way.NEVER, ready=False))
    assert (steps(made), whys(made)) == ([], {"web-0": Because.NO_OWNER})


def test_of_a_stateful_service_one_at_a_time_leaves():
    made = plan(sick("a", way=Way.INSTEAD), sick("b", way=Way.INSTEAD), replica("c", way=Way.INSTEAD))
    assert steps(made) == [("a", Step.EVICT)]
    assert whys(made) == {"b": Because.TURN}


def test_a_stateful_service_waits_for_the_successor_before_the_next_leaves():
    successor = replica("a2", way=Way.INSTEAD, ready=False, at="n1")
    assert whys(plan(sick("b", way=Way.INSTEAD), successor)) == {"b": Because.TURN}
    assert steps(plan(sick("b", way=Way.INSTEAD), replace(successor, ready=True))) == [("b", Step.EVICT)]


def test_a_controller_is_given_time_to_make_the_successor_before_the_next_leaves():
    past = [Moved(NOW_S - 1, "a", "ns/web")]
    assert whys(plan(sick("b", way=Way.INSTEAD), past=past)) == {"b": Because.TURN}
    past = [Moved(NOW_S - 60, "a", "ns/web")]
    assert steps(plan(sick("b", way=Way.INSTEAD), past=past)) == [("b", Step.EVICT)]


def test_what_serves_nothing_on_a_lost_node_is_evicted_whoever_else_is_moving():
    lost = [sick(name, ground=Why.LOST) for name in "abc"]
    assert steps(plan(*lost)) == [("a", Step.EVICT), ("b", Step.EVICT), ("c", Step.EVICT)]


def test_best_effort_leaves_last_and_higher_priorities_first():
    pods = [
        sick("be", service="s1", sensitive=False, priority=9),
        sick("low", service="s2"),
        sick("high", service="s3", priority=5),
    ]
    assert [uid for uid, _ in steps(plan(*pods))] == ["high", "low", "be"]


def test_no_more_move_in_a_window_than_its_budget():
    policy = RescuePolicy(most=2, window_s=100)
    past = [Moved(NOW_S - 99, "x", "s"), Moved(NOW_S - 100, "y", "s")]
    made = plan(sick("a", service="s1"), sick("b", service="s2"), past=past, policy=policy)
    assert steps(made) == [("a", Step.RELEASE)]
    assert whys(made) == {"b": Because.WINDOW}


def test_that_all_would_be_on_one_node_is_said():
    assert plan(sick(), replica("web-1", at="n9")).moves[0].alone
    assert not plan(sick(), replica("web-1", at="n1")).moves[0].alone


def test_a_refused_eviction_waits():
    made = plan(sick(ready=False), refused={"web-0": Because.BUDGET})
    assert whys(made) == {"web-0": Because.BUDGET}


# ---------------------------------------------------------------- finishing


def freed(ready=2, ago_s=60.0, **more):
    return sick(freed=Freed(NOW_S - ago_s, ready), **more)


def test_a_released_pod_serves_until_its_successor_is_ready():
    starting = replica("web-2", at="n2", ready=False)
    made = plan(freed(), replica("web-1", at="n1"), starting)
    assert whys(made) == {"web-0": Because.SUCCESSOR}
    made = plan(freed(), replica("web-1", at="n1"), replace(starting, ready=True))
    assert steps(made) == [("web-0", Step.EVICT)]


def test_a_released_pod_goes_when_its_service_was_scaled_down_and_is_complete():
    one = replica("web-1", at="n1")
    assert steps(plan(freed(), one, complete_since_s={"ns/web": NOW_S - 20})) == [("web-0", Step.EVICT)]
    assert whys(plan(freed(), one, complete_since_s={"ns/web": NOW_S - 5})) == {"web-0": Because.SUCCESSOR}


def test_completeness_from_before_the_release_says_nothing():
    made = plan(freed(ago_s=1), replica("web-1", at="n1"), complete_since_s={"ns/web": NOW_S - 900})
    assert whys(made) == {"web-0": Because.SUCCESSOR}


def test_a_released_pod_whose_workload_is_gone_goes_too():
    assert steps(plan(freed(), complete_since_s={"ns/web": NOW_S - 20})) == [("web-0", Step.EVICT)]


def test_a_released_pod_that_serves_no_more_goes_at_once():
    assert steps(plan(replace(freed(), ready=False))) == [("web-0", Step.EVICT)]


def test_a_successor_that_finds_no_node_has_the_move_taken_back():
    waiting = replica("web-2", at="", ready=False)
    others = (replica("web-1", at="n1"), waiting)
    assert whys(plan(freed(ago_s=299), *others)) == {"web-0": Because.SUCCESSOR}
    assert steps(plan(freed(ago_s=300), *others)) == [("web-0", Step.RETURN)]


def test_a_successor_that_starts_for_long_is_waited_for_longer():
    others = (replica("web-1", at="n1"), replica("web-2", at="n2", ready=False))
    assert whys(plan(freed(ago_s=1700), *others)) == {"web-0": Because.SUCCESSOR}
    assert steps(plan(freed(ago_s=1800), *others)) == [("web-0", Step.RETURN)]


def test_a_pod_that_was_moved_in_vain_rests_longer_each_time():
    once = [Moved(NOW_S - 700, "web-0", "ns/web", vain=True)]
    assert steps(plan(sick(), past=once)) == [("web-0", Step.RELEASE)]
    twice = [*once, Moved(NOW_S - 1500, "web-0", "ns/web", vain=True)]
    assert whys(plan(sick(), past=twice)) == {"web-0": Because.VAIN}


# ---------------------------------------------------------------- laws, on the ledger, to the end


@dataclass
class Hollow:
    """A cluster whose controllers, scheduler and kubelets do their work at once or a little later."""

    ledger: Ledger
    replicas: dict[str, Replica]
    claims: dict[str, Claim]
    slow: int
    now_s: float = NOW_S
    past: list = field(default_factory=list)
    made: int = 0
    starting: dict[str, int] = field(default_factory=dict)

    def ready(self, service):
        return sum(each.serves for each in self.replicas.values() if each.service == service)

    def decide(self):
        listed = list(self.replicas.values())
        complete = dict.fromkeys({r.service for r in listed}, NOW_S - 1000000.0)  # what holds now counts after settling
        for each in listed:
            if not each.freed and not each.serves:
                complete.pop(each.service, None)
        room = Room(self.ledger, lambda _uid, _node: True)
        return rescue(listed, lambda uid, beside: room.take(uid, beside=beside), World(self.now_s, self.past, complete))

    def apply(self, move):
        pod = move.replica
        if move.step is Step.RELEASE:
            self.past.append(Moved(self.now_s, pod.uid, pod.service))
            self.replicas[pod.uid] = replace(pod, freed=Freed(self.now_s, move.ready))
            self.make(pod)
        elif move.step is Step.EVICT:
            if pod.freed is None:
                self.past.append(Moved(self.now_s, pod.uid, pod.service))
                self.make(pod)
            del self.replicas[pod.uid]
            self.ledger.drop_pod(pod.uid)
        else:
            raise AssertionError("there is room for every successor")

    def make(self, like):
        """What a controller does: another one, which waits for a node."""
        self.made += 1
        uid = f"{like.service}-new{self.made}"
        self.replicas[uid] = replace(like, uid=uid, name=uid, node="", ready=False, ground=None, freed=None)
        self.claims[uid] = replace(self.claims[like.uid], uid=uid, name=uid)
        self.starting[uid] = self.slow

    def go_on(self):
        """The scheduler binds who waits; who was bound long enough is ready."""
        self.now_s += 20.0
        for uid in list(self.starting):
            pod = self.replicas[uid]
            if not pod.node:
                bound = next(filter(None, (self.ledger.suppose(self.claims[uid], n) for n in self.ledger.nodes)), None)
                if bound is not None:
                    self.ledger.put_pod(bound)
                    self.replicas[uid] = replace(pod, node=bound.node)
            elif self.starting[uid]:
                self.starting[uid] -= 1
            else:
                self.replicas[uid] = replace(pod, ready=True)
                del self.starting[uid]


def hollow(nodes, services, bad, slow):
    """services: (replicas, way, latency) each. bad: which of the cards in use, by number, are fenced."""
    cards = [spec.uuid for each in nodes for spec in each.cards]
    ledger = Ledger(lambda cluster, mix: dict.fromkeys(LatencyClass, make_policy("balanced", cluster, mix)))
    ledger.reset(nodes, [])
    claims, bound = {}, []
    for s, (count, way, latency) in enumerate(services):
        for i in range(count):
            uid = f"s{s}-{i}"
            asks = (ContainerAsk("app", Stage.APP, slice_of(8192, 30)),)
            claim = Claim(uid, uid, asks, service=f"s{s}", latency=latency)
            claims[uid] = claim
            where = next(filter(None, (ledger.suppose(claim, each.name) for each in nodes)), None)
            if where is not None:
                ledger.put_pod(where)
                bound.append((where, way))
    used = sorted({share.uuid for pod, _ in bound for share in pod.allocation.shares})
    fenced = {used[i % len(used)] for i in bad} if used else set()
    assert fenced <= set(cards)
    for each in nodes:
        ledger.put_node(
            replace(each, cards=tuple(replace(card, healthy=card.uuid not in fenced) for card in each.cards))
        )
    replicas = {}
    for pod, way in bound:
        ground = Why.FENCED if {share.uuid for share in pod.allocation.shares} & fenced else None
        claim = pod.claim
        replicas[claim.uid] = Replica(
            claim.uid,
            claim.name,
            claim.service,
            pod.node,
            way,
            True,
            sensitive=claim.latency is LatencyClass.SENSITIVE,
            ground=ground,
        )
    return Hollow(ledger, replicas, claims, slow)


WORLDS = st.builds(
    hollow,
    st.lists(st.integers(1, 2), min_size=2, max_size=4).map(
        lambda counts: [node(f"n{i}", count) for i, count in enumerate(counts)]
    ),
    st.lists(
        st.tuples(
            st.integers(1, 4), st.sampled_from([Way.BESIDE, Way.INSTEAD, Way.NEVER]), st.sampled_from(LatencyClass)
        ),
        min_size=1,
        max_size=4,
    ),
    st.lists(st.integers(0, 7), min_size=1, max_size=3),
    st.integers(0, 2),
)


@given(WORLDS)
@settings(max_examples=60)
def test_two_replicas_or_all_that_were_well_stay_ready_at_every_step(world):
    services = {each.service for each in world.replicas.values()}
    well = Counter(each.service for each in world.replicas.values() if not each.ground)
    before = {service: world.ready(service) for service in services}
    went_first = set()
    for _ in range(60):
        made = world.decide()
        touched = [each.replica.uid for each in (*made.moves, *made.stays)]
        assert len(touched) == len(set(touched)), "each pod has one answer"
        there = {uid for uid, each in world.replicas.items() if each.ground or each.freed}
        assert there == set(touched), "everyone on bad ground is in the plan or in the report"
        assert all(move.why for move in made.moves)
        for move in made.moves:
            went_first |= {move.replica.service} if move.short else set()
            world.apply(move)
            service = move.replica.service
            assert world.ready(service) >= min(2, well[service])
            if service not in went_first:
                assert world.ready(service) >= before[service], "all went beside: nobody was missed"
        if not made.moves and not world.starting:
            break
        world.go_on()
    left = [each for each in world.replicas.values() if each.ground or each.freed]
    assert {stay.replica.uid for stay in made.stays} == {each.uid for each in left}
    assert {stay.because for stay in made.stays} <= {Because.NO_ROOM, Because.NO_OWNER}


@given(WORLDS, st.randoms())
@settings(max_examples=30)
def test_the_order_in_which_pods_are_told_changes_nothing(world, rng):
    first = world.decide()
    shuffled = list(world.replicas.items())
    rng.shuffle(shuffled)
    world.replicas = dict(shuffled)
    again = world.decide()
    assert set(first.moves) == set(again.moves)
    assert set(first.stays) == set(again.stays)


@given(WORLDS, st.integers(1, 3))
@settings(max_examples=30)
def test_never_more_than_the_budget_is_begun_in_one_window(world, most):
    listed = list(world.replicas.values())
    made = rescue(listed, lambda *_: "n0", World(NOW_S, policy=RescuePolicy(most=most)))
    assert len(made.moves) <= most


@given(WORLDS)
@settings(max_examples=30)
def test_asking_for_room_changes_nothing_in_the_ledger(world):
    before = world.ledger.cluster.memory_free_mib.copy(), dict(world.ledger.cluster.slices)
    world.decide()
    assert (world.ledger.cluster.memory_free_mib == before[0]).all()
    assert world.ledger.cluster.slices == before[1]


@pytest.mark.parametrize("field_name", ["most", "at_once"])
def test_a_policy_that_would_move_nobody_is_refused(field_name):
    with pytest.raises(ValueError, match="at least 1"):
        RescuePolicy(**{field_name: 0})


def test_room_counts_what_earlier_successors_take():
    nodes = [node("n0", 1), node("n1", 1)]
    world = hollow(nodes, [(3, Way.BESIDE, LatencyClass.SENSITIVE)], [0], 0)
    assert isinstance(next(iter(world.ledger.pods.values())), BoundPod)
    room = Room(world.ledger, lambda _uid, _node: True)
    taken = [room.take(uid, beside=True) for uid in ("s0-0", "s0-1", "s0-2", "s0-0")]
    assert taken == ["n1", "n1", "n1", None]


# ---------------------------------------------------------------- a wall clock that is set


def test_moves_dated_far_ahead_keep_nobody_on_bad_ground():
    past = [Moved(NOW_S + 1e6, f"u{i}", "ns/other") for i in range(RescuePolicy().most)]
    past.append(Moved(NOW_S + 1e6, "web-0", "ns/web", vain=True))
    assert steps(plan(sick(), past=past)) == [("web-0", Step.RELEASE)]


def test_moves_dated_a_little_ahead_count_as_made_just_now():
    past = [Moved(NOW_S + 10.0, f"u{i}", "ns/other") for i in range(RescuePolicy().most)]
    assert whys(plan(sick(), past=past)) == {"web-0": Because.WINDOW}


def test_a_release_dated_far_ahead_is_taken_back_in_time():
    leaving = sick(freed=Freed(NOW_S + 1e6, 1))
    successor = replica("web-1", at="", ready=False)
    assert steps(plan(leaving, successor)) == [("web-0", Step.RETURN)]


# ---------------------------------------------------------------- healthy ones that make room


def aside(name="web-0", **more):
    return replica(name, ground=Why.WAY, **more)


def test_who_only_makes_room_leaves_half_of_a_windows_moves_to_those_on_bad_ground():
    past = [Moved(NOW_S - 10, f"old-{i}", f"ns/old-{i}") for i in range(2)]
    four = RescuePolicy(most=4)
    assert whys(plan(aside(), past=past, policy=four)) == {"web-0": Because.WINDOW}
    assert steps(plan(sick(), past=past, policy=four)) == [("web-0", Step.RELEASE)]
    assert steps(plan(aside(), past=past[1:], policy=four)) == [("web-0", Step.RELEASE)]
    assert steps(plan(aside(), policy=RescuePolicy(most=1))) == [("web-0", Step.RELEASE)]


def test_who_only_makes_room_stays_while_another_of_its_service_goes():
    freed = replica("web-1", freed=Freed(NOW_S - 5, 2))
    assert whys(plan(aside(), freed))["web-0"] is Because.TURN
    both = plan(aside(), sick("web-1"))
    assert (steps(both), whys(both)) == ([("web-1", Step.RELEASE)], {"web-0": Because.TURN})


def test_who_only_makes_room_is_never_evicted_first():
    assert whys(plan(aside(), beside=False)) == {"web-0": Because.NO_ROOM}
    assert whys(plan(aside(way=Way.INSTEAD))) == {"web-0": Because.NO_ROOM}
    assert whys(plan(aside(ready=False))) == {"web-0": Because.TURN}


def test_who_only_makes_room_does_not_join_all_others_on_their_one_node():
    assert whys(plan(aside(), replica("web-1", at="n9"))) == {"web-0": Because.NO_ROOM}
    spread = [replica("web-1", at="n9"), replica("web-2", at="n8")]
    assert steps(plan(aside(), *spread)) == [("web-0", Step.RELEASE)]


def test_who_makes_room_is_taken_back_where_the_successor_came_to_the_one_node_of_all_others():
    """kube-scheduler chose another node than the ledger."""
    leaving = aside(freed=Freed(NOW_S - 60, 2))
    gathered = [replica("web-1", at="n9"), replica("web-2", at="n9")]
    assert steps(plan(leaving, *gathered)) == [("web-0", Step.RETURN)]
    assert whys(plan(leaving, gathered[0])) == {"web-0": Because.SUCCESSOR}, "it is not there yet"
    elsewhere = replica("web-2", at="n8")
    assert steps(plan(leaving, gathered[0], elsewhere)) == [("web-0", Step.EVICT)]
    ill = sick(freed=Freed(NOW_S - 60, 2))
    assert steps(plan(ill, *gathered)) == [("web-0", Step.EVICT)], "a sick card is left in any case"
    alone = aside(freed=Freed(NOW_S - 60, 1))
    assert steps(plan(alone, gathered[0])) == [("web-0", Step.EVICT)]
