"""A whole load test: reach the service, run the steps, and make a curve of whatever was measured, also when stopped.

Refuses to start if the service cannot be reached or does not understand the request: minutes of errors measure nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import platform
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import httpx2
import msgspec

from cardwise import __version__
from cardwise.adapters.http1.faults import REASON
from cardwise.adapters.http1.loop import loop_factory
from cardwise.errors import UserError
from cardwise.files import plain, seen
from cardwise.loadtest.client import Address, Call, Client
from cardwise.loadtest.curve import Curve, Environment, Settings, Step
from cardwise.loadtest.generator import Running
from cardwise.loadtest.hints import hint_of
from cardwise.loadtest.knee import knee_of, next_load, verdict_of
from cardwise.loadtest.plan import Endpoint, Kind, Load, Plan, Target, Tensor
from cardwise.process import files_allowed

_new_loop = loop_factory()

CONNECT_S = 5.0
FIRST_S = 30.0
"""For the first request at least: a service that was just started may load what it serves."""
_NOT_NOW = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses that tell of the service's state and not of the request."""
STALL_SHARE = 0.1
"""Of the target: a step in which the generator itself stalled for longer, and that failed, is run again, once."""


@dataclass(frozen=True, slots=True)
class Listener:
    """Who hears how it goes."""

    on_step: Callable[[Step], None] = lambda _step: None
    on_progress: Callable[[Load, float, int, int, int], None] = lambda *_: None


def run(target: Target, plan: Plan, listener: Listener = Listener()) -> Curve:
    """Test, and return the curve. Raises UserError if the service cannot be tested at all."""
    address = reach(target.endpoint)
    ask_once(target, plan)
    raise_file_limit(_most_connections(plan))
    return run_from(target, plan, address, listener)


def _most_connections(plan: Plan) -> int:
    callers = [step.concurrency or 0 for step in plan.steps]
    if plan.search is not None and plan.search.axis == "concurrency":
        callers.append(int(plan.search.most))
    return max(plan.most_unfinished, *callers, 0)


def run_from(target: Target, plan: Plan, address: Address, listener: Listener) -> Curve:
    """The same, of a service that was reached."""
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(_Test(target, plan, address, listener).run())


