"""MPS's control program, both protocols, over a scripted one that runs as real processes."""

from __future__ import annotations

import asyncio
import marshal
import os
import re
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cardwise.adapters.mps.daemon import MOUNT_OPTIONS, ControlDaemon, probe
from cardwise.adapters.mps.parsing import parse_clients, parse_memory, parse_pct, parse_ps, parse_servers
from cardwise.adapters.mps.v2 import MpsV2, edits_v2
from cardwise.adapters.mps.v3 import MpsV3, edits_v3, namespace_name
from cardwise.adapters.mps.values import Limits, MpsClient, MpsEdits, MpsServer, MpsSupport, SliceLimits, difference
from cardwise.errors import CardError, UserError
from tests.fakes.mps import CARD_A, CARD_B, FakeMps

SMALL = SliceLimits("slot-001", CARD_A, 4096, 20)
LARGE = SliceLimits("slot-002", CARD_A, 8192, 60)
OTHER = SliceLimits("slot-003", CARD_B, 2048, 30, low_priority=True)


@pytest.fixture
def fake():
    fake = FakeMps()
    yield fake
    fake.close()


def daemon_of(fake, **changes):
    daemon = ControlDaemon(fake.command, fake.pipe_dir, fake.log_dir, (CARD_A, CARD_B), deadline_s=10.0)
    return replace(daemon, **changes)


@pytest.fixture(params=[MpsV2, MpsV3], ids=["v2", "v3"])
def control(request, fake):
    return request.param(daemon_of(fake))


@pytest.fixture
async def v2(fake):
    control = MpsV2(daemon_of(fake))
    await control.start()
    return control


@pytest.fixture
async def v3(fake):
    control = MpsV3(daemon_of(fake))
    await control.start()
    return control


async def gap(control, wanted):
    return difference(control.wanted(wanted), await control.read_limits(wanted))


# the daemon's life


async def test_no_daemon_is_not_alive(control):
    assert (await control.alive(), control.running()) == (False, False)


async def test_a_started_daemon_is_alive_and_no_child_of_ours_holds_it(control, fake):
    await control.start()
    assert (await control.alive(), control.running()) == (True, True)
    assert Path(f"/proc/{fake.pid}/stat").read_text().rpartition(")")[2].split()[1] != str(os.getpid())


async def test_a_daemon_that_is_there_is_kept(control, fake):
    await control.start()
    pid = fake.pid
    await control.start()
    assert fake.pid == pid


async def test_a_daemon_that_keeps_the_starters_output_open_does_not_hold_the_start_up(control, fake):
    fake.tell(keeps_output=True)
    await asyncio.wait_for(control.start(), 40)
    assert await control.alive()


async def test_a_stopped_daemon_is_gone(control, fake):
    await control.start()
    await control.stop()
    assert (await control.alive(), control.running(), fake.pid) == (False, False, None)


async def test_a_daemon_that_does_not_answer_is_stopped_by_force(fake, control):
    await control.start()
    fake.tell(hangs=["quit"])
    control.daemon = daemon_of(fake, deadline_s=0.2)
    await control.stop()
    async with asyncio.timeout(60):
        while control.running():  # it was killed, and ends when the machine comes to it
            await asyncio.sleep(0.01)


async def test_a_killed_daemon_is_not_alive_though_its_pid_file_lies_there(control, fake):
    await control.start()
    fake.kill()
    assert fake.pid is not None
    assert (await control.alive(), control.running()) == (False, False)


async def test_a_daemon_starts_where_a_killed_one_left_its_files(control, fake):
    await control.start()
    fake.kill()
    await control.start()
    assert await control.alive()


async def test_a_pid_file_that_names_another_process_is_not_believed(control, fake):
    fake.pipe_dir.mkdir()
    (fake.pipe_dir / "nvidia-cuda-mps-control.pid").write_text(f"{os.getpid()}\n")
    assert not control.running()


async def test_a_daemon_is_moved_out_of_our_cgroup_though_its_pid_file_comes_after_the_start(control, fake, tmp_path):
    (tmp_path / "cgroup.controllers").touch()
    control.daemon = daemon_of(fake, cgroups=tmp_path)
    fake.tell(late_pid_s=0.5)
    await control.start()
    assert (tmp_path / "cardwise-mps" / "cgroup.procs").read_text() == f"{fake.pid}\n"


async def test_a_daemon_that_cannot_start_says_why(control, fake):
    fake.tell(start_fails="no CUDA-capable device is detected")
    with pytest.raises(CardError, match=f"{CARD_A}, {CARD_B}: MPS: '-d.* failed with 1: 'no CUDA-capable device"):
        await control.start()


