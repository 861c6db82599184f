"""What goes wrong, one function each. While it does, the usual load goes on, and every answer of it is checked."""

from __future__ import annotations

import asyncio
import random
import resource
import signal
import socket

from benchmarks.faults.asked import INFER, WIDE, Asked, rows_of, text_of, wrong_bodies, wrong_heads
from benchmarks.faults.client import Connection, CutError, UnansweredError, head
from benchmarks.faults.clock import JumpingClock
from benchmarks.faults.load import Count, Load
from benchmarks.faults.processes import START_S, Gateway
from benchmarks.faults.world import REPLICAS, SERVICES, Phase, Stage

IDLE = 10_000
IDLE_AT_A_TIME = 500
OTHER_FILES = 2000
"""Of the gateway, for its replicas; and of this process."""
DAY_S = 86_400
JUMPS_S = (3600, -DAY_S, 40 * 365 * DAY_S, -5 * 365 * DAY_S, 0)
READY = REPLICAS * SERVICES
LEAST_OK = 100
"""Answers that make a phase one of load. Where it lasts a second, a machine that stalls would have next to none."""


async def calm(stage: Stage, seconds: float) -> None:
    """Nothing."""
    await _load_for(seconds, stage.count)


async def killed(stage: Stage, seconds: float) -> None:
    """A replica dies in a batch and starts again; then the other; then both."""
    one, other = stage.engines
    for dying in ([one], [other], [one, other]):
        await asyncio.sleep(seconds / 9)
        await asyncio.gather(*(engine.kill() for engine in dying))
        await asyncio.sleep(seconds / 9)
        await asyncio.gather(*(engine.start() for engine in dying))
        await stage.gateway.until_ready(READY)


async def slow(stage: Stage, seconds: float) -> None:
    """A replica takes ten times as long, then as long as before."""
    await stage.engines[0].script({"slow-factor": 10})
    await asyncio.sleep(0.7 * seconds)
    await stage.engines[0].script({})
    await asyncio.sleep(0.3 * seconds)


async def half_open(stage: Stage, seconds: float) -> None:
    """A replica stands still: its kernel takes connections, and nothing answers. Then it goes on where it was."""
    await asyncio.sleep(0.1 * seconds)
    stage.engines[0].send(signal.SIGSTOP)
    try:
        await asyncio.sleep(max(0.6 * seconds, 1.5 * stage.world.timeout_ms / 1000))
        until_s = _until(START_S)
        while not stage.count.told["504 timeout"] and _left(until_s):  # the gateway may have stood still, too
            await asyncio.sleep(0.02)
    finally:
        stage.engines[0].send(signal.SIGCONT)
    await _load_for(0.3 * seconds, stage.count)


async def large(stage: Stage, seconds: float) -> None:
    """Some bodies of a mebibyte among small ones."""

    def make(service: str, dice: random.Random) -> Asked:
        return text_of() if service == "chat" else rows_of(service, dice.choice((1, 4)), WIDE)

    big = Load(stage.gateway.port, stage.count, seed=1)
    big.start(6, make)
    await asyncio.sleep(seconds)
    await big.stop()


async def malformed(stage: Stage, seconds: float) -> None:
    """Bodies that are no requests, beside others that are and must not suffer."""
    until_s, bodies = _until(seconds), wrong_bodies()
    while _left(until_s):
        for what, body in bodies.items():
            connection = await Connection.open(stage.gateway.port)
            try:
                answer = await connection.ask("POST", INFER, random.choice(("once", "again")), body)  # noqa: S311
                stage.count.expect(what, answer.status, (400, 429))
            except (UnansweredError, CutError) as error:
                stage.count.expect(f"{what} ({error})", 0, (400, 429))
            connection.abort()
    await _load_for(0, stage.count)
    stage.notes.append(f"{len(bodies)} kinds")


async def heads(stage: Stage, seconds: float) -> None:
    """Heads that are too large, can be read in two ways, or never end."""
    until_s, hostile = _until(seconds), wrong_heads()
    while _left(until_s):
        await asyncio.gather(*(_hostile(stage, what, *each) for what, each in hostile.items()))
    stage.notes.append(f"{len(hostile)} kinds")


async def _hostile(stage: Stage, what: str, data: bytes, wanted: tuple[int, ...]) -> None:
    connection = await Connection.open(stage.gateway.port)
    connection.send(data)
    try:
        status = (await connection.answer()).status
    except (UnansweredError, CutError):
        status = 0
    stage.count.expect(what, status, wanted)
    if status and not await _is_closed(connection):
        stage.count.blame(f"{what}: the connection stays open")
    connection.abort()


