"""Settings that are no settings: what is told to who wrote them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.errors import InputError
from cardwise.gateway.settings import Settings as GatewaySettings
from cardwise.settings_file import MisfitError, converted, read_settings_file


class Inner(msgspec.Struct, forbid_unknown_fields=True, rename="kebab"):
    method: Literal["GET", "POST"] = "GET"
    timeout_ms: Annotated[float, msgspec.Meta(gt=0, le=10)] = 1.0


class Outer(msgspec.Struct, forbid_unknown_fields=True, rename="kebab"):
    name: str
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    at_least: Annotated[int, msgspec.Meta(ge=3)] = 3
    on: bool = False
    hosts: Annotated[list[str], msgspec.Meta(min_length=1)] = msgspec.field(default_factory=lambda: ["a"])
    inner: Inner | None = None
    each: list[Inner] = msgspec.field(default_factory=list)
    by_class: dict[str, str] = msgspec.field(default_factory=dict)
    either: str | int = ""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("port = 70000", "port: is 70000; write a whole number from 0 to 65535", id="range"),
        pytest.param("at-least = 2", "at-least: is 2; write a whole number at least 3", id="one bound"),
        pytest.param("port = 2026-01-01", "port: is '2026-01-01'; write a whole number from 0 to 65535", id="date"),
        pytest.param(f"port = {'9' * 4000}", "port: is 9", id="many digits"),
        pytest.param("on = 'no'", "on: is 'no'; write true or false", id="bool"),
        pytest.param("port = true", "port: is true; write a whole number from 0 to 65535", id="a bool for a number"),
        pytest.param("hosts = []", 'hosts: is []; write a list with at least 1 of a text in "quotes"', id="empty"),
        pytest.param("hosts = [1]", 'hosts[0]: is 1; write a text in "quotes"', id="item"),
        pytest.param("inner = 1", "inner: is 1; write a table", id="table"),
        pytest.param("either = 1.5", 'either: is 1.5; write a text in "quotes" or a whole number', id="union"),
        pytest.param("inner.method = 'PUT'", "inner.method: is 'PUT'; write one of GET, POST", id="choice"),
        pytest.param(
            "[[each]]\n[[each]]\ntimeout-ms = 0", "each[1].timeout-ms: is 0; write a number above 0 and at most 10",
            id="in a list",
        ),
        pytest.param("by-class = {a = 1}", 'by-class: one is another; write a text in "quotes"', id="value of a table"),
        pytest.param("each = 3", "each: is 3; write a list of tables", id="tables"),
        pytest.param("name = {}", 'name: is a table; write a text in "quotes"', id="a table for a text"),
        pytest.param("prot = 1", "prot: is no key; write port", id="typo"),
        pytest.param("at_least = 4", "at_least: is no key; write at-least", id="underscore"),
        pytest.param("inner = {zzz = 1}", "inner.zzz: is no key; write one of method, timeout-ms", id="like none"),
        pytest.param("each = [{timeout = 1}]", "each[0].timeout: is no key; write timeout-ms", id="a part of a name"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_the_key_the_value_and_what_to_write(tmp_path, text, told):
    path = tmp_path / "settings.toml"
    path.write_text(text if text.startswith("name") else f"name = 'n'\n{text}")
    with pytest.raises(InputError) as caught:
        read_settings_file(path, "settings", Outer)
    assert str(caught.value).startswith(f"{path}: {told}")


def test_what_is_missing_is_told_with_what_to_write(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text("port = 1")
    with pytest.raises(InputError, match=r'settings\.toml: name: is missing; write a text in "quotes"'):
        read_settings_file(path, "settings", Outer)


def test_settings_that_are_fine_are_read(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text("name = 'n'\nport = 1\n[inner]\nmethod = 'POST'")
    assert read_settings_file(path, "settings", Outer) == Outer("n", 1, inner=Inner("POST"))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["services", "name", "kind", "warm-up", "path", "port", "x"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["services", "port", "host", "drain-s", "prot"]), VALUES))
def test_whatever_a_file_says_it_is_read_or_refused_in_our_words(value):
    told = refusal_of(value)
    assert told is None or "write " in told or "take it out" in told
    assert not any(each in (told or "") for each in ("Expected `", "Object contains", "Object missing", "Invalid"))


def refusal_of(value):
    try:
        converted(value, GatewaySettings)
    except MisfitError as error:
        return str(error)
    return None
