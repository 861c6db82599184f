"""Pages of the reference that say what the code says: checked against it."""

from __future__ import annotations

import re
import tomllib

import msgspec

from cardwise.agent.settings import Settings as AgentSettings
from cardwise.config import DEFAULT_POLICY
from cardwise.controller.settings import Settings as ControllerSettings
from cardwise.scheduler.settings import Settings, policies_of
from tests.conftest import ROOT

ROW = re.compile(r"^\| `([a-z-]+)` \| (.*?) \|", re.MULTILINE)


def section(title):
    """The defaults that a section of the page of settings tells, by key."""
    text = (ROOT / "docs" / "reference" / "settings.md").read_text().partition(f"\n## {title}\n")[2]
    return {key: default.replace("`", "") for key, default in ROW.findall(text.partition("\n## ")[0])}


def test_the_page_of_settings_tells_every_key_of_the_agent_and_its_default():
    told = {key: tomllib.loads(f"x = {default}")["x"] for key, default in section("The agent's settings").items()}
    assert told == msgspec.json.decode(msgspec.json.encode(AgentSettings()))


def test_the_page_of_settings_tells_every_key_of_the_scheduler_and_its_default():
    told = section("The scheduler's settings")
    assert told.pop("policy") == ", ".join(DEFAULT_POLICY.values())
    defaults = msgspec.to_builtins(Settings())
    assert {key: tomllib.loads(f"x = {default}")["x"] for key, default in told.items()} == {
        key: value for key, value in defaults.items() if key != "policy"
    }


def test_the_example_on_the_page_of_settings_can_be_read(tmp_path):
    text = (ROOT / "docs" / "reference" / "settings.md").read_text()
    (example,) = re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "ours.toml").write_text('policy = "dense"\n')
    settings = msgspec.convert(tomllib.loads(example.replace("/etc/cardwise/policies", str(tmp_path))), Settings)
    policies_of(settings)


def test_the_page_of_settings_tells_every_key_of_the_controller_and_its_default():
    told = section("The controller's settings")
    assert told.pop("policy") == ", ".join(DEFAULT_POLICY.values())
    defaults = msgspec.to_builtins(ControllerSettings())
    plain = {key: value for key, value in defaults.items() if not isinstance(value, dict)}
    assert {key: tomllib.loads(f"x = {default}")["x"] for key, default in told.items()} == plain
    page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    tables = {key for key, value in defaults.items() if isinstance(value, dict)} - {"policy"}
    assert set(re.findall(r"^\| `\[([a-z]+)\]` \|", page, re.MULTILINE)) == tables
