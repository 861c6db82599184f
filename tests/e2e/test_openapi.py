"""A gateway and an engine as processes, asked what the gateway's OpenAPI document allows, and some that it does not."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings

from tests.conftest import ROOT
from tests.e2e.cardwise_plane import wait_for

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is absent: it is in the group dev")

TOML = """
host = "127.0.0.1"
port = 0
admin-host = "127.0.0.1"
admin-port = 0

[[services]]
name = "tensors"
kind = "oip"
model = "emulated"
replicas = ["{url}"]
probe-timeout-ms = 20000
fail-after = 1000000
idempotent = true
priority-header = "x-priority"

[[services]]
name = "chat"
kind = "openai"
replicas = ["{url}"]
probe-timeout-ms = 20000
fail-after = 1000000

[[services]]
name = "list"
kind = "list"
path = "/predict"
replicas = ["{url}"]
probe-timeout-ms = 20000
fail-after = 1000000
probe-path = "/health"
tenant-header = "x-tenant"

[[services]]
name = "rest"
kind = "pass"
path = "/health"
replicas = ["{url}"]
probe-timeout-ms = 20000
fail-after = 1000000
probe-path = "/health"
"""
CARDWISE = [sys.executable, "-m", "cardwise"]
EXAMPLES, DEADLINE_S = 15, 60
MAY_FAIL = {"unsupported", "timeout", "expired"}
"""Of those above 499: the others speak of a gateway or a replica that has failed. A deadline may be a microsecond."""
OPERATIONS = [
    "GET /v2/models/emulated",
    "GET /v2/models/emulated/ready",
    "POST /v2/models/emulated/infer",
    "GET /v2/models/emulated/versions/{version}",
    "GET /v2/models/emulated/versions/{version}/ready",
    "POST /v2/models/emulated/versions/{version}/infer",
    "GET /v1/models",
    "POST /v1/completions",
    "POST /v1/chat/completions",
    "POST /predict",
    "GET /health",
    "POST /health",
    "GET /v2/health/live",
    "GET /v2/health/ready",
    "GET /healthz",
    "GET /readyz",
    "GET /metrics",
]


@contextlib.contextmanager
def started(*args):
    """A program of ours; what it prints when it listens."""
    with subprocess.Popen(
        [*CARDWISE, *args], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
    ) as process:
        try:
            yield process.stdout.readline()
        finally:
            process.kill()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    """The document, as it is and as it is read, and where requests and where questions about the gateway go."""
    path = tmp_path_factory.mktemp("gateway") / "gateway.toml"
    with started("engine", "--port", "0", "--t0-ms", "0.2", "--t1-ms", "0.01") as engine:
        path.write_text(TOML.format(url=engine.split()[-1]))
        document = subprocess.run(
            [*CARDWISE, "gateway", "--config", str(path), "--openapi"], capture_output=True, text=True, check=True
        ).stdout
        with started("gateway", "--config", str(path)) as where:
            port, admin_port = re.findall(r":(\d+)", where)
            url, admin = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}"
            wait_for(lambda: httpx2.get(f"{admin}/readyz", timeout=DEADLINE_S).text == "ok\n", DEADLINE_S)
            told = json.loads(document)
            yield told, schemathesis.openapi.from_dict(told), url, admin


def test_each_operation_of_the_document_is_asked_here(gateway):
    document, *_ = gateway
    there = {
        f"{method.upper()} {path}" for path, item in document["paths"].items() for method in item if method != "servers"
    }
    assert there == set(OPERATIONS)


SOUND = {
    "POST /v2/models/emulated/infer": {
        "id": "a", "inputs": [{"name": "x", "shape": [2, 1], "datatype": "FP32", "data": [1, 2]}]
    },
    "POST /v1/completions": {"model": "emulated", "prompt": "a b", "max_tokens": 2},
    "POST /v1/chat/completions": {"model": "emulated", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
    "POST /predict": [[1, 2], [3, 4]],
}  # fmt: skip
WITHOUT_PARAMETERS = {"GET /v2/health/live", "GET /v2/health/ready", "GET /healthz", "GET /readyz", "GET /metrics"}


@pytest.mark.parametrize(
    "operation", [*SOUND, "GET /v2/models/emulated", "GET /v1/models", *sorted(WITHOUT_PARAMETERS)]
)
def test_a_sound_request_is_answered_with_200_and_as_the_document_says(gateway, operation):
    document, schema, url, admin = gateway
    method, path = operation.split(" ")
    base_url = admin if "servers" in document["paths"][path] else url
    answer = httpx2.request(method, base_url + path, json=SOUND.get(operation), timeout=DEADLINE_S)
    assert answer.status_code == 200, answer.text
    schema[path][method].validate_response(answer)


CASES = [
    (each, mode)
    for each in OPERATIONS
    for mode in ("positive", "negative")
    if mode == "positive" or each not in WITHOUT_PARAMETERS
]


@pytest.mark.parametrize(("operation", "mode"), CASES)
def test_whatever_is_asked_is_answered_as_the_document_says(gateway, operation, mode):
    document, schema, url, admin = gateway
    method, path = operation.split(" ")
    told = schema[path][method]
    statuses = document["paths"][path][method.lower()]["responses"]
    base_url = admin if "servers" in document["paths"][path] else url
    strategy = told.as_strategy(generation_mode=schemathesis.GenerationMode(mode))

    @given(case=strategy)
    @settings(max_examples=EXAMPLES, database=None, suppress_health_check=list(HealthCheck))
    def ask(case):
        answer = case.call(base_url=base_url, timeout=DEADLINE_S)
        documented = statuses.get(str(answer.status_code), statuses.get("default"))
        if documented != statuses.get("default"):
            ours = {name for name in answer.headers if name.startswith(("x-cardwise-", "retry-after"))}
            assert ours <= set(documented.get("headers", ()))
        reason = answer.headers.get("x-cardwise-reason")
        if reason is not None:
            (reason,) = reason
            told = statuses[str(answer.status_code)]["headers"]["x-cardwise-reason"]["schema"]["enum"]
            assert reason in told
        assert answer.status_code < 500 or reason in MAY_FAIL, answer.text
        case.validate_response(
            answer,
            checks=[
                schemathesis.checks.response_schema_conformance,
                schemathesis.checks.response_headers_conformance,
                schemathesis.checks.content_type_conformance,
                schemathesis.checks.status_code_conformance,
            ],
        )

    ask()
