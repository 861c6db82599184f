"""HTTP: metrics, and whether the agent is well. ``/healthz`` fails when it should be started anew.

Served from the start, before there is a driver: what the agent waits for is told. ``/healthz`` fails meanwhile, for a
driver that came after the container was made can be opened only in a new one (the chart's probes give it five minutes).

The standard library's server, in threads: an HTTP framework would cost a tenth of the agent's memory for three pages.
What is told comes from the agent's loop: a loop that does not answer is an agent that is not well.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import TimeoutError as LateError
from contextlib import asynccontextmanager
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from cardwise.agent.metrics import Metrics
from cardwise.errors import UserError

LATE_S, SLOW_CLIENT_S = 5.0, 10.0
_Answer = tuple[str, bytes]
_Start = Callable[[str, list[tuple[str, str]]], Any]
OK, NOT_FOUND, UNAVAILABLE = "200 OK", "404 Not Found", "503 Service Unavailable"


@dataclass(slots=True)
class Pages:
    """What is told. metrics: None until there is an agent; waits_for: why it does not work yet.

    anew: whether what it waits for may need another start.
    """

    metrics: Metrics | None = None
    waits_for: str = ""
    anew: bool = False

    def say(self, waits_for: str, *, anew: bool = False) -> None:
        """From now on the agent waits for this; for nothing if it is empty."""
        self.waits_for, self.anew = waits_for, anew

    def answer(self, path: str) -> _Answer:
        """A page."""
        match path:
            case "/metrics":
                return OK, self.metrics.text() if self.metrics else _NOT_YET
            case "/healthz":
                return (UNAVAILABLE, f"{self.waits_for}\n".encode()) if self.anew else (OK, b"ok\n")
            case "/readyz":
                problem = self.waits_for or (self.metrics.registering.problem if self.metrics else "starting")
                return UNAVAILABLE if problem else OK, f"{problem or 'ok'}\n".encode()
            case _:
                return NOT_FOUND, b"there are /metrics, /healthz and /readyz\n"


_NOT_YET = b"""\
# HELP cardwise_agent_registered 1 while the kubelet knows the agent.
# TYPE cardwise_agent_registered gauge
cardwise_agent_registered 0.0
"""


class _Handler(WSGIRequestHandler):
    timeout = SLOW_CLIENT_S

    def log_message(self, *_args: object) -> None:
        """Probes every few seconds are no news."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False

    def server_bind(self) -> None:
        """Without asking DNS for our own name, which may take long."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def handle_error(self, *_args: object) -> None:
        """A client that hangs up is no news either."""


@asynccontextmanager
async def serving(pages: Pages, host: str, port: int) -> AsyncIterator[int]:
    """Serve until the ``with`` ends; the port that was taken. Raises UserError if it cannot be had."""
    loop = asyncio.get_running_loop()

    server = _listen(host, port)
    server.set_app(_app(loop, pages))
    thread = threading.Thread(target=server.serve_forever, name="http", args=(0.1,), daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()


def _listen(host: str, port: int) -> _Server:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        kind = type("_ServerOfFamily", (_Server,), {"address_family": family})
        server: _Server = kind(address[:2], _Handler)
    except (OSError, OverflowError, UnicodeError) as exc:
        raise UserError(f"cannot listen on {host}:{port}: {exc}; set another host or port") from exc
    return server


def _app(loop: asyncio.AbstractEventLoop, pages: Pages) -> Callable[[dict[str, Any], _Start], Iterable[bytes]]:
    async def ask(path: str) -> _Answer:
        return pages.answer(path)

    def app(environ: dict[str, Any], start: _Start) -> Iterable[bytes]:
        status, body = UNAVAILABLE, b"the agent's loop does not answer\n"
        asked = asyncio.run_coroutine_threadsafe(ask(environ["PATH_INFO"]), loop)
        with contextlib.suppress(LateError, RuntimeError):
            status, body = asked.result(LATE_S)
        start(status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))])
        return [body]

    return app
