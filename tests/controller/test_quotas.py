"""The loop that keeps quotas, where the API server fails. With a real one: tests/e2e/test_quota.py."""

from __future__ import annotations

import asyncio
import datetime as dt

import pytest
from structlog.testing import capture_logs

from cardwise.controller.quotas import AGAIN_S, Quotas
from cardwise.errors import ClusterError, NotFoundError
from tests.adapters.test_quota_file import TEXT

NOON = dt.datetime(2026, 1, 5, 12, tzinfo=dt.UTC)


class Failing:
    def __init__(self, error):
        self.error, self.asked = error, asyncio.Event()

    async def request(self, *_args, **_options):
        self.asked.set()
        raise self.error


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "quota.toml"
    path.write_text(TEXT)
    return path


def loop(file, api, *, leads=True, now=NOON, clock_s=lambda: 0.0):
    return Quotas(api, api, file, lambda: now, clock_s, lambda: leads)


def told(logs):
    return [each["why"] for each in logs if each["log_level"] == "warning"]


async def test_a_failure_that_stays_is_told_once_an_hour(file):
    clock = [0.0]
    quotas = loop(file, Failing(ClusterError("no answer", retry=True)), clock_s=lambda: clock[0])
    with capture_logs() as logs:
        for _ in range(3):
            await quotas.turn()
        assert told(logs) == ["no answer"]
        clock[0] = AGAIN_S
        await quotas.turn()
    assert told(logs) == ["no answer", "no answer"]


async def test_a_cluster_without_kueue_is_told_and_the_loop_lives(file):
    with capture_logs() as logs:
        await loop(file, Failing(NotFoundError("404", retry=False))).turn()
    assert "install Kueue 0.15 or newer" in told(logs)[0]


async def test_who_does_not_lead_asks_for_nothing(file):
    api = Failing(ClusterError("no answer", retry=True))
    running = asyncio.create_task(loop(file, api, leads=False).run())
    await asyncio.sleep(0)
    running.cancel()
    assert not api.asked.is_set()


async def test_who_leads_looks_at_once(file):
    api = Failing(ClusterError("no answer", retry=True))
    running = asyncio.create_task(loop(file, api).run())
    await asyncio.wait_for(api.asked.wait(), 60)
    running.cancel()


@pytest.mark.parametrize(("hour", "window"), [(12, -1), (23, 0)])
async def test_the_window_that_holds_is_told_to_prometheus(file, hour, window):
    friday = dt.datetime(2026, 1, 2, hour - 1, tzinfo=dt.UTC)  # an hour later in Berlin
    quotas = loop(file, Failing(ClusterError("no answer", retry=True)), now=friday)
    await quotas.turn()
    assert quotas.registry.get_sample_value("cardwise_quota_window") == window
