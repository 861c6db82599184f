"""The daemon of the stand-in for nvidia-cuda-mps-control: what it knows and what it answers.

Source: MPS documentation 615, pages "Legacy MPS v2 Interface", "MPS v3 Interface", "MPS v3 Namespaces" and "Common
Tasks". Where those pages show no output (a limit that is not set, an unknown command), the text is a guess.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import re
import signal
import socket
import time
from pathlib import Path

from control import script  # our own folder is on the path: see control.py

PID_FILE = "nvidia-cuda-mps-control.pid"
NAME = re.compile(r"[a-z0-9_]{1,64}")
PS_HEAD = "PID ID SERVER DEVICE NAMESPACE COMMAND"
LSPART_HEAD = (
    "GPU           Partition   free   used   free  used  clients\n                          chunk  chunk  SM    SM"
)
CHUNKS, SMS_PER_CHUNK = 10, 8  # as in the documentation's example


def pipe_dir():
    return Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])


def shown(limit, floors):
    """A limit as the daemon tells it. R595 tells whole gibibytes only, rounded down, from one on."""
    mib = {"K": 1 / 1024, "M": 1, "G": 1024}[limit[-1]] * int(limit[:-1])
    if mib % 1024 == 0 or (floors and mib >= 1024):
        return f"{int(mib // 1024)}G"
    return f"{int(mib)}M"


class Daemon:
    """What the daemon knows. Nothing of it is written down: a new daemon begins anew, as the real one does."""

    def __init__(self, protocol, static, multiuser):
        self.protocol, self.static, self.multiuser = protocol, static, multiuser
        self.default = {"pct": "100.0", "priority": "0", "memory": {}}
        self.servers = {}
        self.partitions = {}
        self.commands = 0
        self.sockets = []

    # what both protocols do

    def answer(self, words):
        plan = script()
        self.commands += 1
        if plan.get("die_after") is not None and self.commands > plan["die_after"]:
            os._exit(1)
        with Path(os.environ["FAKE_MPS_SCRIPT"]).with_suffix(".log").open("a") as log:
            log.write(" ".join(words) + "\n")
        verb = getattr(self, f"v{self.protocol}_" + words[0].replace("-", "_"), None)
        return verb(words[1:], plan) if verb else (1, f"Unknown command: {' '.join(words)}")

    def clients(self, plan):
        return plan.get("clients", [])

    def status(self, plan):
        return "FAULT" if plan.get("fault") else ("ACTIVE" if self.protocol == 2 else "Ready")

    def spawn(self, name, uid, devices=""):
        absent = set(filter(None, devices.split(","))) - set(script().get("cards", devices.split(",")))
        if absent:
            return  # the documented trap: it is said to succeed, and the server dies
        taken = {server["pid"] for server in self.servers.values()}
        pid = next(pid for pid in range(os.getpid() + 100_000, os.getpid() + 200_000) if pid not in taken)
        memory, pct = dict(self.default["memory"]), self.default["pct"]
        self.servers[name] = {"pid": pid, "uid": uid, "devices": devices, "memory": memory, "pct": pct, "spaces": {}}

    def server(self, pid):
        return next((server for server in self.servers.values() if str(server["pid"]) == str(pid)), None)

    # protocol 2: a shell

    def v2_get_server_list(self, _args, _plan):
        return 0, "\n".join(str(server["pid"]) for server in self.servers.values())

    def v2_start_server(self, args, plan):
        if plan.get("no_server"):
            return 0, ""
        uid = "0" if self.multiuser else args[1]
        self.servers or self.spawn(f"uid_{uid}", uid)
        return 0, ""

    def v2_get_server_status(self, args, plan):
        return (0, self.status(plan)) if self.server(args[0]) else (1, f"Server {args[0]} not found")

    def v2_get_client_list(self, args, plan):
        return 0, "\n".join(str(c["pid"]) for c in self.clients(plan) if self.server(args[0]))

    def v2_ps(self, _args, plan):
        pid = next((server["pid"] for server in self.servers.values()), 0)
        rows = [
            f"{c['pid']} {n} {pid} {c.get('device', 'GPU-0')[:22]} 4026531836 {c.get('command', 'python train.py')}"
            for n, c in enumerate(self.clients(plan))
        ]
        return 0, "\n".join([PS_HEAD, *rows])

    def v2_set_default_active_thread_percentage(self, args, plan):
        if "compute" not in plan.get("ignore", ()):
            self.default["pct"] = str(float(args[0]))
        return 0, ""

    def v2_get_default_active_thread_percentage(self, _args, _plan):
        return 0, self.default["pct"]

    def v2_set_active_thread_percentage(self, args, plan):
        if self.server(args[0]) and "compute" not in plan.get("ignore", ()):
            self.server(args[0])["pct"] = str(float(args[1]))
        return 0, ""

    def v2_get_active_thread_percentage(self, args, _plan):
        return 0, self.server(args[0])["pct"]

    def v2_set_default_device_pinned_mem_limit(self, args, plan):
        if "memory" not in plan.get("ignore", ()):
            self.default["memory"][args[0]] = args[1]
        return 0, ""

    def v2_get_default_device_pinned_mem_limit(self, args, plan):
        limit = self.default["memory"].get(args[0])
        return (0, shown(limit, plan.get("floors"))) if limit else (0, "No limit set")

    def v2_set_device_pinned_mem_limit(self, args, plan):
        if self.server(args[0]) and not {"memory", "server memory"} & set(plan.get("ignore", ())):
            self.server(args[0])["memory"][args[1]] = args[2]
        return 0, ""

    def v2_get_device_pinned_mem_limit(self, args, plan):
        limit = self.server(args[0])["memory"].get(args[1])
        return (0, shown(limit, plan.get("floors"))) if limit else (0, "No limit set")

    def v2_terminate_client(self, args, plan):
        known = any(str(c["pid"]) == args[1] for c in self.clients(plan))
        return (0, "0") if known and self.server(args[0]) else (0, "1")

    def v2_sm_partition(self, args, _plan):
        if not self.static:
            return 1, "Static partitioning is not enabled"
        if args[0] == "rm":
            card, _, bare = args[1].partition("/")
            gone = self.partitions.pop((card, bare or args[2]), None)
            return (0, "") if gone else (1, "No such partition")
        card, chunks = args[1], int(args[2])
        if sum(n for (other, _), n in self.partitions.items() if other == card) + chunks > CHUNKS:
            return 1, (
                f"Failed to fulfill the requested SM partition of {chunks} chunks, "
                "error CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"
            )
        bare = f"{chr(ord('A') + len(self.partitions))}x4" + "A" * 33
        self.partitions[card, bare] = chunks
        return 0, f"{card}/{bare}"

    def v2_lspart(self, _args, plan):
        lines = [LSPART_HEAD]
        for card in plan.get("cards", sorted({card for card, _ in self.partitions})):
            used = sum(n for (other, _), n in self.partitions.items() if other == card)
            free = CHUNKS - used
            lines.append(f"{card[:12]}  -   {free}   {used}   {free * SMS_PER_CHUNK}  {used * SMS_PER_CHUNK}  -")
            lines += [
                f"{card[:12]}  {bare}   -   {n}   -  {n * SMS_PER_CHUNK}  -"
                for (other, bare), n in self.partitions.items()
                if other == card
            ]
        return 0, "\n".join(lines)

    def v2_quit(self, _args, _plan):
        raise SystemExit(0)

    # protocol 3: module and verb

    def v3_quit(self, _args, _plan):
        raise SystemExit(0)

    def v3_server(self, args, plan):
        verb, (named, flags) = args[0], split(args[1:])
        if verb == "create":
            if not NAME.fullmatch(named[0]):
                return 1, f"Invalid server name: {named[0]}"
            if named[0] in self.servers:
                return 1, f"Server {named[0]} already exists"
            uid = flags.get("uid", str(os.getuid()))
            if self.multiuser and uid != "0":
                return 1, "NOT_PERMITTED"
            self.spawn(named[0], uid, flags.get("allowed-devices", ""))
            if named[0] in self.servers:
                self.listen(named[0])
            return 0, ""
        if verb == "delete":
            return (0, "") if self.servers.pop(named[0], None) else (1, f"Server {named[0]} not found")
        rows = [
            f"{name},{s['uid']},{s['pid']},{self.status(plan)},{pipe_dir() / name},{s['devices'] or '-'},-"
            for name, s in self.servers.items()
            if not named or name == named[0]
        ]
        return table("name,uid,pid,status,pipe-directory,allowed-devices,context-ids", rows, flags)

    def v3_namespace(self, args, plan):
        verb, (named, flags) = args[0], split(args[1:])
        if verb == "get":
            flags["server"] = named[1]
        if verb == "list" and "server" not in flags:
            return 1, "this fake lists one server's namespaces"
        server = self.servers.get(flags["server"])
        if server is None:
            return 1, f"Server {flags['server']} not found"
        spaces, where = server["spaces"], pipe_dir() / flags["server"]
        if verb == "list":
            rows = [
                ",".join(
                    [
                        name,
                        flags["server"],
                        self.status(plan),
                        *self.told(space, plan),
                        str(plan.get("elsewhere") or where / name),
                    ]
                )
                for name, space in spaces.items()
                if not named or name == named[0]
            ]
            head = "name,server,server-status,pinned-memory-limit,active-thread-percentage,client-priority"
            return table(head + ",pipe-directory", rows, flags)
        verb = getattr(self, f"v3_namespace_{verb}")
        if verb == self.v3_namespace_create:
            return verb(flags["server"], spaces, named[0])
        return verb(where, spaces, named, flags, plan) if named[0] in spaces else (1, f"Namespace {named[0]} not found")

    def v3_namespace_create(self, server, spaces, name):
        if not NAME.fullmatch(name) or name in spaces:
            return 1, f"Cannot create namespace {name}"
        spaces[name] = {"memory": None, "pct": None, "priority": "0"}
        self.listen(server, name)
        return 0, ""

    def v3_namespace_delete(self, where, spaces, named, _flags, _plan):
        del spaces[named[0]]
        (where / named[0] / "control").unlink()
        (where / named[0]).rmdir()
        return 0, ""

    def v3_namespace_get(self, where, spaces, named, _flags, plan):
        fields = ["pinned-memory-limit", "active-thread-percentage", "client-priority"]
        told = dict(zip(fields, self.told(spaces[named[0]], plan), strict=True))
        return 0, {**told, "pipe-directory": str(where / named[0])}[named[2]]

    def v3_namespace_set(self, _where, spaces, named, flags, plan):
        keys = {"pinned-memory-limit": "memory", "active-thread-percentage": "pct", "client-priority": "priority"}
        ignored = [{"memory": "memory", "compute": "pct"}.get(one) for one in plan.get("ignore", ())]
        for flag, value in flags.items():
            if flag != "server" and keys[flag] not in ignored:
                spaces[named[0]][keys[flag]] = value
        return 0, ""

    def told(self, space, plan):
        memory = shown(space["memory"], plan.get("floors")) if space["memory"] else "-"
        return [memory, space["pct"] or "-", space["priority"]]

    def v3_client(self, args, plan):
        verb, (named, flags) = args[0], split(args[1:])
        if verb == "terminate":
            known = any(str(c["pid"]) == named[0] for c in self.clients(plan))
            return (0, "") if known else (1, f"Client {named[0]} not found")
        name = next(iter(self.servers), "none")
        rows = [
            f"{c['pid']},{c.get('server', name)},{c.get('ordinal', 0)},{c.get('namespace', 'default')},"
            f"{c.get('command', 'python train.py')}"
            for c in self.clients(plan)
        ]
        return table("pid,server,device,namespace,command", rows, flags)

    def listen(self, *names):
        folder = pipe_dir().joinpath(*names)
        folder.mkdir(parents=True, exist_ok=True)
        self.sockets.append(bound(folder / "control"))


def split(args):
    flags = {}
    for arg in args:
        if arg.startswith("--"):
            key, _, value = arg[2:].partition("=")
            flags[key] = value
    return [arg for arg in args if not arg.startswith("--")], flags


def table(head, rows, flags):
    return 0, "\n".join(rows if "noheader" in flags.get("format", "") else [head, *rows])


def bound(path):
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(16)
    return listener


def serve(daemon, listener):
    pidfile = pipe_dir() / PID_FILE
    time.sleep(script().get("late_pid_s", 0))
    pidfile.write_text(f"{os.getpid()}\n")
    while True:
        connection, _ = listener.accept()
        # a client may be killed between its question and our answer: no reason for the real daemon to die, nor for us
        with connection, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if not (question := connection.recv(1 << 16)):
                continue
            words = marshal.loads(question)  # noqa: S302 - from our own client
            try:
                told = daemon.answer(words) if words != ["protocol"] else (0, str(daemon.protocol))
            except SystemExit:
                (pipe_dir() / "control").unlink(missing_ok=True)
                pidfile.unlink(missing_ok=True)  # last: who waits for that may start the next daemon
                raise
            connection.sendall(marshal.dumps(told))


def start(args, plan):
    """Start a daemon, in the foreground or not; the arguments and the script are the program's."""
    protocol = int(args[args.index("-p") + 1]) if "-p" in args else 2
    Path(os.environ["CUDA_MPS_LOG_DIRECTORY"]).mkdir(parents=True, exist_ok=True)
    listener = bound(pipe_dir() / "control")
    daemon = Daemon(protocol, "-S" in args, "-multiuser-server" in args or "-m" in args)
    if "-d" in args:
        if os.fork():
            return 0
        os.setsid()
        if os.fork():
            os._exit(0)
        if not plan.get("keeps_output"):
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    # nobody is left behind if a test run is killed
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.alarm(120)
    serve(daemon, listener)
    return 0
