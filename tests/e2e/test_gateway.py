"""The gateway as a process, on a real API server: emulated engines come and go behind it, and no answer is lost.

No kubelet and no EndpointSlice controller run here: the test writes the slices as they would.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import itertools
import json
import re
import signal
import socket
import sys

import httpx2
import pytest

from cardwise.adapters import wire
from tests.controlplane.plane import APISERVER
from tests.gateway.world import INFER, number
from tests.ports import free_ports

pytestmark = pytest.mark.controlplane

BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]})
DEADLINE_S = 60
RULES = [
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["services"], "verbs": ["get", "list", "watch"]},
]
"""As the chart's Role has them, see tests/charts/test_gateways.py."""
_names = itertools.count()


def own_address():
    """An address of this machine that is not loopback, for the API server refuses loopback in slices. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))
        return probe.getsockname()[0]
    pytest.skip("this machine has no address but loopback, which the API server refuses in EndpointSlices")


async def until(what, deadline_s=DEADLINE_S):
    async with asyncio.timeout(deadline_s):
        while not (answer := await what()):
            await asyncio.sleep(0.02)
    return answer


# -------------------------------------------------------------------- processes


@contextlib.asynccontextmanager
async def started(*args, log):
    """A process of ours, after its first line; the line."""
    with log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "cardwise", *map(str, args), stdout=asyncio.subprocess.PIPE, stderr=out
        )
    try:
        async with asyncio.timeout(DEADLINE_S):
            line = (await process.stdout.readline()).decode()
        yield process, line
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class Engine:
    """A replica: ``cardwise engine`` on an address of this machine."""

    def __init__(self, folder, address, *options):
        self.name, self.address, self.options = f"engine-{next(_names)}", address, options
        (self.port,) = free_ports(1)
        self.url = f"http://{address}:{self.port}"
        self.log = folder / f"{self.name}.log"
        self._stack = contextlib.AsyncExitStack()
        self.process = None

    async def __aenter__(self):
        at = ("--host", self.address, "--port", self.port)
        self.process, _ = await self._stack.enter_async_context(started("engine", *at, *self.options, log=self.log))
        return self

    async def __aexit__(self, *_exc):
        await self._stack.aclose()

    async def stop(self):
        """As the kubelet does it."""
        self.process.send_signal(signal.SIGTERM)
        assert await self.process.wait() == 0


class Gateway:
    def __init__(self, line):
        port, self.admin_port = map(int, re.findall(r":(\d+)", line))
        self.client = httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=20, limits=httpx2.Limits(max_connections=None)
        )
        self.statuses = collections.Counter()

    async def metrics(self):
        async with httpx2.AsyncClient(timeout=20) as client:
            return (await client.get(f"http://127.0.0.1:{self.admin_port}/metrics")).text

    async def has(self, *engines):
        """Wait until exactly these are its replicas, and all are ready."""

        async def so():
            told = await self.metrics()
            urls = set(re.findall(r'cardwise_gateway_limit\{replica="([^"]+)"', told))
            ready = number(told, "cardwise_gateway_replicas_ready")
            return urls == {each.url for each in engines} and ready == len(engines)

        await until(so)

    async def ask(self, path=INFER):
        answer = await self.client.post(path, content=BODY)
        self.statuses[answer.status_code] += 1
        return answer.status_code

    @contextlib.asynccontextmanager
    async def under_load(self, callers=8):
        """Callers that ask one after another, until the ``with`` ends; all of them have their answers then."""
        over = asyncio.Event()

        async def caller():
            while not over.is_set():
                await self.ask()

        async with asyncio.TaskGroup() as tasks:
            for _ in range(callers):
                tasks.create_task(caller())
            try:
                yield
            finally:
                over.set()

    async def served(self, more=30):
        """Wait until so many more were answered."""
        least = self.statuses.total() + more

        async def so():
            return self.statuses.total() >= least

        await until(so)


# -------------------------------------------------------------------- the cluster


class Space:
    """A namespace, and what stands in it."""

    def __init__(self, plane, folder):
        self.plane, self.folder = plane, folder
        self.name = f"gateway-{next(_names)}-{free_ports(1)[0]}"
        self.address = own_address()

    async def api(self, method, path, body=None, **more):
        return await asyncio.to_thread(functools.partial(self.plane.api, method, path, body, **more))

    async def make(self):
        await asyncio.to_thread(self.plane.namespace, self.name)
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self.name}"
        await self.api("POST", f"{rbac}/roles", {"metadata": {"name": "gateway"}, "rules": RULES})
        ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "gateway"}
        who = [{"kind": "User", "name": f"gateway-of-{self.name}", "apiGroup": "rbac.authorization.k8s.io"}]
        await self.api(
            "POST", f"{rbac}/rolebindings", {"metadata": {"name": "gateway"}, "roleRef": ref, "subjects": who}
        )
        self.kubeconfig = await asyncio.to_thread(self.plane.user_kubeconfig, f"gateway-of-{self.name}")

    @property
    def _slices(self):
        return f"/apis/discovery.k8s.io/v1/namespaces/{self.name}/endpointslices"

    def slice(self, engine, *, ready=True, terminating=False, service="model"):
        conditions = {"ready": ready and not terminating, "serving": ready, "terminating": terminating}
        return {
            "metadata": {"name": engine.name, "labels": {wire.LABEL_SERVICE_NAME: service}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [engine.address], "conditions": conditions}],
            "ports": [{"name": "http", "port": engine.port, "protocol": "TCP"}],
        }

    async def put(self, engine, **state):
        body = self.slice(engine, **state)
        status, told = await asyncio.to_thread(self.plane.answer, "GET", f"{self._slices}/{engine.name}")
        if status == 404:
            await self.api("POST", self._slices, body)
        else:
            body["metadata"]["resourceVersion"] = told["metadata"]["resourceVersion"]
            await self.api("PUT", f"{self._slices}/{engine.name}", body)

    async def drop(self, engine):
        await self.api("DELETE", f"{self._slices}/{engine.name}")

    async def service(self, name="model"):
        spec = {"clusterIP": "None", "ports": [{"name": "http", "port": 80}]}
        path = f"/api/v1/namespaces/{self.name}/services"
        await self.api("POST", path, {"metadata": {"name": name}, "spec": spec})

    def kubectl(self, *args):
        return asyncio.to_thread(self.plane.kubectl, *args, "-n", self.name)

    def engine(self, *options):
        return Engine(self.folder, self.address, *options)

    @contextlib.asynccontextmanager
    async def gateway(self, settings):
        path = self.folder / "gateway.toml"
        at = 'host = "127.0.0.1"\nport = 0\nadmin-host = "127.0.0.1"\nadmin-port = 0\ndrain-s = 5\n'
        path.write_text(at + settings.replace("SPACE", self.name))
        flags = ("--config", path, "--kubeconfig", self.kubeconfig)
        log = self.folder / "gateway.log"
        try:
            async with started("gateway", *flags, log=log) as (_, line):
                it = Gateway(line)
                async with it.client:
                    yield it
        finally:
            sys.stdout.write(log.read_text())


NAMED = """
[[services]]
name = "model"
kind = "oip"
model = "emulated"
depth = 256
probe-every-ms = 500
probe-timeout-ms = 20000
kubernetes = {namespace = "SPACE", service = "model"}
"""
OPEN = """
[kubernetes]
gateway = "main"
namespaces = ["SPACE"]
defaults = {kind = "oip", depth = 256, probe-every-ms = 500, probe-timeout-ms = 20000}
"""


@pytest.fixture
async def space(control_plane, tmp_path):
    made = Space(control_plane, tmp_path)
    await made.make()
    return made


async def test_replicas_follow_the_endpoints_under_load_and_no_answer_is_lost(space):
    async with space.engine() as one, space.engine() as other, space.engine() as third, space.gateway(NAMED) as gateway:
        await space.put(one)
        await gateway.has(one)
        async with gateway.under_load():
            await gateway.served()
            for engine in (other, third):
                await space.put(engine)
            await gateway.has(one, other, third)
            await gateway.served()
            await space.put(one, terminating=True)
            await gateway.has(other, third)
            await one.stop()
            await space.drop(one)
            await gateway.served()
            await space.put(other, ready=False)
            await gateway.served()
            await space.drop(third)  # as of a Service whose selector changed: the pod lives on
            await space.put(other)
            await gateway.has(other)
            await gateway.served()
        assert set(gateway.statuses) == {200}
        assert number(await gateway.metrics(), "cardwise_gateway_retries_total") == 0


async def test_a_cold_replica_gets_nothing_before_it_is_warm(space):
    async with space.engine() as one, space.engine("--load-s", "1.5") as cold, space.gateway(NAMED) as gateway:
        await space.put(one)
        await gateway.has(one)
        async with gateway.under_load():
            await space.put(cold)
            await gateway.has(one, cold)
            await gateway.served()
        assert set(gateway.statuses) == {200}
        assert number(await gateway.metrics(), "cardwise_gateway_replica_failures_total") == 0


async def test_while_the_api_server_is_away_all_goes_on_and_what_was_missed_is_heard_when_it_is_back(space):
    async with space.engine() as one, space.engine() as other, space.gateway(NAMED) as gateway:
        await space.put(one)
        await gateway.has(one)
        async with gateway.under_load(4):
            await asyncio.to_thread(space.plane.kill, APISERVER)
            try:

                async def told():
                    return number(await gateway.metrics(), "cardwise_gateway_cluster_breaks_total") >= 2

                await until(told)
                await gateway.served()
                await gateway.has(one)
            finally:
                space.plane.restart(APISERVER, wait=False)  # not from another thread: it would end with that
                await asyncio.to_thread(space.plane.wait_ready)
            await space.put(other)
            await gateway.has(one, other)
            await gateway.served()
        assert set(gateway.statuses) == {200}


async def test_a_service_opts_in_changes_its_settings_and_opts_out_by_annotation(space):
    async with space.engine("--model", "model") as engine, space.gateway(OPEN) as gateway:
        path = "/v2/models/model/infer"
        await space.service()
        await space.put(engine)
        assert await gateway.ask(path) == 404
        gateway.statuses.clear()
        await space.kubectl("annotate", "service", "model", "cardwise.dev/gateway=main")
        await gateway.has(engine)
        async with gateway_load(gateway, path):
            await gateway.served()
            await space.kubectl("annotate", "service", "model", "cardwise.dev/gateway-depth=128")

            async def deeper():
                return number(await gateway.metrics(), "cardwise_gateway_queue_depth") == 128

            await until(deeper)
            await gateway.served()
        assert set(gateway.statuses) == {200}
        await space.kubectl("annotate", "service", "model", "cardwise.dev/gateway-")

        async def gone():
            return await gateway.ask(path) == 404

        await until(gone)


async def test_a_service_that_is_annotated_wrongly_is_counted_and_told(space):
    async with space.gateway(OPEN) as gateway:
        await space.service()
        await space.kubectl("annotate", "service", "model", "cardwise.dev/gateway=main", "cardwise.dev/gateway-kind=x")

        async def refused():
            return number(await gateway.metrics(), "cardwise_gateway_services_refused") == 1

        await until(refused)
        said = [json.loads(line) for line in (space.folder / "gateway.log").read_text().splitlines()]
        (line,) = [each for each in said if each["event"] == "a Service cannot be served"]
        assert (line["namespace"], line["name"]) == (space.name, "model")
        assert line["why"].startswith("kind: ")


@contextlib.asynccontextmanager
async def gateway_load(gateway, path):
    asked, gateway.ask = gateway.ask, functools.partial(gateway.ask, path)
    try:
        async with gateway.under_load():
            yield
    finally:
        gateway.ask = asked
