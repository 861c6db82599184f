"""A number from Prometheus, or why there is none: silence, parts and errors are told apart."""

from __future__ import annotations

import math
import socket
from datetime import UTC, datetime, timedelta

import pytest

from cardwise.adapters.prometheus import Prometheus
from cardwise.errors import ClusterError, UserError
from tests.fakes.prometheus import FakePrometheus
from tests.ports import deaf_port

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)


@pytest.fixture
async def fake():
    async with FakePrometheus().serving() as made:
        yield made


@pytest.fixture
async def prometheus(fake):
    async with Prometheus(fake.url) as made:
        yield made


async def test_one_number_is_read(fake, prometheus):
    fake.values["up"] = 3.5
    found = await prometheus.instant("up", NOW, max_age_s=60)
    assert (found.value, found.why, found.warnings) == (3.5, "", ())
    assert fake.asked == [{"query": "up", "time": "1780315200.000", "lookback_delta": "60s", "authorization": None}]


@pytest.mark.parametrize(
    ("values", "why"),
    [([], "no series"), ([1, 2], "2 series: wrap it in sum"), ("NaN", "it is NaN"), ("+Inf", "it is +Inf")],
    ids=["silence", "several", "no number", "infinite"],
)
async def test_what_is_no_number_says_why(fake, prometheus, values, why):
    fake.values["up"] = values
    found = await prometheus.instant("up", NOW)
    assert found.value is None
    assert why in found.why


async def test_a_part_of_the_truth_is_told_as_one(fake, prometheus):
    fake.values["up"], fake.warnings = 1, ["store 10.0.0.1 did not answer"]
    assert (await prometheus.instant("up", NOW)).warnings == ("store 10.0.0.1 did not answer",)


async def test_a_query_that_it_refuses_is_its_writers_turn(fake, prometheus):
    fake.raw = 400, b'{"status":"error","errorType":"bad_data","error":"parse error: unclosed left parenthesis"}'
    with pytest.raises(UserError, match=r"unclosed left parenthesis; query: 'sum\('"):
        await prometheus.instant("sum(", NOW)


@pytest.mark.parametrize(
    ("raw", "said", "retry"),
    [
        ((503, b'{"status":"error","errorType":"timeout","error":"query timed out"}'), "query timed out", True),
        ((422, b'{"status":"error","errorType":"execution","error":"many-to-many"}'), "many-to-many", False),
        ((502, b"<html>bad gateway</html>"), "502: not its API", True),
        (
            (200, b'{"status":"success","data":{"resultType":"vector","result":[{"value":["x"]}]}}'),
            "cannot be read",
            True,
        ),
        ((200, b"[" * 5000), "not its API", True),
    ],
    ids=["timeout", "execution", "a proxy's page", "nonsense", "nested"],
)
async def test_what_it_cannot_answer_says_whether_to_try_again(fake, prometheus, raw, said, retry):
    fake.raw = raw
    with pytest.raises(ClusterError, match=said) as caught:
        await prometheus.instant("up", NOW)
    assert caught.value.retry is retry


async def test_a_query_that_gives_no_number_by_its_kind_is_refused(fake, prometheus):
    fake.raw = 200, b'{"status":"success","data":{"resultType":"string","result":[1,"x"]}}'
    with pytest.raises(UserError, match="gives a string"):
        await prometheus.instant('"x"', NOW)


async def test_a_server_that_is_silent_is_given_up_in_time():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # and takes no connection from the queue
        async with Prometheus(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.2) as prometheus:
            with pytest.raises(ClusterError, match=r"no answer in 0\.2 s"):
                await prometheus.instant("up", NOW)


async def test_a_server_that_is_not_there_is_an_error_to_try_again():
    with deaf_port() as port:
        async with Prometheus(f"http://127.0.0.1:{port}") as prometheus:
            with pytest.raises(ClusterError, match="Prometheus at") as caught:
                await prometheus.instant("up", NOW)
    assert caught.value.retry


async def test_the_token_is_read_anew_for_each_question(fake, tmp_path):
    token = tmp_path / "token"
    async with Prometheus(fake.url, token_file=token) as prometheus:
        for text in ("one\n", "other\n"):
            token.write_text(text)
            await prometheus.instant("up", NOW)
    assert [each["authorization"] for each in fake.asked] == ["Bearer one", "Bearer other"]


@pytest.mark.parametrize("url", ["", "prometheus:9090", "ftp://x", "http://", "http://x/?a=b", "http://[x"])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(UserError, match="http://prometheus:9090"):
        Prometheus(url)


async def test_a_series_is_laid_on_its_grid_and_its_gaps_stay_gaps(fake, prometheus):
    begin = NOW - timedelta(hours=3)
    fake.history["q"] = [(begin.timestamp(), 1), (begin.timestamp() + 7200, 3), (begin.timestamp() + 10800, "NaN")]
    (found,) = await prometheus.range("q", begin, NOW, 3600)
    assert [None if math.isnan(each) else each for each in found.values] == [1, None, 3, None]


async def test_a_range_of_too_many_points_is_refused_before_it_is_asked(fake, prometheus):
    with pytest.raises(UserError, match="take another step"):
        await prometheus.range("q", NOW - timedelta(days=90), NOW, 1)
    assert fake.asked == []


async def test_a_sample_that_is_no_number_at_all_is_an_answer_that_cannot_be_read(fake, prometheus):
    """Whatever stands between us and Prometheus: an error of its own, that ends no program."""
    fake.values["up"] = "abc"
    with pytest.raises(ClusterError, match="cannot be read: 'abc' is no number"):
        await prometheus.instant("up", NOW)
    fake.history["up"] = [(NOW.timestamp(), "abc")]
    with pytest.raises(ClusterError, match="cannot be read: 'abc' is no number"):
        await prometheus.range("up", NOW, NOW, 60)
