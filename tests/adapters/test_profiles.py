"""Load profiles are read onto one grid, or refused with the line and the column that is wrong."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from cardwise.adapters.profiles import ask_profiles, read_profiles
from cardwise.adapters.prometheus import Prometheus
from cardwise.errors import InputError, UserError
from tests.fakes.prometheus import FakePrometheus

NOON = datetime(2026, 6, 1, 12, 30, tzinfo=UTC)


def read(tmp_path, text):
    path = tmp_path / "p.csv"
    path.write_text(text)
    return read_profiles(path)


def test_services_are_read_by_their_columns(tmp_path):
    told = read(tmp_path, "time,a,b\n2026-06-01T00:00:00Z,1,2\n2026-06-01T01:00:00Z,3,4\n")
    assert (told.names, told.values.tolist(), told.day_steps) == (("a", "b"), [[1, 3], [2, 4]], 24)


def test_times_may_be_seconds_or_in_any_zone(tmp_path):
    told = read(tmp_path, "time,a,b\n1780272000,1,2\n2026-06-01T02:15+02:00,3,4\n")
    assert told.day_steps == 96


def test_what_was_not_measured_is_a_gap(tmp_path):
    told = read(tmp_path, "t,a,b\n0,1,2\n3600,,4\n10800,5,6\n\n")
    assert np.isnan(told.values).tolist() == [[False, True, True, False], [False, False, True, False]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("time,a\n0,1\n3600,1\n", "p.csv:1: columns ['time', 'a']: name at least two services"),
        ("time,a,a\n0,1,1\n3600,1,1\n", "each once"),
        ("time,a,b\n", "has 0 lines with numbers"),
        ("time,a,b\n0,1,2\n3600,1\n", "p.csv:3: has 2 fields, not 3"),
        ("time,a,b\n0,1,2\nnoon,1,2\n", "p.csv:3: time: 'noon' is no time with a zone"),
        (
            "time,a,b\n2026-06-01T00:00:00,1,2\n3600,1,2\n",
            "p.csv:2: time: '2026-06-01T00:00:00' is no time with a zone",
        ),
        ("time,a,b\n0,1,2\n3600,x,2\n", "p.csv:3: a: 'x' is no load"),
        ("time,a,b\n0,1,2\n3600,1,-2\n", "p.csv:3: b: '-2' is no load"),
        ("time,a,b\n0,1,2\n3600,nan,2\n", "p.csv:3: a: 'nan' is no load"),
        ("time,a,b\n3600,1,2\n0,1,2\n", "p.csv:3: is not later than the line before"),
        ("time,a,b\n0,1,2\n7000,1,2\n", "does not divide a day"),
        ("time,a,b\n0,1,2\n3600,1,2\n9000,1,2\n", "p.csv:4: is not a multiple of 3600 s"),
        ("time,a,b\n0,1,2\n1,1,2\n9000000,1,2\n", "9000001 steps of 1 s long"),
        ('time,a,b\n0,"1,2\n', "is not CSV"),
    ],
)
def test_what_is_wrong_is_told_by_line_and_column(tmp_path, text, said):
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    assert said in str(caught.value)


async def test_a_query_gives_a_profile_per_service():
    async with FakePrometheus().serving() as fake, Prometheus(fake.url) as prometheus:
        at = NOON.replace(minute=0).timestamp()
        fake.series = {"a": [(at, 2)], "b": [(at - 3600, 1)]}
        told, warnings = await ask_profiles(prometheus, "q", "service", 3, 3600.0, NOON)
        assert (told.names, told.values.shape, warnings) == (("a", "b"), (2, 72), ())
        assert (told.values[0, -1], told.values[1, -2]) == (2, 1)


@pytest.mark.parametrize(
    ("series", "said"),
    [({"a": []}, "has 1 series"), ({}, "has 0 series"), ({"": [], "a": []}, "not told apart by the label service")],
)
async def test_a_query_that_names_no_services_is_refused(series, said):
    async with FakePrometheus().serving() as fake, Prometheus(fake.url) as prometheus:
        fake.series = series
        with pytest.raises(UserError, match=said):
            await ask_profiles(prometheus, "q", "service", 3, 3600.0, NOON)
