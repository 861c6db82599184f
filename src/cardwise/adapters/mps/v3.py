"""Protocol 3, from R615 on: every slice is a namespace with limits of its own, chosen by the socket that is mounted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cardwise.adapters.mps.daemon import MOUNT_OPTIONS, ControlDaemon, answers, same, shm
from cardwise.adapters.mps.parsing import NAME, parse_clients, parse_memory, parse_pct, parse_servers
from cardwise.adapters.mps.values import Limits, MpsClient, MpsEdits, MpsServer, SliceLimits

SERVER = "cardwise"
"""Our one server under protocol 3: it serves all cards, for a container of several cards joins one namespace."""


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
        return await answers(self)

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


def namespace_name(slot: str) -> str:
    """Return a slot's namespace: small letters, digits and underscores, 64 at most."""
    name = re.sub(r"[^a-z0-9]", "_", slot.lower())
    if not NAME.fullmatch(name) or name == "default":
        raise ValueError(f"no name of a namespace: {slot!r}")
    return name


def edits_v3(daemon: ControlDaemon, slices: Sequence[SliceLimits]) -> MpsEdits:
    """Return what a container with these slices needs under protocol 3: its first slice's namespace, and no other."""
    first = same(slices, "client_mib", "compute_pct", "low_priority")
    pipe = str(daemon.socket_dir(SERVER, namespace_name(first.name)))
    return MpsEdits({"CUDA_MPS_PIPE_DIRECTORY": pipe}, ((pipe, pipe, MOUNT_OPTIONS), *shm(daemon)))
