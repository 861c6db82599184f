"""The engine's doors: Open Inference Protocol v2, OpenAI's completions, a plain list, health, metrics, and faults.

It only translates: what a request costs and what goes wrong is the replica's. The test doors (``/faults``,
``/executed``) are shut unless the settings open them, and those do so only on a loopback address.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

import msgspec
import structlog

from cardwise import __version__
from cardwise.adapters.http1.exchange import Exchange
from cardwise.adapters.http1.server import Server
from cardwise.adapters.http1.wire import TEXT
from cardwise.engine import oip, openai, plain
from cardwise.engine.faults import Fault, FaultKind, Script, read_script
from cardwise.engine.metrics import READY, REQUESTS, ROWS, STARTS, WORK
from cardwise.engine.replica import FaultedError, RefusedError, Replica
from cardwise.engine.serving import PATIENT, Tasks, answer_half, cut, hang, reset, send
from cardwise.engine.settings import Settings
from cardwise.errors import UserError

log = structlog.get_logger()

EVENTS = b"text/event-stream"
DRAIN_S = 10.0
"""How long SIGTERM waits for what is being answered."""
Door = Callable[[Exchange], Awaitable[None]]


class Engine:
    """A replica and its doors. died: its exit code, once it has ended itself."""

    def __init__(self, settings: Settings, script: Script) -> None:
        """Load; nothing listens yet. Needs a running event loop."""
        self.settings = settings
        self.died: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.replica = Replica(settings, script, self._end)
        self.listener = Server(Tasks(self._handle), PATIENT)
        self.url = ""
        self._numbers = itertools.count()
        self._doors = self._all_doors()

    async def listen(self) -> None:
        """Open the port. Raises UserError if it is taken."""
        host = self.settings.host
        port = await self.listener.listen(host, self.settings.port)
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def drain(self) -> None:
        """Accept no more, finish what is being answered."""
        self.listener.stop_accepting()
        await self.listener.drained(DRAIN_S)

    def close(self) -> None:
        """End at once."""
        self.replica.close()
        self.listener.close()

    def _end(self, code: int) -> None:
        self.listener.close()
        if not self.died.done():
            self.died.set_result(code)

    # ---------------------------------------------------------------- doors

    def _all_doors(self) -> dict[str, dict[str, Door]]:
        model = f"/v2/models/{self.settings.model}"
        doors: dict[str, dict[str, Door]] = {
            "/v2": {"GET": _tells({"name": "cardwise-engine", "version": __version__, "extensions": []})},
            "/v2/health/live": {"GET": self._live},
            "/v2/health/ready": {"GET": self._ready},
            model: {"GET": _tells(oip.model_metadata(self.settings.model))},
            f"{model}/ready": {"GET": self._ready},
            f"{model}/infer": {"POST": self._infer},
            "/v1/models": {"GET": _answers(openai.models(self.settings.model))},
            "/v1/completions": {"POST": self._completion},
            "/v1/chat/completions": {"POST": self._chat},
            "/predict": {"POST": self._predict},
            "/health": {"GET": self._ready},
            "/metrics": {"GET": self._metrics},
        }
        if self.settings.test_doors:
            doors["/faults"] = {"GET": self._show_script, "POST": self._take_script}
            doors["/executed"] = {"GET": self._executed}
        return doors

    async def _handle(self, exchange: Exchange) -> None:
        try:
            await self._door(exchange.method, exchange.path)(exchange)
        except UserError as error:
            _refuse(exchange, 400, str(error))
        except RefusedError as error:
            _refuse(exchange, error.status, str(error))
        except FaultedError as error:
            await self._strike(exchange, error.fault)

    def _door(self, method: str, path: str) -> Door:
        doors = self._doors.get(path)
        if doors is None:
            raise RefusedError(404, self._nowhere(path))
        door = doors.get("GET" if method == "HEAD" else method)
        if door is None:
            raise RefusedError(405, f"{path} takes {' or '.join(doors)}")
        return door

    def _nowhere(self, path: str) -> str:
        parts = path.split("/")
        if parts[1:3] == ["v2", "models"] and len(parts) > 3 and parts[3] != self.settings.model:
            return f"no model is called {parts[3]!r}; there is {self.settings.model!r}"
        if path in {"/faults", "/executed"}:
            return "the test doors are shut; start the engine with --faults"
        return f"nothing is at {path}"

    async def _strike(self, exchange: Exchange, fault: Fault) -> None:
        """Show the client the fault instead of an answer."""
        kind = fault.kind
        if kind is FaultKind.EXIT:
            self.replica.die()
        elif kind is FaultKind.RESET:
            reset(exchange)
        elif kind in {FaultKind.HANG, FaultKind.HALF_OPEN}:
            await hang(exchange, deaf=kind is FaultKind.HALF_OPEN)
        elif exchange.is_begun:  # a status cannot follow half a stream
            cut(exchange)
        else:
            _refuse(exchange, fault.status, "a scripted fault", fault.retry_after_s)

    # ---------------------------------------------------------------- health

    async def _live(self, exchange: Exchange) -> None:
        alive = self.replica.script.live
        exchange.answer(200 if alive else 503, b'{"live": true}' if alive else b'{"live": false}')

    async def _ready(self, exchange: Exchange) -> None:
        ready = self.replica.is_ready
        exchange.answer(200 if ready else 503, b'{"ready": true}' if ready else b'{"ready": false}')

    async def _metrics(self, exchange: Exchange) -> None:
        exchange.answer(200, metrics(self.replica), kind=TEXT)

    # ---------------------------------------------------------------- batches

    async def _infer(self, exchange: Exchange) -> None:
        batch = oip.read_infer(exchange.body)
        fault = self.replica.meet()
        await self.replica.execute(len(batch.sums), batch.ids or _id_of(exchange), fault)
        if fault is not None and fault.kind is FaultKind.WRONG_SHAPE:
            batch = batch.one_short()
        _finish(exchange, oip.infer_answer(batch, self.settings.model), fault)

    async def _predict(self, exchange: Exchange) -> None:
        items = plain.read_items(exchange.body)
        fault = self.replica.meet()
        await self.replica.execute(len(items.answers), items.ids or _id_of(exchange), fault)
        answers = items.answers
        if fault is not None and fault.kind is FaultKind.WRONG_SHAPE:
            answers = answers[:-1]
        _finish(exchange, msgspec.json.encode(answers), fault)

    # ---------------------------------------------------------------- tokens

    async def _completion(self, exchange: Exchange) -> None:
        await self._generate(exchange, openai.read_completion(exchange.body))

    async def _chat(self, exchange: Exchange) -> None:
        await self._generate(exchange, openai.read_chat(exchange.body))

    async def _generate(self, exchange: Exchange, ask: openai.Ask) -> None:
        if ask.model != self.settings.model:
            raise RefusedError(404, f"no model is called {ask.model!r}; there is {self.settings.model!r}")
        fault = self.replica.meet()
        number = next(self._numbers)
        ids = _id_of(exchange)
        async with aclosing(self.replica.generate(ask.prompt_tokens, ask.wanted, ids, fault)) as tokens:
            if ask.streams:
                await _stream(exchange, ask, number, tokens, fault)
                return
            async for _ in tokens:
                pass
        is_whole = fault is None or fault.kind is not FaultKind.WRONG_SHAPE
        _finish(exchange, openai.answer(ask, number, choices=is_whole), fault)

    # ---------------------------------------------------------------- test doors

    async def _show_script(self, exchange: Exchange) -> None:
        exchange.answer(200, msgspec.json.encode(self.replica.script))

    async def _take_script(self, exchange: Exchange) -> None:
        self.replica.script = read_script(exchange.body)
        await self._show_script(exchange)

    async def _executed(self, exchange: Exchange) -> None:
        done = self.replica.executed
        told = {
            "requests": done.requests,
            "rows": done.rows,
            "starts": self.replica.starts,
            "forgotten": done.forgotten,
            "begun": done.begun,
            "ended": done.ended,
        }
        exchange.answer(200, msgspec.json.encode(told))


async def _stream(
    exchange: Exchange, ask: openai.Ask, number: int, tokens: AsyncIterator[int], fault: Fault | None
) -> None:
    """Send each token as it is made. What is refused before the first token gets a status; later, the stream is cut."""
    try:
        async for token in tokens:
            if not exchange.is_begun:
                exchange.begin(200, [(b"content-type", EVENTS)])
            await send(exchange, openai.event(ask, number, token))
    except RefusedError:
        if not exchange.is_begun:
            raise
        cut(exchange)
        return
    if fault is not None and fault.kind is FaultKind.MALFORMED:
        await send(exchange, b'data: {"choices": [\n\n')
    elif fault is not None and fault.kind is FaultKind.WRONG_SHAPE:
        await send(exchange, openai.usage_event(ask, number))
    elif fault is not None:
        raise FaultedError(fault)
    if ask.tells_usage:
        await send(exchange, openai.usage_event(ask, number))
    await send(exchange, openai.DONE)
    exchange.end()


def _finish(exchange: Exchange, body: bytes, fault: Fault | None) -> None:
    """Answer, spoilt as the fault says. Raises FaultedError if it leaves no answer at all."""
    if fault is None or fault.kind is FaultKind.WRONG_SHAPE:
        exchange.answer(200, body)
    elif fault.kind is FaultKind.MALFORMED:
        exchange.answer(200, body[: len(body) // 2])
    elif fault.kind is FaultKind.CUT:
        answer_half(exchange, body)
    else:
        raise FaultedError(fault)


def _refuse(exchange: Exchange, status: int, message: str, retry_after_s: int = 0) -> None:
    is_openai = exchange.path.startswith("/v1/")
    body = openai.error(status, message) if is_openai else msgspec.json.encode({"error": message})
    exchange.answer(status, body, [(b"retry-after", b"%d" % retry_after_s)] if retry_after_s else None)


def _id_of(exchange: Exchange) -> tuple[str, ...]:
    """The identity of the request, where its content names none."""
    name = exchange.header(b"x-request-id")
    return () if name is None else (name.decode("latin-1"),)


def _answers(body: bytes) -> Door:
    async def door(exchange: Exchange) -> None:
        exchange.answer(200, body)

    return door


def _tells(content: object) -> Door:
    return _answers(msgspec.json.encode(content))


def metrics(replica: Replica) -> bytes:
    """Prometheus' text: vLLM's three gauges, by which pickers choose a replica, and our own counters."""
    label = f'{{model_name="{replica.settings.model}"}}'
    device, done = replica.device, replica.executed
    used = device.kv_used / device.kv_tokens if device.kv_tokens else 0.0
    rows = (
        ("vllm:num_requests_running", "gauge", replica.tally.running),
        ("vllm:num_requests_waiting", "gauge", replica.tally.waiting),
        ("vllm:kv_cache_usage_perc", "gauge", used),
        *(
            (series.name, series.kind.value, value)
            for series, value in (
                (READY, int(replica.is_ready)),
                (STARTS, replica.starts),
                (REQUESTS, done.requests),
                (ROWS, done.rows),
                (WORK, device.busy_s),
            )
        ),
    )
    return "".join(f"# TYPE {name} {kind}\n{name}{label} {value}\n" for name, kind, value in rows).encode()


@asynccontextmanager
async def running(settings: Settings, script: Script | None = None) -> AsyncIterator[Engine]:
    """An engine that serves while the context is open; for tests: its ``url``, ``replica`` and ``died``."""
    engine = Engine(settings, script or Script())
    try:
        await engine.listen()
        yield engine
    finally:
        engine.close()


async def run(settings: Settings, script: Script, told: Callable[[str], None]) -> int:
    """Serve until SIGTERM or SIGINT, then finish what is being answered; the exit code. told: hears the address.

    A fault that kills the engine ends it at once, with the code of a killed process.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running(settings, script) as engine:
        told(engine.url)
        engine.died.add_done_callback(lambda _: stop.set())
        await stop.wait()
        if not engine.died.done():
            log.info("draining", in_flight=engine.replica.tally.running + engine.replica.tally.waiting)
            await engine.drain()  # at once if it dies meanwhile: its connections are gone
    return engine.died.result() if engine.died.done() else 0
