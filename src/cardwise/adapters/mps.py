"""NVIDIA's MPS on this node: the only module that runs nvidia-cuda-mps-control.

MPS lets clients of one card run at the same time, each within a limit of memory and of SMs. Two protocols: 3 (R615,
CUDA 13.4) gives every slice a *namespace* with limits of its own, chosen by the socket that is mounted into the
container; 2 (every driver) knows one ceiling per daemon, and a slice below it rests on variables in the container.

Refuses to believe a command: they answer nothing and exit 0 for a card that is not there, so that only what is read
back counts. Refuses NVIDIA's default directories: their container toolkit mounts ``/tmp/nvidia-mps`` into every
container, and CUDA looks there unasked. Refuses to hand on ``CUDA_*`` of its own environment: the daemon would take
them as defaults.

What binds: a namespace's memory and SMs (3); the ceiling (2); a static partition's SMs, while its name is kept. What
only asks: every variable, thus with 2 a slice's memory and SMs below the ceiling; and the priority with both. With 2
the container also sees the daemon's own socket: one that runs as the daemon's user may give it commands. Measured by
others on 615: one entry of the memory variable that names a card which the process does not see lifts *all* memory
limits of that process. What holds against a tenant's will is the driver's limit per cgroup, or MIG.

Source: MPS documentation 615: "Legacy MPS v2 Interface", "MPS v3 Interface", "MPS v3 Namespaces", "Common Tasks",
"Environment Variables".
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import structlog

from cardwise.adapters.outliving import let_outlive
from cardwise.errors import CardError, UserError

log = structlog.get_logger()

DEFAULT_DIRS = frozenset({Path("/tmp/nvidia-mps"), Path("/run/nvidia-mps")})  # noqa: S108 - named to be refused
LIMITS_FROM, STATIC_FROM, V3_FROM = 11050, 13010, 13040
"""Versions as ``-v`` tells them, CUDA's: memory limits per client since 11.5, ``-S`` 13.1, protocol 3 13.4."""

SOCKET_BYTES = 107
"""A socket's path on Linux, without its zero byte (``sun_path``). With a longer one the daemon dies in silence."""

SERVER = "cardwise"
"""Our one server under protocol 3: it serves all cards, for a container of several cards joins one namespace."""

NAME = re.compile(r"[a-z0-9_]{1,64}")
"""Names of servers and namespaces under protocol 3."""

NO_DAEMON = "Cannot find MPS control daemon"
SERVER_POLLS, SERVER_POLL_S = 100, 0.05
"""A server needs about 0.3 s for its context on a T4 (a log of R580); 5 s is ample."""

MOST_BYTES = 1 << 20
"""Of one answer: 60 clients a card, with their command lines, are a few KiB."""

MOUNT_OPTIONS = ("rw", "nosuid", "nodev", "noexec", "rbind")


@dataclass(frozen=True, slots=True)
class SliceLimits:
    """One slice: a card's memory and SMs for one container. name: of its slot, unique on the node.

    processes: how many processes of the container share this card, as its owner declares. MPS limits a process, not a
    container: each gets an equal part of the memory (case C32). compute_pct is each one's ceiling, never divided.
    """

    name: str
    card_uuid: str
    memory_mib: int
    compute_pct: int
    low_priority: bool = False
    processes: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.compute_pct <= 100 or self.processes < 1 or self.client_mib < 1:
            raise ValueError(f"impossible slice {self}")

    @property
    def client_mib(self) -> int:
        """What one process may hold; n of them never hold more than the slice."""
        return self.memory_mib // self.processes


@dataclass(frozen=True, slots=True)
class MpsServer:
    """A process that owns the cards' contexts. name: empty under protocol 2. status: such as ACTIVE (2), Ready (3)."""

    pid: int
    name: str
    status: str

    @property
    def faulty(self) -> bool:
        """True while it takes no new clients, since one of its clients broke the card's context."""
        return "FAULT" in self.status.upper()


