"""Health: what each fault does to a card, how it comes back, and whom application faults are blamed on."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.core.card.facts import CardEvent, CardSample
from cardwise.core.card.health import clear, lasting, observe, rebooted
from cardwise.core.card.health_record import CardHealth, Code, HealthPolicy, Notice, Probe, Problem, ProblemKind, State
from cardwise.core.card.xids import XIDS, Action, rule_of

MIN, HOUR, DAY = 60.0, 3600.0, 86400.0
UUID = "GPU-0"
POLICY = HealthPolicy()


def xid(number, uuid=UUID):
    return CardEvent(uuid, "xid", number)


def sample(recovery_action=0, **more):
    return CardSample(UUID, recovery_action=recovery_action, **more)


def lost():
    return Problem(ProblemKind.LOST, "GetMemoryInfo: GPU is lost")


def run(*steps, health=None, policy=POLICY):
    """Observations (time, what, pods ...) one after another: the last health and all notices."""
    health = health or CardHealth(UUID)
    told = []
    for now_s, seen, *pods in steps:
        health, notices = observe(health, now_s, seen, pods, policy)
        told += notices
    return health, told


def codes(notices):
    return [notice.code for notice in notices]


# ---------------------------------------------------------------- Xids

IGNORED = [37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 121, 137, 141, 152, 153, 157, 160, 161]
OF_APPS = [8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86, 88, 89, 94]
OF_APPS += [*range(96, 106), *range(126, 136), 139]
RESETS = [46, 48, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158]
LINKS = [74, 144, 145, 146, 147, 148, 149, 150]


@pytest.mark.parametrize(
    ("xids", "action", "state", "heard"),
    [
        pytest.param(IGNORED, Action.IGNORE, State.HEALTHY, 0, id="ignored"),
        pytest.param(sorted({*OF_APPS} - {94}), Action.APP, State.HEALTHY, 1, id="of an application"),
        pytest.param([94], Action.APP, State.DEGRADED, 2, id="contained: of an application, and a reset is due"),
        pytest.param(RESETS, Action.RESET, State.FENCED, 1, id="reset"),
        pytest.param([54, 79, 142], Action.REBOOT, State.FENCED, 1, id="reboot"),
        pytest.param(LINKS, Action.DEGRADE, State.DEGRADED, 1, id="NVLink"),
        pytest.param([78, 151, 154, 159], Action.FOLLOW_DRIVER, State.HEALTHY, 1, id="follow the driver"),
        pytest.param([45, *range(162, 173)], Action.WARN, State.HEALTHY, 1, id="warn"),
        pytest.param([1, 81, 108, 111, 999], Action.CORDON, State.FENCED, 1, id="unknown"),
    ],
)
def test_each_xid_does_what_the_table_says(xids, action, state, heard):
    """Case C34."""
    for number in xids:
        assert rule_of(number).action is action, number
        assert rule_of(number).source
        health, told = run((0, xid(number), "ns/a"))
        assert (health.state, len(told)) == (state, heard), number


def test_the_table_has_no_other_xids():
    assert len(XIDS) == len(IGNORED) + len(OF_APPS) + len(RESETS) + 3 + len(LINKS) + 4 + 12


def test_an_unknown_xid_stops_new_work_and_keeps_what_runs():
    """Case C34."""
    health, [notice] = run((0, xid(999)))
    assert not health.fence.action.moves_pods
    assert notice == Notice(
        Code.XID_UNKNOWN,
        State.FENCED,
        "GPU-0 is fenced and takes no new slices: Xid 999, which is in no table. Running pods stay; someone should "
        "look at the node's kernel log. It takes slices again after 5 min without a fault in which the driver says "
        "that nothing is to be done; where the driver cannot say so, an operator clears it: cardwise fence clear, in "
        "the agent's container, once the card is mended.",
    )
    assert notice.reason == "CardXidUnknown"


def test_the_operators_table_comes_first():
    policy = HealthPolicy(xids={999: Action.IGNORE, 13: Action.RESET, 48: Action.WARN})
    assert rule_of(13, policy.xids).source == "your configuration"
    assert run((0, xid(999)), policy=policy)[0].state is State.HEALTHY
    assert run((0, xid(13), "ns/a"), policy=policy)[0].state is State.FENCED
    assert run((0, xid(63)), (1, xid(48)), policy=policy)[0].state is State.HEALTHY


def test_a_double_bit_error_with_a_remap_lets_pods_finish():
    alone, _ = run((0, xid(48)))
    assert alone.fence.action is Action.RESET
    after, told = run((1, xid(63)), health=alone)
    assert after.fence.action is Action.DRAIN
    assert "Running pods may finish" in told[-1].text
    before, _ = run((0, xid(64)), (1, xid(48)))
    assert before.fence.action is Action.DRAIN
    late, _ = run((0, xid(63)), (POLICY.pair_s + 1, xid(48)))
    assert late.fence.action is Action.RESET


def test_a_cleanup_is_told_only_if_nothing_came_before_it():
    assert codes(run((0, xid(45)))[1]) == [Code.XID]
    assert codes(run((0, xid(43)), (1, xid(45)))[1]) == []


def test_a_harsher_fault_takes_over_and_a_milder_one_does_not():
    health, _ = run((0, xid(999)), (1, lost()), (2, xid(46)))
    assert health.fence.action is Action.REBOOT
    assert health.strikes == 1


def test_a_fault_that_repeats_is_told_once():
    health, told = run(*((now_s, lost()) for now_s in range(10)))
    assert codes(told) == [Code.LOST]
    assert health.fence.action.moves_pods


# ---------------------------------------------------------------- the driver's verdict


@pytest.mark.parametrize(
    ("verdict", "state", "action"),
    [
        (0, State.HEALTHY, None),
        (None, State.HEALTHY, None),
        (1, State.FENCED, Action.RESET),
        (2, State.FENCED, Action.REBOOT),
        (3, State.FENCED, Action.DRAIN),
        (4, State.FENCED, Action.DRAIN),
        (5, State.DEGRADED, None),
        (6, State.FENCED, Action.RESET),
        (7, State.FENCED, Action.REBOOT),
        (99, State.FENCED, Action.CORDON),
    ],
)
def test_the_drivers_verdict_decides(verdict, state, action):
    health, _ = run((0, sample(verdict)))
    assert health.state is state
    assert (health.fence and health.fence.action) is action


def test_the_drivers_verdict_comes_before_all_else():
    health, told = run((0, sample(4, rows_failed=True, ecc_uncorrected=3, margin_c=1)))
    assert health.fence.code is Code.DRIVER_VERDICT
    assert codes(told) == [Code.DRIVER_VERDICT, Code.ROWS_FAILED, Code.ECC_UNCORRECTED, Code.HOT]


# ---------------------------------------------------------------- rows, ECC


def test_failed_rows_fence_and_pending_ones_are_told():
    assert run((0, sample(rows_failed=True)))[0].state is State.FENCED
    pending, _ = run((0, sample(rows_pending=True)))
    assert pending.state is State.DEGRADED
    assert run((2 * MIN, sample(rows_pending=None)), health=pending)[0].state is State.DEGRADED
    assert run((2 * MIN, sample(rows_pending=False)), health=pending)[0].state is State.HEALTHY


def test_new_uncorrected_errors_fence_only_where_the_driver_has_no_verdict():
    blind, _ = run((0, sample(None, ecc_uncorrected=0)), (1, sample(None, ecc_uncorrected=2)))
    assert blind.state is State.FENCED
    judged, _ = run((0, sample(ecc_uncorrected=0)), (1, sample(ecc_uncorrected=2)))
    assert judged.state is State.DEGRADED


def test_old_errors_and_contained_ones_are_no_new_fault():
    first, _ = run((0, sample(None, ecc_uncorrected=7)))
    assert first.state is State.DEGRADED
    contained, told = run((0, sample(None, ecc_uncorrected=0)), (1, xid(94), "a"), (2, sample(None, ecc_uncorrected=1)))
    assert codes(told) == [Code.XID_APP, Code.ECC_CONTAINED]
    assert contained.state is State.DEGRADED


# ---------------------------------------------------------------- temperature


def test_five_degrees_of_margin_are_hot_and_six_are_not():
    assert codes(run((0, sample(margin_c=6)))[1]) == []
    assert codes(run((0, sample(margin_c=5)))[1]) == [Code.HOT]


@pytest.mark.parametrize("bit", [0x20, 0x40])
def test_heat_that_slows_for_a_minute_degrades(bit):
    steps = [(now_s, sample(clock_event_bits=bit)) for now_s in (0, 30, 59)]
    assert run(*steps)[0].state is State.HEALTHY
    assert run(*steps, (60, sample(clock_event_bits=bit)))[0].state is State.DEGRADED
    assert run(*steps, (60, sample(clock_event_bits=4)), (61, sample(clock_event_bits=bit)))[0].state is State.HEALTHY


def test_a_power_brake_that_lasts_a_minute_degrades_and_a_full_power_budget_does_not():
    """SPEC G1: the brake (0x80) comes from outside the card; at its power limit (0x4) a busy card is every day."""
    steps = [(now_s, sample(clock_event_bits=0x80)) for now_s in (0, 30, 59)]
    assert run(*steps)[0].state is State.HEALTHY
    health, [notice] = run(*steps, (60, sample(clock_event_bits=0x80)))
    assert (health.state, notice.code, notice.reason) == (State.DEGRADED, Code.BRAKED, "CardBraked")
    assert "power supply" in notice.text
    over, _ = run((61, sample(clock_event_bits=0)), (121, sample(clock_event_bits=0)), health=health)
    assert over.state is State.HEALTHY
    assert run(*((now_s, sample(clock_event_bits=4)) for now_s in (0, 60, 120)))[0].state is State.HEALTHY


def test_heat_and_a_power_brake_are_told_apart():
    told = run(*((now_s, sample(clock_event_bits=0xA0)) for now_s in (0, 60)))[1]
    assert codes(told) == [Code.SLOWED, Code.BRAKED]


def test_a_card_is_cool_a_minute_after_the_last_sign_and_silence_is_no_sign():
    hot, _ = run((0, sample(margin_c=2)))
    assert run((59, sample(margin_c=20)), health=hot)[0].state is State.DEGRADED
    cool, told = run((60, sample(margin_c=20)), health=hot)
    assert cool.state is State.HEALTHY
    assert (told[0].code, told[0].warning) == (Code.HOT, False)
    assert run((60, sample()), (119, sample(margin_c=20)), health=hot)[0].state is State.DEGRADED


@given(st.lists(st.tuples(st.floats(0, 1000), st.integers(-50, 50), st.sampled_from([0, 0x20, 0x60, 0x40]))))
def test_temperature_alone_never_fences(readings):
    now_s, health = 0.0, CardHealth(UUID)
    for wait_s, margin_c, bits in readings:
        now_s += wait_s
        health, _ = observe(health, now_s, sample(margin_c=margin_c, clock_event_bits=bits))
        assert health.state is not State.FENCED


# ---------------------------------------------------------------- stuck, probe


def test_a_stuck_card_is_fenced_and_keeps_its_pods():
    health, [notice] = run((0, Problem(ProblemKind.STUCK, "GetMemoryInfo took more than 5 s")))
    assert health.fence.action is Action.CORDON
    assert "GetMemoryInfo took more than 5 s" in notice.text


def test_a_probe_that_fails_fences_and_a_late_one_only_the_second_time():
    assert run((0, Probe(5, 0.2, "CUDA error 46")))[0].state is State.FENCED
    late, _ = run((0, Probe(5, None)))
    assert late.state is State.DEGRADED
    assert run((1, Probe(5, 6.0)), health=late)[0].state is State.FENCED
    assert run((1, Probe(5, 0.1)), (2, Probe(5, None)), health=late)[0].state is State.DEGRADED


# ---------------------------------------------------------------- application faults


def test_three_faults_of_one_pod_blame_the_pod_and_not_the_card():
    health, told = run(*((now_s, xid(31), "ns/a") for now_s in range(3)))
    assert codes(told) == [Code.XID_APP, Code.XID_APP, Code.FAULTS_OF_POD]
    assert told[-1].pods == ("ns/a",)
    assert health.state is State.HEALTHY


def test_faults_of_three_pods_blame_the_card():
    health, told = run(*((now_s, xid(31), pod) for now_s, pod in enumerate(["ns/a", "ns/b", "ns/c"])))
    assert codes(told)[-1] is Code.FAULTS_OF_MANY
    assert health.fence.action is Action.DRAIN
    assert "at least 3 pods within 10 min, the last Xid 31, memory page fault" in told[-1].text


def test_faults_that_one_pod_may_explain_do_not_blame_the_card():
    health, told = run(*((now_s, xid(31), "ns/a", other) for now_s, other in enumerate(["ns/b", "ns/c", "ns/d"])))
    assert codes(told)[-1] is Code.FAULTS_UNCLEAR
    assert health.state is State.DEGRADED


def test_faults_out_of_the_window_do_not_count():
    health, told = run(*((now_s, xid(31), pod) for now_s, pod in [(0, "a"), (1, "b"), (602, "c")]))
    assert health.state is State.HEALTHY
    assert codes(told) == [Code.XID_APP] * 3


def test_a_fault_without_a_pod_is_told_and_not_counted():
    health, told = run(*((now_s, xid(31)) for now_s in range(5)))
    assert health.app_faults == ()
    assert "no pod is known on the card" in told[0].text


def test_a_contained_memory_error_is_counted_against_nobody():
    health, told = run(*((now_s, xid(94), pod) for now_s, pod in enumerate(["ns/a", "ns/a", "ns/a", "ns/b", "ns/c"])))
    assert health.state is State.DEGRADED
    assert codes(told) == [Code.XID_APP, Code.ECC_CONTAINED, *[Code.XID_APP] * 4]
    assert told[0].text == (
        "GPU-0: Xid 94, contained memory error. It hit ns/a, which has to start anew; the card stays as it is."
    )


# ---------------------------------------------------------------- coming back


def test_a_card_comes_back_after_five_clean_minutes():
    fenced, _ = run((0, xid(999)))
    waiting, _ = run((10, sample()), (309, sample()), health=fenced)
    assert waiting.state is State.FENCED
    back, told = run((310, sample()), health=waiting)
    assert back.state is State.HEALTHY
    assert (codes(told), told[0].warning) == ([Code.RECOVERED], False)


@pytest.mark.parametrize("unclean", [sample(1), sample(None), sample(5), xid(46), lost()], ids=repr)
def test_the_quiet_time_begins_anew(unclean):
    steps = ((0, xid(999)), (10, sample()), (200, unclean), (210, sample()), (509, sample()))
    fenced, _ = run(*steps)
    assert fenced.state is State.FENCED
    assert run((510, sample()), health=fenced)[0].state is not State.FENCED


def test_a_driver_without_a_verdict_leaves_it_to_the_operator():
    health, _ = run((0, xid(999)), *((now_s, sample(None)) for now_s in range(0, int(DAY), 600)))
    assert health.state is State.FENCED
    assert clear(health, "an operator")[0].state is State.HEALTHY


def test_each_strike_doubles_the_quiet_time_and_the_third_waits_for_an_operator():
    health, now_s = CardHealth(UUID), 0.0
    for quiet_s in (300, 600):
        health, _ = run((now_s, xid(999)), (now_s + 1, sample()), (now_s + quiet_s, sample()), health=health)
        assert health.state is State.FENCED
        health, _ = run((now_s + quiet_s + 1, sample()), health=health)
        assert health.state is State.HEALTHY
        now_s += HOUR
    health, told = run((now_s, xid(999)), (now_s + 1, sample()), (now_s + 5 * DAY, sample()), health=health)
    assert (health.state, health.strikes) == (State.FENCED, 3)
    assert "This is fence 3 within a day: it stays fenced until an operator clears it: " in told[0].text
    cleared, [notice] = clear(health, "operator jo")
    assert (cleared.state, cleared.strikes) == (State.HEALTHY, 0)
    assert notice.text == (
        "GPU-0 was cleared by operator jo: it takes slices again, and its strikes (3) are forgotten."
    )


def test_a_strike_is_forgotten_after_a_day():
    first, _ = run((0, xid(999)), (1, sample()), (301, sample()))
    assert run((DAY - 1, xid(999)), health=first)[0].strikes == 2
    assert run((DAY, xid(999)), health=first)[0].strikes == 1


def test_clearing_a_good_card_tells_nothing():
    assert clear(CardHealth(UUID), "x") == (CardHealth(UUID), ())


def test_an_observation_of_another_card_is_a_callers_mistake():
    with pytest.raises(ValueError, match="an observation of GPU-1 was given to GPU-0"):
        observe(CardHealth(UUID), 0, xid(13, "GPU-1"))


# ---------------------------------------------------------------- laws

samples = st.builds(
    CardSample,
    st.just(UUID),
    clock_event_bits=st.sampled_from([None, 0, 0x20, 0x40, 0x80]),
    margin_c=st.none() | st.integers(-5, 40),
    ecc_uncorrected=st.none() | st.integers(0, 3),
    rows_pending=st.sampled_from([None, False, True]),
    rows_failed=st.sampled_from([None, False, False, True]),
    recovery_action=st.sampled_from([None, 0, 0, 0, 0, 1, 4, 5]),
)
clean = st.just(sample(margin_c=30))
events = st.builds(xid, st.sampled_from([*XIDS, 1, 500]) | st.integers(-5, 1000))
problems = st.builds(Problem, st.sampled_from(ProblemKind), st.just("a call"))
probes = st.builds(Probe, st.just(5.0), st.none() | st.floats(0, 10), st.sampled_from(["", "", "error 46"]))
seen_things = clean | clean | samples | events | problems | probes
pods = st.lists(st.sampled_from(["ns/a", "ns/b", "ns/c", "ns/d"]), max_size=3, unique=True)
histories = st.lists(st.tuples(st.floats(0, 500), seen_things, pods), max_size=30)


def told_of(history):
    """(time, health before, health after, notices) of each step."""
    now_s, health = 0.0, CardHealth(UUID)
    for wait_s, seen, who in history:
        now_s += wait_s
        after, notices = observe(health, now_s, seen, who)
        yield now_s, health, after, notices, seen
        health = after


def is_bad(seen):
    match seen:
        case CardSample():
            return seen.recovery_action != 0 or bool(seen.rows_failed)
        case CardEvent():
            return rule_of(seen.xid).action.fences
        case Probe():
            return bool(seen.error)
        case _:
            return True


@given(histories)
def test_a_card_never_comes_back_before_its_quiet_time(history):
    last_bad_s = 0.0
    for now_s, before, after, _, seen in told_of(history):
        if before.fence and not after.fence:
            assert isinstance(seen, CardSample)
            assert seen.recovery_action == 0
            assert now_s - last_bad_s >= before.fence.quiet_s
            assert now_s - before.fence.since_s >= before.fence.quiet_s
            assert not before.fence.held
        if (after.fence and not before.fence) or is_bad(seen):
            last_bad_s = now_s


@given(histories)
def test_every_change_is_told_in_words_that_fit_an_event(history):
    for _, before, after, notices, _ in told_of(history):
        if before.state is not after.state:
            assert notices
            assert notices[-1].state is after.state
        for notice in notices:
            assert notice.text.startswith(UUID)
            assert len(notice.text) <= 1024  # Kubernetes cuts longer messages off


def test_long_words_of_others_are_cut_visibly():
    _, [notice] = run((0, Problem(ProblemKind.STUCK, "x" * 5000)))
    assert len(notice.text) == 1000
    assert notice.text.endswith(" ...")


@given(histories)
def test_strikes_do_not_fall_by_time_alone_within_a_day(history):
    for now_s, before, after, _, _ in told_of(history):
        if after.strikes < before.strikes:
            assert before.struck_s[0] <= now_s - DAY
        assert not after.fence or after.strikes >= 1


@given(st.integers(), pods)
def test_no_xid_raises(number, who):
    health, notices = observe(CardHealth(UUID), 0.0, xid(number), who)
    assert (health.state is State.FENCED) == rule_of(number).action.fences
    assert notices or rule_of(number).action is Action.IGNORE


@given(histories, histories, st.randoms(use_true_random=False))
def test_the_order_of_independent_cards_does_not_matter(one, other, dice: random.Random):
    def steps(uuid, history):
        now_s = 0.0
        for wait_s, seen, who in history:
            now_s += wait_s
            yield uuid, now_s, seen, who

    def of(uuid, seen):
        return (
            type(seen)(uuid, **{n: getattr(seen, n) for n in seen.__slots__ if n != "uuid"})
            if (isinstance(seen, CardEvent | CardSample))
            else seen
        )

    def result(order):
        cards = {uuid: CardHealth(uuid) for uuid in ("GPU-0", "GPU-1")}
        for uuid, now_s, seen, who in order:
            cards[uuid], _ = observe(cards[uuid], now_s, of(uuid, seen), who)
        return cards

    first, second = list(steps("GPU-0", one)), list(steps("GPU-1", other))
    lanes, mixed = [first[:], second[:]], []
    while any(lanes):
        mixed.append(dice.choice([lane for lane in lanes if lane]).pop(0))
    assert result(first + second) == result(mixed) == result(second + first)


# ---------------------------------------------------------------- what outlives the program


@given(
    by_s=st.floats(-1e9, 1e9),
    latest_s=st.floats(0, 1e9),
    at_s=st.lists(st.floats(0, 1e9), min_size=1, max_size=3),
)
def test_what_lasts_is_fence_and_strikes_and_no_time_is_later_than_now(by_s, latest_s, at_s):
    health, _ = run(*((each, xid(79)) for each in sorted(at_s)))
    kept = lasting(health, by_s, latest_s)
    assert (kept.fence.what, kept.fence.action, kept.fence.held) == (
        health.fence.what,
        health.fence.action,
        health.fence.held,
    )
    assert kept.strikes == health.strikes
    assert all(each <= latest_s for each in (*kept.struck_s, kept.fence.since_s))
    assert lasting(lasting(health)) == lasting(health)


def test_a_quiet_time_that_had_begun_begins_anew_with_the_next_program():
    health, _ = run((0, xid(79)), (10, sample()))
    assert health.clean_since_s is not None
    assert lasting(health).clean_since_s is None


def test_a_reboot_ends_a_fence_but_not_its_strike_nor_one_that_is_held():
    once, _ = run((0, xid(79)))
    back, [notice] = rebooted(once)
    assert (back.state, back.strikes, notice.code) == (State.HEALTHY, 1, Code.RECOVERED)
    assert rebooted(back) == (back, ())
    held = replace(once, fence=replace(once.fence, held=True))
    assert rebooted(held) == (held, ())