async def _is_closed(connection: Connection) -> bool:
    try:
        async with asyncio.timeout(10):
            return not await connection.reader.read(1)
    except OSError:
        return True
    except TimeoutError:
        return False


async def idle(stage: Stage, seconds: float) -> None:
    """Ten thousand connections that ask nothing, as far as the system allows as many files; twice."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    wanted = min(IDLE, allowed - OTHER_FILES)
    if wanted < IDLE:
        stage.notes.append(f"not {IDLE:,}: the system allows {allowed:,} open files")
    for _ in range(2):
        before_mib = stage.gateway.rss_mib()
        held: list[socket.socket] = []
        try:
            while len(held) < wanted:
                held += [_connect(stage.gateway.port) for _ in range(min(IDLE_AT_A_TIME, wanted - len(held)))]
                if (files := await _accepted(stage.gateway, len(held))) < len(held):
                    stage.count.blame(f"of {len(held):,} connections the gateway holds {files:,}")
                    break
            await asyncio.sleep(seconds / 2)
            files, more_mib = stage.gateway.fds(), stage.gateway.rss_mib() - before_mib
            stage.notes.append(f"{len(held):,} idle: {files:,} files, {more_mib:+.1f} MiB")
        finally:
            for each in held:
                each.close()


async def _accepted(gateway: Gateway, wanted: int) -> int:
    """Wait until it holds so many files, which it does when it has taken so many connections; how many it does."""
    until_s = _until(START_S)
    while (files := gateway.fds()) < wanted and _left(until_s):
        await asyncio.sleep(0.02)
    return files


def _connect(port: int) -> socket.socket:
    each = socket.socket()
    each.setblocking(False)
    each.connect_ex(("127.0.0.1", port))
    return each


async def leaving(stage: Stage, seconds: float) -> None:
    """Clients that hang up: in the head, in the body, in the queue, at the replica, in the answer; politely and not."""
    until_s = _until(seconds)
    turn = 0
    while _left(until_s):
        turn += 1
        await asyncio.gather(*(_leave(stage, moment, rude=bool((turn + moment) % 2)) for moment in range(10)))
    await _load_for(0, stage.count)


async def _leave(stage: Stage, moment: int, *, rude: bool) -> None:
    asked = text_of() if moment >= 7 else rows_of("once" if moment % 2 else "again", 2)
    data = head("POST", asked.path, asked.service, len(asked.body), asked.headers)
    try:
        connection = await Connection.open(stage.gateway.port)
    except OSError:
        stage.count.blame("a connection was refused")
        return
    stage.count.issue(asked)
    stage.count.gone += 1
    parts = (data[:20], data, data + asked.body[:30], data + asked.body)
    connection.send(parts[min(moment, 3)])
    await asyncio.sleep((0.0, 0.0, 0.0, 0.0, 0.001, 0.005, 0.02, 0.0, 0.01, 0.0)[moment])
    if moment == 6:
        connection.writer.write_eof()  # taken as hanging up, as nginx takes it
        await _is_closed(connection)
    if moment == 9:  # in the answer: after the first bytes of its stream
        await connection.reader.read(1)
    if rude:
        connection.abort()
    else:
        connection.writer.close()


async def erring(stage: Stage, seconds: float) -> None:
    """Replicas answer some requests with 500, one of them many in a row."""
    await stage.engines[0].script({"faults": [{"kind": "status", "every": 5}]})
    await stage.engines[1].script({"faults": [{"kind": "status", "skip": 50, "times": 30}]})
    await asyncio.sleep(seconds)


async def busy(stage: Stage, seconds: float) -> None:
    """Both replicas answer every second request with 503 and Retry-After. Most clients' may be tried again."""
    for engine in stage.engines:
        await engine.script({"faults": [{"kind": "status", "status": 503, "retry-after-s": 1, "every": 2}]})
    await _load_for(seconds, stage.count)


async def reset(stage: Stage, seconds: float) -> None:
    """Connections are reset before the work, half-way and after it; answers are cut."""
    faults: list[dict[str, object]] = [
        {"kind": "reset", "every": 7, "when": "before"},
        {"kind": "reset", "every": 11, "when": "during"},
        {"kind": "reset", "every": 13, "when": "after"},
        {"kind": "cut", "every": 17},
    ]
    for engine in stage.engines:
        await engine.script({"faults": faults})
    await _load_for(seconds, stage.count)


async def spoilt(stage: Stage, seconds: float) -> None:
    """Answers to batches are no JSON, or of a row too few. Streams are left out: they are passed on as they come."""
    for engine in stage.engines:
        await engine.script({"faults": [{"kind": "malformed", "every": 5}, {"kind": "wrong-shape", "every": 7}]})
    await _load_for(seconds, stage.count)


