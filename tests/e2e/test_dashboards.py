"""Every query of the chart's rules and dashboards, on a real Prometheus that scrapes all programs at work."""

from __future__ import annotations

import asyncio
import contextlib
import time

from tests.dashboards.programs import POD, SERVICE, programs
from tests.dashboards.server import BOARDS, prometheus, queries, rules, variable_queries
from tests.prometheus import must_have

DEADLINE_S = 60.0
EMPTY = (
    "cardwise_card_xids_total",  # no card fails here
    "cardwise_agent_mps_alarms_total",
    "cardwise_agent_mismatches_total",
    "cardwise_gateway_replica_failures_total",  # and no replica
    "cardwise_gateway_rejections_total",
    "cardwise_preemption_evictions_total",  # nobody has to go
    "cardwise_preemption_refusals_total",
    "cardwise_consolidation_refusals_total",
    "cardwise_rescue_steps_total",
    "cardwise_scaling_",  # there are no ServicePolicies
    "cardwise_prefetch_wishes",  # nor wishes
    "ALERTS",
    "count(max by (uuid) (cardwise_card_health) == 1)",  # all cards are well
    "count(max by (uuid) (cardwise_card_health) == 2)",
)
"""What has no series while all is well, and must not for a dashboard to be right."""


OTHERS = ("kueue_", "cardwise_cpu", "cardwise_engine_")
"""What comes from nobody but other exporters."""


@contextlib.asynccontextmanager
async def scraped(folder, *, others):
    """Prometheus and the programs that it scrapes; with the other exporters, or without."""
    must_have("prometheus")
    async with programs(folder) as running:
        ports = {name: port for name, port in running.ports.items() if others or name != "others"}
        async with prometheus(folder, ports) as server:
            yield server, running


async def none_left(look, running):
    """Until ``look`` finds nothing amiss, while requests come in; what is left in the end, which should be nothing.

    Rates need two scrapes of each program, and rules an evaluation after them.
    """
    end_s = time.monotonic() + DEADLINE_S
    while (left := await look()) and time.monotonic() < end_s:
        await running.ask()
        await asyncio.sleep(0.2)
    return left


async def test_every_query_parses_and_has_data_where_there_is_some(tmp_path):
    async with scraped(tmp_path, others=True) as (server, running):
        assert await none_left(lambda: _queries_without_data(server, EMPTY), running) == []
        assert await none_left(lambda: _rules_without_data(server), running) == []
        await _what_may_be_empty_is_right_too(server)
        assert await none_left(lambda: _not_scraped(server), running) == []
        await _each_rule_works(server)
        assert await none_left(lambda: _choices_without_values(server), running) == []
        assert await none_left(lambda: _joins_that_are_wrong(server), running) == []


async def test_without_other_exporters_ours_stand_in_for_theirs(tmp_path):
    async with scraped(tmp_path, others=False) as (server, running):
        assert await none_left(lambda: _queries_without_data(server, (*EMPTY, *OTHERS)), running) == []
        assert await none_left(lambda: _busy_that_is_not_ours(server), running) == []


async def _busy_that_is_not_ours(server):
    busy = {each["metric"]["uuid"]: each["value"][1] for each in await server.ask("uuid:cardwise_busy:share")}
    used = await server.ask("cardwise_card_utilization_percent / 100")
    ours = {each["metric"]["uuid"]: each["value"][1] for each in used}
    return [] if busy and busy == ours else [busy, ours]


async def _not_scraped(server):
    """One that is down now: a scrape has a second, and this process, in which all are, may stall for longer."""
    up = {each["metric"]["job"]: each["value"][1] for each in await server.ask("up")}
    wanted = dict.fromkeys(("agent", "scheduler", "gateway", "controller", "engine", "others"), "1")
    return [] if up == wanted else [up]


async def _each_rule_works(server):
    told = [rule for group in (await server.get("rules"))["groups"] for rule in group["rules"]]
    assert len(told) == len(rules())
    assert [(rule["name"], rule["lastError"]) for rule in told if rule["health"] != "ok"] == []


async def _rules_without_data(server):
    return [rule["record"] for rule in rules() if "record" in rule and not await server.ask(rule["record"])]


async def _queries_without_data(server, empty):
    asked = [each for path in BOARDS for each in queries(path) if not any(name in each[1] for name in empty)]
    return [(title, expr) for title, expr in asked if not await server.ask(expr)]


async def _what_may_be_empty_is_right_too(server):
    """An error of PromQL fails in :meth:`Server.get`."""
    for path in BOARDS:
        for _, expr in queries(path):
            await server.ask(expr)


async def _choices_without_values(server):
    amiss = []
    for path in BOARDS:
        for series, label in variable_queries(path):
            found = await server.ask(series)
            assert all(each["metric"].get(label) for each in found), (path.stem, series)
            amiss += [] if found else [(path.stem, series)]
    return amiss


async def _joins_that_are_wrong(server):
    """One pod, on one card, behind one service; DCGM's value goes before ours, on its card alone."""
    granted = [
        (each["metric"]["service"], float(each["value"][1]))
        for each in await server.ask("service:cardwise_memory_granted:mib")
    ]
    busy = {each["metric"]["uuid"]: float(each["value"][1]) for each in await server.ask("uuid:cardwise_busy:share")}
    waiting = [
        (each["metric"]["pod"], float(each["value"][1])) for each in await server.ask("pod:cardwise_engine_waiting:sum")
    ]
    right = {
        "granted": granted == [(SERVICE, 4096)],
        "busy": len(busy) == 2 and list(busy.values()).count(0.42) == 1,
        "waiting": waiting == [(POD, 3)],
    }
    return [] if all(right.values()) else [right, granted, busy, waiting]
