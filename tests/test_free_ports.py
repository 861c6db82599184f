"""Ports that tests give to programs: a program may come late to its own, and come back to it."""

from __future__ import annotations

import socket
import subprocess
import sys

from tests.conftest import ROOT
from tests.ports import LOOPBACK, PORTS, free_ports

MANY = 300
OTHER = f"from tests.ports import free_ports; print(*free_ports({MANY}), flush=True); input()"
"""It keeps them until it is told to end."""


def test_a_port_is_given_once_also_to_another_run():
    mine = free_ports(MANY)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", OTHER], cwd=ROOT, text=True, **pipes) as other:
        theirs = [int(port) for port in other.stdout.readline().split()]
        more = free_ports(MANY)
    assert len({*mine, *more, *theirs}) == 3 * MANY


def test_a_port_on_which_somebody_listens_is_given_to_nobody(monkeypatch):
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr("tests.ports.PORTS", [port, PORTS[0]])
        assert free_ports(1) == [PORTS[0]]


def test_the_kernel_gives_none_of_these_to_who_names_no_port():
    with socket.socket() as any_port:
        any_port.bind((LOOPBACK, 0))
        assert any_port.getsockname()[1] not in PORTS
