"""What the agent costs on a node of 8 cards, and how long the kubelet waits for it.

``cardwise agent`` as a process, on a real API server, between a fake driver (8 H100, 48 slices with a process each,
sampled each second) and the fake kubelet. ``echo`` is the floor: the same gRPC calls, answered without looking.

Run: ``python -m benchmarks.agent`` (needs the tests' control plane, see CONTRIBUTING).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
from rich import box
from rich.console import Console
from rich.table import Table
from tests.controlplane.plane import ControlPlane
from tests.fakes.kubelet import FakeKubelet
from tests.fakes.nvml import Node, environment

from cardwise.adapters import wire
from cardwise.adapters.allocations import encode
from cardwise.adapters.kubelet.device_plugin import Device, serving
from cardwise.adapters.kubelet.proto import deviceplugin_pb2 as pb
from cardwise.adapters.kubelet.proto import deviceplugin_pb2_grpc as pb_grpc
from cardwise.core.allocation import Allocation, Share

NODE, CARDS, PER_CARD = "gpu-1", 8, 6
SLICE_MIB, SLICE_PCT = 8192, 15
ROUNDS = 600
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=30.0, help="how long to watch the idle agent")
    seconds = options.parse_args().seconds
    folder = Path(tempfile.mkdtemp(prefix="cw-"))  # short: sockets have short names
    with ControlPlane() as plane:
        asyncio.run(_measure(plane, folder, seconds))


async def _measure(plane: ControlPlane, folder: Path, seconds: float) -> None:
    nvml = Node(folder / "nvml", *["H100"] * CARDS)
    _write_files(folder, nvml)
    plane.fake_node(NODE)
    kubelet = FakeKubelet(folder, NODE)
    await kubelet.start()
    agent = _start_agent(plane, folder)
    try:
        await kubelet.wait_registered(wire.OWN_COUNT, 30)
        pods = [_pod(plane, nvml, i) for i in range(CARDS * PER_CARD)]
        for i, pod in enumerate(pods):
            await kubelet.run_pod(pod)
            nvml.process(i % CARDS, 10_000 + i, SLICE_MIB // 2, sm=5)
        cpu_pct, rss_mib = await _watch(agent.pid, seconds)
        slots = [
            sorted(kubelet.devices.of_container(pod["metadata"]["uid"], "app")[wire.OWN_COUNT].ids) for pod in pods
        ]
        times = await _calls(folder / "device-plugins" / "cardwise.sock", slots)
        floor = await _echo(folder, slots)
    finally:
        agent.send_signal(signal.SIGTERM)
        agent.wait(20)
        await kubelet.stop()
    _print(cpu_pct, rss_mib, times, floor)


def _start_agent(plane: ControlPlane, folder: Path) -> subprocess.Popen[bytes]:
    env = {**environment(), "FAKE_NVML_STATE": str(folder / "nvml"), "KUBECONFIG": str(plane.kubeconfig)}
    command = [sys.executable, "-m", "cardwise", "agent", "--node", NODE, "--config", str(folder / "agent.toml")]
    with (folder / "agent.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=env)


def _write_files(folder: Path, nvml: Any) -> None:  # noqa: ANN401 - of the tests, which are not typed
    lines = {
        "namespace": "default",
        "kubelet-folder": folder / "device-plugins",
        "pod-resources-socket": folder / "pod-resources" / "kubelet.sock",
        "state-folder": folder / "state",
        "run-folder": folder / "run",
        "cdi-folder": folder / "cdi",
        "mps-control": folder / "no-mps",
        "host": "127.0.0.1",
    }
    text = "".join(f'{key} = "{value}"\n' for key, value in lines.items())
    (folder / "agent.toml").write_text(f'{text}port = 0\ncdi-read-folders = ["{folder / "etc"}"]\n')
    devices = [
        {"name": uuid, "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{i}"}]}}
        for i, uuid in enumerate(nvml.uuids)
    ]
    (folder / "etc").mkdir()
    spec = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices}
    (folder / "etc" / "nvidia.json").write_text(json.dumps(spec))


def _pod(plane: ControlPlane, nvml: Any, i: int) -> dict[str, Any]:  # noqa: ANN401
    """A pod that the API server knows as bound, with its allocation."""
    asked = {wire.OWN_COUNT: "1", wire.OWN_MEMORY: str(SLICE_MIB), wire.OWN_CORES: str(SLICE_PCT)}
    container = {"name": "app", "image": "none", "resources": {"limits": asked}}
    path = "/api/v1/namespaces/default/pods"
    plane.api("POST", path, {"metadata": {"name": f"p{i}"}, "spec": {"containers": [container]}})
    share = Share(nvml.uuid(i % CARDS), SLICE_MIB, SLICE_PCT)
    alloc = encode(Allocation(NODE, (("app", (share,)),), 1, i))
    metadata = {"name": f"p{i}", "annotations": {wire.ANNOTATION_ALLOC: alloc}}
    target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
    plane.api("POST", f"{path}/p{i}/binding", {"metadata": metadata, "target": target})
    pod: dict[str, Any] = plane.api("GET", f"{path}/p{i}")
    return pod


async def _watch(pid: int, seconds: float) -> tuple[float, float]:
    """Percent of a core that the process takes, and its resident memory in MiB."""
    before, began = _cpu_s(pid), time.perf_counter()
    await asyncio.sleep(seconds)
    cpu_pct = 100 * (_cpu_s(pid) - before) / (time.perf_counter() - began)
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return cpu_pct, pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def _calls(socket: Path, slots: Sequence[Sequence[str]]) -> dict[str, list[float]]:
    """Milliseconds of each call, as the kubelet makes them, one after the other."""
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        stub = pb_grpc.DevicePluginStub(channel)  # type: ignore[no-untyped-call]

        async def allocate(ids: Sequence[str]) -> None:
            one = pb.ContainerAllocateRequest(devices_ids=ids)
            await stub.Allocate(pb.AllocateRequest(container_requests=[one]))

        async def pre_start(ids: Sequence[str]) -> None:
            await stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=ids))
            await asyncio.sleep(0.012)  # the kubelet answers 100 questions a second about whose devices they are

        return {"Allocate": await _timed(allocate, slots), "PreStartContainer": await _timed(pre_start, slots, 0.012)}


async def _timed(
    call: Callable[[Sequence[str]], Awaitable[None]], slots: Sequence[Sequence[str]], pause_s: float = 0.0
) -> list[float]:
    times = []
    for i in range(ROUNDS):
        began = time.perf_counter()
        await call(slots[i % len(slots)])
        times.append(1000 * (time.perf_counter() - began - pause_s))
    return times[len(slots) :]


class _Echo:
    """A plugin that answers without looking."""

    async def offers(self) -> Any:  # noqa: ANN401
        yield [Device("slot-000")]
        await asyncio.Event().wait()

    def prefer(self, available: Sequence[str], _must: Sequence[str], size: int) -> Sequence[str]:
        return available[:size]

    def cdi_names(self, ids: Sequence[str]) -> Sequence[str]:
        return ids

    async def pre_start(self, _ids: Sequence[str]) -> None:
        return


async def _echo(folder: Path, slots: Sequence[Sequence[str]]) -> dict[str, list[float]]:
    async with serving(_Echo(), folder / "echo.sock"):
        return await _calls(folder / "echo.sock", slots)


def _print(cpu_pct: float, rss_mib: float, times: dict[str, list[float]], floor: dict[str, list[float]]) -> None:
    console = Console()
    console.print(f"{CARDS} cards, {CARDS * PER_CARD} slices: {cpu_pct:.2f} % of a core, {rss_mib:.0f} MiB resident")
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("call", "p50 ms", "p99 ms", "p99 / echo"):
        table.add_column(column, justify="left" if column == "call" else "right")
    for name, told in times.items():
        p99 = _p99(told)
        table.add_row(name, f"{statistics.median(told):.2f}", f"{p99:.2f}", f"{p99 / _p99(floor[name]):.1f} ×")
    console.print(table)


def _p99(times: Sequence[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


if __name__ == "__main__":
    main()
