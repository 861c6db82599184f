"""What may go wrong around a running node goes wrong here: nothing is double counted, nothing is left, it works again.

Each test breaks one thing beneath the real agent (the kubelet, a file, the driver, the API server) and mends it again.
That the process itself dies at each step of a start is in ``tests/e2e/test_agent_process.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import sqlite3
import time
import urllib.request
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from cardwise.adapters import wire
from cardwise.adapters.cdi import Edits
from cardwise.adapters.journal import State
from cardwise.adapters.kubelet import pod_resources
from cardwise.adapters.node_cards import decode_cards
from cardwise.adapters.nvml.driver import Driver
from cardwise.agent import main, registering
from cardwise.agent.registering import ENDPOINT
from cardwise.agent.telling import Teller
from cardwise.errors import CardError, UserError
from tests.agent.a_node import GPU, GpuNode
from tests.agent.node_port import NODE, NodePort, pod, share
from tests.fakes.kubelet import ContainerError, Refused
from tests.fakes.nvml import HOUR_MS, Node, load


def books(node):
    """What the journal says: grants by pod and container, in a fixed order."""
    return sorted((row.uid, row.container, row.grants, row.holds, row.state) for row in node.agent.journal.rows)


def names(node):
    """Pods in the journal."""
    return sorted(row.pod for row in node.agent.journal.rows)


def uid(body):
    return body["metadata"]["uid"]


async def start(node, body, container="app"):
    return await node.kubelet.start_container(uid(body), container)


async def metrics(node):
    """The text that Prometheus gets."""

    def ask():
        with urllib.request.urlopen(f"http://127.0.0.1:{node.metrics_port}/metrics", timeout=60) as answer:
            return answer.read().decode()

    return await asyncio.to_thread(ask)


async def at_rest(node):
    """Files and rows say the same, and nothing is half done."""
    rows = list(node.agent.journal.rows)
    wanted = sorted(f"cardwise.dev-{slot}.json" for row in rows for slot in row.slots)
    await node.until(lambda: node.slot_files() == wanted, f"{node.slot_files()} are not the files of {rows}")
    assert {row.state for row in rows} <= {State.READY}


@contextlib.asynccontextmanager
async def unready(*models, **more):
    """A node whose kubelet and agent are not started; both end."""
    node = GpuNode(*models, **more)
    try:
        yield node
    finally:
        await node.__aexit__()


# ---------------------------------------------------------------- the kubelet restarts, or is not there


async def test_a_kubelet_that_restarts_finds_all_that_runs_and_takes_new_pods():
    async with GpuNode() as node:
        old = node.pod("old", 4096, 20)
        before = (await node.run(old))["app"]
        assert await node.kubelet.restart() == {}
        await node.registered()
        assert node.kubelet.running()[uid(old), "app"] is before
        assert (await node.run(node.pod("new", 8192, 30)))["app"].env["CARDWISE_MEMORY_MIB"] == "8192"
        assert (await start(node, old)).env == before.env
        assert names(node) == ["new", "old"]
        assert node.agent.registering.registrations == 2


async def test_the_old_stream_has_ended_before_the_plugin_registers_anew():
    """Else the kubelet would drop the new registration when the old stream ends."""
    async with GpuNode() as node:
        for _ in range(3):
            await node.kubelet.restart()
            await node.registered()
        await asyncio.sleep(0.7)  # more than a stream's grace
        assert node.kubelet.allocatable(GPU) == 16


async def test_a_socket_that_was_removed_is_made_again():
    async with GpuNode() as node:
        (node.kubelet.plugins / ENDPOINT).unlink()
        await node.until(lambda: node.agent.registering.registrations == 2)
        await node.registered()
        await node.run(node.pod("a"))


async def test_a_kubelet_that_no_longer_listens_is_registered_with_again():
    """It dropped the stream, for whatever reason, and has not restarted: the slots would be gone for good."""
    async with GpuNode() as node:
        node.agent.registering.deaf_s = 0.3
        for client in list(node.kubelet._registry._clients.values()):
            await client.close()
        await node.until(lambda: node.kubelet.allocatable(GPU) == 0)
        await node.registered()
        await node.run(node.pod("a"))


async def test_a_kubelet_folder_that_appears_late_is_used_at_once():
    async with unready() as node:
        node.built = lambda agent: setattr(agent.sweeping, "period_s", 600.0)  # no sweep tells what runs here
        await node.start_agent()
        await node.until(lambda: "there is no kubelet" in node.agent.registering.problem)
        assert "cardwise_agent_registered 0.0" in await metrics(node)
        await forty_looks(node)
        await node.kubelet.start()
        await node.registered()
        await node.run(node.pod("a"))


async def test_a_kubelet_that_was_gone_for_long_is_served_as_soon_as_it_is_back():
    async with GpuNode() as node:
        await node.kubelet.stop()
        await forty_looks(node)
        await node.kubelet.start()
        await node.registered()


async def forty_looks(node):
    """The agent looks for its kubelet as often after many looks as at first."""
    pauses = []

    async def sleep(pause_s):
        pauses.append(pause_s)
        await asyncio.sleep(pause_s)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registering, "asyncio", SimpleNamespace(sleep=sleep))
        await node.until(lambda: len(pauses) >= 40)
    assert set(pauses) == {node.agent.registering.look_s}


async def test_a_socket_that_cannot_be_made_is_told_and_tried_again():
    async with unready() as node:
        await node.kubelet.start()
        (node.kubelet.plugins / ENDPOINT).mkdir()  # no rights of ours remove that: as on a read-only folder
        await node.start_agent()
        await node.until(lambda: "no socket can be made there" in node.agent.registering.problem)
        (node.kubelet.plugins / ENDPOINT).rmdir()
        await node.registered()


# ---------------------------------------------------------------- the agent restarts


async def test_a_restarted_agent_has_the_same_books_and_refuses_what_does_not_fit():
    async with GpuNode("A10", "A10") as node:
        for i in range(3):
            await node.run(node.pod(f"p{i}", 6000, 25, card=i % 2))
        before = books(node)
        await node.restart_agent()
        assert books(node) == before
        with pytest.raises(ContainerError, match=r"11000 MiB are asked, 10516 of 22516 MiB are free"):
            await node.run(node.pod("big", 11000, 10, card=0))
        assert names(node) == ["p0", "p1", "p2"]
        await node.run(node.pod("small", 10000, 10, card=0))


async def test_an_agent_that_is_stopped_in_the_middle_of_a_start_leaves_nothing_of_it():
    async with GpuNode() as node:
        entered = asyncio.Event()

        class Slow:
            async def enforce(self, _owner, _grants):
                entered.set()
                await asyncio.sleep(60)

            async def lift(self, _row):
                return

        node.agent.sweeping.preparing.limits = Slow()
        body = node.pod("a", 20000, 90)
        running = asyncio.ensure_future(node.run(body))
        await entered.wait()
        await node.stop_agent()
        with pytest.raises(ContainerError):
            await running
        await node.start_agent()
        await node.registered()
        assert (await start(node, body)).env["CARDWISE_MEMORY_MIB"] == "20000"
        assert names(node) == ["a"]
        await at_rest(node)


def _deleted(path):
    for each in path.parent.glob("journal.db*"):
        each.unlink()


def no_database(path):
    _deleted(path)
    path.write_bytes(b"no database at all\n" * 1000)


def _cut_off(path):
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1000)


def unreadable_row(path):
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE handed SET told = '{'")
        db.commit()


def _impossible_state(path):
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE handed SET state = 'gone'")
        db.commit()


DAMAGES = [no_database, _cut_off, unreadable_row, _impossible_state]


@pytest.mark.parametrize("damage", [_deleted, *DAMAGES])
async def test_a_journal_that_is_lost_is_filled_again_from_what_runs(damage):
    async with GpuNode() as node:
        await node.run(node.pod("a", 15000, 60))
        before = books(node)
        await node.stop_agent()
        damage(node.folder / "state" / "journal.db")
        await node.start_agent()
        await node.until(lambda: node.agent.registering.registrations)  # the kubelet remembers the one before
        await node.registered()
        assert books(node) == before
        with pytest.raises(ContainerError, match=r"15000 MiB are asked, 7516 of 22516 MiB are free; held by default/a"):
            await node.run(node.pod("b", 15000, 30))


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_journal_is_put_aside_and_told(damage):
    async with GpuNode() as node:
        await node.run(node.pod("a"))
        await node.stop_agent()
        damage(node.folder / "state" / "journal.db")
        await node.start_agent()
        assert (node.folder / "state" / "journal.db.damaged").exists()
        await node.until(lambda: "CardwiseJournalDamaged" in node.port.reasons())


async def test_a_journal_of_another_version_is_refused_and_kept():
    async with GpuNode() as node:
        await node.stop_agent()
        with contextlib.closing(sqlite3.connect(node.folder / "state" / "journal.db")) as db:
            db.execute("PRAGMA user_version = 99")
        with pytest.raises(UserError, match=r"is a journal of version 99, this agent reads 1; remove it"):
            await node.start_agent()
        assert not list((node.folder / "state").glob("*.damaged"))


async def test_a_state_folder_that_cannot_be_made_is_refused_with_what_to_do():
    async with unready() as node:
        (node.folder / "state").write_text("")
        with pytest.raises(UserError, match=r"state/journal.db: cannot be used as the journal: .*state-folder"):
            await node.start_agent()


async def test_a_journal_that_cannot_be_written_refuses_starts_and_no_more():
    async with GpuNode() as node:
        old, new = node.pod("old"), node.pod("new")
        await node.run(old)
        node.agent.journal._db.execute("PRAGMA query_only = ON")  # as on a read-only or full disk
        with pytest.raises(ContainerError, match=r"journal.db: cannot be written: attempt to write a readonly"):
            await node.run(new)
        assert node.slot_files() == ["cardwise.dev-slot-000.json"]
        assert (uid(old), "app") in node.kubelet.running()
        assert "cardwise_agent_registered 1.0" in await metrics(node)
        node.agent.journal._db.execute("PRAGMA query_only = OFF")
        await start(node, new)
        await at_rest(node)


async def test_nothing_new_starts_while_it_is_not_known_what_runs():
    async with GpuNode() as node:
        old = node.pod("old", 15000, 60)
        await node.run(old)
        await node.stop_agent()
        _deleted(node.folder / "state" / "journal.db")
        node.port.mute = True
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(main, "SYNC_S", 0.1)
            await node.start_agent()
            await node.registered()
        new = node.pod("new", 15000, 30)
        with pytest.raises(ContainerError, match="what runs on this node is not known yet: the API server"):
            await node.run(new)
        node.port.mute = False
        await node.until(lambda: names(node) == ["old"])
        with pytest.raises(ContainerError, match="7516 of 22516 MiB are free"):
            await start(node, new)
        await start(node, old)


# ---------------------------------------------------------------- CDI files


async def test_a_cdi_folder_that_was_removed_is_made_again():
    async with GpuNode() as node:
        body = node.pod("a")
        await node.run(body)
        shutil.rmtree(node.folder / "cdi")
        await start(node, body)
        await at_rest(node)


async def test_a_cdi_folder_that_cannot_be_written_refuses_starts_and_leaves_no_row():
    async with GpuNode() as node:
        shutil.rmtree(node.folder / "cdi")
        (node.folder / "cdi").write_text("")
        body = node.pod("a", 20000, 90)
        with pytest.raises(ContainerError, match="the runtime finds no card without it"):
            await node.run(body)
        assert "cardwise_agent_registered 1.0" in await metrics(node)
        (node.folder / "cdi").unlink()
        assert (await start(node, body)).env["CARDWISE_MEMORY_MIB"] == "20000"
        await at_rest(node)


async def test_an_agent_starts_with_a_broken_cdi_folder_and_a_start_half_done():
    async with GpuNode() as node:
        body = node.pod("a")
        await node.run(body)
        row = node.agent.journal.get(uid(body), "app")
        await node.stop_agent()
        with contextlib.closing(sqlite3.connect(node.folder / "state" / "journal.db")) as db:
            db.execute("UPDATE handed SET state = 'preparing'")
            db.commit()
        shutil.rmtree(node.folder / "cdi")
        (node.folder / "cdi").write_text("")
        await node.start_agent()
        await node.until(lambda: node.agent.registering.registrations)
        await node.registered()
        assert node.agent.journal.get(uid(body), "app").grants == row.grants
        (node.folder / "cdi").unlink()
        await start(node, body)
        await at_rest(node)


# ---------------------------------------------------------------- pods that go


async def test_a_pod_that_is_deleted_before_the_kubelet_saw_it_holds_nothing():
    """Case C1."""
    async with GpuNode() as node:
        other, gone = node.pod("other", 2000, 10), node.pod("gone", 20000, 90)
        await node.run(other)
        node.port.remove(gone)
        assert (await node.run(node.pod("next", 20000, 90)))["app"].env["CARDWISE_MEMORY_MIB"] == "20000"
        assert (await start(node, other)).env["CARDWISE_MEMORY_MIB"] == "2000"
        assert names(node) == ["next", "other"]


async def test_a_pod_that_is_deleted_between_allocate_and_its_start_holds_nothing():
    """Case C1."""
    async with GpuNode() as node:
        gone = node.pod("gone", 20000, 90)
        await node.kubelet.admit(gone)
        await node.delete(gone)
        await node.run(node.pod("next", 20000, 90))
        assert names(node) == ["next"]


async def test_a_pod_that_is_deleted_while_it_starts_is_cleaned_up_in_the_end():
    async with GpuNode() as node:
        gone = node.pod("gone", 20000, 90)

        async def delete(_call):
            node.port.remove(gone)

        node.kubelet.before_prestart = delete
        with contextlib.suppress(ContainerError):
            await node.run(gone)
        node.kubelet.before_prestart = None
        node.kubelet.remove_pod(uid(gone))
        await node.until(lambda: not names(node) and not node.slot_files())
        await node.run(node.pod("next", 20000, 90))


async def test_a_slot_that_changes_hands_takes_the_old_owners_file_with_it():
    """The old pod is not swept yet, and the new one is refused: nothing of the old one may be found in its slot."""
    async with GpuNode() as node:
        node.agent.sweeping.soon_s = 60
        old = node.pod("old", 2000, 10)
        await node.run(old)
        node.kubelet.remove_pod(uid(old))
        with pytest.raises(ContainerError, match="30000 MiB are asked"):
            await node.run(node.pod("new", 30000, 10))
        assert (node.slot_files(), names(node)) == ([], [])


async def test_a_pod_that_is_gone_holds_nothing_although_its_slot_is_anothers_who_waits():
    """Pulling an image takes minutes: meanwhile the memory of the one that is gone is a third one's."""
    async with GpuNode() as node:
        gone, waits, third = node.pod("gone", 20000, 90), node.pod("waits", 1000, 5), node.pod("third", 20000, 90)
        await node.run(gone)
        await node.delete(gone)
        await node.kubelet.admit(waits)
        assert node.kubelet.devices.of_container(uid(waits), "app")[GPU].ids == {"slot-000"}
        await node.until(lambda: not names(node))
        await node.run(third)