async def test_a_program_that_is_absent_is_an_error_of_the_cards(fake):
    with pytest.raises(CardError, match="MPS: /no/such/program cannot be run: "):
        await MpsV2(daemon_of(fake, command="/no/such/program")).start()


async def test_a_program_that_cannot_speak_protocol_3_says_so(fake):
    fake.tell(version=13010)
    with pytest.raises(CardError, match="invalid option -- 'p'"):
        await MpsV3(daemon_of(fake)).start()


async def test_a_hanging_call_is_killed_at_its_deadline(fake, control):
    await control.start()
    fake.tell(hangs=["get_server_list", "server list"])
    control.daemon = daemon_of(fake, deadline_s=0.2)
    begun_s = time.monotonic()
    with pytest.raises(CardError, match=r"not answered within 0\.2 s"):
        await control.servers()
    assert time.monotonic() - begun_s < 30  # it hangs for twice as long


async def test_an_answer_that_makes_no_sense_is_not_alive(control, fake):
    await control.start()
    fake.tell(garbage=["get_server_list", "server list"])
    assert not await control.alive()
    with pytest.raises(CardError, match="no list of"):
        await control.servers()


async def test_the_daemon_gets_none_of_our_cuda_variables(fake, control, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "7")
    await control.start()
    env = Path(f"/proc/{fake.pid}/environ").read_bytes().split(b"\0")
    assert {name.decode() for name in env if name.startswith(b"CUDA_")} == {
        f"CUDA_MPS_PIPE_DIRECTORY={fake.pipe_dir}",
        f"CUDA_MPS_LOG_DIRECTORY={fake.log_dir}",
        f"CUDA_VISIBLE_DEVICES={CARD_A},{CARD_B}",
    }


async def test_a_client_that_is_killed_before_its_answer_does_not_end_the_scripted_daemon(control, fake):
    await control.start()
    pid = fake.pid
    for question in (b"", *[marshal.dumps(["no_such_command"])] * 20):
        with socket.socket(socket.AF_UNIX) as wire:
            wire.connect(str(fake.pipe_dir / "control"))
            wire.sendall(question)
    assert (await control.alive(), fake.pid) == (True, pid)


async def test_any_user_may_pass_to_the_sockets(control, fake):
    await control.start()
    assert fake.pipe_dir.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("path", ["/tmp/nvidia-mps", "/run/nvidia-mps", "mps/pipe"])  # noqa: S108
def test_a_default_or_relative_pipe_directory_is_refused(path, fake):
    with pytest.raises(UserError, match="give an absolute path that is no default"):
        daemon_of(fake, pipe_dir=Path(path))


def test_a_pipe_directory_too_long_for_a_socket_is_refused(fake):
    with pytest.raises(UserError, match="108 bytes, 107 at most; use a shorter run directory"):
        daemon_of(fake, pipe_dir=Path("/" + "x" * 99))


# limits


async def test_limits_are_in_force_once_set(control):
    await control.start()
    await control.set_limits(SMALL)
    assert await gap(control, SMALL) == ""


async def test_limits_that_were_never_set_are_not_in_force(control):
    await control.start()
    assert "memory limit none, not 4096 MiB" in await gap(control, SMALL)


async def test_limits_are_lost_with_the_daemon(control, fake):
    await control.start()
    await control.set_limits(SMALL)
    fake.kill()
    await control.start()
    assert "memory limit none, not 4096 MiB" in await gap(control, SMALL)


@pytest.mark.parametrize(("ignored", "words"), [("memory", "memory limit none"), ("compute", "SM limit (none|100 %)")])
async def test_a_limit_that_the_daemon_ignores_shows_when_read_back(control, fake, ignored, words):
    fake.tell(ignore=[ignored])
    await control.start()
    await control.set_limits(SMALL)
    assert re.search(words, await gap(control, SMALL))


async def test_a_limit_told_in_whole_gibibytes_counts_as_in_force(control, fake):
    fake.tell(floors=True)
    await control.start()
    odd = SliceLimits("slot-001", CARD_A, 4606, 20)
    await control.set_limits(odd)
    told = await control.read_limits(odd)
    assert (told.memory_mib, told.floored, await gap(control, odd)) == (4096, True, "")


async def test_a_removed_slice_has_no_limits_left_to_read(v3):
    await v3.set_limits(SMALL)
    await v3.remove(SMALL.name)
    assert "namespace slot_001, which is not there, has memory limit none" in await gap(v3, SMALL)
    await v3.remove(SMALL.name)


