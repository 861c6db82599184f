"""All programs at work in this process, each on its own port: what Prometheus scrapes in these tests.

The programs are the real ones. Around them: a fake driver and a fake kubelet, a cluster in memory, and a page of series
as DCGM's exporter, cAdvisor, vLLM and Kueue tell them.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime

import httpx2
import msgspec
from aiohttp import web

from cardwise.adapters import wire
from cardwise.adapters.hollow import HollowCluster
from cardwise.adapters.kube_objects import EndpointSlice
from cardwise.adapters.node_cards import encode_cards
from cardwise.controller import settings as controller_settings
from cardwise.controller.main import Controller
from cardwise.errors import NotFoundError
from cardwise.scheduler.main import Scheduler
from cardwise.scheduler.settings import Settings as SchedulerSettings
from tests.agent.a_node import GpuNode
from tests.agent.node_port import NODE
from tests.builders import node as node_spec
from tests.engine.asked import INFER, batch, engine_and_client
from tests.fakes.loopback import served
from tests.gateway.cluster import Cluster, gateway, told
from tests.gateway.world import until

CONTAINER = "c" * 64
SERVICE = "chat"
POD = "chat-0"
QUOTA = """
cohort = "cardwise"

[[cards]]
model = "A10"
memory-mib = 24576
total = { slots = 64, memory-mib = 98304, compute-pct = 400 }

[[teams]]
name = "search"
namespaces = ["search"]
class = "latency-sensitive"

[[teams.limits]]
card = "A10"
guaranteed = { slots = 6, memory-mib = 24576, compute-pct = 120 }
"""


class Bare(HollowCluster):
    """A cluster without our own definitions, and without Kueue's."""

    async def list_templates(self):
        return []

    async def list_loads(self):
        return []

    async def request(self, method, path, *_args, **_more):
        raise NotFoundError(f"{method} {path}: the server could not find the requested resource", retry=False)


@dataclass
class Programs:
    """ports: of the metrics, by program. node: the agent's."""

    ports: dict[str, int]
    node: GpuNode
    client: httpx2.AsyncClient

    async def ask(self, times=1):
        """Requests through the gateway to the engine, and questions of kube-scheduler's."""
        for _ in range(times):
            (await self.client.post(INFER, json=batch([1]))).raise_for_status()
            for verb in ("filter", "prioritize"):
                url = f"http://127.0.0.1:{self.ports['scheduler']}/{verb}"
                (await self.client.post(url, json=_asked("large", 90000))).raise_for_status()

    async def text(self, program):
        """What it tells Prometheus now."""
        async with httpx2.AsyncClient(timeout=20) as client:
            return (await client.get(f"http://127.0.0.1:{self.ports[program]}/metrics")).text


@contextlib.asynccontextmanager
async def programs(folder):
    """All of them, with some work done. folder: for files of theirs."""
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        node = await enter(GpuNode("A10", "A10"))
        await _give_slice(node)
        engine, _ = await enter(engine_and_client())
        cluster = Cluster()
        settings = {"name": SERVICE, "kind": "oip", "target_p99_ms": 500, "probe_every_ms": 200}
        at = {"namespace": "default", "service": SERVICE}
        world = await enter(gateway(cluster, {"services": [{**told(settings), "kubernetes": at}]}))
        cluster.all_slices(_endpoints(engine.url))
        await until(lambda: world.service.is_ready)
        scheduler_port = await enter(_scheduler())
        controller_port = await enter(_controller(folder))
        ports = {
            "agent": node.metrics_port,
            "engine": int(engine.url.rpartition(":")[2]),
            "gateway": world.admin_port,
            "scheduler": scheduler_port,
            "controller": controller_port,
            "others": await enter(_others(node)),
        }
        client = await enter(world.client())
        made = Programs(ports, node, client)
        await made.ask(3)
        await made.client.get("/nothing-is-here")
        yield made


async def _give_slice(node):
    """A pod that runs on the first card, and uses it."""
    body = node.pod(POD, 4096, 20)
    await node.run(body)
    status = {"name": "app", "containerID": f"containerd://{CONTAINER}", "state": {"running": {}}}
    body["status"] = {"phase": "Running", "containerStatuses": [status]}
    node.port.put(body)
    folder = node.folder / "proc" / "77"
    folder.mkdir(parents=True)
    (folder / "cgroup").write_text(f"0::/kubepods/pod{body['metadata']['uid']}/{CONTAINER}\n")
    node.nvml.process(0, 77, 3000, sm=15)

    def joined():
        node.agent.using.join()
        return node.agent.using.slices and node.agent.using.slices[0].processes

    await node.until(joined)


def _endpoints(url):
    host, _, port = url.removeprefix("http://").rpartition(":")
    labels = {wire.LABEL_SERVICE_NAME: SERVICE}
    endpoint = {
        "addresses": [host],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "targetRef": {"kind": "Pod", "name": POD, "uid": "uid-of-the-pod"},
    }
    body = {
        "metadata": {"name": f"{SERVICE}-1", "namespace": "default", "labels": labels},
        "addressType": "IPv4",
        "endpoints": [endpoint],
        "ports": [{"name": "http", "port": int(port)}],
    }
    return msgspec.convert(body, EndpointSlice)


