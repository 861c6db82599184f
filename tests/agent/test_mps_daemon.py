"""The MPS supervisor over a scripted nvidia-cuda-mps-control that runs as real processes; its clock is the test's."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import pytest

from cardwise.adapters.mps.daemon import ControlDaemon
from cardwise.adapters.mps.v2 import MpsV2
from cardwise.adapters.mps.v3 import MpsV3
from cardwise.adapters.mps.values import SliceLimits, difference
from cardwise.agent.mps_daemon import LONGEST_PAUSE_S, MUTE_LOOKS, SETTLED_S, Alarm, MpsState, Supervisor, bypasses
from cardwise.core.card.facts import ProcessUse
from cardwise.errors import CardError
from tests.fakes.mps import CARD_A, CARD_B, FakeMps

SLICE = SliceLimits("slot-001", CARD_A, 4096, 20)
OTHER = SliceLimits("slot-002", CARD_B, 2048, 30)


class Node:
    """A supervisor with its fake and a clock that moves only when told."""

    def __init__(self, control, fake):
        self.fake, self.now_s = fake, 1000.0
        daemon = ControlDaemon(fake.command, fake.pipe_dir, fake.log_dir, (CARD_A, CARD_B))
        self.control = control(daemon)
        self.supervisor = self.anew()

    def anew(self):
        """A supervisor as of a new agent."""
        return Supervisor(self.control, (CARD_A, CARD_B), lambda: self.now_s)

    async def check(self, after_s=15.0):
        self.now_s += after_s
        return [(alarm.kind, alarm.card_uuid, alarm.slice_name) for alarm in await self.supervisor.check()]

    def ready(self, card_uuid=CARD_A):
        return self.supervisor.state(card_uuid).ready

    def why(self, card_uuid=CARD_A):
        return self.supervisor.state(card_uuid).why

    async def gap(self, wanted):
        return difference(self.control.wanted(wanted), await self.control.read_limits(wanted))


@pytest.fixture
def fake():
    fake = FakeMps()
    yield fake
    fake.close()


@pytest.fixture(params=[MpsV2, MpsV3], ids=["v2", "v3"])
def node(request, fake):
    return Node(request.param, fake)


@pytest.fixture
async def started(node):
    await node.supervisor.start()
    return node


DEAD = [("daemon-dead", CARD_A, ""), ("daemon-dead", CARD_B, "")]


# before the first slice


def test_a_card_is_not_ready_before_anyone_looked(node):
    assert node.supervisor.state(CARD_A) == MpsState(False, "not looked at yet", 1000.0)


async def test_cards_are_ready_once_the_daemon_runs_without_any_slice(started):
    assert (started.ready(CARD_A), started.ready(CARD_B)) == (True, True)
    assert await started.control.alive()


async def test_a_start_that_fails_is_an_error_and_the_next_look_tries_again(node, fake):
    fake.tell(start_fails="out of memory")
    with pytest.raises(CardError, match="out of memory"):
        await node.supervisor.start()
    assert not node.ready()
    fake.tell(start_fails="")
    await node.check()
    assert node.ready()


async def test_the_first_slice_starts_the_daemon_if_nobody_did(node):
    await node.supervisor.ready(SLICE)
    assert (await node.gap(SLICE), node.ready()) == ("", True)


# proof


async def test_a_slice_is_ready_when_its_limits_are_read_back(started):
    await started.supervisor.ready(SLICE)
    assert await started.gap(SLICE) == ""
    assert await started.check() == []


@pytest.mark.parametrize("ignored", ["memory", "compute"])
async def test_a_slice_whose_limit_is_ignored_is_refused(started, fake, ignored):
    fake.tell(ignore=[ignored])
    with pytest.raises(CardError, match=rf"card {CARD_A}: MPS slice slot-001: .* has (memory|SM) limit"):
        await started.supervisor.ready(SLICE)


async def test_a_refused_slice_leaves_nothing_to_look_after(started, fake):
    fake.tell(ignore=["memory"])
    with pytest.raises(CardError):
        await started.supervisor.ready(SLICE)
    assert (await started.check(), started.ready()) == ([], True)


async def test_a_slice_whose_change_is_refused_keeps_what_it_had(started, fake):
    await started.supervisor.ready(SLICE)
    fake.tell(ignore=["memory"])
    with pytest.raises(CardError):
        await started.supervisor.ready(SliceLimits("slot-001", CARD_A, 8192, 20))
    assert (await started.check(), started.ready()) == ([], True)


async def test_limits_told_in_whole_gibibytes_are_proof_enough(started, fake):
    fake.tell(floors=True)
    await started.supervisor.ready(SliceLimits("slot-001", CARD_A, 4606, 20))
    assert await started.check() == []


async def test_a_slice_of_a_card_without_this_daemon_is_refused(started):
    with pytest.raises(CardError, match="card GPU-x: not a card of this MPS daemon"):
        await started.supervisor.ready(SliceLimits("slot-001", "GPU-x", 1, 1))


async def test_garbage_proves_nothing(started, fake):
    fake.tell(garbage=["get_default_device", "namespace list"])
    with pytest.raises(CardError, match="memory limit none, not 4096 MiB"):
        await started.supervisor.ready(SLICE)


# a daemon that dies (case C30)


async def test_a_dead_daemon_is_an_alarm_and_is_started_again_with_its_limits(started, fake):
    await started.supervisor.ready(SLICE)
    await started.supervisor.ready(OTHER)
    fake.kill()
    assert await started.check() == DEAD
    assert (await started.gap(SLICE), await started.gap(OTHER)) == ("", "")
    assert (started.ready(CARD_A), started.ready(CARD_B), await started.check()) == (True, True, [])


async def test_a_card_is_not_ready_while_the_daemon_cannot_start_and_ready_when_it_can_again(started, fake):
    await started.supervisor.ready(SLICE)
    fake.tell(start_fails="driver mismatch")
    fake.kill()
    assert await started.check() == DEAD
    assert (started.ready(), "driver mismatch" in started.why()) == (False, True)
    with pytest.raises(CardError, match="the MPS daemon is dead; it is started again after a pause of 2 s"):
        await started.supervisor.ready(OTHER)
    fake.tell(start_fails="")
    assert await started.check() == DEAD
    assert (started.ready(), await started.gap(SLICE), await started.check()) == (True, "", [])


async def test_pauses_between_starts_double_up_to_the_longest(node, fake):
    fake.tell(start_fails="no")
    pauses = []
    for _ in range(8):
        await node.check(LONGEST_PAUSE_S)
        await node.check(0)
        pauses.append(float(node.why().rsplit(" ", 2)[1]))
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]


async def test_pauses_begin_anew_once_a_daemon_has_lived_for_long(started, fake):
    for _ in range(3):
        fake.kill()
        await started.check(LONGEST_PAUSE_S)
    await started.check(SETTLED_S)
    fake.tell(start_fails="no")
    fake.kill()
    await started.check()
    await started.check(0)
    assert started.why().endswith("started again after a pause of 1 s")


async def test_what_is_told_of_a_dead_daemon_does_not_change_from_look_to_look(node, fake):
    """It becomes a condition of the node, which is written at each change."""
    fake.tell(start_fails="no")
    for _ in range(6):
        await node.check(LONGEST_PAUSE_S)
    told = set()
    for _ in range(3):
        await node.check(1)
        told.add(node.why())
    assert len(told) == 1


async def test_a_daemon_that_dies_while_it_is_asked_is_not_ready(started, fake):
    await started.supervisor.ready(SLICE)
    fake.tell(die_after=len(fake.said) + 2, start_fails="no")
    assert {kind for kind, _, _ in await started.check()} == {
        "daemon-dead",
        "limit-not-in-force",
    } or not started.ready()
    assert not started.ready()
    fake.tell(die_after=None, start_fails="")
    await started.check()
    assert (started.ready(), await started.gap(SLICE)) == (True, "")


async def test_a_daemon_that_died_before_a_slice_was_asked_for_is_told_at_the_next_look(started, fake):
    await started.supervisor.ready(SLICE)
    fake.kill()
    started.now_s += 10
    await started.supervisor.ready(OTHER)
    assert (await started.gap(SLICE), await started.check()) == ("", DEAD)


# a daemon that is there and does not answer


async def test_a_mute_daemon_is_left_alone_at_first(started, fake):
    mute(started, fake)
    pid = fake.pid
    for _ in range(MUTE_LOOKS - 1):
        assert await started.check() == DEAD
    assert (fake.pid, started.control.running(), started.ready()) == (pid, True, False)
    assert "does not answer" in started.why()


async def test_a_mute_daemon_is_replaced_in_the_end(started, fake):
    await started.supervisor.ready(SLICE)
    mute(started, fake)
    pid = fake.pid
    for _ in range(MUTE_LOOKS):
        await started.check()
    unmute(started, fake)
    await started.check()
    assert fake.pid != pid
    assert (started.ready(), await started.gap(SLICE)) == (True, "")


async def test_a_daemon_that_answers_again_is_not_killed_and_has_its_limits(started, fake):
    await started.supervisor.ready(SLICE)
    pid = fake.pid
    mute(started, fake)
    await started.check()
    unmute(started, fake)
    assert (await started.check(), fake.pid, started.ready()) == ([], pid, True)


def mute(node, fake):
    fake.tell(hangs=["get_server_list", "server list", "quit"])
    node.control.daemon = replace(node.control.daemon, deadline_s=0.15)


def unmute(node, fake):
    fake.tell(hangs=[])
    node.control.daemon = replace(node.control.daemon, deadline_s=10.0)


# limits that are lost


async def test_limits_lost_behind_our_back_are_set_again_and_told(started):
    await started.supervisor.ready(SLICE)
    await started.control.stop()
    await started.control.start()
    assert await started.check() == [("limit-not-in-force", CARD_A, "slot-001")]
    assert (await started.gap(SLICE), started.ready(), await started.check()) == ("", True, [])


async def test_a_limit_that_cannot_be_set_again_makes_its_card_not_ready_and_no_other(started, fake):
    await started.supervisor.ready(SLICE)
    await started.supervisor.ready(OTHER)
    await started.control.stop()
    await started.control.start()
    fake.tell(ignore=["memory"])
    if isinstance(started.control, MpsV3):
        await started.control.set_limits(OTHER)
    alarms = await started.supervisor.check()
    assert Alarm("limit-not-in-force", CARD_A, "slot-001", alarms[0].text) == alarms[0]
    assert "set again, in vain" in alarms[0].text
    assert (started.ready(CARD_A), "slice slot-001: " in started.why(CARD_A)) == (False, True)


async def test_a_server_that_cannot_come_back_is_told_for_all_cards(fake):
    node = Node(MpsV3, fake)
    await node.supervisor.ready(SLICE)
    await node.control.stop()
    fake.tell(cards=[CARD_A])
    await node.control.start()
    assert await node.check() == [("limit-not-in-force", CARD_A, ""), ("limit-not-in-force", CARD_B, "")]
    assert (node.ready(), "is a card gone?" in node.why()) == (False, True)


async def test_a_start_that_is_given_up_midway_leaves_nothing_to_look_after(started, fake):
    fake.tell(hangs=["get_default_device", "namespace set"])
    asked = asyncio.create_task(started.supervisor.ready(SLICE))
    while not any(line.startswith(("set_device", "namespace create")) for line in fake.said):
        await asyncio.sleep(0.01)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert (await started.check(), started.ready()) == ([], True)


async def test_a_released_slice_is_not_asked_for_any_more(started):
    await started.supervisor.ready(SLICE)
    await started.supervisor.release("slot-001")
    await started.control.stop()
    await started.control.start()
    assert await started.check() == []


async def test_releasing_works_without_a_daemon_and_twice(started, fake):
    await started.supervisor.ready(SLICE)
    fake.kill()
    await started.supervisor.release("slot-001")
    await started.supervisor.release("slot-001")
    assert await started.check() == DEAD


async def test_a_slice_of_an_agent_that_was_killed_is_released_although_it_is_not_known(started, fake):
    await started.supervisor.ready(SLICE)
    await started.supervisor.ready(OTHER)
    started.control = type(started.control)(started.control.daemon)
    started.supervisor = started.anew()
    await started.supervisor.release(SLICE.name)
    started.supervisor.restore([OTHER])
    assert await started.check() == []
    held = await started.control.read_limits(SLICE)
    assert held.memory_mib != SLICE.memory_mib or isinstance(started.control, MpsV2)  # the last slice's ceiling stays


async def test_a_slice_that_could_not_be_removed_is_removed_at_the_next_look(started, fake):
    larger = SliceLimits("slot-003", CARD_A, 8192, 50)
    await started.supervisor.ready(SLICE)
    await started.supervisor.ready(larger)
    fake.tell(garbage=["server list", "get_server_list"])
    await started.supervisor.release(larger.name)
    fake.tell(garbage=[])
    await started.check()
    assert (await started.control.read_limits(larger)).memory_mib != 8192


async def test_a_run_folder_that_cannot_be_made_is_an_error_of_the_cards(node, fake):
    fake.pipe_dir.write_text("a file")
    with pytest.raises(CardError, match=r"its folders cannot be made: .* give the agent a run-folder"):
        await node.supervisor.start()


async def test_a_new_agent_takes_over_daemon_and_slices(started, fake):
    await started.supervisor.ready(SLICE)
    pid = fake.pid
    started.control = type(started.control)(started.control.daemon)
    started.supervisor = started.anew()
    started.supervisor.restore([SLICE, OTHER])
    assert await started.check() == []
    assert (fake.pid, await started.gap(SLICE), await started.gap(OTHER), started.ready()) == (pid, "", "", True)


# faults


async def test_a_server_in_fault_is_an_alarm_and_takes_no_slices(started, fake):
    await started.supervisor.ready(SLICE)
    fake.tell(fault=True)
    assert await started.check() == [("fault", CARD_A, ""), ("fault", CARD_B, "")]
    assert (started.ready(), "takes no clients: FAULT" in started.why()) == (False, True)
    with pytest.raises(CardError, match="takes no clients: FAULT"):
        await started.supervisor.ready(OTHER)


async def test_a_server_that_recovered_takes_slices_again(started, fake):
    await started.supervisor.ready(SLICE)
    fake.tell(fault=True)
    await started.check()
    fake.tell(fault=False)
    assert await started.check() == []
    await started.supervisor.ready(OTHER)
    assert started.ready()


# the timer, and the end


async def test_it_looks_on_a_timer(started):
    paused = []

    async def sleep(pause_s):
        paused.append(pause_s)
        if len(paused) == 3:
            raise asyncio.CancelledError

    started.supervisor.sleep = sleep
    told = []
    with contextlib.suppress(asyncio.CancelledError):
        await started.supervisor.run(told.append)
    assert (paused, told) == ([15.0] * 3, [()] * 3)


async def test_a_stopped_node_is_not_ready_and_has_no_daemon(started):
    await started.supervisor.stop()
    assert (started.control.running(), started.why()) == (False, "stopped")


async def test_slices_asked_for_at_once_are_all_in_force(started):
    slices = [SliceLimits(f"slot-{n:03}", CARD_A, 1024, 10) for n in range(4)]
    await asyncio.gather(*(started.supervisor.ready(one) for one in slices))
    assert [await started.gap(one) for one in slices] == [""] * 4


# bypasses


@pytest.mark.parametrize(
    ("uses", "found"),
    [
        ([ProcessUse(7, 100, mps=True)], []),
        ([ProcessUse(7, 100)], [7]),
        ([ProcessUse(8, 100)], []),
        ([ProcessUse(7, 100), ProcessUse(7, 100, mps=True)], []),
        ([ProcessUse(7, 100), ProcessUse(7, None)], [7]),
        ([ProcessUse(7, 100), ProcessUse(9, 100), ProcessUse(8, 1)], [7, 9]),
        ([], []),
    ],
    ids=["a client", "a plain process", "not of a slice", "listed both ways", "listed twice", "several", "none"],
)
def test_a_plain_process_of_a_slice_is_a_bypass(uses, found):
    alarms = bypasses({CARD_A: uses}, {7: "slot-001", 9: "slot-002"})
    assert [int(alarm.text.split()[1]) for alarm in alarms] == found
    assert {alarm.kind for alarm in alarms} <= {"bypass"}


def test_a_client_on_one_card_may_be_a_bypass_on_another():
    uses = {CARD_A: [ProcessUse(7, 1, mps=True)], CARD_B: [ProcessUse(7, 1)]}
    text = "process 7 runs on the card without MPS, thus without limits"
    assert bypasses(uses, {7: "slot-001"}) == (Alarm("bypass", CARD_B, "slot-001", text),)
