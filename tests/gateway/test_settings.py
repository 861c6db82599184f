"""Settings: what follows from them, hour by hour, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import msgspec
import pytest

from cardwise.errors import InputError
from cardwise.gateway.settings import plan_at, plan_of, read_settings
from tests.gateway.world import oip, service

URL = "http://127.0.0.1:1"
TIMES = {"one_ms": 4.35, "full_batch_ms": 15.2}


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def night(**more):
    return {"timezone": "Europe/Berlin", "begin": "22:00", "end": "06:00", "max-batch": 64, **more}


@pytest.mark.parametrize(
    ("when", "max_batch"),
    [
        pytest.param("2026-01-15T20:59", 32, id="winter, before 22 in Berlin"),
        pytest.param("2026-01-15T21:00", 64, id="winter, at 22"),
        pytest.param("2026-07-15T20:00", 64, id="summer, at 22, an hour earlier in UTC"),
        pytest.param("2026-07-15T19:59", 32, id="summer, before"),
        pytest.param("2026-01-16T04:59", 64, id="before 6"),
        pytest.param("2026-01-16T05:00", 32, id="at 6"),
    ],
)
def test_a_profile_counts_by_the_clock_of_its_zone(when, max_batch):
    assert plan_at(oip(URL, profiles=[night()]), at(when)).policy.max_batch == max_batch


@pytest.mark.parametrize(
    ("begin", "end", "minutes"),
    [
        pytest.param("2026-03-28T20:00", "2026-03-29T06:00", 7 * 60, id="they go forward, it is an hour shorter"),
        pytest.param("2026-10-24T19:00", "2026-10-25T07:00", 9 * 60, id="they go back, and an hour holds twice"),
    ],
)
def test_a_night_in_which_the_clocks_are_changed_is_one_night(begin, end, minutes):
    settings, now, inside = oip(URL, profiles=[night()]), at(begin), []
    while now < at(end):
        inside.append(plan_at(settings, now).policy.max_batch == 64)
        now += timedelta(minutes=1)
    assert sum(inside) == minutes
    assert sum(one != other for one, other in pairwise(inside)) == 2, "it begins once, and ends once"


def test_a_night_belongs_to_the_day_on_which_it_begins():
    settings = oip(URL, profiles=[night(days=["fri"])])
    assert plan_at(settings, at("2026-01-16T23:00")).policy.max_batch == 64  # a Friday
    assert plan_at(settings, at("2026-01-17T03:00")).policy.max_batch == 64
    assert plan_at(settings, at("2026-01-17T23:00")).policy.max_batch == 32


@pytest.mark.parametrize(
    ("more", "depth"),
    [
        pytest.param({"target_p99_ms": 250, **TIMES}, 52, id="a tenth of the target at 2105/s"),
        pytest.param({"target_p99_ms": 40, **TIMES}, 32, id="at least a batch"),
        pytest.param({"target_p99_ms": 2000, **TIMES}, 96, id="at most three"),
        pytest.param({}, 96, id="nothing known"),
        pytest.param({"depth": 7}, 7, id="told"),
    ],
)
def test_the_depth_follows_from_target_and_rate(more, depth):
    assert plan_of(oip(URL, **more)).depth == depth


def test_the_linger_is_scaled_from_the_times_that_are_told():
    policy = plan_of(oip(URL, **TIMES)).policy
    assert policy.gap_s == pytest.approx(0.0005, rel=0.01)
    assert policy.cap_s == pytest.approx(0.002, rel=0.02)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("services = []", "services: there is none; write [[services]]", id="no service"),
        pytest.param("[[services]]\nname='s'\nkind='oip'\nreplicas=['x']", "'x' is no address of a replica", id="url"),
        pytest.param(
            "[[services]]\nname='s'\nkind='oip'\nreplicas=[\"http://x\\u0000:1\"]", "is no address",
            id="control character",
        ),
        pytest.param("[[services]]\nname='s'\nkind='oip'\nreplicas=['http://é:1']", "is no address", id="not ASCII"),
        pytest.param(
            "[[services]]\nname='s'\nkind='oip'\nreplicas=['http://x:1']\n"
            "[[services.profiles]]\ntimezone='UTC'\nbegin='01:00'\nend='02:00'\ndays=[]",
            "is empty: the profile would never fit",
            id="no days",
        ),
        pytest.param("[[services]]\nname='s'\nkind='grpc'\nreplicas=['x']", "kind: is 'grpc'; write one of", id="kind"),
        pytest.param(
            "[[services]]\nname='s'\nkind='oip'\nreplicas=['http://a']\nmaxbatch=3",
            "is no key; write max-batch",
            id="key",
        ),
        pytest.param("[[services]]\nname='s'\nkind='list'\nreplicas=['http://a']", "path: a list needs one", id="path"),
        pytest.param(
            "[[services]]\nname='s'\nkind='oip'\nreplicas=['http://a']\n"
            "[[services.profiles]]\ntimezone='Berlin'\nbegin='1'\nend='24:00'\ndays=['Sunday']",
            "'Berlin' is no time zone here",
            id="time zone",
        ),
        pytest.param(
            "[[services]]\nname='s'\nkind='oip'\nreplicas=['http://a']\n"
            "[[services.profiles]]\nbegin='01:00'\nend='02:00'",
            "timezone",
            id="no time zone",
        ),
        pytest.param(
            "[[services]]\nname='s'\nkind='oip'\nreplicas=['http://a']\nmax-wait-ms=50\ntarget-p99-ms=100",
            "a max wait of 50 ms is more than 15 % of the target P99 of 100 ms",
            id="max wait",
        ),
        pytest.param(
            "[[services]]\nname='s'\nkind='oip'\nreplicas=['http://a']\ntenant-share=0.5", "needs a tenant-header",
            id="share",
        ),
    ],
)  # fmt: skip
def test_wrong_settings_are_refused_with_the_key(tmp_path, text, message):
    path = tmp_path / "g.toml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_settings(path)
    assert message in str(error.value)


def test_settings_go_to_toml_and_back():
    settings = service(URL, profiles=[night()])
    assert msgspec.convert(msgspec.to_builtins(settings), type(settings)) == settings