async def test_each_slice_has_its_own_namespace(v3):
    for one in (SMALL, LARGE, OTHER):
        await v3.set_limits(one)
    assert [await gap(v3, one) for one in (SMALL, LARGE, OTHER)] == ["", "", ""]


async def test_a_namespaces_limits_follow_its_slice(v3):
    await v3.set_limits(SMALL)
    await v3.set_limits(replace(SMALL, memory_mib=512, low_priority=True))
    assert await v3.read_limits(SMALL) == Limits(512, 20.0, True, place="namespace slot_001")


async def test_limits_of_a_namespace_that_listens_elsewhere_prove_nothing(fake, v3):
    await v3.set_limits(SMALL)
    fake.tell(elsewhere="/run/nvidia-mps/cardwise/slot_001")
    assert "which is not there, has memory limit none" in await gap(v3, SMALL)


async def test_a_server_whose_card_is_gone_is_found_out(fake, v3):
    fake.tell(cards=[CARD_A])
    with pytest.raises(CardError, match="the server was created and is not there: is a card gone"):
        await v3.set_limits(SMALL)


async def test_the_largest_slice_is_the_cards_ceiling(v2):
    for one in (SMALL, LARGE, OTHER):
        await v2.set_limits(one)
    assert v2.wanted(SMALL) == Limits(8192, 60)
    assert (v2.wanted(OTHER).memory_mib, v2.wanted(OTHER).compute_pct) == (2048, 60)
    assert [await gap(v2, one) for one in (SMALL, LARGE, OTHER)] == ["", "", ""]


async def test_the_ceiling_falls_when_the_largest_slice_goes(v2):
    await v2.set_limits(SMALL)
    await v2.set_limits(LARGE)
    await v2.remove(LARGE.name)
    assert (v2.wanted(SMALL), await gap(v2, SMALL)) == (Limits(4096, 20), "")


async def test_the_default_alone_is_no_proof_the_server_must_say_it_too(fake, v2):
    await v2.set_limits(SMALL)
    fake.tell(ignore=["server memory"])
    await v2.set_limits(LARGE)
    assert await gap(v2, LARGE) == "the server has memory limit 4096 MiB, not 8192 MiB"


async def test_a_server_is_started_so_that_there_is_one_to_ask(v2):
    await v2.set_limits(SMALL)
    assert [server.status for server in await v2.servers()] == ["ACTIVE"]


async def test_a_server_that_does_not_come_up_is_an_error(fake, v2, monkeypatch):
    monkeypatch.setattr("cardwise.adapters.mps.v2.SERVER_POLLS", 2)
    fake.tell(no_server=True)
    with pytest.raises(CardError, match=r"no server comes up; .*/server\.log may say why"):
        await v2.set_limits(SMALL)


async def test_a_dead_daemon_takes_no_limits(control):
    with pytest.raises(CardError, match="Cannot find MPS control daemon process"):
        await control.set_limits(SMALL)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (SliceLimits("s", CARD_A, 1000, 50, processes=2).client_mib, 500),
        (SliceLimits("s", CARD_A, 1000, 50, processes=3).client_mib, 333),
        (SliceLimits("s", CARD_A, 1000, 50).client_mib, 1000),
    ],
    ids=["two", "three, rounded down", "one"],
)
def test_declared_processes_share_the_slices_memory(wanted, words):
    assert wanted == words


@pytest.mark.parametrize("control", [MpsV2, MpsV3])
async def test_two_declared_processes_of_a_slice_of_1000_are_limited_to_500_each(fake, control):
    two = SliceLimits("slot-001", CARD_A, 1000, 50, processes=2)
    control = control(daemon_of(fake))
    await control.start()
    await control.set_limits(two)
    assert (await control.read_limits(two)).memory_mib == 500


@pytest.mark.parametrize("wrong", [{"compute_pct": 0}, {"compute_pct": 101}, {"processes": 0}, {"memory_mib": 0}])
def test_an_impossible_slice_is_a_bug(wrong):
    with pytest.raises(ValueError, match="impossible slice"):
        replace(SMALL, **wrong)


# clients and servers


async def test_clients_are_told_with_their_server(fake, control):
    await control.start()
    await control.set_limits(SMALL)
    fake.tell(clients=[{"pid": 4711, "namespace": "slot_001", "device": CARD_A, "command": "python -c a,b"}])
    (client,) = await control.clients()
    (server,) = await control.servers()
    assert (client.pid, client.server_pid, client.server_status, client.command) == (
        4711,
        server.pid,
        server.status,
        "python -c a,b",
    )