class _Test:
    """A test while it runs."""

    def __init__(self, target: Target, plan: Plan, address: Address, listener: Listener) -> None:
        self._target, self._plan, self._address, self._listener = target, plan, address, listener
        self._steps: list[Step] = []
        self._set_aside: list[Step] = []
        self._running: Running | None = None
        self._ended = "complete"

    async def run(self) -> Curve:
        started = datetime.now(UTC).isoformat(timespec="seconds")
        until_s = time.monotonic() + self._plan.limit_s
        client = Client(
            self._address,
            timeout_s=self._plan.timeout_s,
            streaming=self._target.kind is Kind.OPENAI,
            on_done=self._done,
        )
        progress = asyncio.create_task(self._progress())
        try:
            with _stopped_by_signals(self._interrupt), _no_collector():
                await self._all_steps(client, until_s)
        finally:
            progress.cancel()
            await client.close()
        return self._curve(started)

    def _interrupt(self) -> None:
        self._ended = "interrupt"
        if self._running is not None:
            self._running.stop()

    def _done(self, call: Call) -> None:
        if self._running is not None:
            self._running.done(call)

    async def _all_steps(self, client: Client, until_s: float) -> None:
        """Step after step; one that failed while we stalled ourselves is run once more."""
        tries = 0
        while self._ended == "complete" and (load := self._next()) is not None:
            step = await self._one_step(client, load, until_s, self._plan.seed + len(self._steps) + tries)
            if step is not None and tries == 0 and self._is_doubtful(step):
                self._set_aside.append(step)
                tries = 1
                continue
            tries = 0
            self._keep(step)
            if self._ended == "complete" and (step is None or step.cut_short):
                self._ended = "time"

    def _keep(self, step: Step | None) -> None:
        if step is not None:
            self._steps.append(step)
            self._listener.on_step(step)

    def _next(self) -> Load | None:
        search = self._plan.search
        if search is None:
            at = len(self._steps)
            return self._plan.steps[at] if at < len(self._plan.steps) else None
        return next_load(self._steps, search, self._plan.seconds)

    async def _one_step(self, client: Client, load: Load, until_s: float, seed: int) -> Step | None:
        client.use(self._target.requests(load.batch_window_ms))
        streaming = self._target.kind is Kind.OPENAI
        self._running = Running(client, load, self._plan, seed=seed, judges_first_token=streaming)
        self._load = load
        step = await self._running.run(until_s)
        self._running = None
        if step is None:
            return None
        why = verdict_of(step, self._steps, self._plan.target_p99_ms)
        return msgspec.structs.replace(step, why=why, holds=not why)

    def _is_doubtful(self, step: Step) -> bool:
        """Whether the search would stop here for what may be our own fault."""
        stalled = step.stall_ms > STALL_SHARE * self._plan.target_p99_ms
        return self._plan.search is not None and not step.holds and stalled and not step.cut_short

    async def _progress(self) -> None:
        while True:
            await asyncio.sleep(0.25)
            if self._running is not None:
                self._listener.on_progress(self._load, *self._running.told())

    def _curve(self, started: str) -> Curve:
        plan, target = self._plan, self._target
        search = plan.search
        return Curve(
            environment=Environment(
                url=target.url,
                kind=target.kind.value,
                started=started,
                cardwise=__version__,
                python=platform.python_version(),
                event_loop="asyncio" if _new_loop is None else "uvloop",
                host_cores=os.cpu_count() or 1,
            ),
            settings=Settings(
                arrivals=plan.arrivals.value,
                seconds=plan.seconds,
                warm_up_s=plan.warm_up_s,
                timeout_s=plan.timeout_s,
                most_unfinished=plan.most_unfinished,
                target_p99_ms=plan.target_p99_ms,
                judged="first token" if target.kind is Kind.OPENAI else "latency",
                seed=plan.seed,
            ),
            generator_stall_ms=max((each.stall_ms for each in self._steps), default=0.0),
            ended=self._ended,
            steps=self._steps,
            set_aside=self._set_aside,
            knee=knee_of(self._steps, search.axis, ended=self._ended) if search is not None else None,
        )


