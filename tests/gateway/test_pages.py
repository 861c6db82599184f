"""Pages about the gateway that say what the code says."""

from __future__ import annotations

import json
import re
import tomllib

import msgspec
import pytest

from cardwise.adapters import wire
from cardwise.gateway.cluster_settings import OWN_KEYS, Kubernetes, KubernetesService
from cardwise.gateway.settings import Profile, ServiceSettings, Settings, WarmUp, faults_of
from tests.conftest import ROOT

ROW = re.compile(r"^\| `([a-z0-9-]+)` \| (.*?) \|", re.MULTILINE)
PAGE = ROOT / "docs" / "reference" / "settings.md"


def defaults(kind):
    for each in msgspec.structs.fields(kind):
        if each.required:
            yield each.encode_name, "required"
        else:
            value = each.default if each.default is not msgspec.NODEFAULT else each.default_factory()
            yield each.encode_name, "none" if value is None else f"`{json.dumps(value)}`"


@pytest.mark.parametrize(
    ("kind", "begin"),
    [
        (Settings, "`cardwise gateway"),
        (ServiceSettings, "Of each"),
        (KubernetesService, "Of its Service"),
        (Kubernetes, "Of Services that opt in"),
        (WarmUp, "Of its warm-up"),
        (Profile, "Of a time"),
    ],
)
def test_the_page_of_settings_tells_every_key_and_its_default(kind, begin):
    part = PAGE.read_text().partition("\n## The gateway's settings\n")[2].partition(f"\n{begin}")[2]
    table = re.split(r"\nOf ", part)[0]
    assert ROW.findall(table) == list(defaults(kind))


def test_the_profile_on_the_page_of_the_gateway_is_fine():
    text = (ROOT / "docs" / "howto" / "gateway.md").read_text()
    (example,) = re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    whole = "[[services]]\nname='s'\nkind='oip'\nreplicas=['http://a']\n" + example
    assert list(faults_of(msgspec.convert(tomllib.loads(whole), Settings))) == []


def test_the_page_of_names_tells_every_annotation_of_services():
    page = (ROOT / "docs" / "reference" / "names.md").read_text().partition("\n## On Services")[2].partition("\n## ")[0]
    (row,) = re.findall(rf"^\| `{wire.ANNOTATION_GATEWAY_PREFIX}KEY` .*$", page, re.MULTILINE)
    assert set(re.findall(r"`([a-z0-9-]+)`", row)) == OWN_KEYS
