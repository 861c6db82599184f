"""What ``--check`` says of settings that can be meant."""

from __future__ import annotations

import msgspec
import pytest

from cardwise.gateway.checking import lines_of, warnings_of
from cardwise.gateway.settings import Settings, faults_of
from tests.gateway.world import oip, service

URL, OTHER = "http://127.0.0.1:1", "http://127.0.0.1:2"
TIMES = {"one_ms": 4.35, "full_batch_ms": 15.2}
NIGHT = {"timezone": "Europe/Berlin", "begin": "22:00", "end": "06:00", "max-batch": 64}


def settings(*services):
    return msgspec.convert({"services": [msgspec.to_builtins(each) for each in services]}, Settings)


def lines(*services):
    return list(lines_of(settings(*services)))


def warnings(*services):
    return list(warnings_of(settings(*services)))


def test_of_a_service_whose_times_are_told_all_numbers_follow():
    (told,) = lines(oip(URL, target_p99_ms=250, **TIMES))
    # depth: 0.1 x 250 ms at 32 / 15.2 ms; linger: 0.13 x 15.2 ms; worst: (52 / 32 + 1) x 15.2 ms
    assert told == (
        "s: depth 52 over 1 replica, limit 1 batch per replica, batches of up to 32, linger up to 1.976 ms, "
        "the last of a full queue is answered after 39.9 ms, target 250 ms"
    )


def test_each_profile_has_its_own_numbers():
    _, night = lines(oip(URL, target_p99_ms=250, profiles=[NIGHT], **TIMES))
    assert night.startswith("s, 22:00 to 06:00 Europe/Berlin: depth 64 over 1 replica")
    assert "batches of up to 64" in night


def test_where_nothing_is_told_what_is_not_known_is_said():
    batched, passed = lines(oip(URL, OTHER), service(URL, name="p"))
    assert batched == (
        "s: depth 192 over 2 replicas, limit 1 batch per replica, batches of up to 32, "
        "linger up to 2 ms (one-ms is not told), worst wait unknown, no target"
    )
    assert passed == "p: depth 64 over 1 replica, limit found, from 20 per replica, worst wait unknown, no target"


def test_of_what_is_not_batched_the_wait_is_at_least_known_from_limit_and_time():
    (line,) = lines(service(URL, depth=8, limit=4, one_ms=10, target_p99_ms=100))
    assert line.endswith("the last of a full queue is answered after at least 30 ms, target 100 ms")


def test_a_request_that_takes_most_of_the_target_alone_is_warned_of():
    (warning,) = warnings(service(URL, one_ms=70, target_p99_ms=100))
    assert "services.s.one-ms: a request alone takes 70 ms, more than 60 % of the target (100 ms)" in warning
    assert "write a target of at least 116.7 ms, or a limit" in warning


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(service(URL, one_ms=60, target_p99_ms=100), id="just fits"),
        pytest.param(service(URL, one_ms=70, target_p99_ms=100, limit=2), id="a limit is told"),
        pytest.param(service(URL, one_ms=70), id="no target"),
        pytest.param(service(URL, target_p99_ms=100), id="no time"),
        pytest.param(oip(URL, target_p99_ms=250, **TIMES), id="batched"),
    ],
)
def test_what_is_fine_is_not_warned_of(made):
    assert warnings(made) == []


def test_a_service_that_another_stands_before_is_warned_of():
    (warning,) = warnings(oip(URL, model="m"), oip(URL, name="t", model="m"), oip(URL, name="u", model="n"))
    assert warning.startswith("services.t: is never asked, for s serves /v2/models/m of any host; write")


def test_a_target_of_which_nothing_is_known_is_warned_of():
    (warning,) = warnings(oip(URL, target_p99_ms=100))
    assert "whether it can be met is not known; write one-ms and full-batch-ms" in warning


@pytest.mark.parametrize(
    ("made", "key", "told"),
    [
        pytest.param(oip(URL, one_ms=4), "one-ms", "goes with full-batch-ms: write there how many ms", id="only one"),
        pytest.param(oip(URL, full_batch_ms=9), "full-batch-ms", "goes with one-ms: write there", id="only full"),
        pytest.param(
            oip(URL, one_ms=9, full_batch_ms=4), "full-batch-ms", "is 4, less than one-ms, 9", id="the wrong way round"
        ),
    ],
)
def test_half_a_pair_of_times_is_refused_with_what_to_write(made, key, told):
    (fault,) = faults_of(settings(made))
    assert fault[0] == f"services.s.{key}"
    assert told in fault[1]


def test_one_time_is_enough_where_nothing_is_batched():
    assert list(faults_of(settings(service(URL, one_ms=4)))) == []
