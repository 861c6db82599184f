"""A GPU node of a real cluster: a fake kubelet behind the API server, ``cardwise agent`` as a process of its own."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path

from cardwise.adapters import wire
from tests.e2e.cardwise_plane import wait_for
from tests.fakes.kubelet import ClusterKubelet, FakeKubelet
from tests.fakes.nvml import Node, environment
from tests.ports import free_ports

GPU = wire.OWN_COUNT


class GpuMachine:
    """Use as a context manager: a node, its kubelet and its agent, ready for pods."""

    def __init__(self, cardwise, name, *models, settings=""):
        self.cw, self.name = cardwise, name
        self.folder = Path(tempfile.mkdtemp(prefix="cw-"))  # short: sockets have short names
        self.nvml = Node(self.folder / "nvml", *models)
        self.kubelet = FakeKubelet(self.folder, name)
        self.driven = ClusterKubelet(self.kubelet, cardwise.plane.api, poll_s=0.1)
        self.process = None
        (self.port,) = free_ports(1)
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self):
        self._thread.start()
        self._write_files()
        self.cw.plane.fake_node(self.name)
        self.call(self.kubelet.start())
        self.call(self.driven.start())
        self.start_agent()
        wait_for(lambda: self.node()["status"]["allocatable"].get(GPU, "0") != "0")
        wait_for(lambda: self.name in {each["name"] for each in self.cw.leader.state()["nodes"] if each["cards"]})
        return self

    def __exit__(self, *_exc):
        self.kill_agent(signal.SIGTERM)
        self.call(self.driven.stop())
        self.call(self.kubelet.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, work):
        """Have the kubelet's loop do it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    # ---------------------------------------------------------------- the agent

    def start_agent(self):
        command = [
            sys.executable,
            "-m",
            "cardwise",
            "agent",
            "--node",
            self.name,
            "--config",
            self.folder / "agent.toml",
        ]
        env = {**environment(), "FAKE_NVML_STATE": str(self.nvml.path), "KUBECONFIG": str(self.cw.plane.kubeconfig)}
        with (self.folder / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=env)

    def kill_agent(self, how=signal.SIGKILL):
        if self.process:
            self.process.send_signal(how)
            self.process.wait(20)
            self.process = None

    def log(self):
        return (self.folder / "agent.log").read_text()

    def metrics(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as answer:
            return answer.read().decode()

    # ---------------------------------------------------------------- what is seen

    def node(self):
        return self.cw.plane.api("GET", f"/api/v1/nodes/{self.name}")

    def running(self, pod, container="app"):
        """What the container got, once it runs."""
        return wait_for(lambda: self.driven.running().get(("default", pod, container)))

    def waiting(self, pod):
        """Why the pod's first container does not start, once that is told."""

        def told():
            statuses = self.cw.get(pod).get("status", {}).get("containerStatuses") or [{}]
            return statuses[0].get("state", {}).get("waiting", {}).get("message")

        return wait_for(told)

    def slot_files(self):
        return sorted(path.name for path in (self.folder / "cdi").glob("cardwise*"))

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
            "mps-control": f / "no-mps",
            "host": "127.0.0.1",
        }
        text = "".join(f'{key} = "{value}"\n' for key, value in lines.items())
        (f / "agent.toml").write_text(f'{text}port = {self.port}\ncdi-read-folders = ["{f / "etc"}"]\n{self._settings}')
        devices = [
            {"name": uuid, "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{i}"}]}}
            for i, uuid in enumerate(self.nvml.uuids)
        ]
        (f / "etc").mkdir()
        spec = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices}
        (f / "etc" / "nvidia.json").write_text(json.dumps(spec))