async def test_a_row_that_cannot_be_removed_does_not_keep_the_others():
    async with GpuNode() as node:
        bodies = [node.pod(f"p{i}", 100, 1) for i in range(4)]
        for body in bodies:
            await node.run(body)
        stuck = node.folder / "cdi" / node.slot_files()[0]
        stuck.unlink()
        (stuck / "x").mkdir(parents=True)
        for body in bodies:
            await node.delete(body)
        await node.until(lambda: names(node) == ["p0"])
        shutil.rmtree(stuck)
        await node.until(lambda: not names(node))


async def test_what_runs_is_entered_by_its_uid_and_not_by_a_name_that_is_used_again():
    async with GpuNode() as node:
        old = node.pod("db-0", 20000, 50, uid="00000000-0000-0000-0000-000000000001")
        await node.run(old)
        await node.stop_agent()
        _deleted(node.folder / "state" / "journal.db")
        node.port.remove(old)  # force-deleted: the kubelet still has it
        node.pod("db-0", 1000, 5, uid="00000000-0000-0000-0000-000000000002")
        await node.start_agent()
        await node.until(lambda: node.agent.registering.registrations)
        assert names(node) == []


async def test_an_init_containers_row_goes_when_the_app_takes_over_its_slot():
    """Else a restarted agent would restore the limits of both on one slot."""
    async with GpuNode() as node:
        body = pod("a", {"app": [share(node.uuid(), 4096, 20)]}, inits={"load": [share(node.uuid(), 8192, 50)]})
        node.bound(body)
        await node.kubelet.admit(body)
        await start(node, body, "load")
        node.kubelet.stop_container(uid(body), "load")
        ended = [{"name": "load", "state": {"terminated": {"exitCode": 0}}}]
        body["status"] = {"phase": "Pending", "initContainerStatuses": ended}
        node.port.put(body)
        await start(node, body)
        assert [row.container for row in node.agent.journal.rows] == ["app"]
        await at_rest(node)


