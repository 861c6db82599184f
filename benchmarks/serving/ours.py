"""cardwise as the benchmarks start it: the emulated engine, and the gateway before it, as processes of their own."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.serving.procs import HOST, Server, free_port, started
from cardwise.engine.model import SERIAL_COST

MAX_BATCH = 32
CAPACITY_PER_S = SERIAL_COST.capacity(MAX_BATCH)
"""Rows per second of the serial card in full batches: 2105."""
TARGET_MS = 250.0
TIMES: Mapping[str, object] = {
    "one-ms": 1000 * SERIAL_COST.batch_time_s(1),
    "full-batch-ms": 1000 * SERIAL_COST.batch_time_s(MAX_BATCH),
}
"""What `cardwise loadtest` would find of the engine."""
BATCHED: Mapping[str, object] = {
    "name": "emulated",
    "kind": "oip",
    "model": "emulated",
    "target-p99-ms": TARGET_MS,
    "max-batch": MAX_BATCH,
    **TIMES,
}
"""The service of the documentation's example; its depth follows from the target (SPEC D1)."""
ALL_WAIT: Mapping[str, object] = {"depth": 256}
"""Room for all callers of a closed loop, so that it waits as its peers do, whose queues have no bound."""
_CARDWISE = (sys.executable, "-m", "cardwise")


@contextlib.contextmanager
def engine(*options: str, cores: Sequence[int] = ()) -> Iterator[Server]:
    """``cardwise engine``: by default the serial card."""
    port = free_port()
    command = [*_CARDWISE, "engine", "--port", str(port), *options]
    with started("engine", command, port=port, ready="/v2/health/ready", cores=cores) as server:
        yield server


@contextlib.contextmanager
def gateway(service: Mapping[str, object], replicas: Sequence[str], cores: Sequence[int] = ()) -> Iterator[Server]:
    """``cardwise gateway`` before these. Ready is: it has replicas."""
    port, admin_port = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="cw-") as name:
        config = Path(name) / "gateway.toml"
        config.write_text(gateway_toml(port, admin_port, [{**service, "replicas": list(replicas)}]))
        command = [*_CARDWISE, "gateway", "--config", str(config)]
        with started("gateway", command, port=admin_port, ready="/readyz", cores=cores) as server:
            yield Server(server.name, server.pid, f"http://{HOST}:{port}", server.url)


def break_engine(url: str, script: Mapping[str, object]) -> None:
    """Replace the engine's script of faults; it must have been started with ``--faults``."""
    asked = urllib.request.Request(  # noqa: S310 - loopback
        f"{url}/faults", data=json.dumps(script).encode(), headers={"content-type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=5) as answer:  # noqa: S310
        answer.read()


def gateway_toml(port: int, admin_port: int, services: Sequence[Mapping[str, object]]) -> str:
    """Settings of a gateway on loopback. services: each with its replicas."""
    told = {"host": HOST, "port": port, "admin-host": HOST, "admin-port": admin_port, "drain-s": 1.0}
    return _toml(told) + "".join("[[services]]\n" + _toml(each) for each in services)


def _toml(keys: Mapping[str, object]) -> str:
    """Numbers, words, truth values and lists of words are written in TOML as in JSON."""
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