@dataclass(frozen=True, slots=True)
class MpsClient:
    """A process that runs under MPS; pid as the daemon's PID namespace has it.

    device: an ordinal (3) or the begin of a UUID (2). namespace: the slice's (3), else empty.
    """

    pid: int
    server_pid: int
    server_status: str
    device: str
    namespace: str
    command: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits as they should be, or as they were read. None: not asked for, or not told.

    floored: the memory was told in whole GiB. R595 tells 4606M as 4G (seen in the GPU operator's documentation too).
    """

    memory_mib: int | None
    compute_pct: float | None
    low_priority: bool | None = None
    floored: bool = False
    place: str = ""


@dataclass(frozen=True, slots=True)
class MpsEdits:
    """What a container needs to be a client. mounts: host path, path in the container, options."""

    env: dict[str, str]
    mounts: tuple[tuple[str, str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class Partition:
    """A static SM partition: ``lspart``'s short name of the card, the partition's own, its SMs."""

    card: str
    name: str
    sm_count: int


@dataclass(frozen=True, slots=True)
class MpsSupport:
    """What a program can do. version: 13040 is CUDA 13.4's; 0 if it does not tell."""

    version2: bool
    version3: bool
    static: bool
    version: int = 0


class MpsControl(Protocol):
    """A control daemon, whichever protocol it speaks. Every call raises CardError if the daemon does not answer."""

    async def start(self) -> None:
        """Have a daemon that answers: one that is there already is kept."""

    async def stop(self) -> None:
        """End the daemon and its servers, by force if need be."""

    async def alive(self) -> bool:
        """True if the daemon answers sense."""

    def running(self) -> bool:
        """True if the daemon's process is there, whether or not it answers."""

    async def servers(self) -> tuple[MpsServer, ...]:
        """Return the servers that run."""

    async def clients(self) -> list[MpsClient]:
        """Return the processes that run under MPS."""

    async def set_limits(self, wanted: SliceLimits) -> None:
        """Set a slice's limits. Proves nothing: :meth:`read_limits` does."""

    def wanted(self, wanted: SliceLimits) -> Limits:
        """Return what :meth:`read_limits` reads if this slice's limits are in force."""

    async def read_limits(self, wanted: SliceLimits) -> Limits:
        """Return what the daemon, and with protocol 2 each server, says of a slice's limits."""

    async def remove(self, name: str) -> None:
        """Forget a slice; no error if it is not there."""

    async def terminate(self, pid: int) -> None:
        """End a client's work on the card, before its process is killed."""

    def edits(self, slices: Sequence[SliceLimits]) -> MpsEdits:
        """Return what a container with these slices needs."""


@dataclass(frozen=True, slots=True)
class ControlDaemon:
    """One daemon's program, directories and cards; it runs the program, each time with a deadline.

    multiuser: one server for all users (needs root); else a server of this user, and other users' clients wait.
    shm_dir: a tmpfs that is /dev/shm to the daemon and becomes its clients' too: they share memory through it.
    cgroups: where the kernel shows cgroups: the daemon is moved out of ours, to outlive this container; None: it stays.
    """

    command: str
    pipe_dir: Path
    log_dir: Path
    card_uuids: tuple[str, ...]
    multiuser: bool = True
    shm_dir: Path | None = None
    cgroups: Path | None = None
    deadline_s: float = 10.0

    def __post_init__(self) -> None:
        if not self.pipe_dir.is_absolute() or self.pipe_dir in DEFAULT_DIRS:
            raise UserError(f"MPS pipe directory {self.pipe_dir}: give an absolute path that is no default of CUDA's")
        self.socket_dir()

    def socket_dir(self, *names: str) -> Path:
        """Return where a socket lies. Raises UserError if its path is too long."""
        folder = self.pipe_dir.joinpath(*names)
        if (size := len(os.fsencode(folder / "control"))) > SOCKET_BYTES:
            why = f"{size} bytes, {SOCKET_BYTES} at most; use a shorter run directory"
            raise UserError(f"MPS socket {folder}/control: {why}")
        return folder

    def error(self, text: str) -> CardError:
        """Return the error that names all cards of this daemon."""
        return CardError(", ".join(self.card_uuids), f"MPS: {text}")

    def env(self) -> dict[str, str]:
        """Return the environment of every call, and of the daemon."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("CUDA_")}
        return kept | {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe_dir),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log_dir),
            "CUDA_VISIBLE_DEVICES": ",".join(self.card_uuids),
        }

    async def call(self, *args: str, stdin: str = "") -> str:
        """Return what one command answers. Raises CardError if it fails, hangs or finds no daemon."""
        what = stdin or " ".join(args)
        try:
            code, text = await _run([self.command, *args], self.env(), stdin, self.deadline_s)
        except TimeoutError as exc:
            raise self.error(f"{what!r} not answered within {self.deadline_s:g} s") from exc
        except OSError as exc:
            raise self.error(f"{self.command} cannot be run: {exc}") from exc
        if code or NO_DAEMON in text:
            raise self.error(f"{what!r} failed with {code}: {_short(text)}")
        return text

    async def launch(self, *flags: str) -> None:
        """Start the daemon in the background. Raises CardError."""
        try:
            self._make_folders()
        except OSError as exc:
            raise self.error(
                f"its folders cannot be made: {exc}; give the agent a run-folder that it can write"
            ) from exc
        await self.call("-d", *flags)
        if self.cgroups is not None and (pid := self.pid()) is not None:
            let_outlive(pid, root=self.cgroups)

    def _make_folders(self) -> None:
        modes = {self.pipe_dir: 0o755, self.log_dir: 0o755}  # clients of any user pass through them
        if self.shm_dir is not None:
            modes[self.shm_dir] = 0o1777  # clients of any user
        for folder, mode in modes.items():
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(mode)

    def pid(self) -> int | None:
        """Return the daemon's process, if it is there: a pid file outlives a daemon that was killed."""
        try:
            pid = int((self.pipe_dir / "nvidia-cuda-mps-control.pid").read_text())
            env = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        ours = f"CUDA_MPS_PIPE_DIRECTORY={self.pipe_dir}".encode() in env  # else the number was given to another
        return pid if ours else None

    async def end(self, *args: str, stdin: str = "") -> None:
        """Ask the daemon to go, then make it go."""
        pid = self.pid()
        try:
            await self.call(*args, stdin=stdin)
        except CardError as exc:
            log.warning("the MPS daemon was not asked to end", why=str(exc))
        for _ in range(20):
            if pid is None or self.pid() != pid:
                return
            await asyncio.sleep(0.05)
        if pid is not None:
            log.warning("the MPS daemon is killed", pid=pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@dataclass(slots=True)
class MpsV2:
    """Protocol 2: a shell on stdin. One ceiling for a card's memory and one for all cards' SMs: the largest slice's.

    Defaults act on servers that start later, the others on clients that start later: both are set, both are read back.
    A server is started at once, so that there is one to ask. static: ``-S``; SMs are partitions then, not percentages.
    """

    daemon: ControlDaemon
    static: bool = False
    _slices: dict[str, SliceLimits] = field(default_factory=dict)
    _partitions: dict[str, str] = field(default_factory=dict)

    async def start(self) -> None:
        """Have a daemon that answers."""
        if not await self.alive():
            self._partitions.clear()
            flags = ("-multiuser-server",) if self.daemon.multiuser else ()
            await self.daemon.launch(*flags, *(("-S",) if self.static else ()))
            await self.servers()

    async def stop(self) -> None:
        """End the daemon and its servers."""
        await self.daemon.end(stdin="quit")

    async def alive(self) -> bool:
        """True if the daemon answers sense."""
        return await _answers(self)

    def running(self) -> bool:
        """True if the daemon's process is there."""
        return self.daemon.pid() is not None

    async def servers(self) -> tuple[MpsServer, ...]:
        """Return the servers that run."""
        pids = await self._pids()
        status = await self._ask(*(f"get_server_status {pid}" for pid in pids))
        return tuple(MpsServer(pid, "", told or "unknown") for pid, told in zip(pids, status, strict=True))

    async def clients(self) -> list[MpsClient]:
        """Return the processes that run under MPS."""
        status = {server.pid: server.status for server in await self.servers()}
        return parse_ps(await self._say("ps"), status)

    async def set_limits(self, wanted: SliceLimits) -> None:
        """Raise or lower the ceilings so that this slice fits."""
        self._slices[wanted.name] = wanted
        await self._apply(wanted.card_uuid)

    def wanted(self, wanted: SliceLimits) -> Limits:
        """Return the ceilings with this slice."""
        slices = {**self._slices, wanted.name: wanted}.values()
        return Limits(
            max(one.client_mib for one in slices if one.card_uuid == wanted.card_uuid),
            None if self.static else max(one.compute_pct for one in slices),
        )

    async def read_limits(self, wanted: SliceLimits) -> Limits:
        """Return the default, or what the first server says that differs from it."""
        card_uuid, pids = wanted.card_uuid, await self._pids()
        texts = await self._ask(
            *(f"get_default_device_pinned_mem_limit {card_uuid}", "get_default_active_thread_percentage"),
            *(
                question
                for pid in pids
                for question in (
                    f"get_device_pinned_mem_limit {pid} {card_uuid}",
                    f"get_active_thread_percentage {pid}",
                )
            ),
        )
        told = [
            Limits(memory, parse_pct(pct), None, floored, place)
            for place, text, pct in zip(
                ("the default", *("the server" for _ in pids)), texts[::2], texts[1::2], strict=True
            )
            for memory, floored in [parse_memory(text)]
        ]
        return next((limits for limits in told if difference(self.wanted(wanted), limits)), told[-1])

    async def remove(self, name: str) -> None:
        """Lower the ceilings to what is left; the last slice's stay, for no command lifts them."""
        if (gone := self._slices.pop(name, None)) is None:
            return
        try:
            await self._apply(*{one.card_uuid for one in self._slices.values()})
        except CardError:
            self._slices[name] = gone  # its ceilings are in force still
            raise

    async def terminate(self, pid: int) -> None:
        """End a client's work on the card. The daemon answers 0 when that is done."""
        for client in await self.clients():
            if client.pid == pid:
                told = await self._say(f"terminate_client {client.server_pid} {pid}")
                if told != "0":
                    raise self.daemon.error(f"client {pid} not terminated: {_short(told)}")

    async def add_partition(self, wanted: SliceLimits, chunks: int) -> str:
        """Carve SMs out for one slice; returns the partition's name. Raises CardError if they are not free."""
        if wanted.name not in self._partitions:
            told = await self._say(f"sm_partition add {wanted.card_uuid} {chunks}")
            if not re.fullmatch(rf"{re.escape(wanted.card_uuid)}/\S+", told):
                raise self.daemon.error(f"no partition of {chunks} chunks: {_short(told)}")
            self._partitions[wanted.name] = told
        return self._partitions[wanted.name]

    async def remove_partition(self, gone: SliceLimits) -> None:
        """Give a slice's SMs back."""
        if name := self._partitions.pop(gone.name, ""):
            await self._say("sm_partition rm {} {}".format(*name.split("/", 1)))

    async def partitions(self) -> tuple[Partition, ...]:
        """Return the partitions that exist."""
        return parse_partitions(await self._say("lspart"))

    def edits(self, slices: Sequence[SliceLimits]) -> MpsEdits:
        """Return what a container with these slices needs."""
        return edits_v2(self.daemon, slices, self._partitions)

    async def _say(self, command: str) -> str:
        return (await self.daemon.call(stdin=command)).strip()

    async def _ask(self, *questions: str) -> list[str]:
        """Ask several questions in one call: a line each. If one has no answer, it cannot be told which: none has."""
        if not questions:
            return []
        lines = (await self._say("\n".join(questions))).splitlines()
        return [line.strip() for line in lines] if len(lines) == len(questions) else [""] * len(questions)

    async def _pids(self) -> list[int]:
        text = await self._say("get_server_list")
        try:
            return parse_pids(text)
        except ValueError as exc:
            raise self.daemon.error(f"get_server_list: {exc}") from exc

    async def _apply(self, *card_uuids: str) -> None:
        pids = await self._pids() or await self._start_server()
        commands = []
        for one in {one.card_uuid: one for one in self._slices.values() if one.card_uuid in card_uuids}.values():
            card_uuid, ceiling = one.card_uuid, self.wanted(one)
            memory, pct = f"{card_uuid} {ceiling.memory_mib}M", f"{ceiling.compute_pct}"
            commands += [f"set_default_device_pinned_mem_limit {memory}"]
            commands += [f"set_device_pinned_mem_limit {pid} {memory}" for pid in pids]
            if ceiling.compute_pct is not None:
                commands += [f"set_default_active_thread_percentage {pct}"]
                commands += [f"set_active_thread_percentage {pid} {pct}" for pid in pids]
        if commands:
            await self._say("\n".join(commands))

    async def _start_server(self) -> list[int]:
        await self._say(f"start_server -uid {0 if self.daemon.multiuser else os.getuid()}")
        for _ in range(SERVER_POLLS):
            if pids := await self._pids():
                return pids
            await asyncio.sleep(SERVER_POLL_S)
        raise self.daemon.error(f"no server comes up; {self.daemon.log_dir}/server.log may say why")


@dataclass(slots=True)
class MpsV3:
    """Protocol 3: ``module verb`` on the command line. A namespace per slice, which no variable of a client overrides.

    A namespace without limits has the whole card, and the server's do not cap it: every namespace gets all three.
    Nothing is kept on disk: a new daemon knows no server and no namespace.
    """

    daemon: ControlDaemon

    async def start(self) -> None:
        """Have a daemon that answers."""
        if not await self.alive():
            await self.daemon.launch("-p", "3", *(("-m",) if self.daemon.multiuser else ()))
            await self.servers()

    async def stop(self) -> None:
        """End the daemon and its servers."""
        await self.daemon.end("-q")

    async def alive(self) -> bool:
        """True if the daemon answers sense."""
        return await _answers(self)

    def running(self) -> bool:
        """True if the daemon's process is there."""
        return self.daemon.pid() is not None

    async def servers(self) -> tuple[MpsServer, ...]:
        """Return the servers that run."""
        try:
            return parse_servers(await self._list("server", "list"))
        except ValueError as exc:
            raise self.daemon.error(f"server list: {exc}") from exc

    async def clients(self) -> list[MpsClient]:
        """Return the processes that run under MPS."""
        servers = {server.name: server for server in await self.servers()}
        return parse_clients(await self._list("client", "list", "--all"), servers)

    async def set_limits(self, wanted: SliceLimits) -> None:
        """Have the slice's namespace, with its limits."""
        name = namespace_name(wanted.name)
        self.daemon.socket_dir(SERVER, name)
        await self._have_server()
        if not await self._row(name):
            await self.daemon.call("namespace", "create", name, f"--server={SERVER}")
        await self.daemon.call(
            *("namespace", "set", name, f"--server={SERVER}"),
            f"--pinned-memory-limit={wanted.client_mib}M",
            f"--active-thread-percentage={wanted.compute_pct}",
            f"--client-priority={int(wanted.low_priority)}",
        )

    def wanted(self, wanted: SliceLimits) -> Limits:
        """Return the slice's own limits."""
        return Limits(wanted.client_mib, float(wanted.compute_pct), wanted.low_priority)

    async def read_limits(self, wanted: SliceLimits) -> Limits:
        """Return the namespace's limits; none of a namespace that is not there or listens elsewhere."""
        name = namespace_name(wanted.name)
        row = await self._row(name) if await self._server() else []
        if len(row) < 7 or Path(row[6]) != self.daemon.socket_dir(SERVER, name):
            return Limits(None, None, None, place=f"namespace {name}, which is not there,")
        memory, floored = parse_memory(row[3])
        return Limits(memory, parse_pct(row[4]), {"0": False, "1": True}.get(row[5]), floored, f"namespace {name}")

    async def remove(self, name: str) -> None:
        """Delete the slice's namespace, its clients too."""
        name = namespace_name(name)
        if await self._server() and await self._row(name):
            await self.daemon.call("namespace", "delete", name, f"--server={SERVER}", "--force")

    async def terminate(self, pid: int) -> None:
        """End a client's work on the card."""
        if any(client.pid == pid for client in await self.clients()):
            await self.daemon.call("client", "terminate", str(pid))

    def edits(self, slices: Sequence[SliceLimits]) -> MpsEdits:
        """Return what a container with these slices needs."""
        return edits_v3(self.daemon, slices)

    async def _list(self, *args: str) -> str:
        return await self.daemon.call(*args, "--format=csv,noheader")

    async def _row(self, name: str) -> list[str]:
        """Return name, server, its status, pinned-memory-limit, active-thread-percentage, client-priority, pipe."""
        rows = (line.split(",") for line in (await self._list("namespace", "list", f"--server={SERVER}")).splitlines())
        return next((row for row in rows if row[0].strip() == name), [])

    async def _server(self) -> MpsServer | None:
        return next((server for server in await self.servers() if server.name == SERVER), None)

    async def _have_server(self) -> None:
        if await self._server():
            return
        uid = ("--uid=0",) if self.daemon.multiuser else ()
        cards = f"--allowed-devices={','.join(self.daemon.card_uuids)}"
        await self.daemon.call("server", "create", SERVER, *uid, cards)
        if not await self._server():
            # "succeeds" for a card that is not there; the server then dies, and clients run without any limit
            raise self.daemon.error("the server was created and is not there: is a card gone?")


async def probe(command: str, deadline_s: float = 10.0) -> MpsSupport | None:
    """Return what a program can do; None if it is absent, does not answer, or cannot limit memory."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("CUDA_")}
    try:
        code, text = await _run([command, "-v"], env, "", deadline_s)
    except (OSError, TimeoutError) as exc:
        log.info("no MPS on this node", command=command, why=str(exc) or "no answer")
        return None
    version = 0 if code else parse_version(text)
    if 0 < version < LIMITS_FROM:
        log.info("the MPS of this node is too old", command=command, version=version, oldest=LIMITS_FROM)
        return None
    # before 13.1 desktop builds may not know -v at all: protocol 2 then, which is proven by reading back anyway
    return MpsSupport(True, version >= V3_FROM, version >= STATIC_FROM, version)


def namespace_name(slot: str) -> str:
    """Return a slot's namespace: small letters, digits and underscores, 64 at most."""
    name = re.sub(r"[^a-z0-9]", "_", slot.lower())
    if not NAME.fullmatch(name) or name == "default":
        raise ValueError(f"no name of a namespace: {slot!r}")
    return name


def edits_v2(
    daemon: ControlDaemon, slices: Sequence[SliceLimits], partitions: Mapping[str, str] | None = None
) -> MpsEdits:
    """Return what a container with these slices needs under protocol 2. partitions: slot → static SM partition.

    The memory variable names the container's own cards only: one entry too many would lift every limit.
    """
    first = _same(slices, "compute_pct", "low_priority")
    pipe = str(daemon.pipe_dir)
    env = {
        "CUDA_MPS_PIPE_DIRECTORY": pipe,
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": ",".join(f"{one.card_uuid}={one.client_mib}M" for one in slices),
    }
    if partitions and (named := [partitions[one.name] for one in slices if one.name in partitions]):
        if len(slices) > 1:
            raise CardError(first.card_uuid, "MPS: a static partition is for containers with one card")
        env["CUDA_MPS_SM_PARTITION"] = named[0]
    else:
        env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(first.compute_pct)
    if first.low_priority:
        env["CUDA_MPS_CLIENT_PRIORITY"] = "1"
    return MpsEdits(env, ((pipe, pipe, MOUNT_OPTIONS), *_shm(daemon)))


def edits_v3(daemon: ControlDaemon, slices: Sequence[SliceLimits]) -> MpsEdits:
    """Return what a container with these slices needs under protocol 3: its first slice's namespace, and no other."""
    first = _same(slices, "client_mib", "compute_pct", "low_priority")
    pipe = str(daemon.socket_dir(SERVER, namespace_name(first.name)))
    return MpsEdits({"CUDA_MPS_PIPE_DIRECTORY": pipe}, ((pipe, pipe, MOUNT_OPTIONS), *_shm(daemon)))


def difference(wanted: Limits, told: Limits) -> str:
    """Return in words how limits that were read differ from what they should be; empty if they are in force."""
    wrong = []
    if wanted.memory_mib is not None and told.memory_mib not in _tellings(wanted.memory_mib, told.floored):
        wrong.append(f"memory limit {_or_none(told.memory_mib, ' MiB')}, not {wanted.memory_mib} MiB")
    if wanted.compute_pct is not None and told.compute_pct != wanted.compute_pct:
        wrong.append(f"SM limit {_or_none(told.compute_pct, ' %')}, not {wanted.compute_pct:g} %")
    if wanted.low_priority is not None and told.low_priority != wanted.low_priority:
        wrong.append(f"priority {'low' if told.low_priority else 'normal'}")
    return f"{told.place} has {' and '.join(wrong)}" if wrong else ""


def parse_version(text: str) -> int:
    """Return 13040 from ``… Binary version: 13040``, 0 if there is no such number."""
    found = re.search(r"version:?\s*(\d{5})\b", text, re.IGNORECASE)
    return int(found[1]) if found else 0


def parse_pids(text: str) -> list[int]:
    """Return the PIDs, one a line. Raises ValueError for anything else."""
    words = text.split()
    if not all(re.fullmatch(r"[1-9][0-9]{0,9}", word) for word in words):
        raise ValueError(f"no list of PIDs: {_short(text)}")
    return [int(word) for word in words]


def parse_memory(text: str) -> tuple[int | None, bool]:
    """Return MiB, and whether it was told in whole GiB: ``4G``, ``4606M``; None for anything else: no limit is told."""
    found = re.fullmatch(r"([0-9]{1,9})([KMG])B?", text.strip())
    if not found:
        return None, False
    return int(found[1]) * {"K": 1, "M": 1024, "G": 1024**2}[found[2]] // 1024, found[2] == "G"


def parse_pct(text: str) -> float | None:
    """Return percent from ``25.0``, ``25`` or ``25%``; None for anything else."""
    found = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]+)?)\s*%?", text.strip())
    return float(found[1]) if found else None


