"""Protocol 2, of every driver: one ceiling per daemon; a slice below it rests on variables in the container."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cardwise.adapters.mps.daemon import MOUNT_OPTIONS, ControlDaemon, answers, same, shm
from cardwise.adapters.mps.parsing import parse_memory, parse_partitions, parse_pct, parse_pids, parse_ps, short
from cardwise.adapters.mps.values import Limits, MpsClient, MpsEdits, MpsServer, Partition, SliceLimits, difference
from cardwise.errors import CardError

SERVER_POLLS, SERVER_POLL_S = 100, 0.05
"""A server needs about 0.3 s for its context on a T4 (a log of R580); 5 s is ample."""


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
        return await answers(self)

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
                    raise self.daemon.error(f"client {pid} not terminated: {short(told)}")

    async def add_partition(self, wanted: SliceLimits, chunks: int) -> str:
        """Carve SMs out for one slice; returns the partition's name. Raises CardError if they are not free."""
        if wanted.name not in self._partitions:
            told = await self._say(f"sm_partition add {wanted.card_uuid} {chunks}")
            if not re.fullmatch(rf"{re.escape(wanted.card_uuid)}/\S+", told):
                raise self.daemon.error(f"no partition of {chunks} chunks: {short(told)}")
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


def edits_v2(
    daemon: ControlDaemon, slices: Sequence[SliceLimits], partitions: Mapping[str, str] | None = None
) -> MpsEdits:
    """Return what a container with these slices needs under protocol 2. partitions: slot → static SM partition.

    The memory variable names the container's own cards only: one entry too many would lift every limit.
    """
    first = same(slices, "compute_pct", "low_priority")
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
    return MpsEdits(env, ((pipe, pipe, MOUNT_OPTIONS), *shm(daemon)))
