"""A nearly full card gets memory back from best-effort slices: real processes, a fake driver, the real agent."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import replace

import pytest

from cardwise.adapters import wire
from cardwise.adapters.cgroup import PROC
from cardwise.adapters.journal import Eviction, Journal
from cardwise.adapters.signalling import signal_of_pod
from cardwise.agent.evicting import Evicting
from cardwise.core.card.handover import Mismatch
from cardwise.core.card.watermark import Level
from cardwise.errors import ClusterError
from tests.agent.a_node import GpuNode
from tests.agent.memory import Tenants
from tests.agent.node_port import NodePort

A100 = 81_920
LATENCY_MIB, BEST_EFFORT_MIB = 40_000, 33_728
"""Case C39."""
FAST = {"memory_every_s": 0.05, "reclaim_grace_s": 1}


def gpu_node(**settings):
    return GpuNode("A100-80", settings={**FAST, **settings})


def level(node, card=0):
    use = node.agent.reclaiming.marking.uses.get(node.uuid(card))
    return None if use is None else use.reading.level


def evictions(node):
    return node.agent.journal.evictions


async def settled(node, looks=10):
    """So many samples were looked at that whatever was due has been done."""
    uses = node.agent.reclaiming.marking.uses
    for _ in range(looks):
        seen = uses.get(node.uuid())
        await node.until(lambda before=seen: uses.get(node.uuid()) is not before)


def over(node):
    """The time is over for which who gave memory back keeps away; by the clock it would pass whatever is waited for."""
    node.agent.reclaiming.evicting.wall_s = lambda: time.time() + 3600


def in_no_hurry(node):
    """Tenants that come within a second are a rise to the agent, and at the brink of a full card nobody is asked."""
    node.agent.reclaiming.policy = replace(node.agent.reclaiming.policy, brink_s=0.0)


# ---------------------------------------------------------------- with the API server


async def test_case_c39_the_newest_best_effort_pod_goes_and_the_latency_pod_is_untouched():
    async with gpu_node() as node, Tenants(node) as tenants:
        latency = await tenants.add("latency", LATENCY_MIB)
        older = await tenants.add("older", 16_000, granted_mib=20_000, best_effort=True, made="2026-11-30T09:00:00Z")
        newer = await tenants.add("newer", 17_000, granted_mib=20_000, best_effort=True, made="2026-11-30T10:00:00Z")
        newer.per_s, newer.most_mib = 4000, 17_728
        await node.until(lambda: not newer.lives and tenants.used_mib() <= 0.85 * A100)
        await node.until(lambda: "CardwiseReclaimed" in node.port.reasons())
        assert (latency.lives, older.lives, tenants.ooms) == (True, True, [])
        assert node.port.evicted == [("default/newer", 1)]
        (told,) = [each for each in node.port.events if each["reason"] == "CardwiseReclaimed"]
    assert told["involvedObject"]["name"] == "newer"
    assert "MiB of the card are used; to come down to" in told["message"]


async def test_below_the_high_mark_nobody_goes():
    async with gpu_node() as node, Tenants(node) as tenants:
        await tenants.add("latency", LATENCY_MIB)
        await tenants.add("be", 32_000, best_effort=True)
        await node.until(lambda: level(node) is Level.WARY)
        await settled(node)
        assert evictions(node) == {}


async def test_the_lowest_priority_goes_first_though_it_is_older():
    async with gpu_node() as node, Tenants(node) as tenants:
        await tenants.add("latency", LATENCY_MIB)
        low = await tenants.add("low", 17_000, best_effort=True, priority=-1, made="2026-11-30T09:00:00Z")
        high = await tenants.add("high", 17_000, best_effort=True, priority=5, made="2026-11-30T10:00:00Z")
        await node.until(lambda: not low.lives)
        assert high.lives


async def test_without_best_effort_slices_nobody_goes_and_the_operator_is_told():
    async with gpu_node() as node, Tenants(node) as tenants:
        first = await tenants.add("a", LATENCY_MIB)
        second = await tenants.add("b", 36_000)
        await node.until(lambda: "CardwiseMemoryShort" in node.port.reasons())
        assert (first.lives, second.lives, evictions(node)) == (True, True, {})
        assert node.agent.reclaiming.shorts[node.uuid()] > 0


async def test_who_has_a_card_alone_may_fill_it():
    async with gpu_node() as node, Tenants(node) as tenants:
        alone = await tenants.add("alone", 79_000, best_effort=True)
        await node.until(lambda: level(node) is Level.RECLAIM)
        await settled(node)
        assert alone.lives


@pytest.mark.parametrize(("mode", "lent_mib", "goes"), [("lent", 0, False), ("lent", 3000, True), ("off", 3000, False)])
async def test_whose_memory_is_taken_back_is_a_setting(mode, lent_mib, goes):
    async with gpu_node(reclaim=mode) as node, Tenants(node) as tenants:
        await tenants.add("latency", LATENCY_MIB)
        be = await tenants.add("be", 36_000, granted_mib=39_000, lent_mib=lent_mib, best_effort=True)
        await node.until(lambda: level(node) is Level.RECLAIM)
        if goes:
            await node.until(lambda: not be.lives)
        else:
            await settled(node)
            assert be.lives


async def test_a_service_that_gave_memory_back_is_kept_from_the_card_and_then_let_in_again():
    async with gpu_node() as node, Tenants(node) as tenants:
        await tenants.add("latency", LATENCY_MIB)
        be = await tenants.add("be-0", 36_000, best_effort=True, service="be")
        await node.until(lambda: not be.lives)
        told = lambda: json.loads(node.port.annotations.get(wire.ANNOTATION_EVICTED, "{}"))  # noqa: E731
        await node.until(lambda: told() == {node.uuid(): ["default/be"]})
        await node.delete(be.body)
        over(node)
        await node.until(lambda: told() == {})
        await node.until(lambda: not evictions(node))


# ---------------------------------------------------------------- without it


async def test_without_the_api_server_the_processes_are_told_to_stop_and_it_is_told_later():
    async with gpu_node(reclaim_grace_s=60) as node, Tenants(node) as tenants:
        in_no_hurry(node)
        latency = await tenants.add("latency", LATENCY_MIB)
        be = await tenants.add("be", 36_000, best_effort=True)
        node.port.down = True
        await node.until(lambda: not be.lives)
        assert (be.process.returncode, latency.lives) == (-signal.SIGTERM, True)
        assert [each.deleted for each in evictions(node).values()] == [False]
        node.port.down = False
        await node.until(lambda: "CardwiseReclaimed" in node.port.reasons())
        assert node.port.evicted == [("default/be", 60)]
        assert "SIGTERM" in node.port.events[-1]["message"]


async def test_a_budget_that_forbids_the_eviction_does_not_keep_the_memory_and_the_pod_may_start_again_later():
    async with gpu_node() as node, Tenants(node) as tenants:
        await tenants.add("latency", LATENCY_MIB)
        be = await tenants.add("be", 36_000, best_effort=True)
        node.port.budget = True
        await node.until(lambda: not be.lives)
        with pytest.raises(Exception, match="had to give its card's memory back"):
            await node.run(be.body)
        over(node)
        await node.until(lambda: not evictions(node) and not node.agent.reclaiming.going)
        await node.run(be.body)
        assert node.port.reasons().count("CardwiseReclaimed") == 1


async def test_a_process_that_does_not_stop_is_stopped_after_its_grace():
    async with gpu_node() as node, Tenants(node) as tenants:
        in_no_hurry(node)
        await tenants.add("latency", LATENCY_MIB)
        be = await tenants.add("be", 36_000, best_effort=True, stubborn=True)
        node.port.down = True
        await node.until(lambda: be.killed)
        assert node.agent.reclaiming.counts["term"] == 1


async def test_a_card_that_is_about_to_be_full_has_no_time_for_graces():
    async with gpu_node(reclaim_grace_s=60) as node, Tenants(node, kubelet=False) as tenants:
        latency = await tenants.add("latency", LATENCY_MIB)
        be = await tenants.add("be", 30_000, granted_mib=41_000, best_effort=True, stubborn=True)
        be.per_s = 6000
        await node.until(lambda: not be.lives)
        assert (be.killed, latency.lives, tenants.ooms) == (True, True, [])
        assert "SIGKILL" in next(iter(evictions(node).values())).how


async def test_a_container_of_a_pod_that_had_to_go_does_not_start_again():
    async with gpu_node() as node, Tenants(node) as tenants:
        await tenants.add("latency", LATENCY_MIB)
        be = await tenants.add("be", 36_000, best_effort=True)
        node.port.down = True
        await node.until(lambda: not be.lives)
        node.port.down = False
        with pytest.raises(Exception, match="had to give its card's memory back"):
            await node.run(be.body)
        assert node.agent.sweeping.preparing.mismatches[Mismatch.RECLAIMED] == 1


async def test_an_agent_that_is_restarted_finishes_what_was_begun_and_knows_who_is_best_effort_without_the_cluster():
    async with gpu_node() as node, Tenants(node, kubelet=False) as tenants:
        latency = await tenants.add("latency", LATENCY_MIB)
        begun = await tenants.add("begun", 20_000, best_effort=True, stubborn=True)
        be = await tenants.add("be", 12_500, best_effort=True, made="2026-11-30T08:00:00Z")
        await node.until(lambda: level(node) is Level.WARY)
        await node.stop_agent()
        journal = Journal(node.folder / "state" / "journal.db")
        journal.put_eviction(Eviction(begun.uid, "default", "begun", "", (node.uuid(),), "why", time.time()))
        journal.close()
        node.port.down = True
        await node.start_agent()
        assert (latency.lives, be.lives) == (True, True)
        await node.until(lambda: begun.killed)
        be.per_s, be.most_mib = 20_000, 34_000
        await node.until(lambda: not be.lives)
        assert (latency.lives, tenants.ooms) == (True, [])


async def test_two_best_effort_pods_that_grow_at_once_both_go_if_one_is_not_enough():
    async with gpu_node() as node, Tenants(node) as tenants:
        latency = await tenants.add("latency", 66_000)
        both = [await tenants.add(name, 3000, granted_mib=4000, best_effort=True) for name in ("a", "b")]
        for each in both:
            each.per_s, each.most_mib = 1000, 4000
        await node.until(lambda: not any(each.lives for each in both))
        assert (latency.lives, tenants.ooms) == (True, [])


async def test_a_best_effort_pod_that_does_not_go_is_given_up_and_the_next_one_goes():
    async with gpu_node(reclaim_grace_s=0) as node, Tenants(node, kubelet=False) as tenants:
        node.agent.reclaiming.policy = type(node.agent.reclaiming.policy)(answer_s=0.1, grace_s=0.1, late_s=0.1)
        await tenants.add("latency", LATENCY_MIB)
        other = await tenants.add("other", 16_000, best_effort=True, made="2026-11-30T08:00:00Z")
        # no such process: nothing that is sent reaches it
        ghost = await tenants.add("ghost", 18_000, best_effort=True, pid=2**22 + 5)
        await node.until(lambda: not other.lives)
        # not how many: by these times the other is given up too if it takes its process long to end
        assert ghost.uid in node.agent.reclaiming._given_up


# ---------------------------------------------------------------- lending


async def test_a_calm_card_lends_and_one_that_cannot_be_read_lends_nothing(monkeypatch):
    monkeypatch.setattr("cardwise.agent.marking.RAISE_EVERY_S", 0.0)  # the tenant's coming may be seen as a rise
    async with quickly_calm(gpu_node()) as node, Tenants(node) as tenants:
        await tenants.add("latency", 20_000)
        lendable = lambda: json.loads(node.port.annotations.get(wire.ANNOTATION_LENDABLE, "{}"))  # noqa: E731
        await node.until(lambda: lendable().get(node.uuid(), 0) > 7000)
        assert lendable()[node.uuid()] <= 0.1 * A100
        node.nvml.fail(0, "nvmlDeviceGetMemoryInfo_v2", 999)
        node.nvml.fail(0, "nvmlDeviceGetMemoryInfo", 999)
        await node.until(lambda: lendable() == {})


def quickly_calm(node):
    """An agent that lends after a moment of calm."""

    def change(agent):
        agent.reclaiming.marking.policy = replace(agent.reclaiming.marking.policy, look_s=0.2)

    node.built = change
    return node


async def test_with_reclaim_off_nothing_is_lent():
    async with quickly_calm(gpu_node(reclaim="off")) as node, Tenants(node) as tenants:
        await tenants.add("latency", 20_000)
        await node.until(lambda: level(node) is Level.CALM)
        await settled(node)
        assert node.agent.reclaiming.marking.lendable() == {}


# ---------------------------------------------------------------- parts


def eviction(uid="u", **more):
    return Eviction(uid, "ns", "p", "ns/s", ("GPU-1",), "why", 1000.0, **more)


def test_evictions_survive_the_agent(tmp_path):
    journal = Journal(tmp_path / "journal.db")
    journal.put_eviction(eviction(how="SIGTERM"))
    journal.put_eviction(eviction("v"))
    journal.drop_eviction("v")
    journal.close()
    again = Journal(tmp_path / "journal.db")
    assert dict(again.evictions) == {"u": eviction(how="SIGTERM")}
    again.close()


async def test_a_disk_that_takes_nothing_does_not_keep_the_memory():
    async with gpu_node() as node, Tenants(node) as tenants:
        latency = await tenants.add("latency", LATENCY_MIB)
        be = await tenants.add("be", 32_000, granted_mib=40_000, best_effort=True)
        node.agent.journal._db.execute("PRAGMA query_only=ON")
        be.mib = 36_000
        await node.until(lambda: not be.lives)
        await node.until(lambda: "CardwiseReclaimed" in node.port.reasons())
        assert latency.lives
        node.agent.journal._db.execute("PRAGMA query_only=OFF")


async def test_an_eviction_is_kept_until_the_api_server_heard_of_it_and_its_time_is_over(tmp_path):
    journal, port, now = Journal(tmp_path / "journal.db"), NodePort(), [1000.0]
    evicting = Evicting(port, "n", journal, lambda: now[0], away_s=60)
    evicting.begin(eviction())
    port.down = True
    now[0] += 3600
    await evicting.tell()
    assert "u" in journal.evictions
    port.down = False
    await evicting.tell()
    assert (journal.evictions, len(port.events)) == ({}, 1)
    journal.close()


def test_no_process_of_another_pod_is_signalled(tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "cgroup").write_text("0::/kubepods/pod11111111-2222-3333-4444-555555555555\n")
    assert not signal_of_pod(1, "another", signal.SIGKILL, tmp_path)
    assert not signal_of_pod(2**22 + 5, "another", signal.SIGKILL, PROC)


def test_a_process_that_we_may_not_signal_is_an_error_that_says_what_is_needed(tmp_path, monkeypatch):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "cgroup").write_text("0::/kubepods/pod11111111-2222-3333-4444-555555555555\n")

    def refused(_held, _what):
        raise PermissionError("not permitted")

    monkeypatch.setattr(signal, "pidfd_send_signal", refused)
    with pytest.raises(ClusterError, match="needs root and the host's processes"):
        signal_of_pod(1, "11111111-2222-3333-4444-555555555555", signal.SIGTERM, tmp_path)


async def test_who_was_lent_memory_gives_it_back_though_it_says_by_now_that_it_is_latency_sensitive():
    """A pod's annotations are its owner's to write; memory was lent to it because it was best-effort."""
    async with gpu_node() as node, Tenants(node) as tenants:
        latency = await tenants.add("latency", LATENCY_MIB)
        liar = await tenants.add("liar", 20_000, granted_mib=40_000, lent_mib=20_000, best_effort=True)
        liar.body["metadata"]["annotations"][wire.ANNOTATION_CLASS] = "latency-sensitive"
        node.bound(liar.body)
        node.port.budget = True  # nor does the API server let an agent evict it
        await node.until(lambda: level(node) is Level.CALM or level(node) is Level.WARY)
        liar.per_s, liar.most_mib = 40_000, 36_000
        await node.until(lambda: not liar.lives)
        assert latency.lives
        assert tenants.ooms == []