async def test_a_pod_whose_init_container_alone_had_a_card_holds_nothing_once_that_has_ended():
    async with GpuNode() as node:
        body = node.bound(pod("a", {"app": []}, inits={"load": [share(node.uuid(), 20000, 90)]}))
        await node.run(body)
        body["status"] = {"phase": "Running", "conditions": [{"type": "Initialized", "status": "True"}]}
        node.port.put(body)
        await node.until(lambda: node.agent.pods.by_uid[uid(body)].status.phase == "Running")
        await node.run(node.pod("b", 20000, 90))


# ---------------------------------------------------------------- two at once


async def twice(_call):
    return 2


async def test_two_equal_calls_at_once_count_once():
    async with GpuNode() as node:
        node.kubelet.before_prestart = twice
        body = node.pod("a", 20000, 90)
        assert (await node.run(body))["app"].env["CARDWISE_MEMORY_MIB"] == "20000"
        assert names(node) == ["a"]
        await at_rest(node)


class FailsOnce:
    """Limits of which the first call fails, late."""

    calls = 0

    async def enforce(self, _owner, _grants):
        self.calls += 1
        if self.calls == 1:
            await asyncio.sleep(0.1)
            raise CardError("GPU-x", "sick for a moment")
        return Edits()

    async def lift(self, _row):
        return