async def test_a_server_in_fault_is_faulty(fake, control):
    await control.start()
    await control.set_limits(SMALL)
    assert [server.faulty for server in await control.servers()] == [False]
    fake.tell(fault=True)
    assert [server.faulty for server in await control.servers()] == [True]


async def test_a_client_is_terminated(fake, control):
    await control.start()
    await control.set_limits(SMALL)
    fake.tell(clients=[{"pid": 4711, "device": CARD_A}])
    await control.terminate(4711)
    assert any("terminate" in line and "4711" in line for line in fake.said)


async def test_terminating_who_is_no_client_does_nothing(fake, control):
    await control.start()
    await control.terminate(1)
    assert not any("terminate" in line for line in fake.said)


# static partitions


async def test_a_partition_is_made_listed_and_given_back(fake):
    control = MpsV2(daemon_of(fake), static=True)
    await control.start()
    name = await control.add_partition(SMALL, 7)
    assert name.startswith(f"{CARD_A}/")
    assert [(part.name, part.sm_count) for part in await control.partitions()] == [(name.partition("/")[2], 56)]
    await control.remove_partition(SMALL)
    assert await control.partitions() == ()


async def test_more_chunks_than_are_free_are_refused(fake):
    control = MpsV2(daemon_of(fake), static=True)
    await control.start()
    with pytest.raises(CardError, match="CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"):
        await control.add_partition(SMALL, 11)


async def test_with_partitions_no_percentage_is_set_or_asked_for(fake):
    control = MpsV2(daemon_of(fake), static=True)
    await control.start()
    await control.set_limits(SMALL)
    assert (control.wanted(SMALL), await gap(control, SMALL)) == (Limits(4096, None), "")
    assert not any(line.startswith("set_default_active") for line in fake.said)


# what a container gets


def test_a_client_of_protocol_2_gets_variables_and_the_daemons_directory(fake):
    pipe = str(fake.pipe_dir)
    assert MpsV2(daemon_of(fake)).edits([SMALL]) == MpsEdits(
        {
            "CUDA_MPS_PIPE_DIRECTORY": pipe,
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{CARD_A}=4096M",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "20",
        },
        ((pipe, pipe, MOUNT_OPTIONS),),
    )


def test_a_client_of_protocol_3_gets_its_namespaces_directory_and_no_limits_it_could_change(fake):
    pipe = str(fake.pipe_dir / "cardwise" / "slot_001")
    edits = MpsV3(daemon_of(fake)).edits([SMALL])
    assert edits == MpsEdits({"CUDA_MPS_PIPE_DIRECTORY": pipe}, ((pipe, pipe, MOUNT_OPTIONS),))


async def test_the_directory_that_is_mounted_has_the_namespaces_socket(v3):
    await v3.set_limits(SMALL)
    ((host, _, _),) = v3.edits([SMALL]).mounts
    assert Path(host, "control").is_socket()


def test_several_cards_stand_in_one_variable(fake):
    env = edits_v2(daemon_of(fake), [SMALL, replace(SMALL, card_uuid=CARD_B, memory_mib=100)]).env
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"{CARD_A}=4096M,{CARD_B}=100M"


def test_declared_processes_stand_in_the_variable(fake):
    env = edits_v2(daemon_of(fake), [SliceLimits("s", CARD_A, 1000, 50, processes=2)]).env
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"{CARD_A}=500M"


def test_low_priority_is_a_variable_under_protocol_2(fake):
    assert edits_v2(daemon_of(fake), [OTHER]).env["CUDA_MPS_CLIENT_PRIORITY"] == "1"
    assert "CUDA_MPS_CLIENT_PRIORITY" not in edits_v2(daemon_of(fake), [SMALL]).env


def test_a_partition_stands_instead_of_the_percentage(fake):
    env = edits_v2(daemon_of(fake), [SMALL], {"slot-001": f"{CARD_A}/Dx4A"}).env
    assert env["CUDA_MPS_SM_PARTITION"] == f"{CARD_A}/Dx4A"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in env


def test_a_shared_memory_directory_becomes_the_clients(fake):
    edits = edits_v3(daemon_of(fake, shm_dir=fake.root / "shm"), [SMALL])
    assert edits.mounts[1] == (str(fake.root / "shm"), "/dev/shm", MOUNT_OPTIONS)  # noqa: S108