def parse_ps(text: str, status: Mapping[int, str]) -> list[MpsClient]:
    """Read ``ps``: PID ID SERVER DEVICE NAMESPACE COMMAND. The namespace is Linux's, not MPS's: not kept."""
    rows = (line.split(None, 5) for line in text.splitlines())
    return [
        MpsClient(int(row[0]), int(row[2]), status.get(int(row[2]), ""), row[3], "", row[5] if len(row) > 5 else "")
        for row in rows
        if len(row) >= 5 and row[0].isdecimal() and row[2].isdecimal()
    ]


def parse_servers(text: str) -> tuple[MpsServer, ...]:
    """Read ``server list``: name,uid,pid,status,…; what follows may hold commas. Raises ValueError for other rows.

    A server without a PID does not run: left out. So is a line without commas: how "none" looks is not documented.
    """
    rows = [[cell.strip() for cell in line.split(",", 4)] for line in text.splitlines() if "," in line]
    if not all(len(row) == 5 and NAME.fullmatch(row[0]) and re.fullmatch(r"[0-9]+|-|", row[2]) for row in rows):
        raise ValueError(f"no list of servers: {_short(text)}")
    return tuple(MpsServer(int(row[2]), row[0], row[3]) for row in rows if row[2].isdecimal() and int(row[2]))


