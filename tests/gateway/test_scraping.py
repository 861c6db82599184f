"""What a replica says of itself: read, believed while it is fresh, and no more than a penalty."""

from __future__ import annotations

import pytest

from cardwise.core.queue.choose import Gauges
from cardwise.gateway.scraping import gauges_of
from tests.gateway.world import gateway, service, until, upstream

PAGE = b"""# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="a"} 3.0
vllm:num_requests_waiting{engine="1",model_name="a"} 4.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="a"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="a"} 0.5
vllm:num_requests_waiting_by_reason{reason="x"} 99.0
vllm:e2e_request_latency_seconds_bucket{le="0.3"} 12.0
"""


@pytest.mark.parametrize(
    ("page", "gauges"),
    [
        pytest.param(PAGE, Gauges(1.0, 7, 0.5), id="all that wait, and the fullest cache"),
        pytest.param(b"vllm:gpu_cache_usage_perc 0.9\n", Gauges(1.0, 0, 0.9), id="the older name"),
        pytest.param(b"vllm:num_requests_waiting 2", Gauges(1.0, 2, 0.0), id="no label, no end of line"),
        pytest.param(b"vllm:num_requests_waiting NaN\n", None, id="no number"),
        pytest.param(b"up 1\n", None, id="none of them"),
        pytest.param(b"", None, id="empty"),
        pytest.param(b"vllm:num_requests_waiting{ 3\n", None, id="not Prometheus' text"),
        pytest.param(b"vllm:num_requests_waiting \xff\n", None, id="no text"),
    ],
)
def test_gauges_are_read_from_an_engines_page(page, gauges):
    assert gauges_of(page, 1.0) == gauges


async def test_a_full_replica_is_the_second_choice_and_so_only_while_it_says_so():
    pages = {"full": PAGE, "well": b"vllm:num_requests_waiting 0\n"}

    def serving(name):
        async def serve(asked):
            asked.answer(200 if pages[name] else 500, pages[name] if asked.path == "/metrics" else name.encode())

        return serve

    async with upstream(serving("full")) as full, upstream(serving("well")) as well:
        settings = service(full.url, well.url, limit=7, scrape_path="/metrics", scrape_every_ms=100)
        async with gateway(settings) as world, world.client() as client:
            burdened, other = world.service.replicas
            await until(lambda: burdened.penalty == 1.0)
            assert other.penalty == 0.0
            assert {(await client.get("/")).content for _ in range(20)} == {b"well"}
            pages["full"] = b""
            await until(lambda: burdened.penalty == 0.0)
            assert {(await client.get("/")).content for _ in range(40)} == {b"full", b"well"}
            assert burdened.ready


async def test_nothing_is_scraped_unless_a_path_is_told():
    async def serve(asked):
        asked.answer(200)

    async with upstream(serve) as replica, gateway(service(replica.url)) as world:
        assert len(world.service.members._tasks[world.replica]) == 1