@pytest.mark.parametrize(
    ("edits", "changes", "name"),
    [
        (edits_v2, {"compute_pct": 30}, "compute_pct"),
        (edits_v2, {"low_priority": True}, "low_priority"),
        (edits_v3, {"memory_mib": 1}, "client_mib"),
    ],
)
def test_shares_that_mps_cannot_tell_apart_are_refused(fake, edits, changes, name):
    with pytest.raises(CardError, match=f"MPS takes one {name} for all cards of a container, not {CARD_A}: "):
        edits(daemon_of(fake), [SMALL, replace(SMALL, card_uuid=CARD_B, **changes)])


def test_a_partition_for_several_cards_is_refused(fake):
    with pytest.raises(CardError, match="a static partition is for containers with one card"):
        edits_v2(daemon_of(fake), [SMALL, replace(SMALL, card_uuid=CARD_B)], {"slot-001": "x"})


# what is read


@pytest.mark.parametrize(
    ("told", "limits"),
    [("4G", (4096, True)), ("4606M", (4606, False)), ("2048K", (2, False)), ("512MB", (512, False))]
    + [(odd, (None, False)) for odd in ("", "-", "No limit set", "-1M", "4096", "4.5G", "9999999999G")],
)
def test_memory_as_the_daemon_tells_it(told, limits):
    assert parse_memory(told) == limits


@pytest.mark.parametrize(
    ("told", "pct"), [("25.0", 25.0), ("30", 30.0), ("12.5%", 12.5), ("-", None), ("", None), ("nan", None)]
)
def test_a_percentage_as_the_daemon_tells_it(told, pct):
    assert parse_pct(told) == pct


@pytest.mark.parametrize(
    ("told", "floored", "in_force"),
    [(4096, True, True), (4096, False, False), (4606, False, True), (3072, True, False), (5120, True, False)],
)
def test_only_a_limit_told_in_whole_gibibytes_may_be_rounded(told, floored, in_force):
    gap = difference(Limits(4606, None), Limits(told, None, floored=floored))
    assert (gap == "") is in_force


def test_ps_as_documented():
    text = "PID ID SERVER DEVICE NAMESPACE COMMAND\n9741 0 6472 GPU-cb1213a3-d6a4-be7f 4026531836 ./nbody -n 1\n"
    assert parse_ps(text, {6472: "ACTIVE"}) == [
        MpsClient(9741, 6472, "ACTIVE", "GPU-cb1213a3-d6a4-be7f", "", "./nbody -n 1")
    ]


def test_server_list_as_documented():
    text = "training,1000,48201,Ready,/run/nvidia-mps/training,GPU-abcd-1234,GPU-efgh-5678,-\nidle,0,-,Stopped,/x,-,-\n"
    assert parse_servers(text) == (MpsServer(48201, "training", "Ready"),)


def test_client_list_as_documented():
    text = "51023,training,0,default,python train.py\n51087,gone,0,high_priority,python -c 1,2\n"
    assert parse_clients(text, {"training": MpsServer(7, "training", "Ready")}) == [
        MpsClient(51023, 7, "Ready", "0", "default", "python train.py"),
        MpsClient(51087, 0, "", "0", "high_priority", "python -c 1,2"),
    ]


@pytest.mark.parametrize(
    ("slot", "name"), [("slot-007", "slot_007"), ("Slot.7", "slot_7"), ("x" * 64, "x" * 64)], ids=["slot", "dot", "64"]
)
def test_a_slots_namespace(slot, name):
    assert namespace_name(slot) == name


@pytest.mark.parametrize("slot", ["", "default", "x" * 65])
def test_a_name_that_can_be_no_namespace_is_a_bug(slot):
    with pytest.raises(ValueError, match="no name of a namespace"):
        namespace_name(slot)


# probing


@pytest.mark.parametrize(
    ("version", "support"),
    [
        (13040, MpsSupport(True, True, True, 13040)),
        (13010, MpsSupport(True, False, True, 13010)),
        (12080, MpsSupport(True, False, False, 12080)),
        (11040, None),
        (0, MpsSupport(True, False, False, 0)),
    ],
    ids=["13.4", "13.1", "12.8", "11.4: too old", "does not tell"],
)
async def test_what_a_program_can_do(fake, version, support):
    fake.tell(version=version)
    assert await probe(fake.command) == support


async def test_a_node_without_the_program_has_no_mps():
    assert await probe("/no/such/program") is None


async def test_a_program_that_hangs_counts_as_absent(tmp_path):
    stuck = tmp_path / "stuck"
    stuck.write_text("#!/bin/sh\nexec sleep 60\n")
    stuck.chmod(0o755)
    assert await probe(str(stuck), deadline_s=0.1) is None
