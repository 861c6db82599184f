"""A stand-in for nvidia-cuda-mps-control: the documented dialogue of protocols 2 and 3, and the ways it goes wrong.

Run as a program only; ``tests.fakes.mps`` installs it under the real name. The daemon (``daemon.py``) is a process of
its own, in the background, with its pid file and sockets in the pipe directory; what it knows dies with it. Both read
their script at every command, so that a test turns a fault on and off while the daemon runs. This half imports next to
nothing: a test runs it dozens of times.
"""

from __future__ import annotations

import _socket  # socket itself takes longer to import than all else here
import marshal
import os
import sys
import time

NO_DAEMON = "Cannot find MPS control daemon process"
RUNNING = "An instance of this daemon is already running"


def script():
    """Return the faults of this moment; the file is replaced as a whole."""
    with open(os.environ["FAKE_MPS_SCRIPT"], "rb") as file:  # noqa: PTH123 - pathlib takes long to import
        return marshal.load(file)  # noqa: S302 - written by the test


def ask(words):
    """Return status and text of what the daemon answers; no text if it dies of the question. Raises OSError."""
    wire = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        wire.connect(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps") + "/control")  # noqa: S108
        wire.send(marshal.dumps(words))
        told = b"".join(iter(lambda: wire.recv(1 << 16), b""))
    finally:
        wire.close()
    return marshal.loads(told) if told else (0, "")  # noqa: S302 - from our own daemon


def start(args, plan):
    if "-p" in args and plan.get("version", 13040) < 13040:
        return say(1, "nvidia-cuda-mps-control: invalid option -- 'p'")
    if plan.get("start_fails"):
        return say(1, plan["start_fails"])
    try:
        ask(["protocol"])
    except OSError:
        import daemon  # noqa: PLC0415 - see above

        return daemon.start(args, plan)
    return say(1, RUNNING)


def say(code, text):
    if text:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    return code


def command(words, plan):
    line = " ".join(words)
    if any(line.startswith(hung) for hung in plan.get("hangs", ())):
        time.sleep(60)
    if any(line.startswith(lied) for lied in plan.get("garbage", ())):
        return say(0, "~~~ not, an, answer ~~~")
    try:
        protocol = ask(["protocol"])[1]
        if (protocol == "3") != (words[0] in {"server", "namespace", "client"}) and words[0] != "quit":
            return say(1, f"Unknown command: {line}")
        return say(*ask(words))
    except OSError:
        return say(1, NO_DAEMON)


def main(args):
    plan = script()
    version = plan.get("version", 13040)
    if "-v" in args:
        return say(0, f"CUDA MPS Control binary version: {version}") if version else say(1, "invalid option -- 'v'")
    if "-d" in args or "-f" in args:
        return start(args, plan)
    if args:
        return command(["quit"] if "-q" in args else args, plan)
    code = 0
    for line in sys.stdin:
        if line.strip():
            code = command(line.split(), plan)
    return code
