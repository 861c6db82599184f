"""The gateway's OpenAPI document says what the code says. That answers are as it says: tests/e2e/test_openapi.py."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tomllib
from typing import get_args, get_type_hints

import msgspec
import pytest

from cardwise.gateway.openapi import document
from cardwise.gateway.refusals import MEANINGS, Why
from cardwise.gateway.settings import ServiceSettings, Settings, faults_of
from tests.conftest import ROOT

KINDS = {
    "oip": {"model": "m"},
    "openai": {},
    "list": {"path": "/predict"},
    "pass": {"path": "/x"},
}


def made(*services, **more):
    told = [{"name": f"s{n}", "replicas": ["http://a:1"], **each} for n, each in enumerate(services)]
    settings = msgspec.convert({"services": told, **more}, Settings)
    assert list(faults_of(settings)) == []
    return document(settings)


def responses(told):
    for item in told["paths"].values():
        for method, operation in item.items():
            if method != "servers":
                yield from operation["responses"].items()


def test_every_word_of_refusal_is_told_where_it_may_come_with_its_status_and_no_other_word_is():
    told = made(*({"kind": kind, **more} for kind, more in KINDS.items()))
    found = {}
    for status, each in responses(told):
        words = each.get("headers", {}).get("x-cardwise-reason", {}).get("schema", {}).get("enum", [])
        for word in words:
            found.setdefault(word, set()).add(status)
    wanted = {word: set(each.statuses.split(", ")) for word, each in MEANINGS.items() if each.statuses != "none"}
    assert f"`{Why.NO_SERVICE.value}`" in told["info"]["description"]  # of all that is not listed
    del wanted[Why.NO_SERVICE.value]
    assert found == wanted


def test_every_reference_leads_somewhere():
    told = made(*({"kind": kind, **more} for kind, more in KINDS.items()))

    def references(node):
        if isinstance(node, dict):
            yield from ([node["$ref"]] if "$ref" in node else ())
            yield from itertools.chain.from_iterable(map(references, node.values()))
        elif isinstance(node, list):
            yield from itertools.chain.from_iterable(map(references, node))

    for reference in references(told):
        part = told
        for name in reference.removeprefix("#/").split("/"):
            part = part[name]


@pytest.mark.parametrize(
    ("service", "path"),
    [
        pytest.param({"kind": "oip", "model": "m"}, "/v2/models/m/infer", id="one model"),
        pytest.param({"kind": "oip"}, "/v2/models/{model}/infer", id="any model"),
        pytest.param({"kind": "openai"}, "/v1/chat/completions", id="usual path"),
        pytest.param({"kind": "openai", "path": "/llm/v1/"}, "/llm/v1/chat/completions", id="own path"),
        pytest.param({"kind": "list", "path": "/predict"}, "/predict", id="list"),
        pytest.param({"kind": "pass"}, "/", id="all"),
    ],
)
def test_a_service_is_at_the_path_of_its_settings(service, path):
    assert "post" in made(service)["paths"][path]


def test_services_at_one_path_are_told_apart_by_their_hosts():
    told = made({"kind": "openai", "hosts": ["a.example"]}, {"kind": "openai", "hosts": ["b.example"]}, port=81)
    servers = [each["url"] for each in told["paths"]["/v1/models"]["servers"]]
    assert servers == ["http://a.example:81", "http://b.example:81"]


def test_what_a_service_reads_besides_is_told_by_its_name():
    told = made({"kind": "openai", "priority-header": "x-p", "tenant-header": "x-t"})
    names = {each["name"] for each in told["paths"]["/v1/completions"]["post"]["parameters"]}
    assert names == {"x-p", "x-t", "x-cardwise-deadline-ms", "idempotency-key"}
    asked = made({"kind": "list", "path": "/p", "items-key": "in", "answers-key": "out"})["paths"]["/p"]["post"]
    assert asked["requestBody"]["content"]["application/json"]["schema"]["required"] == ["in"]
    assert asked["responses"]["200"]["content"]["application/json"]["schema"]["required"] == ["out"]


def test_every_kind_of_service_is_described():
    assert set(get_args(get_type_hints(ServiceSettings)["kind"])) == set(KINDS)


def test_the_command_prints_it():
    example = ROOT / "examples" / "gateway" / "gateway.toml"
    command = [sys.executable, "-m", "cardwise", "gateway", "--config", str(example), "--openapi"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == document(msgspec.convert(tomllib.loads(example.read_text()), Settings))


def test_what_is_only_printed_is_one_of_two_things():
    example = ROOT / "examples" / "gateway" / "gateway.toml"
    command = [sys.executable, "-m", "cardwise", "gateway", "--config", str(example), "--openapi", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--check and --openapi print two things: give one of them" in done.stderr
