"""Ports on loopback that nobody else gets meanwhile."""

from __future__ import annotations

import contextlib
import random
import socket
import sys
from collections.abc import Iterator

LOOPBACK = "127.0.0.1"
PORTS = range(12000, 32000)
"""Below those that the kernel gives to whoever names none."""


def free_ports(count: int) -> list[int]:
    """Loopback ports on which nobody listens, all different. They are this process's own for as long as it lives.

    So a program may come late to its port, and come back to it: neither the kernel nor another run of tests gives it
    away meanwhile.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = random.choice(PORTS)  # noqa: S311
        if _claimed(port):
            ports.append(port)
    return ports


def _claimed(port: int) -> bool:
    """Whether it is ours from now on: by a name that all see who share our ports, and that ends with this process."""
    name = socket.socket(socket.AF_UNIX)
    try:
        if sys.platform == "linux":  # nobody else has such names
            name.bind(f"\0cardwise-test-port-{port}")
        with socket.socket() as probe:
            probe.bind((LOOPBACK, port))
    except OSError:
        name.close()
        return False
    name.detach()
    return True


@contextlib.contextmanager
def deaf_port() -> Iterator[int]:
    """A port at which nobody listens, until the ``with`` ends."""
    with socket.socket() as deaf:
        deaf.bind((LOOPBACK, 0))
        yield deaf.getsockname()[1]