async def test_of_two_equal_calls_at_once_the_one_that_fails_does_not_undo_the_other():
    async with GpuNode() as node:
        node.agent.sweeping.preparing.limits = FailsOnce()
        node.kubelet.before_prestart = twice
        await node.run(node.pod("a", 20000, 90))
        assert names(node) == ["a"]
        await at_rest(node)


class Lifted:
    """Limits that remember."""

    def __init__(self):
        self.in_force = set()

    async def enforce(self, _owner, grants):
        self.in_force |= {grant.slot for grant in grants}
        return Edits()

    async def lift(self, row):
        self.in_force -= set(row.slots)


async def test_limits_of_a_start_that_fails_later_are_taken_back():
    async with GpuNode(toolkit=False) as node:
        node.agent.sweeping.preparing.limits = limits = Lifted()
        with pytest.raises(ContainerError):
            await node.run(node.pod("a"))
        assert limits.in_force == set()


# ---------------------------------------------------------------- the kubelet is slow to tell


async def test_a_kubelet_that_is_slow_to_tell_whose_slots_they_are_delays_a_start_only():
    async with GpuNode() as node:
        node.kubelet.list_delay = 0.3
        await node.run(node.pod("a"))


async def test_a_kubelet_that_does_not_tell_in_time_refuses_the_start():
    async with GpuNode() as node:
        node.kubelet.list_delay = 5
        body = node.pod("a")
        with pytest.MonkeyPatch.context() as patch:  # for no longer: a busy kubelet takes its time
            patch.setattr(pod_resources, "TIMEOUT_S", 0.2)
            with pytest.raises(ContainerError, match="the kubelet does not say whose slots they are"):
                await node.run(body)
        node.kubelet.list_delay = 0
        await start(node, body)