@contextlib.contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM ends the test with what it has; the second ends the process."""
    if threading.current_thread() is not threading.main_thread():  # where Python hears no signals
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def _hear_no_more() -> None:
        for number, handler in before.items():
            if loop.remove_signal_handler(number):
                signal.signal(number, handler)

    def _first() -> None:
        _hear_no_more()
        stop()

    for number in before:
        loop.add_signal_handler(number, _first)
    try:
        yield
    finally:
        _hear_no_more()


@contextlib.contextmanager
def _no_collector() -> Iterator[None]:
    """A full collection stops the generator for tens of milliseconds; nothing here makes cycles of any number."""
    was_on = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()


def raise_file_limit(most_unfinished: int) -> None:
    """A connection is a file. Raises UserError if the system allows fewer than may be needed."""
    wanted = most_unfinished + 100
    allowed = files_allowed(wanted)
    if allowed < wanted:
        raise UserError(
            f"--unfinished {most_unfinished} needs as many open files, the system allows {allowed}: lower it"
        )


def reach(endpoint: Endpoint) -> Address:
    """The first address of the host at which something listens. Raises UserError that says what is wrong."""
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UserError(f"{endpoint.host}: no such host ({error}); check the URL's spelling") from error
    failures = []
    for *_, place in found:
        host = str(place[0])
        try:
            socket.create_connection((host, endpoint.port), timeout=CONNECT_S).close()
        except OSError as error:
            failures.append(f"{host}: {error.strerror or 'no answer in time'}")
            continue
        return Address(host, endpoint.port, *_tls(endpoint))
    told = "; ".join(dict.fromkeys(failures))
    raise UserError(f"cannot connect to {endpoint.authority} ({told}); check host and port, and that the service runs")


def _tls(endpoint: Endpoint) -> tuple[ssl.SSLContext | None, str | None]:
    if endpoint.scheme == "http":
        return None, None
    return _context(endpoint), endpoint.host


def _context(endpoint: Endpoint) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not endpoint.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def ask_once(target: Target, plan: Plan) -> None:
    """One request before the test. Raises UserError unless it is answered well or refused for load."""
    window_ms = plan.steps[0].batch_window_ms if plan.steps else None
    shown = replace(target, path=target.path.replace("{window}", f"{window_ms or 0:g}"))
    body = target.bodies[0] if target.method not in {"GET", "HEAD"} else None
    answer = _fetch(shown, target.method, shown.url, body, window_ms, max(plan.timeout_s, FIRST_S))
    if 300 <= answer.status_code < 400:
        where = answer.headers.get("location", "nowhere")
        raise UserError(f"{shown.url} redirects ({answer.status_code}) to {seen(where)}; give that URL")
    if 400 <= answer.status_code < 500 and answer.status_code not in {408, 429}:
        told = f"{shown.url} answers the first request with {_words_of(answer)}"
        raise UserError(f"{told}; check path, model, body and headers")


def tensors_of(target: Target, model_path: str, timeout_s: float = FIRST_S) -> tuple[Tensor, ...]:
    """The inputs that a model says it takes, by its OIP metadata; dimensions left open are 1.

    Raises UserError with the service's own words if it does not say.
    """
    reach(target.endpoint)
    url = f"{target.endpoint.scheme}://{target.endpoint.authority}{model_path}"
    advice = "give --tensor NAME:DATATYPE:DIMS, or --body FILE"
    answer = _fetch(target, "GET", url, None, None, timeout_s)
    if answer.status_code != 200:
        said = f"{url} does not tell the model's inputs: it answers with {_words_of(answer)}"
        if answer.status_code in _NOT_NOW:
            raise UserError(f"{said}; that says nothing of the model: test again once the service answers")
        raise UserError(f"{said}; check the model, or {advice}")
    try:
        told = msgspec.json.decode(answer.content, type=_Metadata)
    except msgspec.DecodeError as error:
        raise UserError(f"{url} is no model's metadata ({error}); {advice}") from error
    if not told.inputs or any(each.datatype == "BYTES" for each in told.inputs):
        raise UserError(f"{url}: inputs that cannot be made up (none, or of BYTES); give --body FILE")
    return tuple(Tensor(each.name, each.datatype, tuple(max(dim, 1) for dim in each.shape)) for each in told.inputs)


def _words_of(answer: httpx2.Response) -> str:
    """An answer that is no good one: its status, why the gateway says so where it does, and its body's words."""
    reason = answer.headers.get(REASON.decode(), "")
    why = f" ({REASON.decode()}: {plain(reason)})" if reason else ""
    return f"{answer.status_code}{why}: {seen(answer.text[:200])}"


class _Input(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]


class _Metadata(msgspec.Struct):
    inputs: list[_Input] = []


def _fetch(
    target: Target, method: str, url: str, body: bytes | None, window_ms: float | None, timeout_s: float
) -> httpx2.Response:
    """Not with the generator's client: this one reads bodies and says in words what is wrong."""
    try:
        verify = _context(target.endpoint) if target.endpoint.scheme == "https" else True
        with httpx2.Client(trust_env=False, timeout=timeout_s, verify=verify) as client:
            headers = {"accept-encoding": "identity", **dict(target.request_headers(window_ms))}
            return client.request(method, url, content=body, headers=headers)
    except httpx2.TimeoutException as error:
        why = f"no answer in {timeout_s:g} s"
        raise UserError(f"{url}: the first request failed: {why}; {hint_of(target.endpoint)}") from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        why = str(error) or type(error).__name__
        raise UserError(f"{url}: the first request failed: {why}; {hint_of(target.endpoint)}") from error