async def clock(stage: Stage, seconds: float) -> None:
    """The wall clock jumps by hours, days and decades: only what is set by the hour may follow it."""
    try:
        wall = JumpingClock(stage.world.folder)
    except RuntimeError as why:
        stage.notes.append(f"not run: {why}")
        return
    every_hour = "".join(
        f'[[services.profiles]]\ntimezone = "UTC"\nbegin = "{hour:02}:00"\nend = "{(hour + 1) % 24:02}:00"\n'
        f"depth = {500 + hour}\n"
        for hour in range(24)
    )
    await stage.load.stop()
    gateway = stage.world.another("gateway-clock", every_hour, wall.env)
    await stage.world.begin(gateway)
    load = Load(gateway.port, stage.count, seed=2)
    load.start(stage.callers)
    depths = [await _depth(gateway)]
    for jump_s in JUMPS_S:
        wall.jump(jump_s)
        await asyncio.sleep(max(seconds / len(JUMPS_S), 1.3))  # the hour's numbers are looked up once a second
        depths.append(await _depth(gateway))
    await load.stop()
    if depths[1] != depths[0] + 1 and depths[1] != depths[0] - 23:
        stage.count.blame(f"an hour later the depth is {depths[1]}, after {depths[0]}: the clock did not jump")
    if left := await gateway.at_rest(10**6):
        stage.count.blame(f"under a jumping clock: {left}")
    await gateway.end()
    stage.notes.append(f"depths by the hour: {' '.join(map(str, depths))}")


async def _depth(gateway: Gateway) -> int:
    return int((await gateway.metrics()).total("queue_depth", 'service="once"'))


async def drain(stage: Stage, seconds: float) -> None:
    """Gateways under load are told to stop, one after the other, and end with 0 when all is answered."""
    rounds = 3
    await stage.load.stop()
    for number in range(rounds):
        gateway = stage.world.another(f"gateway-drain-{number}")
        await stage.world.begin(gateway)
        count = Count()
        load = Load(gateway.port, count, seed=3 + number)
        load.start(stage.callers)
        await _load_for(seconds / rounds, count)
        gateway.send(signal.SIGTERM)
        code = await gateway.ended()
        await load.stop()
        if code:
            stage.count.blame(f"told to stop, the gateway ended with {code}")
        await _spare_unread(stage, count)
        _add(stage.count, count)


async def _spare_unread(stage: Stage, count: Count) -> None:
    """A connection that is closed while idle may meet a request on its way: HTTP/1.1 has no word against it.

    It was not read, and so not executed; if it was, it stays lost.
    """
    begun = await stage.world.begun()
    unread = count.unread
    count.unread = [asked for asked in unread if any(each in begun for each in asked.ids)]
    if spared := len(unread) - len(count.unread):
        stage.notes.append(f"{spared} of {count.issued} met a closing connection: not read, not executed")


def _add(total: Count, part: Count) -> None:
    for name in ("ok", "refused", "failed", "gone", "issued", "wrong", "surplus"):
        setattr(total, name, getattr(total, name) + getattr(part, name))
    for name in ("unread", "answered", "ids", "notes"):
        getattr(total, name).extend(getattr(part, name))
    total.told.update(part.told)
    total.asked.update(part.asked)


async def _load_for(seconds: float, count: Count) -> None:
    """Let the load go on for so long, and until so much of it was served."""
    await asyncio.sleep(seconds)
    until_s = _until(START_S)
    while count.ok < LEAST_OK and _left(until_s):
        await asyncio.sleep(0.02)


def _until(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


def _left(until_s: float) -> bool:
    return asyncio.get_running_loop().time() < until_s


ALL = {
    "calm": Phase(calm),
    "1 MiB bodies": Phase(large),
    "10,000 idle": Phase(idle),
    "replica killed": Phase(killed),
    "replica slow": Phase(slow),
    "replica frozen": Phase(half_open),
    "malformed bodies": Phase(malformed),
    "hostile heads": Phase(heads),
    "clients leave": Phase(leaving),
    "500s": Phase(erring),
    "503s, Retry-After": Phase(busy, ("again", "again", "again", "once")),
    "resets, cuts": Phase(reset),
    "spoilt answers": Phase(spoilt, ("once", "again")),
    "clock jumps": Phase(clock),
    "gateway drains": Phase(drain),
    "calm again": Phase(calm),
}
"""Those that take much memory at a time come first, so that what grows after them shows."""
SHORT = (
    "calm", "replica killed", "replica frozen", "malformed bodies", "clients leave", "503s, Retry-After",
    "resets, cuts", "spoilt answers", "gateway drains",
)  # fmt: skip
"""Of some seconds each, for a test."""