async def test_a_question_that_times_out_does_not_break_off_another(monkeypatch):
    monkeypatch.setattr(pod_resources, "TIMEOUT_S", 0.5)
    async with GpuNode() as node:
        asking = pod_resources.PodResources(node.kubelet.pod_resources_socket)
        node.kubelet.list_delay = 5
        asked = node.kubelet.pod_resources.calls
        late = asyncio.ensure_future(asking.held(GPU))
        await node.until(lambda: node.kubelet.pod_resources.calls > asked)
        node.kubelet.list_delay = 1  # it is asked before the other times out, and answered after that
        monkeypatch.setattr(pod_resources, "TIMEOUT_S", 60.0)
        assert await asking.held(GPU) == []
        with pytest.raises(Exception, match="does not say"):
            await late
        await asking.close()


async def test_thirty_starts_at_once_get_through_the_kubelets_limit_on_questions():
    async with GpuNode("H200", "H200") as node:
        found = await asyncio.gather(*(node.run(node.pod(f"p{i}", 1000 + i, 3, card=i % 2)) for i in range(30)))
        assert [each["app"].env["CARDWISE_MEMORY_MIB"] for each in found] == [str(1000 + i) for i in range(30)]


# ---------------------------------------------------------------- the API server is down


async def test_a_container_that_ran_before_starts_again_while_the_api_server_is_down():
    async with GpuNode() as node:
        body = node.pod("a", 4096, 20)
        before = (await node.run(body))["app"]
        node.port.down = True
        assert (await start(node, body)).env == before.env
        assert "cardwise_agent_registered 1.0" in await metrics(node)


async def test_a_pod_that_nobody_has_told_of_waits_for_the_api_server():
    async with GpuNode() as node:
        node.port.down = True
        body = node.bound(pod("new", {"app": [share(node.uuid())]}), told=False)
        with pytest.raises(ContainerError, match="the API server is down"):
            await node.run(body)
        node.port.down = False
        await start(node, body)
        await at_rest(node)


async def test_an_agent_that_starts_while_the_api_server_is_down_keeps_its_books_and_tells_metrics(monkeypatch):
    async with GpuNode() as node:
        body = node.pod("a", 15000, 60)
        await node.run(body)
        before = books(node)
        await node.stop_agent()
        node.port.down = True
        monkeypatch.setattr(main, "SYNC_S", 0.3)
        await node.start_agent()
        assert "cardwise_card_info" in await metrics(node)
        await node.registered()
        assert books(node) == before
        with pytest.raises(ContainerError, match="the API server is down"):
            await start(node, body)
        assert names(node) == ["a"]
        node.port.down = False
        await node.until(lambda: not node.agent.sweeping.preparing.unknown)
        await start(node, body)
        assert books(node) == before


