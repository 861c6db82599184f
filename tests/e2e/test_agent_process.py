"""``cardwise agent`` dies at each step of a container's start: SIGKILL, no chance to tidy up, and started anew.

The steps are held open from outside, with the program as it is: the kubelet does not answer, a driver's call hangs, a
CDI file is a pipe that nobody reads, the journal is locked by another, the log is a pipe that nobody reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.agent.node_port import pod, share
from tests.fakes.kubelet import ContainerError, FakeKubelet
from tests.fakes.nvml import HOUR_MS, Node, environment
from tests.ports import free_ports

GPU = "cardwise.dev/gpu"
DEADLINE_S = 60.0


class Log:
    """The program's stderr: read all the time, unless it is :meth:`stop`\\ ped, and full from then on."""

    def __init__(self):
        self.out, self.into = os.pipe()
        self.text, self._reads = b"", True
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        os.set_blocking(self.out, False)
        while self._reads:
            with contextlib.suppress(BlockingIOError):
                self.text += os.read(self.out, 65536)
            time.sleep(0.01)

    def stop(self):
        """Whoever writes from now on waits."""
        self._reads = False
        self._thread.join()
        other = os.open(f"/proc/self/fd/{self.into}", os.O_WRONLY | os.O_NONBLOCK)  # not ours: that one stays blocking
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(other, b"\n" * 4096)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(other, b"\n")
        os.close(other)

    def close(self):
        self._reads = False
        self._thread.join()
        os.close(self.out)
        os.close(self.into)


class Machine:
    """A node of the control plane with a kubelet and the program. Use as ``async with``."""

    def __init__(self, plane, name, *, driver_loads=True, init_hangs=False, mps_hangs=False):
        self.plane, self.name, self.driver_loads = plane, name, driver_loads
        self.folder = Path(tempfile.mkdtemp(prefix="cw-"))  # short: sockets have short names
        self.nvml = Node(self.folder / "nvml", "A10", "A10", driver="615.71.05", cuda=13040, memory_limits=True)
        if init_hangs:
            self.nvml.hang(-1, "nvmlDeviceGetCount_v2", HOUR_MS)
        elif not driver_loads and not mps_hangs:
            self.nvml.init_fails(9)
        self.mps_hangs = mps_hangs
        self.kubelet = FakeKubelet(self.folder, name)
        self.process, self.log = None, None
        self.bodies = []
        (self.port,) = free_ports(1)
        self._write_files()

    async def __aenter__(self):
        self.plane.fake_node(self.name)
        await self.kubelet.start()
        await self.start_agent()
        if self.driver_loads:
            await self.registered()
        return self

    async def __aexit__(self, *_exc):
        self.kill()
        self.log.close()
        await self.kubelet.stop()
        for body in self.bodies:
            self.plane.answer("DELETE", self._path(body), {"gracePeriodSeconds": 0})
        self.plane.answer("DELETE", f"/api/v1/nodes/{self.name}")
        shutil.rmtree(self.folder, ignore_errors=True)

    async def start_agent(self):
        command = [sys.executable, "-m", "cardwise", "agent", "--node", self.name]
        command += ["--config", str(self.folder / "agent.toml"), "--kubeconfig", str(self.plane.kubeconfig)]
        env = {**environment(), "FAKE_NVML_STATE": str(self.nvml.path)}
        if self.log is not None:
            self.log.close()
        self.log = Log()
        self.process = subprocess.Popen(command, stderr=self.log.into, env=env)

    async def registered(self):
        await self.kubelet.wait_registered(GPU, DEADLINE_S)
        await self.until(lambda: self.kubelet.allocatable(GPU) == 32)

    def kill(self, how=signal.SIGKILL):
        """Fails where it does not end: what hangs here, hangs for a minute or an hour."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(20)
            self.process = None

    async def until(self, what):
        end_s = time.monotonic() + DEADLINE_S
        while not what():
            assert time.monotonic() < end_s, self.log.text.decode()
            await asyncio.sleep(0.01)

    # ---------------------------------------------------------------- pods

    def pod(self, name, mib, pct, card=0):
        """A bound pod of the cluster, and its cgroup."""
        told = pod(name, {"app": [share(self.nvml.uuid(card), mib, pct)]}, node=self.name)
        told["metadata"] = {key: told["metadata"][key] for key in ("name", "annotations")}
        told["spec"] = {"nodeName": self.name, "containers": told["spec"]["containers"]}
        body = self.plane.api("POST", "/api/v1/namespaces/default/pods", told)
        self.bodies.append(body)
        (self.folder / "cgroup" / "kubepods" / f"pod{body['metadata']['uid']}").mkdir(parents=True)
        return body

    def _path(self, body):
        return f"/api/v1/namespaces/default/pods/{body['metadata']['name']}"

    async def start(self, body):
        return await self.kubelet.start_container(body["metadata"]["uid"], "app")

    def delete(self, body):
        self.plane.api("DELETE", self._path(body), {"gracePeriodSeconds": 0})
        self.kubelet.remove_pod(body["metadata"]["uid"])

    # ---------------------------------------------------------------- what is on disk

    def files(self):
        return sorted(path.name for path in (self.folder / "cdi").glob("cardwise*.json"))

    def rows(self):
        """States by pod; nothing while the journal is not there."""
        path = self.folder / "state" / "journal.db"
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            return dict(db.execute("SELECT pod, state FROM handed ORDER BY pod").fetchall())

    def _write_files(self):
        f = self.folder
        lines = {
            "namespace": "default",
            "kubelet-folder": f / "device-plugins",
            "pod-resources-socket": f / "pod-resources" / "kubelet.sock",
            "state-folder": f / "state",
            "run-folder": f / "run",
            "cdi-folder": f / "cdi",
            "proc-folder": f / "proc",
            "cgroup-folder": f / "cgroup",
            "sys-folder": f / "sys",
            "mps-control": f / "mps",
            "host": "127.0.0.1",
        }
        text = "".join(f'{key} = "{value}"\n' for key, value in lines.items())
        (f / "agent.toml").write_text(f'{text}port = {self.port}\ncdi-read-folders = ["{f / "etc"}"]\n')
        if self.mps_hangs:
            (f / "mps").write_text("#!/bin/sh\nsleep 60\n")
            (f / "mps").chmod(0o755)
        for folder in ("etc", "cgroup"):
            (f / folder).mkdir()
        (f / "cgroup" / "cgroup.controllers").touch()
        devices = [
            {"name": uuid, "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{i}"}]}}
            for i, uuid in enumerate(self.nvml.uuids)
        ]
        spec = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices}
        (f / "etc" / "nvidia.json").write_text(json.dumps(spec))


# ---------------------------------------------------------------- the steps, held open


@contextlib.asynccontextmanager
async def before_the_row(machine):
    """The kubelet does not say whose the slots are."""
    calls = machine.kubelet.pod_resources.calls
    machine.kubelet.list_delay = 60
    yield lambda: machine.kubelet.pod_resources.calls > calls
    machine.kubelet.list_delay = 0


@contextlib.asynccontextmanager
async def after_the_row(machine):
    """Putting the limit in force hangs."""
    machine.nvml.hang(0, "nvmlDeviceSetMemoryLimits_v1", HOUR_MS)
    yield lambda: machine.rows().get("victim") == "preparing"
    machine.nvml.heal()


@contextlib.asynccontextmanager
async def after_the_limits(machine):
    """Writing the slot's file waits for ever: it is a pipe."""
    pipes = [machine.folder / "cdi" / f"cardwise.dev-slot-{i:03}.{machine.process.pid}.tmp" for i in range(32)]
    for pipe in pipes:
        os.mkfifo(pipe)
    yield lambda: _waits_in(machine.process.pid, "wait_for_partner")
    for pipe in pipes:
        pipe.unlink(missing_ok=True)


