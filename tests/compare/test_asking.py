"""Windows of a Prometheus that is not as it should be: told in a sentence, or as not known. Real HTTP beneath."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web

from cardwise.adapters.prometheus import Prometheus
from cardwise.compare.asking import ask
from cardwise.compare.window import read_window, window_text
from cardwise.errors import ClusterError
from tests.fakes.loopback import served

END = datetime(2026, 11, 30, 12, tzinfo=UTC)
SPAN = END - timedelta(hours=1), END
BOUNDS = ("0.01", "0.1", "+Inf")
LIMIT = {
    "status": "error",
    "errorType": "execution",
    "error": "query processing would load too many samples into memory in query execution",
}


def series_of(query, value):
    """What a gateway, agents and the scheduler would have Prometheus tell: by labels, a value."""
    of_s, firing = {"service": "s"}, {"alertstate": "firing"}
    known = {
        "cardwise_gateway_queue_depth": [({}, 120)],
        "_latency_seconds_bucket": [({**of_s, "le": bound}, 100 * (i + 1)) for i, bound in enumerate(BOUNDS)],
        "_requests_total": [({**of_s, "status": "200"}, value), (of_s, 7)],
        "_hung_up_total": [(of_s, value)],
        "_latency_seconds_sum": [(of_s, value)],
        "cardwise_card_info": [({"model": "A10"}, value)],
        "ALERTS": [({"alertname": "CardwiseX", **of_s, **firing}, 1), ({"alertname": "CardwiseY", **firing}, 1)],
    }
    return next((found for name, found in known.items() if name in query), [({}, value)])


def points(begin, step, each):
    """each: a value, or one by its number."""
    return [[begin + i * step, str(each(i) if callable(each) else each)] for i in range(32)]


async def told(change=lambda _query, found: found, *, value=300, fault=None, chosen=()):
    """A window of such a Prometheus, and what it was asked. change: of its series; fault: answered to ranges."""
    asked = []

    async def ranges(request):
        sent = await request.post()
        asked.append(sent["query"])
        if fault is not None:
            return web.json_response(fault, status=422)
        begin, step = float(sent["start"]), float(sent["step"])
        found = change(sent["query"], series_of(sent["query"], value))
        result = [{"metric": labels, "values": points(begin, step, each)} for labels, each in found]
        return web.json_response({"status": "success", "data": {"resultType": "matrix", "result": result}})

    async with served(web.post("/api/v1/query_range", ranges)) as port:
        prometheus = Prometheus(f"http://127.0.0.1:{port}")
        try:
            return await ask(prometheus, "http://prometheus", SPAN, chosen, "Cardwise.*"), asked
        finally:
            await prometheus.close()


async def test_what_is_told_is_what_is_in_the_window():
    window, _ = await told()
    of_s = window.services["s"]
    assert of_s.latency_counts[0] == [100, 100, 100]
    assert (of_s.answers[0], of_s.good[0], of_s.hung_up[0]) == (307, 300, 300)
    assert window.cards == {"A10": [300] * 32}


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-5"])
async def test_what_is_no_amount_is_not_known_and_the_file_can_be_read(tmp_path, value):
    window, _ = await told(value=value)
    assert window.cards == {"A10": [None] * 32}
    assert set(window.events) <= {"restarts", "failed-scheduling"}
    (tmp_path / "a.json").write_text(window_text(window))
    assert read_window(tmp_path / "a.json") == window


async def test_a_gateway_that_was_replaced_within_the_window_does_not_make_it_short():
    """One half of the window has all samples, 120 in half an hour: one every 15 s, so there are all 32 parts."""

    def replaced(query, found):
        return [({}, lambda i: 120 if i == 2 else 60)] if "queue_depth" in query else found

    window, _ = await told(replaced)
    assert window.scrape_s == 15
    assert len(window.memory_granted_mib) == 32


async def test_a_histogram_without_buckets_is_told():
    def without(query, found):
        return [({"service": "s"}, 1)] if "_bucket" in query else found

    with pytest.raises(ClusterError, match="cardwise_gateway_latency_seconds_bucket has no buckets"):
        await told(without)


async def test_a_question_that_is_too_large_is_told_with_what_to_ask_instead():
    with pytest.raises(ClusterError, match=r"too many samples.*; ask for shorter windows, or for some services by"):
        await told(fault=LIMIT)


async def test_alerts_are_told_by_name_and_service_and_of_chosen_services_only():
    window, asked = await told()
    assert window.alerts == ["CardwiseX of s", "CardwiseY"]
    assert not any("ALERTS" in query and "service=~" in query for query in asked)
    _, asked = await told(chosen=["s", "t"])
    assert any('ALERTS{alertname=~"Cardwise.*", service=~"|s|t"}' in query for query in asked)