async def test_an_agent_ends_at_once_while_it_waits_for_the_api_server(monkeypatch):
    monkeypatch.setattr(main, "SYNC_S", 3600.0)
    async with unready() as node:
        node.port.down = True
        await node.kubelet.start()
        await node.start_agent()
        begin_s = time.monotonic()
        await node.stop_agent()
        assert time.monotonic() - begin_s < 60


async def test_a_pod_whose_allocation_was_removed_keeps_its_hold():
    async with GpuNode() as node:
        body = node.pod("a", 15000, 60)
        await node.run(body)
        del body["metadata"]["annotations"][wire.ANNOTATION_ALLOC]
        node.port.put(body)
        await node.until(lambda: not node.agent.pods.by_uid[uid(body)].metadata.annotations)
        with pytest.raises(ContainerError, match="7516 of 22516 MiB are free"):
            await node.run(node.pod("b", 15000, 30))


# ---------------------------------------------------------------- cards and the driver


async def test_a_node_without_cards_registers_without_slots():
    async with unready() as node:
        node.nvml = Node(node.folder / "nvml")
        await node.kubelet.start()
        await node.start_agent()
        await node.registered()
        assert node.kubelet.capacity(GPU) == 0
        await node.until(lambda: node.port.annotations.get(wire.ANNOTATION_CARDS) == "[]")
        assert "cardwise_agent_registered 1.0" in await metrics(node)


async def test_without_a_driver_the_agent_waits_for_one_and_says_so(tmp_path, monkeypatch):
    load()
    monkeypatch.setattr(main, "DRIVER_EVERY_S", 0.05)
    monkeypatch.setattr(main, "DRIVER_LATE_S", 60.0)
    nvml = Node(tmp_path / "nvml", "A10").init_fails(9)
    monkeypatch.setenv("FAKE_NVML_STATE", str(nvml.path))
    port, driver, said = NodePort(), Driver(), []
    waiting = asyncio.ensure_future(main._facts(driver, Teller(port, NODE), said.append))
    with capture_logs() as logs:
        async with asyncio.timeout(60):
            while said.count("the driver is being read") <= 6:
                await asyncio.sleep(0.01)
    assert (waiting.done(), port.reasons()) == (False, ["CardwiseNoDriver"])
    assert [each["event"] for each in logs] == ["no cards can be offered"]  # at the sixth try too
    nvml.init_fails(0)
    facts = await asyncio.wait_for(waiting, 40)
    driver.close()
    assert [card.uuid for card in facts.cards] == [nvml.uuid(0)]


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        pytest.param(lambda n: n.nvml.set(2, uuid=n.uuid(1)), "another card has its UUID", id="twins"),
        pytest.param(lambda n: n.nvml.set(1, memory=0, reserved=0), "no memory that could be handed out", id="memory"),
        pytest.param(lambda n: n.nvml.lost(1), "GPU is lost", id="lost"),
    ],
)
async def test_a_card_that_cannot_be_true_is_not_offered_and_the_others_are(lie, words):
    async with unready("A10", "A10", "A10") as node:
        lie(node)
        await node.kubelet.start()
        await node.start_agent()
        await node.registered()
        assert words in "; ".join(node.agent.inventory.facts.lost)
        await node.until(lambda: wire.ANNOTATION_CARDS in node.port.annotations)
        told = decode_cards(node.port.annotations[wire.ANNOTATION_CARDS])
        assert node.uuid(0) in {card.uuid for card in told}
        assert len(told) + len(node.agent.inventory.facts.lost) == 3
        assert (await node.run(node.pod("a")))["app"].env["CARDWISE_CARDS"] == node.uuid(0)


async def sick(node, card=0):
    node.nvml.xid(card, 79)
    await node.until(lambda: node.uuid(card) in node.agent.inventory.sick)


@pytest.mark.parametrize(("number", "stays"), [(999, True), (79, False), (48, False)], ids=["unknown", "lost", "ECC"])
async def test_what_runs_on_a_fenced_card_may_stay_only_where_the_fault_is_no_reason_to_go(number, stays):
    """Case C34: an unknown Xid keeps new work away, and running pods where they are."""
    async with GpuNode("A10") as node:
        node.nvml.xid(0, number)
        await node.until(lambda: '"healthy":false' in node.port.annotations[wire.ANNOTATION_CARDS])
        (card,) = decode_cards(node.port.annotations[wire.ANNOTATION_CARDS])
        assert (card.healthy, card.stays) == (False, stays)


