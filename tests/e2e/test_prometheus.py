"""A real Prometheus: numbers, silence, staleness, and a forecast from four weeks of its history.

Needs ``prometheus`` and ``promtool`` on PATH (Debian: apt-get install prometheus); skipped, with the reason, without.
"""

from __future__ import annotations

import asyncio
import math
import re
import subprocess
import time
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from aiohttp import web

from cardwise.adapters.prometheus import Prometheus
from cardwise.adapters.seasonal import forecast_aside
from cardwise.controller.forecasting import Forecasting
from cardwise.core.fleet.forecast import Forecast
from cardwise.errors import UserError
from tests.controller.scaling_world import World
from tests.fakes.loopback import served
from tests.ports import free_ports
from tests.prometheus import prometheus_in, store_history

HOUR = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=3)
"""The history's last hour ends here."""
STEP_S, DAYS = 300, 28


def demand(at_s):
    """Days that look alike, with their peak at 12:00 UTC, and quiet weekends."""
    at = datetime.fromtimestamp(at_s, UTC)
    day = 50 + 40 * math.cos(2 * math.pi * (at.hour + at.minute / 60 - 12) / 24)
    return day * (0.4 if at.weekday() >= 5 else 1.0)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Its address. Its store has ``demand`` and scrapes an exporter at ``EXPORTER``, once there is one."""
    folder = tmp_path_factory.mktemp("prometheus")
    times = range(int(HOUR.timestamp()) - DAYS * 86400, int(HOUR.timestamp()) + 1, STEP_S)
    lines = "".join(f"demand {demand(at):.3f} {at}\n" for at in times)
    wide = "--max-block-duration=720h"  # not 2h: 340 blocks
    store_history(folder, f"# TYPE demand gauge\n{lines}# EOF\n", wide)
    (exporter,) = free_ports(1)
    config = (
        "scrape_configs: [{job_name: e, scrape_interval: 1s, scrape_timeout: 1s, "
        f"static_configs: [{{targets: ['127.0.0.1:{exporter}']}}]}}]\n"
    )
    with prometheus_in(folder, config, "--storage.tsdb.retention.time=90d") as url:
        yield url, exporter


@pytest.fixture
async def prometheus(server):
    async with Prometheus(server[0]) as made:
        yield made


async def test_a_number_is_what_was_stored(prometheus):
    found = await prometheus.instant("sum(demand)", HOUR, max_age_s=60)
    assert found.value == pytest.approx(demand(HOUR.timestamp()), abs=0.001)


async def test_what_nothing_was_heard_of_for_five_minutes_is_silence(prometheus):
    found = await prometheus.instant("sum(demand)", HOUR + timedelta(seconds=301))
    assert (found.value, "no sample that is new enough" in found.why) == (None, True)


async def test_a_sample_that_is_older_than_it_may_be_is_silence(prometheus):
    told = subprocess.run(["prometheus", "--version"], capture_output=True, text=True, check=True).stdout
    version = tuple(map(int, re.search(r"version (\d+)\.(\d+)", told).groups()))
    if version < (2, 43):
        pytest.skip(f"this Prometheus is {version[0]}.{version[1]}; a query's own lookback is known since 2.43")
    found = [await prometheus.instant("sum(demand)", HOUR + timedelta(seconds=90), max_age_s=age) for age in (60, 120)]
    assert [each.value is None for each in found] == [True, False]


async def test_several_series_are_no_number(prometheus):
    found = await prometheus.instant("label_replace(demand, 'a', 'b', '', '') or vector(1)", HOUR)
    assert "series: wrap it" in found.why


@pytest.mark.parametrize(
    ("query", "said"), [("sum(", "parse error"), ("demand[5m]", "gives a matrix"), ('"a"', "gives a string")]
)
async def test_a_query_that_is_none_is_refused_with_its_own_words(prometheus, query, said):
    with pytest.raises(UserError, match=said):
        await prometheus.instant(query, HOUR)


async def test_what_is_divided_by_nothing_is_no_number(prometheus):
    assert "NaN" in (await prometheus.instant("0 / (demand * 0)", HOUR)).why


async def test_an_exporter_that_dies_is_silent_at_once(server, prometheus):
    async def metrics(_request):
        return web.Response(text="# TYPE alive gauge\nalive 7\n")

    async with served(web.get("/metrics", metrics), port=server[1]):
        await _until(lambda value: value == 7, prometheus)
    died = time.monotonic()
    await _until(lambda value: value is None, prometheus)
    assert time.monotonic() - died < 60  # its samples may be 300 s old: it is told by the stale marker


async def _until(holds, prometheus):
    async with asyncio.timeout(60):
        while not holds((await prometheus.instant("sum(alive)", datetime.now(UTC), max_age_s=300)).value):
            await asyncio.sleep(0.2)


async def test_a_range_is_the_history_hour_by_hour(prometheus):
    begin = HOUR - timedelta(days=2)
    (found,) = await prometheus.range("demand", begin, HOUR + timedelta(hours=2), 3600)
    times = [(begin + timedelta(hours=i)).timestamp() for i in range(49)]
    assert found.values[:49] == pytest.approx([demand(at) for at in times], abs=0.001)
    assert np.isnan(found.values[50:]).all()  # five minutes after the last sample there is none


async def test_four_weeks_of_history_foresee_the_next_day(prometheus):
    (found,) = await prometheus.range("max_over_time((demand)[1h:5m])", HOUR - timedelta(days=DAYS), HOUR, 3600)
    told = await forecast_aside(found.values[1:], 24)
    assert isinstance(told, Forecast)
    assert told.season_steps == 168
    peaks = [max(demand(HOUR.timestamp() + 3600 * i + 60 * m) for m in range(60)) for i in range(24)]
    assert np.abs(told.expected - peaks).sum() / np.sum(peaks) < 0.15


async def test_replicas_come_before_the_load_that_was_foreseen(server):
    """At 05:00 of a day the load is low; its forecast for the next hours is not."""
    before = HOUR - timedelta(days=1)
    morning = before.replace(hour=5)
    load = {"query": "sum(demand)", "perReplica": 5, "forecast": {"historyDays": 26, "horizonMinutes": 360}}
    world = World(server[0], replicas=2, load=load, scaling={"stepUp": 100})
    world.spec["replicas"] = {"min": 2, "max": 100}
    world.utc = morning
    world.loop.forecasting = Forecasting(world.prometheus, lambda: world.now_s, forecast_aside)
    async with world.prometheus:
        await world.turn()
        now = world.replicas
        await world.loop.forecasting.make_wanted()
        await world.turn()

    assert world.condition("ForecastUsed") == ("True", "Forecast")
    assert now == math.ceil(demand(morning.timestamp()) / 4 - 1e-9)
    assert world.replicas >= math.ceil(demand((morning + timedelta(hours=5)).timestamp()) / 4)
    assert world.status["why"] == "Forecast"