def _asked(name, mib):
    """What kube-scheduler asks about a pod with one container and a slice."""
    limits = {wire.GPU: "1", wire.USER_MEMORY: str(mib), wire.USER_CORES: "20"}
    containers = [{"name": "app", "resources": {"limits": limits}}]
    metadata = {"name": name, "namespace": "ns", "uid": f"uid-{name}"}
    return {"Pod": {"metadata": metadata, "spec": {"containers": containers}}, "NodeNames": [NODE]}


@contextlib.asynccontextmanager
async def _scheduler():
    """One that leads, and has bound a pod."""
    cluster = Bare(lambda: datetime.now(UTC))
    _put_node(cluster)
    scheduler = Scheduler.build(cluster, SchedulerSettings(host="127.0.0.1", port=0), "a")
    async with scheduler.running() as (port, _), httpx2.AsyncClient(timeout=20) as client:
        await until(lambda: scheduler.leader.leads)
        url = f"http://127.0.0.1:{port}"
        asked = _asked("small", 4096)
        asked["Pod"]["metadata"]["uid"] = uid = cluster.create_pod(asked["Pod"]).metadata.uid
        (await client.post(f"{url}/filter", json=asked)).raise_for_status()
        bind = {"PodName": "small", "PodNamespace": "ns", "PodUID": uid, "Node": NODE}
        (await client.post(f"{url}/bind", json=bind)).raise_for_status()
        yield port


@contextlib.asynccontextmanager
async def _controller(folder):
    """All its loops, on a cluster where there is nothing to do."""
    (folder / "quota.toml").write_text(QUOTA)
    quota = controller_settings.QuotaSettings(file=str(folder / "quota.toml"))
    cluster = Bare(lambda: datetime.now(UTC))
    _put_node(cluster)
    settings = controller_settings.Settings(host="127.0.0.1", port=0, quota=quota)
    controller = Controller.build(cluster, settings, "a")
    async with controller.running() as port:
        await until(lambda: controller.leader.leads)
        yield port


def _put_node(cluster):
    spec = node_spec(NODE, 2)
    cluster.put_node(
        {
            "metadata": {"name": NODE, "annotations": {wire.ANNOTATION_CARDS: encode_cards(spec.cards)}},
            "status": {
                "allocatable": {"cpu": "64", "memory": "256Gi"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
    )


@contextlib.asynccontextmanager
async def _others(node):
    """Series of other exporters, by the names and labels that their sources give them."""
    uuid = node.uuid(0)
    card = f'gpu="0",UUID="{uuid}",device="nvidia0",modelName="NVIDIA A10",hostname="{NODE}"'
    pod = f'namespace="default",pod="{POD}"'
    queue = 'cohort="cardwise",cluster_queue="search",replica_role="leader"'
    amount = f'{queue},flavor="a10",resource="cardwise.dev/gpu-memory"'
    lines = [
        f"DCGM_FI_PROF_SM_ACTIVE{{{card}}} 0.42",
        f"DCGM_FI_PROF_DRAM_ACTIVE{{{card}}} 0.31",
        f"DCGM_FI_PROF_PCIE_TX_BYTES{{{card}}} 1000",
        f"DCGM_FI_PROF_PCIE_RX_BYTES{{{card}}} 2000",
        f'container_cpu_usage_seconds_total{{{pod},container="app",id="/kubepods/x"}} 12.5',
        f'container_cpu_cfs_periods_total{{{pod},container="app",id="/kubepods/x"}} 100',
        f'container_cpu_cfs_throttled_periods_total{{{pod},container="app",id="/kubepods/x"}} 25',
        f'container_pressure_cpu_waiting_seconds_total{{{pod},container="app",id="/kubepods/x"}} 1.5',
        f'vllm:num_requests_waiting{{{pod},model_name="m"}} 3',
        f'vllm:num_requests_running{{{pod},model_name="m"}} 5',
        f'vllm:kv_cache_usage_perc{{{pod},model_name="m"}} 0.5',
        f'kueue_pending_workloads{{{queue},status="active"}} 2',
        f"kueue_admitted_active_workloads{{{queue}}} 4",
        f"kueue_cluster_queue_resource_usage{{{amount}}} 8192",
        f"kueue_cluster_queue_nominal_quota{{{amount}}} 24576",
        f"kueue_cluster_queue_weighted_share{{{queue}}} 0",
        f'kueue_evicted_workloads_total{{{queue},reason="Preempted"}} 1',
        f'kueue_admission_wait_time_seconds_bucket{{{queue},le="1"}} 1',
        f'kueue_admission_wait_time_seconds_bucket{{{queue},le="+Inf"}} 1',
    ]

    async def tell(_request):
        return web.Response(text="\n".join([*lines, ""]))

    async with served(web.get("/metrics", tell)) as port:
        yield port