async def test_a_fault_that_is_worse_than_the_one_before_sends_away_what_stayed():
    async with GpuNode("A10") as node:
        node.nvml.xid(0, 999)
        await node.until(lambda: '"stays":true' in node.port.annotations[wire.ANNOTATION_CARDS])
        node.nvml.xid(0, 79)
        await node.until(lambda: '"stays":true' not in node.port.annotations[wire.ANNOTATION_CARDS])
        assert '"healthy":false' in node.port.annotations[wire.ANNOTATION_CARDS]


async def test_a_card_that_becomes_sick_lets_its_container_start_again_and_takes_no_other():
    async with GpuNode("A10", "A10") as node:
        body = node.pod("a", 4096, 20)
        before = (await node.run(body))["app"]
        await sick(node)
        await node.kubelet.wait_allocatable(GPU, 16)
        with pytest.raises(ContainerError, match="takes no new slices"):
            await node.run(node.pod("b", 1000, 5))
        assert (await start(node, body)).env == before.env
        assert "cardwise_card_takes_slices" in await metrics(node)
        assert (await node.run(node.pod("c", 1000, 5, card=1)))["app"].env["CARDWISE_CARDS"] == node.uuid(1)


async def test_a_start_on_a_sick_card_that_failed_for_another_reason_may_be_tried_again():
    async with GpuNode() as node:
        body = node.pod("a", 4096, 20)
        await node.run(body)
        await sick(node)
        shutil.rmtree(node.folder / "etc")
        with pytest.raises(ContainerError, match="nvidia-ctk"):
            await start(node, body)
        node.write_toolkit()
        await start(node, body)
        await at_rest(node)


async def test_slots_that_become_free_on_a_node_of_sick_cards_are_withdrawn():
    async with GpuNode() as node:
        body = node.pod("a")
        await node.run(body)
        await sick(node)
        await node.kubelet.wait_allocatable(GPU, 1)
        await node.delete(body)
        await node.kubelet.wait_allocatable(GPU, 0)
        with pytest.raises(Refused):
            await node.run(node.pod("b"))


async def test_a_card_that_was_never_sampled_and_fails_takes_no_slices():
    async with unready("A10", "A10") as node:
        node.built = lambda _agent: node.nvml.lost(0)  # between the driver's facts and the first sample
        await node.kubelet.start()
        await node.start_agent()
        await node.until(lambda: node.uuid(0) in node.agent.inventory.sick)
        assert node.uuid(1) not in node.agent.inventory.sick


async def test_a_stopped_agent_ends_in_time_although_a_card_hangs():
    async with GpuNode("A10", "A10") as node:
        await node.hung(0)
        well = node.agent.using.cards._workers[node.uuid(1)]
        well.stop()  # at once here: while the end waits for the one that hangs, its time may pass
        await asyncio.to_thread(well.thread.join, 60)
        assert "cardwise_card_info" in await metrics(node)
        begin_s = time.monotonic()
        await node.stop_agent()
        assert time.monotonic() - begin_s < 60
        assert [each for each in node.agent.using.hung if each.startswith("GPU-")] == [node.uuid(0)]
        node.nvml.heal()


R615 = {"driver": "615.71.05", "cuda": 13040, "memory_limits": True}


def cgroups(node, *bodies):
    """The pods' cgroups are there, as the kubelet makes them, and limits can be put on them."""
    (node.folder / "cgroup").mkdir(exist_ok=True)
    (node.folder / "cgroup" / "cgroup.controllers").touch()
    for body in bodies:
        (node.folder / "cgroup" / "kubepods" / f"pod{uid(body)}").mkdir(parents=True)


async def test_a_card_on_which_a_limit_hangs_refuses_its_starts_and_holds_up_no_other():
    async with unready("A10", "A10", **R615) as node:
        a, b = node.pod("a", 1000, 5, card=0), node.pod("b", 1000, 5, card=1)
        cgroups(node, a, b)
        await node.kubelet.start()
        await node.start_agent()
        await node.registered()
        calls = node.agent.isolating.calls
        node.nvml.hang(0, "nvmlDeviceSetMemoryLimits_v1", HOUR_MS)
        calls.within_s = 0.3
        hung = asyncio.ensure_future(node.run(a))
        await node.until(lambda: node.uuid(0) in calls._under_way)
        calls.within_s = 60.0  # who began before keeps its own
        await node.run(b)
        with pytest.raises(ContainerError, match=rf"card {node.uuid(0)}: the driver has not answered"):
            await hung
        calls.within_s = 0.3
        with pytest.raises(ContainerError, match="the driver has not answered"):
            await start(node, a)
        assert names(node) == ["b"]
        calls.within_s = 60.0
        node.nvml.heal()
        await start(node, a)
        await at_rest(node)


