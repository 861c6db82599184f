"""What one client may take of a server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may take. Sizes in bytes, times in seconds.

    buffered: of the bodies of all unanswered requests together; beyond it requests with a body are refused with 503.
    idle_s: between requests. head_s: from the first byte of a head to its last. body_s: for the body. write_s: how long
    a client may read nothing of an answer.
    """

    connections: int = 16384
    head: int = 32 * 2**10
    headers: int = 100
    body: int = 16 * 2**20
    buffered: int = 512 * 2**20
    idle_s: float = 75.0
    head_s: float = 10.0
    body_s: float = 60.0
    write_s: float = 30.0
