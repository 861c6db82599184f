"""A fence outlives the agent: it ends by a quiet time, by a reboot, or by an operator, and by nothing else."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from cardwise.adapters.journal import Fenced, Journal, fences
from cardwise.cli.fence import fence_command
from cardwise.core.card.health_record import CardHealth, HealthPolicy
from cardwise.errors import ClusterError, UserError
from tests.agent.a_node import GpuNode
from tests.agent.test_surviving import ContainerError, no_database, unreadable_row

LOST = 79
BOOT = "5b6b2d42-0000-4000-8000-{:012}"


def health(node, card=0):
    return node.agent.wellness.healths.get(node.uuid(card))


def fenced(node, card=0):
    told = health(node, card)
    return told is not None and told.fence is not None


async def strike(node, card=0):
    node.nvml.xid(card, LOST)
    await node.until(lambda: fenced(node, card))


def boot(node, number):
    place = node.folder / "proc" / "sys" / "kernel" / "random" / "boot_id"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(BOOT.format(number) + "\n")


async def run(node, *args):
    """The command as typed in the agent's container: its exit code, output and errors."""
    typed = [sys.executable, "-m", "cardwise", "fence", *args, "--state-folder", str(node.folder / "state")]
    done = await asyncio.create_subprocess_exec(*typed, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, error = await asyncio.wait_for(done.communicate(), 60)
    return done.returncode, out.decode(), error.decode()


async def test_a_restarted_agent_fences_what_was_fenced_and_counts_on():
    async with GpuNode("A10", "A10") as node:
        await strike(node)
        before = health(node)
        await node.restart_agent()
        after = health(node)
        assert (after.fence.what, after.fence.action, after.fence.quiet_s) == (
            before.fence.what,
            before.fence.action,
            before.fence.quiet_s,
        )
        assert after.struck_s == pytest.approx(before.struck_s, abs=60)  # two clocks are read, one after the other
        assert not fenced(node, 1)
        with pytest.raises(ContainerError, match="takes no new slices"):
            await node.run(node.pod("a"))
        await node.run(node.pod("b", card=1))


async def test_a_card_is_fenced_before_the_restarted_agent_offers_a_slice():
    async with GpuNode() as node:
        await strike(node)
        seen = []
        node.built = lambda agent: seen.append(dict(agent.inventory.sick))
        await node.restart_agent()
        assert list(seen[0]) == [node.uuid()]


async def test_a_reboot_ends_a_fence_and_keeps_the_strike():
    async with GpuNode() as node:
        boot(node, 1)
        await node.restart_agent()
        await strike(node)
        boot(node, 2)
        await node.restart_agent()
        assert not fenced(node)
        assert health(node).strikes == 1
        await node.run(node.pod("a"))
        await node.until(lambda: "CardRecovered" in node.port.reasons())
        await node.restart_agent()
        assert health(node).strikes == 1


async def test_a_card_that_waits_for_an_operator_waits_through_reboots():
    async with GpuNode() as node:
        boot(node, 1)
        node.built = lambda agent: setattr(agent.wellness, "policy", HealthPolicy(most_strikes=1))
        await node.restart_agent()
        await strike(node)
        for number in (2, 3):
            boot(node, number)
            await node.restart_agent()
            assert health(node).fence.held


async def test_an_operator_clears_a_card_that_takes_slices_at_once_and_after_a_restart():
    async with GpuNode() as node:
        await strike(node)
        code, out, _ = await run(node, "list")
        assert code == 0
        assert f"{node.uuid()}  fenced since 20" in out
        assert "Xid 79" in out
        assert await run(node, "clear", node.uuid(), "--by", "Ada") == (0, f"{node.uuid()}: takes slices again\n", "")
        assert not fenced(node)
        assert not node.agent.wellness.inventory.sick
        await node.run(node.pod("a"))
        await node.restart_agent()
        assert not fenced(node)
        assert not node.agent.journal.fenced
        assert "no card of this node is fenced" in (await run(node, "list"))[1]
        assert "CardCleared" in node.port.reasons()


async def test_what_lasts_fences_a_cleared_card_again_and_the_command_says_so():
    async with GpuNode() as node:
        node.nvml.lost(0)
        await node.until(lambda: fenced(node))
        code, _, error = await run(node, "clear", node.uuid())
        assert code == 2
        assert "is fenced again at once: " in error
        assert fenced(node)


async def test_a_card_that_is_not_fenced_is_not_cleared():
    async with GpuNode() as node:
        await strike(node)
        code, _, error = await run(node, "clear", "GPU-none")
        assert code == 2
        assert f"those that are: {node.uuid()}" in error
        assert fenced(node)


async def test_without_an_agent_the_wish_is_kept_for_the_next():
    async with GpuNode() as node:
        await strike(node)
        await node.stop_agent()
        code, _, error = await run(node, "clear", node.uuid())
        assert code == 1
        assert "as soon as it runs again" in error
        await node.start_agent()
        await node.registered()
        await node.until(lambda: not fenced(node))


def test_a_folder_without_a_journal_is_an_error_that_says_where_to_run_it(tmp_path):
    told = CliRunner().invoke(fence_command, ["list", "--state-folder", str(tmp_path)])
    assert isinstance(told.exception, UserError)
    assert "run this in the agent's container" in str(told.exception)


async def test_a_fence_in_words_of_another_version_waits_for_an_operator():
    async with GpuNode() as node:
        body = node.pod("a")
        await node.run(body)
        await strike(node)
        await node.stop_agent()
        node.agent.journal.__init__(node.folder / "state" / "journal.db")
        node.agent.journal._db.execute("UPDATE fenced SET told = replace(told, 'card-xid', 'card-of-tomorrow')")
        node.agent.journal.close()
        await node.start_agent()
        await node.registered()
        assert len(node.agent.journal.unread) == 1
        assert health(node).fence.held
        assert len(list(node.agent.journal.rows)) == 1
        assert "another version" in (await run(node, "list"))[1]
        assert (await run(node, "clear", node.uuid()))[0] == 0
        assert not fenced(node)


@pytest.mark.parametrize(("damage", "kept"), [(unreadable_row, True), (no_database, False)])
async def test_a_damaged_journal_keeps_its_fences_or_says_that_they_are_lost(damage, kept):
    async with GpuNode() as node:
        await node.run(node.pod("a"))
        await strike(node)
        await node.stop_agent()
        damage(node.folder / "state" / "journal.db")
        await node.start_agent()
        await node.registered()
        assert fenced(node) is kept
        text = "is kept (1)" if kept else "is not known any more"
        await node.until(lambda: "CardwiseJournalDamaged" in node.port.reasons())
        assert text in node.agent.journal.damage
        await node.restart_agent()
        assert (fenced(node), node.agent.journal.damage) == (kept, "")


async def test_a_wish_that_is_broken_off_is_taken_back():
    async with GpuNode() as node:
        await strike(node)
        await node.stop_agent()
        typed = [sys.executable, "-m", "cardwise", "fence", "clear", node.uuid(), "--state-folder"]
        done = await asyncio.create_subprocess_exec(*typed, str(node.folder / "state"), stderr=subprocess.PIPE)
        with fences(node.folder / "state" / "journal.db") as found:
            await node.until(lambda: found.is_asked(node.uuid()))
            done.send_signal(signal.SIGINT)
            await asyncio.wait_for(done.communicate(), 60)
            assert done.returncode == 130
            assert not found.is_asked(node.uuid())


async def test_strikes_older_than_a_day_are_not_listed(tmp_path):
    journal = Journal(tmp_path / "journal.db")
    now_s = time.time()
    journal.put_fenced(Fenced(CardHealth("GPU-old", struck_s=(now_s - 90000,))))
    journal.put_fenced(Fenced(CardHealth("GPU-new", struck_s=(now_s - 90000, now_s - 80000))))
    journal.close()
    told = CliRunner().invoke(fence_command, ["list", "--state-folder", str(tmp_path)])
    assert told.output == "GPU-new  takes slices  strikes within a day: 1\n"


@pytest.mark.parametrize(
    "by", ["", " ", "a\nb", "\x1b[31m", "a" * 61], ids=["empty", "blank", "line", "escape", "long"]
)
def test_who_says_so_is_a_short_printable_name(tmp_path, by):
    told = CliRunner().invoke(fence_command, ["clear", "GPU-a", "--by", by, "--state-folder", str(tmp_path)])
    assert isinstance(told.exception, UserError)
    assert "--by: give a name" in str(told.exception)


async def test_a_lost_card_is_not_told_as_recovered_after_a_reboot():
    async with GpuNode("A10", "A10") as node:
        boot(node, 1)
        await node.restart_agent()
        await strike(node)
        lost = node.uuid(0)
        await node.stop_agent()
        boot(node, 2)
        node.nvml.lost(0)
        await node.start_agent()
        await node.registered()
        assert node.agent.wellness.healths[lost].fence is not None
        assert "CardRecovered" not in node.port.reasons()


async def test_a_journal_that_another_program_has_locked_is_tried_for_one_card_and_not_at_each_look(monkeypatch):
    monkeypatch.setattr("cardwise.agent.wellness.WRITE_AGAIN_S", 3600.0)
    async with GpuNode("A10", "A10", "A10") as node:
        tries = []

        def locked(told):
            tries.append(told.health.uuid)
            raise ClusterError("database is locked", retry=True)

        monkeypatch.setattr(node.agent.journal, "put_fenced", locked)
        for card in range(3):
            await strike(node, card)
        await asyncio.sleep(0.5)  # ten looks
        assert len(tries) == 1


async def test_a_fence_that_cannot_be_written_down_holds_and_is_written_when_it_can(monkeypatch):
    monkeypatch.setattr("cardwise.agent.wellness.WRITE_AGAIN_S", 0.2)
    async with GpuNode() as node:
        node.agent.journal._db.execute("PRAGMA query_only = ON")
        await strike(node)
        assert not node.agent.journal.fenced
        node.agent.journal._db.execute("PRAGMA query_only = OFF")
        await node.until(lambda: node.agent.journal.fenced)
        await node.restart_agent()
        assert fenced(node)