def parse_clients(text: str, servers: Mapping[str, MpsServer]) -> list[MpsClient]:
    """Read ``client list``: pid,server,device,namespace,command; the command may hold commas."""
    lost = MpsServer(0, "", "")
    rows = (line.split(",", 4) for line in text.splitlines())
    return [
        MpsClient(int(row[0]), of.pid, of.status, row[2], row[3], row[4])
        for row in rows
        if len(row) == 5 and row[0].isdecimal()
        for of in [servers.get(row[1], lost)]
    ]


def parse_partitions(text: str) -> tuple[Partition, ...]:
    """Read ``lspart``: GPU, Partition, free and used chunks, free and used SMs, clients; no row of a whole card."""
    rows = (line.split() for line in text.splitlines())
    return tuple(
        Partition(row[0], row[1], int(row[5]))
        for row in rows
        if len(row) >= 6 and row[0].startswith("GPU-") and row[1] != "-" and row[5].isdecimal()
    )


async def _answers(control: MpsControl) -> bool:
    try:
        await control.servers()
    except CardError as exc:
        log.debug("the MPS daemon does not answer", why=str(exc))
        return False
    return True


async def _run(argv: list[str], env: dict[str, str], stdin: str, deadline_s: float) -> tuple[int, str]:
    """Run a program: its exit status and its output. Raises OSError, or TimeoutError after having killed it."""
    # into a file: a pipe would stay open as long as a daemon that this call starts
    with tempfile.TemporaryFile() as out:
        process = await asyncio.create_subprocess_exec(
            *argv,
            env=env,
            stdin=asyncio.subprocess.PIPE,
            stdout=out,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(deadline_s):
                await process.communicate(f"{stdin}\n".encode() if stdin else b"")
        finally:
            if process.returncode is None:  # past the deadline, or we are being cancelled
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # with what it has started: a session of its own
                await process.wait()
        out.seek(0)
        return process.returncode or 0, out.read(MOST_BYTES).decode(errors="replace")


def _same(slices: Sequence[SliceLimits], *names: str) -> SliceLimits:
    """Return the first slice. Raises CardError if another differs in what MPS takes once for all cards of a process."""
    for name in names:
        values = {getattr(one, name) for one in slices}
        if len(values) > 1:
            told = ", ".join(f"{one.card_uuid}: {getattr(one, name)}" for one in slices)
            raise CardError(slices[0].card_uuid, f"MPS takes one {name} for all cards of a container, not {told}")
    return slices[0]


def _shm(daemon: ControlDaemon) -> Iterable[tuple[str, str, tuple[str, ...]]]:
    if daemon.shm_dir is not None:
        yield str(daemon.shm_dir), "/dev/shm", MOUNT_OPTIONS  # noqa: S108 - where CUDA looks


def _tellings(memory_mib: int, floored: bool) -> tuple[int, ...]:
    return (memory_mib, memory_mib // 1024 * 1024) if floored and memory_mib >= 1024 else (memory_mib,)


def _or_none(value: float | None, unit: str) -> str:
    return "none" if value is None else f"{value:g}{unit}"


def _short(text: str) -> str:
    return repr(" ".join(text.split())[:200])