@contextlib.asynccontextmanager
async def after_the_file(machine):
    """The journal is locked as soon as the row is there: the file can be written, and the row cannot say ready."""
    machine.nvml.hang(0, "nvmlDeviceSetMemoryLimits_v1", HOUR_MS)
    db = sqlite3.connect(machine.folder / "state" / "journal.db", isolation_level=None)

    def reached():
        if not db.in_transaction and machine.rows().get("victim") == "preparing":
            db.execute("BEGIN IMMEDIATE")
            machine.nvml.heal()
        return len(machine.files()) == 2

    yield reached
    db.close()


@contextlib.asynccontextmanager
async def after_ready(machine):
    """The log takes nothing: the line after the last step waits, and the answer with it."""
    machine.log.stop()
    yield lambda: machine.rows().get("victim") == "ready"


def _waits_in(pid, function):
    """Whether a thread of the process sleeps there, in the kernel."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            if function in (task / "wchan").read_text():
                return True
    return False


STEPS = [before_the_row, after_the_row, after_the_limits, after_the_file, after_ready]


@pytest.mark.parametrize("step", STEPS)
async def test_an_agent_that_is_killed_in_a_start_and_comes_back_gives_the_container_its_own(control_plane, step):
    async with Machine(control_plane, f"gpu-{step.__name__.replace('_', '-')}") as machine:
        other = machine.pod("other", 2000, 10)
        await machine.kubelet.run_pod(other)
        victim = machine.pod("victim", 20000, 80)
        await machine.kubelet.admit(victim)
        async with step(machine) as reached:
            starting = asyncio.ensure_future(machine.start(victim))
            await machine.until(reached)
            assert not starting.done()
            machine.kill()
            with pytest.raises(ContainerError):
                await starting
        await machine.start_agent()
        await machine.registered()
        with pytest.raises(ContainerError, match="are asked"):  # nothing is lost: the victim has slots, and its hold
            await machine.kubelet.run_pod(machine.pod("third", 2000, 5))
        started = await machine.start(victim)
        assert started.env["CARDWISE_MEMORY_MIB"] == "20000"
        assert started.env["CARDWISE_CARDS"] == machine.nvml.uuid(0)
        assert (await machine.start(other)).env["CARDWISE_MEMORY_MIB"] == "2000"  # nothing is counted twice
        assert machine.rows() == {"other": "ready", "victim": "ready"}
        for body in machine.bodies[:3]:
            machine.delete(body)
        await machine.until(lambda: not machine.files() and not machine.rows())


@pytest.mark.parametrize("step", STEPS)
async def test_an_agent_that_is_killed_in_a_start_leaves_nothing_of_a_pod_that_is_gone_when_it_comes_back(
    control_plane, step
):
    async with Machine(control_plane, f"gone-{step.__name__.replace('_', '-')}") as machine:
        other = machine.pod("other", 2000, 10)
        await machine.kubelet.run_pod(other)
        victim = machine.pod("victim", 20000, 80)
        await machine.kubelet.admit(victim)
        async with step(machine) as reached:
            starting = asyncio.ensure_future(machine.start(victim))
            await machine.until(reached)
            machine.kill()
            with pytest.raises(ContainerError):
                await starting
        machine.delete(victim)
        await machine.start_agent()
        await machine.registered()
        await machine.until(lambda: machine.rows() == {"other": "ready"} and len(machine.files()) == 1)
        next_one = machine.pod("next", 20000, 80)
        assert (await machine.kubelet.run_pod(next_one))["app"].env["CARDWISE_MEMORY_MIB"] == "20000"


async def test_a_stopped_agent_ends_while_a_card_hangs_in_all_ways(control_plane):
    """The hour for which the card hangs it does not wait."""
    async with Machine(control_plane, "gpu-hung") as machine:
        machine.nvml.hang(0, "nvmlDeviceSetMemoryLimits_v1", HOUR_MS)
        machine.nvml.hang(1, "nvmlDeviceGetPowerUsage", HOUR_MS)
        body = machine.pod("a", 2000, 10)
        starting = asyncio.ensure_future(machine.kubelet.run_pod(body))
        await machine.until(lambda: machine.rows() == {"a": "preparing"})
        await asyncio.sleep(1.5)
        await asyncio.to_thread(machine.kill, signal.SIGTERM)
        with pytest.raises(ContainerError):
            await starting
        assert machine.rows() in ({}, {"a": "preparing"})


async def test_an_agent_that_waits_for_a_driver_says_so_and_ends_when_told(control_plane):
    async with Machine(control_plane, "gpu-bare", driver_loads=False) as machine:
        await machine.until(lambda: b"no cards can be offered" in machine.log.text)
        process = machine.process
        await asyncio.to_thread(machine.kill, signal.SIGTERM)
        assert process.returncode == 0


def page(machine, path):
    """Status and body; nothing while nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{machine.port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


async def seen(machine, path):
    return await asyncio.to_thread(page, machine, path)


async def test_an_agent_tells_of_itself_while_the_driver_does_not_answer_and_ends_when_told(control_plane):
    async with Machine(control_plane, "gpu-mute", driver_loads=False, init_hangs=True) as machine:
        await machine.until(lambda: b"the driver has not answered for" in machine.log.text)
        status, text = await seen(machine, "/readyz")
        assert (status, text[:31]) == (503, "the driver has not answered for")
        assert (await seen(machine, "/metrics"))[0] == 200
        await asyncio.to_thread(machine.kill, signal.SIGTERM)


async def test_an_agent_ends_when_told_while_the_mps_program_hangs(control_plane):
    async with Machine(control_plane, "gpu-probe", driver_loads=False, mps_hangs=True) as machine:
        await machine.until(lambda: b"metrics are told" in machine.log.text)
        await asyncio.sleep(1)
        await asyncio.to_thread(machine.kill, signal.SIGTERM)


async def test_a_second_agent_waits_and_takes_over_when_the_first_ends(control_plane):
    async with Machine(control_plane, "gpu-two") as machine:
        first, log = machine.process, machine.log
        machine.log = None
        await machine.start_agent()
        await machine.until(lambda: b"another agent runs here" in machine.log.text)
        before = machine.kubelet.devices.endpoints.get(GPU)
        assert await machine.kubelet.run_pod(machine.pod("a", 20000, 50))
        await asyncio.to_thread(end, first)
        log.close()
        await machine.until(lambda: machine.kubelet.devices.endpoints.get(GPU) is not before)
        await machine.registered()
        with pytest.raises(ContainerError, match="are asked"):
            await machine.kubelet.run_pod(machine.pod("b", 20000, 50))


def end(process):
    process.send_signal(signal.SIGKILL)
    process.wait(20)
