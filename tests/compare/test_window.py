"""Windows: how they are written, kept in a file, and refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from cardwise.compare.window import parse_span, read_window, window_text
from cardwise.errors import InputError, UserError
from tests.compare.world import service, window

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "begin", "end"),
    [
        ("2026-11-30T10:00Z..2026-11-30T11:00Z", NOW - timedelta(hours=2), NOW - timedelta(hours=1)),
        ("2026-11-30T11:00+01:00..2026-11-30T11:00Z", NOW - timedelta(hours=2), NOW - timedelta(hours=1)),
        ("-2h..-90m", NOW - timedelta(hours=2), NOW - timedelta(minutes=90)),
        ("-1.5d..now", NOW - timedelta(days=1.5), NOW),
    ],
)
def test_a_window_is_two_times(text, begin, end):
    assert parse_span(text, "--before", NOW) == (begin, end)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("-2h", "'-2h' is no window of time; write 2026-11-30T10:00Z..2026-11-30T11:00Z, or -2h..-1h"),
        ("-1h..-2h", "ends before it begins"),
        ("-1h..2026-11-30T13:00Z", "has not ended yet: it is 2026-11-30T12:00:00Z"),
        ("2026-11-30T10:00..now", "has no time zone; write 2026-11-30T10:00Z for UTC"),
        ("yesterday..now", "'yesterday' is no time"),
        ("-99999999999d..now", "is no time"),
        ("0001-01-01T00:00+14:00..now", "is no time"),
        ("2026-11-30..now", "has no time zone; write 2026-11-30T00:00Z for UTC"),
    ],
)
def test_what_is_no_window_is_refused_with_what_to_write(text, message):
    with pytest.raises(UserError, match=message):
        parse_span(text, "--before", NOW)


def test_a_window_comes_back_from_its_file(tmp_path):
    made = window({"s": service(1)}, cards={"A10": 2}, alerts=["CardwiseX"], events={"restarts": [None] * 32})
    (tmp_path / "a.json").write_text(window_text(made))
    assert read_window(tmp_path / "a.json") == made


def test_a_file_of_before_callers_that_left_were_counted_is_read(tmp_path):
    told = msgspec.json.decode(window_text(window()))
    del told["services"]["s"]["hung_up"]
    (tmp_path / "a.json").write_bytes(msgspec.json.encode(told))
    assert read_window(tmp_path / "a.json") == window()


def without_buckets(it):
    it.update(bounds_s=[])
    it["services"]["s"].update(latency_counts=[[5.0]] * 32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda it: it.update(schema="cardwise.dev/window/v9"), "schema is 'cardwise.dev/window/v9'"),
        (lambda it: it.update(step_s=0), "its times are no window"),
        (lambda it: it.update(end=it["begin"]), "its times are no window"),
        (lambda it: it["memory_granted_mib"].pop(), "its parts do not belong together"),
        (lambda it: it["bounds_s"].pop(), "its parts do not belong together"),
        (lambda it: it["services"]["s"].pop("good"), "missing required field `good`"),
        (lambda it: it["services"]["s"]["answers"].__setitem__(0, "many"), "Expected `float | null`, got `str`"),
        (lambda it: it["services"]["s"]["answers"].__setitem__(0, -5), "Expected `float` >= 0.0"),
        (lambda it: it["services"]["s"]["latency_counts"][0].__setitem__(0, 1e308), "Expected `float` <= 1"),
        (lambda it: it.update(events={"restarts": [-1.0] * 32}), "Expected `float` >= 0.0"),
        (lambda it: it.update(step_s=1e300), "its parts do not belong together"),
        (lambda it: it.update(bounds_s=[1.0] * 15), "its parts do not belong together"),
        (without_buckets, "its parts do not belong together"),
    ],
    ids=[
        "version",
        "step",
        "end",
        "length",
        "buckets",
        "field",
        "type",
        "below zero",
        "beyond all counting",
        "events below zero",
        "parts longer than it",
        "one bound again and again",
        "no bounds",
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path, change, message):
    told = msgspec.json.decode(window_text(window()))
    change(told)
    (tmp_path / "a.json").write_bytes(msgspec.json.encode(told))
    with pytest.raises(InputError, match=message):
        read_window(tmp_path / "a.json")
