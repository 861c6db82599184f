"""What the MPS programs print, read. Refuses to guess: what is not understood is None, left out, or a ValueError."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cardwise.adapters.mps.values import MpsClient, MpsServer, Partition

NAME = re.compile(r"[a-z0-9_]{1,64}")
"""Names of servers and namespaces under protocol 3."""


def parse_version(text: str) -> int:
    """Return 13040 from ``… Binary version: 13040``, 0 if there is no such number."""
    found = re.search(r"version:?\s*(\d{5})\b", text, re.IGNORECASE)
    return int(found[1]) if found else 0


def parse_pids(text: str) -> list[int]:
    """Return the PIDs, one a line. Raises ValueError for anything else."""
    words = text.split()
    if not all(re.fullmatch(r"[1-9][0-9]{0,9}", word) for word in words):
        raise ValueError(f"no list of PIDs: {short(text)}")
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
        raise ValueError(f"no list of servers: {short(text)}")
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


def short(text: str) -> str:
    """What a program said, fit for an error."""
    return repr(" ".join(text.split())[:200])
