"""A whole GPU node for tests: the fake driver, the fake kubelet, the container toolkit's file, and the real agent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

from cardwise.adapters import wire
from cardwise.adapters.nvml.driver import Driver
from cardwise.agent.main import build
from cardwise.agent.settings import Settings
from tests.agent.node_port import NODE, NodePort, pod, share
from tests.fakes.kubelet import FakeKubelet
from tests.fakes.nvml import HOUR_MS, Node, load

GPU = wire.OWN_COUNT
DEADLINE_S = 60.0
LASTS_S = 3.0
"""A sample takes a thousandth of it."""


class GpuNode:
    """Use as ``async with GpuNode("A10") as node``. settings: what differs from the usual."""

    def __init__(self, *models, settings=None, toolkit=True, **more):
        self.folder = Path(tempfile.mkdtemp(prefix="cw-"))  # short: sockets have short names
        load()
        self.nvml = Node(self.folder / "nvml", *(models or ("A10",)), **more).use(os.environ)
        self.kubelet = FakeKubelet(self.folder, NODE)
        self.port = NodePort()
        self.agent = None
        self._gone = None
        self.driver = None
        self.built = lambda _agent: None  # called with an agent that does not run yet
        self._settings = settings or {}
        self._stack = contextlib.AsyncExitStack()
        if toolkit:
            self.write_toolkit()

    async def __aenter__(self):
        try:
            await self.kubelet.start()
            await self.start_agent()
            await self.registered()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_exc):
        await self.stop_agent()
        await self.kubelet.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---------------------------------------------------------------- the agent

    def settings(self):
        f = self.folder
        told = {
            "kubelet_folder": str(f / "device-plugins"),
            "pod_resources_socket": str(f / "pod-resources" / "kubelet.sock"),
            "state_folder": str(f / "state"),
            "run_folder": str(f / "run"),
            "cdi_folder": str(f / "cdi"),
            "cdi_read_folders": (str(f / "etc"), str(f / "cdi")),
            "proc_folder": str(f / "proc"),
            "cgroup_folder": str(f / "cgroup"),
            "sys_folder": str(f / "sys"),
            "mps_control": str(f / "no-mps"),
            "host": "127.0.0.1",
            "port": 0,
            "sample_every_s": 0.05,
            **self._settings,
        }
        return Settings(**told)

    async def start_agent(self):
        """Start the agent, or start it anew."""
        self._stack = contextlib.AsyncExitStack()
        self.driver = Driver(sys_root=self.folder / "sys")
        self.driver.open()
        self._stack.callback(self._close_driver)
        self.agent = await build(self.port, self.settings(), NODE, self.driver, self.driver.facts())
        self.agent.registering.look_s = self.agent.using.look_s = 0.05
        self.agent.sweeping.period_s, self.agent.sweeping.soon_s = 0.1, 0.01
        self.agent.using.event_wait_ms = 50
        self.built(self.agent)
        self.metrics_port = await self._stack.enter_async_context(self.agent.running())

    def _close_driver(self):
        if self.agent is None or not self.agent.hung:  # as main.run does
            self.driver.close()

    async def stop_agent(self):
        self._gone = self.kubelet.devices.endpoints.get(GPU)
        await self._stack.aclose()

    async def restart_agent(self):
        await self.stop_agent()
        await self.start_agent()
        await self.registered()

    async def registered(self, timeout_s=DEADLINE_S):
        """Until the kubelet has this agent's slots, not only those that it remembers of the one before."""
        await self.until(lambda: self.kubelet.devices.endpoints.get(GPU) is not self._gone, "not registered anew")
        await self.kubelet.wait_registered(GPU, timeout_s)
        await self.until(lambda: self.kubelet.allocatable(GPU) == self._healthy(), "not the agent's slots")
        await self.until(self._hears, "it does not hear of events")

    def _hears(self):
        """Whether the driver tells events of all cards that do not hang: what happens before is told to nobody."""
        hang = {self.nvml.uuid(int(line.split()[1])) for line in self.nvml._lines if line.startswith("hang")}
        watches, cards = self.driver._watches, {card.uuid for card in self.agent.inventory.facts.cards}
        return all(uuid in watches and watches[uuid][1].returned for uuid in cards - hang)

    def _healthy(self):
        return sum(device.healthy for device in self.agent.plugin.devices())

    # ---------------------------------------------------------------- things around it

    def write_toolkit(self, names=None):
        """As nvidia-ctk writes it: devices by number and by UUID, and what every container with a card gets."""
        devices = [
            {"name": name, "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{i}"}]}}
            for i, uuid in enumerate(self.nvml.uuids)
            for name in names or (str(i), uuid)
        ]
        spec = {
            "cdiVersion": "0.6.0",
            "kind": "nvidia.com/gpu",
            "devices": devices,
            "containerEdits": {
                "env": ["NVIDIA_VISIBLE_DEVICES=void"],
                "deviceNodes": [{"path": "/dev/nvidiactl"}],
                "mounts": [{"hostPath": "/usr/lib/libcuda.so.1", "containerPath": "/usr/lib/libcuda.so.1"}],
            },
        }
        (self.folder / "etc").mkdir(exist_ok=True)
        (self.folder / "etc" / "nvidia.json").write_text(json.dumps(spec))

    def uuid(self, card=0):
        return self.nvml.uuid(card)

    def pod(self, name, mib=4096, pct=20, *, card=0, **more):
        """A bound pod with one container and one card, known to the cluster."""
        return self.bound(pod(name, {"app": [share(self.uuid(card), mib, pct)]}, **more))

    def bound(self, body, *, told=True):
        self.port.put(body, told=told)
        return body

    async def run(self, body):
        """Admit the pod and start its containers; by container what each got."""
        return await self.kubelet.run_pod(body)

    async def delete(self, body):
        """The pod is gone from the API and from the kubelet."""
        self.port.remove(body)
        self.kubelet.remove_pod(body["metadata"]["uid"])

    async def hung(self, card=0):
        """A card's samples do not return from now on, and one has not: its worker, which the test has to itself."""
        self.nvml.hang(card, "nvmlDeviceGetPowerUsage", HOUR_MS)
        told_s, worker = time.monotonic(), self.agent.using.cards._workers[self.uuid(card)]

        def hangs():
            """Or the one that had begun by then hangs already: it lasts."""
            since_s = worker.since_s
            return since_s is not None and (since_s > told_s or time.monotonic() - since_s > LASTS_S)

        await self.until(hangs, "it does not hang")
        return worker

    def slot_files(self):
        return sorted(path.name for path in (self.folder / "cdi").glob("cardwise*"))

    async def until(self, what, complaint="not yet"):
        end_s = asyncio.get_running_loop().time() + DEADLINE_S
        while not what():
            assert asyncio.get_running_loop().time() < end_s, complaint
            await asyncio.sleep(0.01)
