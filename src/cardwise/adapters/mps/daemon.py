"""One control daemon: its program, run with a deadline, its directories, and its process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from cardwise.adapters.mps.parsing import parse_version, short
from cardwise.adapters.mps.values import MpsControl, MpsSupport, SliceLimits
from cardwise.adapters.outliving import let_outlive
from cardwise.errors import CardError, UserError

log = structlog.get_logger()
DEFAULT_DIRS = frozenset({Path("/tmp/nvidia-mps"), Path("/run/nvidia-mps")})  # noqa: S108 - named to be refused
LIMITS_FROM, STATIC_FROM, V3_FROM = 11050, 13010, 13040
"""Versions as ``-v`` tells them, CUDA's: memory limits per client since 11.5, ``-S`` 13.1, protocol 3 13.4."""
SOCKET_BYTES = 107
"""A socket's path on Linux, without its zero byte (``sun_path``). With a longer one the daemon dies in silence."""
NO_DAEMON = "Cannot find MPS control daemon"
MOST_BYTES = 1 << 20
"""Of one answer: 60 clients a card, with their command lines, are a few KiB."""
PID_POLLS, PID_POLL_S = 100, 0.05
MOUNT_OPTIONS = ("rw", "nosuid", "nodev", "noexec", "rbind")


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
            raise self.error(f"{what!r} failed with {code}: {short(text)}")
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
        if self.cgroups is not None:
            await self._let_outlive(self.cgroups)

    async def _let_outlive(self, cgroups: Path) -> None:
        """Move the daemon out of our cgroup. It goes to the background, and may write its pid file a moment later."""
        for _ in range(PID_POLLS):
            if (pid := self.pid()) is not None:
                let_outlive(pid, root=cgroups)
                return
            await asyncio.sleep(PID_POLL_S)
        log.warning("the MPS daemon ends with the agent's container: it has no pid file", folder=str(self.pipe_dir))

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


async def answers(control: MpsControl) -> bool:
    """True if a daemon tells of its servers; what it says instead is logged."""
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


def same(slices: Sequence[SliceLimits], *names: str) -> SliceLimits:
    """Return the first slice. Raises CardError if another differs in what MPS takes once for all cards of a process."""
    for name in names:
        values = {getattr(one, name) for one in slices}
        if len(values) > 1:
            told = ", ".join(f"{one.card_uuid}: {getattr(one, name)}" for one in slices)
            raise CardError(slices[0].card_uuid, f"MPS takes one {name} for all cards of a container, not {told}")
    return slices[0]


def shm(daemon: ControlDaemon) -> Iterable[tuple[str, str, tuple[str, ...]]]:
    """The mount by which clients share memory with the daemon, where it has a folder for that."""
    if daemon.shm_dir is not None:
        yield str(daemon.shm_dir), "/dev/shm", MOUNT_OPTIONS  # noqa: S108 - where CUDA looks
