"""The servers that are compared, and how each is started and tuned.

All stand before the same emulated card (4 ms and 0.35 ms per row, one batch at a time), get the same numbers from the
same generator, join at most 32 requests, and log no accesses. The peers run the card in their own process, as their
users do, which spares them the hop from gateway to engine that cardwise pays.

``documented_ms``: how long a batch is waited for by their documentation's example or their default; where it names no
value, 20 ms. ``tuned_ms``: what ``python -m benchmarks.serving --tune`` found best for 1, 8 and 64 callers together
(geometric mean of the throughput). Both are shown, for a long wait suits many callers and a short one few. Set for
both: Ray's ``max_ongoing_requests`` (its default of 5 caps every batch at 5) and ``RAY_SERVE_THROUGHPUT_OPTIMIZED``,
MLServer's ``parallel_workers`` (0 is its faster mode here). In overload each waits as documented and has its own
protection on, where it has one.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.serving import cells, ours
from benchmarks.serving.procs import HOST, ROOT, Server, free_port, started
from benchmarks.serving.venvs import Recipe, python_of
from cardwise.loadtest.plan import Target

_SERVERS = "benchmarks.serving.servers"


@dataclass(frozen=True, slots=True)
class Peer:
    """A server by others. command: after the interpreter; PORT stands for the port. protection: in words.

    env: variables; FOLDER stands for a folder that is gone afterwards.
    """

    name: str
    recipe: Recipe
    command: tuple[str, ...]
    target: Callable[[str], Target]
    ready: str
    documented_ms: float
    tuned_ms: float
    protection: str
    env: Mapping[str, str] = field(default_factory=dict)
    within_s: float = 40.0


PEERS = (
    Peer(
        "LitServe",
        Recipe("litserve", ("litserve==0.2.19",)),
        ("-m", f"{_SERVERS}.litserve_server"),
        partial(cells.plain_json, listed=False),
        "/health",
        documented_ms=100.0,  # the example of LitAPI
        tuned_ms=2.0,
        protection="timeout 250 ms, seen when it leaves the queue (504)",
    ),
    Peer(
        "BentoML",
        Recipe("bentoml", ("bentoml==1.4.40",)),
        ("-m", "bentoml", "serve", f"{_SERVERS}.bentoml_service:Emulated", "--host", HOST, "--port", "PORT"),
        partial(cells.plain_json, listed=True),
        "/readyz",
        documented_ms=60_000.0,  # its default: a goal, which its adaptive batching stays far below
        tuned_ms=60_000.0,
        protection="max_concurrency 96 (429)",
        env={"BENTOML_DO_NOT_TRACK": "True", "BENTOML_HOME": "FOLDER"},
    ),
    Peer(
        "Ray Serve",
        Recipe("ray", ("ray[serve]==2.60.0",)),
        ("-m", f"{_SERVERS}.ray_app"),
        partial(cells.plain_json, listed=False),
        "/-/healthz",
        documented_ms=10.0,  # its default
        tuned_ms=0.0,
        protection="max_ongoing_requests 64, max_queued_requests 32, retry_after_s 1 (429)",
        env={"RAY_USAGE_STATS_ENABLED": "0", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1", "RAY_TMPDIR": "FOLDER"},
        within_s=120.0,
    ),
    Peer(
        "MLServer",
        Recipe("mlserver", ("mlserver==1.7.1", "uvloop==0.21.0")),  # with uvloop 0.22 and later it does not start
        ("-m", f"{_SERVERS}.mlserver_runtime"),
        cells.oip,
        "/v2/models/emulated/ready",
        documented_ms=20.0,  # docs.seldon.ai/mlserver/user-guide/adaptive-batching: to be found by experiment
        tuned_ms=0.0,
        protection="none",
    ),
)


@dataclass(frozen=True, slots=True)
class Up:
    """A contestant that runs: what to send it, and whose CPU time is its."""

    target: Target
    servers: tuple[Server, ...]


@dataclass(frozen=True, slots=True)
class Contestant:
    """Who is measured, under which setting, and how it is started."""

    name: str
    setting: str
    start: Callable[[], AbstractContextManager[Up]]


def cardwise(setting: str, **service: object) -> Contestant:
    """The gateway before the engine. service: keys of its settings, with ``_`` for ``-``."""
    keys = {key.replace("_", "-"): value for key, value in service.items()}

    @contextlib.contextmanager
    def start() -> Iterator[Up]:
        with ours.engine() as engine, ours.gateway({**ours.BATCHED, **keys}, [engine.url]) as gateway:
            yield Up(cells.oip(gateway.url), (gateway, engine))

    return Contestant("cardwise", setting, start)


def peer(of: Peer, setting: str, window_ms: float, *, bounded: bool = False) -> Contestant:
    """A peer in its environment, which is made if need be. Starting raises InstallError or StartError."""

    @contextlib.contextmanager
    def start() -> Iterator[Up]:
        port, python = free_port(), python_of(of.recipe)
        command = [str(python), *(str(port) if each == "PORT" else each for each in of.command)]
        told = {
            "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
            "PEER_PORT": str(port),
            "PEER_PORT_2": str(free_port()),
            "PEER_PORT_3": str(free_port()),
            "PEER_MAX_BATCH": str(ours.MAX_BATCH),
            "PEER_WINDOW_MS": str(window_ms),
            "PEER_BOUNDED": "1" if bounded else "",
        }
        # a short name, for sockets lie in it
        with tempfile.TemporaryDirectory(prefix="cw-", dir="/tmp", ignore_cleanup_errors=True) as folder:
            env = {**told, **{name: folder if value == "FOLDER" else value for name, value in of.env.items()}}
            opened = started(
                of.recipe.name, command, port=port, ready=of.ready, within_s=of.within_s, env=env, folder=Path(folder)
            )
            with opened as server:
                yield Up(of.target(server.url), (server,))

    return Contestant(of.name, setting, start)
