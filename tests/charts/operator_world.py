"""The chart's programs at work for the operator's Prometheus, and pods by hand at which it finds them.

The scheduler is a process with the chart's settings, certificates and account. The others are those of
:mod:`tests.dashboards.programs`. There is no kubelet: pods are the workloads' own, but for the address of this machine.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import ssl
import sys
import time
from pathlib import Path

import httpx2

from cardwise.adapters import wire
from cardwise.adapters.node_cards import encode_cards
from tests.agent.node_port import NODE
from tests.builders import node as node_spec
from tests.charts.conftest import NAMESPACE
from tests.charts.test_working import running
from tests.dashboards.programs import programs
from tests.ports import LOOPBACK, free_ports

PORTS = {"agent": "metrics", "scheduler": "extender", "controller": "metrics", "gateway-chat": "admin"}
"""Under which name a pod's port is scraped, by program."""
SMALL = {wire.OWN_COUNT: "1", wire.OWN_MEMORY: "4096", wire.OWN_CORES: "20"}
LARGE = {**SMALL, wire.OWN_MEMORY: "90000"}
READY_S = 60


@contextlib.asynccontextmanager
async def at_work(release, folder):
    """All programs of the chart: who asks them for work, and the ports of their metrics. folder: for their files."""
    async with programs(folder) as others, asked_scheduler(release, folder) as scheduler:
        ports = {
            "agent": others.ports["agent"],
            "controller": others.ports["controller"],
            "gateway-chat": others.ports["gateway"],
            "scheduler": scheduler.port,
        }
        yield Both(others, scheduler), ports


class Both:
    """Who is asked for work while Prometheus scrapes."""

    def __init__(self, *asked):
        self._asked = asked

    async def ask(self):
        for each in self._asked:
            await each.ask()


class AskedScheduler:
    """A scheduler with the chart's settings and certificates, and kube-scheduler's part of the talk."""

    def __init__(self, port, client):
        self.port, self._client = port, client

    async def ask(self):
        for verb in ("filter", "prioritize"):
            await self.told(verb, {"Pod": _pod("large", LARGE, uid="uid-of-large"), "NodeNames": [NODE]})

    async def told(self, verb, body):
        answer = await self._client.post(f"/{verb}", json=body)
        return answer.raise_for_status().json()

    async def is_ready(self):
        with contextlib.suppress(httpx2.TransportError):
            return (await self._client.get("/readyz")).status_code == 200


@contextlib.asynccontextmanager
async def asked_scheduler(release, folder):
    """One that leads and has bound a pod, as the chart's account; only its addresses and its files' place differ."""
    plane, (port, webhook_port) = release.plane, free_ports(2)
    settings = release.config_map("cardwise-scheduler", "scheduler.toml")
    for told, here in (
        ("port = 10260", f'host = "{LOOPBACK}"\nport = {port}'),
        ("webhook-port = 9443", f"webhook-port = {webhook_port}"),
    ):
        assert settings.count(told) == 1
        settings = settings.replace(told, here)
    config = folder / "scheduler.toml"
    config.write_text(settings.replace("/etc/cardwise/tls/", f"{folder}/tls/"))
    _unpack(plane, "cardwise-tls", folder / "tls")
    _unpack(plane, "cardwise-client-tls", folder / "client")
    tls = ssl.create_default_context(cafile=folder / "client" / "ca.crt")
    tls.check_hostname = False  # it is for the Service's name; that Prometheus asks for
    tls.load_cert_chain(folder / "client" / "tls.crt", folder / "client" / "tls.key")
    program = [Path(sys.executable).with_name("cardwise"), "scheduler", "--config", config]
    plane.fake_node(NODE, extended={wire.OWN_COUNT: 32}, lease=True)
    cards = encode_cards(node_spec(NODE, 2).cards)
    plane.kubectl("annotate", "node", NODE, f"{wire.ANNOTATION_CARDS}={cards}", *release.as_agent_of(NODE))
    account = ("--kubeconfig", release.account(release.scheduler))
    with running([*program, *account], folder / "scheduler.log"):
        async with httpx2.AsyncClient(base_url=f"https://{LOOPBACK}:{port}", verify=tls, timeout=20) as client:
            made = AskedScheduler(port, client)
            await _until(made.is_ready)
            await _bind_one(plane, made)
            yield made
    sys.stdout.write((folder / "scheduler.log").read_text())


def _unpack(plane, secret, folder):
    folder.mkdir()
    for name, raw in plane.api("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/{secret}")["data"].items():
        (folder / name).write_bytes(base64.b64decode(raw))


async def _bind_one(plane, scheduler):
    """A pod in kube-system, whose pods no webhook is asked about."""
    made = plane.api("POST", "/api/v1/namespaces/kube-system/pods", _pod("small", SMALL))

    async def fits():
        return NODE in (await scheduler.told("filter", {"Pod": made, "NodeNames": [NODE]}))["NodeNames"]

    await _until(fits)
    uid = made["metadata"]["uid"]
    bind = {"PodName": "small", "PodNamespace": "kube-system", "PodUID": uid, "Node": NODE}
    assert not (await scheduler.told("bind", bind)).get("Error")


def _pod(name, limits, uid=None):
    metadata = {"name": name, "namespace": "kube-system", **({"uid": uid} if uid else {})}
    containers = [{"name": "main", "image": "none", "resources": {"limits": limits}}]
    return {"metadata": metadata, "spec": {"schedulerName": "cardwise", "containers": containers}}


def stand_pod(plane, program, port, name=None):
    """A pod as the chart's workload would have it, which runs on this machine; ``port`` is where that listens here."""
    kind = "daemonsets" if program == "agent" else "deployments"
    template = plane.api("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/{kind}/cardwise-{program}")["spec"]["template"]
    spec = copy.deepcopy(template["spec"])
    spec.pop("runtimeClassName", None)  # nobody has made it here
    (there,) = [each for one in spec["containers"] for each in one.get("ports", ()) if each["name"] == PORTS[program]]
    there["containerPort"] = port
    metadata = {"name": name or f"cardwise-{program}-0", "labels": template["metadata"]["labels"]}
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    made = plane.api("POST", pods, {"metadata": metadata, "spec": {**spec, "nodeName": NODE}})
    status = {"phase": "Running", "podIP": LOOPBACK, "podIPs": [{"ip": LOOPBACK}]}
    path, merge = f"{pods}/{metadata['name']}/status", "application/merge-patch+json"
    plane.api("PATCH", path, {"status": status}, content_type=merge)
    return made


def stand_dead_agent(plane):
    """A pod at whose port nobody listens; its address."""
    (port,) = free_ports(1)
    stand_pod(plane, "agent", port, name="cardwise-agent-dead")
    return f"{LOOPBACK}:{port}"


async def _until(what):
    end_s = time.monotonic() + READY_S
    while not await what():
        assert time.monotonic() < end_s, f"nothing after {READY_S} s"