# ---------------------------------------------------------------- anything, in any order


class Story:
    """Two cards, and what may befall them in any order."""

    def __init__(self, node, seed):
        self.node, self.random, self.count = node, random.Random(seed), 0  # noqa: S311 - a story, no secret
        self.free = {node.uuid(card): [22516, 100] for card in (0, 1)}
        self.bodies, self.started = {}, {}

    async def step(self):
        act = self.random.choices(
            [self.admit, self.start, self.restart, self.delete, self.agent, self.kubelet], [6, 6, 4, 4, 1, 1]
        )[0]
        await act()
        self.check()

    def _any(self, among):
        return self.random.choice(sorted(among)) if among else None

    async def admit(self):
        """What the scheduler would give: it fits what others hold. Now and then it does not, for a leader was wrong."""
        card, wrong = self.random.choice((0, 1)), self.random.random() < 0.2
        free_mib, free_pct = self.free[self.node.uuid(card)]
        mib, pct = self.random.randint(500, 9000), self.random.randint(1, 30)
        if not wrong and (mib > free_mib or pct > free_pct):
            return
        self.count += 1
        body = self.node.pod(f"p{self.count}", mib, pct, card=card, uid=f"00000000-0000-0000-0000-{self.count:012d}")
        with contextlib.suppress(Refused):
            await self.node.kubelet.admit(body)
            self.bodies[body["metadata"]["name"]] = (body, card, mib, pct)
            if not wrong:
                self._take(card, mib, pct)
                return
            self.bodies[body["metadata"]["name"]] = (body, card, mib, pct, "wrong")
            return
        self.node.port.remove(body)

    def _take(self, card, mib, pct):
        free = self.free[self.node.uuid(card)]
        free[0] -= mib
        free[1] -= pct

    async def start(self):
        name = self._any(self.bodies.keys() - self.started.keys())
        if name is not None:
            await self._start(name)

    async def restart(self):
        name = self._any(self.started.keys())
        if name is not None:
            await self._start(name)

    async def _start(self, name):
        body, card, mib, pct, *_ = self.bodies[name]
        try:
            env = (await start(self.node, body)).env
        except ContainerError as error:
            if "are asked" not in str(error):  # the one reason there is: others hold too much
                raise
            self.started.pop(name, None)
            return
        told = (env["CARDWISE_CARDS"], env["CARDWISE_MEMORY_MIB"], env["CARDWISE_CORES_PCT"])
        assert told == (self.node.uuid(card), str(mib), str(pct))
        self.started[name] = told

    async def delete(self):
        name = self._any(self.bodies)
        if name is None:
            return
        body, card, mib, pct, *wrong = self.bodies.pop(name)
        self.started.pop(name, None)
        await self.node.delete(body)
        if not wrong:
            self._take(card, -mib, -pct)

    async def agent(self):
        await self.node.restart_agent()

    async def kubelet(self):
        for gone in await self.node.kubelet.restart():
            for name, (body, card, mib, pct, *wrong) in list(self.bodies.items()):
                if uid(body) == gone:
                    del self.bodies[name]
                    await self.node.delete(body)
                    if not wrong:
                        self._take(card, -mib, -pct)
        await self.node.registered()

    def check(self):
        sums = {uuid: [0, 0] for uuid in self.free}
        for row in self.node.agent.journal.rows:
            if row.pod not in self.bodies:
                continue  # not swept yet
            for hold in row.holds:
                sums[hold.uuid][0] += hold.memory_mib
                sums[hold.uuid][1] += hold.compute_pct
        assert all(mib <= 22516 and pct <= 100 for mib, pct in sums.values()), sums
        assert self.started.keys() <= {row.pod for row in self.node.agent.journal.rows}

    async def end(self):
        await self.node.until(lambda: set(names(self.node)) <= self.bodies.keys(), "pods that are gone have rows")


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_happens_in_whatever_order_each_has_its_own_and_cards_hold_it(seed):
    async with GpuNode("A10", "A10", settings={"slots_per_card": 8}) as node:
        story = Story(node, seed)
        end_s = time.monotonic() + 5
        while time.monotonic() < end_s:
            await story.step()
        await story.end()
        for name in sorted(story.started):
            await story._start(name)
        strays = {row.pod for row in node.agent.journal.rows} - story.started.keys()
        for name in sorted(strays):
            await story._start(name)
        await at_rest(node)
