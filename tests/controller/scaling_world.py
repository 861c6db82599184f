"""A cluster in memory as the scaling loop sees it, and the loop on it. Time is a number that a test moves.

What the API server really does with these requests is seen in tests/e2e/test_service_policy.py.
"""

from __future__ import annotations

import copy
import re
from datetime import UTC, datetime, timedelta

import msgspec

from cardwise.adapters.policies import Policies
from cardwise.adapters.prometheus import Prometheus
from cardwise.controller.forecasting import Forecasting
from cardwise.controller.scaling import Scaling
from cardwise.core.fleet.forecast import NoForecast, Refusal
from cardwise.errors import ClusterError, ConflictError, NotFoundError

MONDAY = datetime(2026, 6, 1, 4, 0, tzinfo=UTC)
"""06:00 in Berlin."""
OFFICE = {"name": "office", "timezone": "Europe/Berlin", "begin": "08:00", "end": "20:00"}
QUERY = "sum(rate(requests[1m]))"
LOAD = {"query": QUERY, "perReplica": 10}


class Killed(BaseException):
    """The controller process is gone, in the middle of what it did."""


class Api:
    """Objects as JSON by kind and "namespace/name". writes: of all that change something, in order.

    dies_at: the process dies at the write of this index, before it has an effect, or after. away: nothing is answered.
    """

    def __init__(self):
        self.objects = {}
        self.writes, self.events = [], []
        self.dies_at, self.before = None, True
        self.away = False
        self._version = 0

    def put(self, kind, name, namespace="models", *, manager="kubectl", **more):
        self._version += 1
        metadata = {
            "name": name,
            "namespace": namespace,
            "uid": f"{kind}-{name}-{self._version}",
            "generation": 1,
            "resourceVersion": str(self._version),
            **more.pop("metadata", {}),
        }
        made = {"metadata": metadata, **more}
        if kind == "deployments":
            self._own(made, manager)
        self.objects[kind, f"{namespace}/{name}"] = made
        return made

    def get(self, kind, name, namespace="models"):
        return self.objects[kind, f"{namespace}/{name}"]

    def set_replicas(self, name, replicas, manager="kubectl"):
        """Somebody else writes the number."""
        made = self.get("deployments", name)
        made["spec"]["replicas"] = replicas
        self._own(made, manager)
        self._touch(made)

    def _own(self, made, manager):
        held = {"manager": manager, "operation": "Update", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
        made["metadata"]["managedFields"] = [held]

    def _touch(self, made):
        self._version += 1
        made["metadata"]["resourceVersion"] = str(self._version)

    async def request(self, method, path, body=None, *_args, **more):
        if self.away:
            raise ClusterError("no answer in time", retry=True)
        if method == "GET":
            return msgspec.json.encode(self._read(path))
        self._write(path, body)
        made = self._patched(path, copy.deepcopy(body), more["params"]["fieldManager"])
        self._written()
        return msgspec.json.encode(made)

    async def post_event(self, event, _namespace):
        self._write("events", event)
        self.events.append((event["reason"], event["message"]))
        self._written()

    def _write(self, path, body):
        self.writes.append((path, body))
        if len(self.writes) - 1 == self.dies_at and self.before:
            raise Killed

    def _written(self):
        if len(self.writes) - 1 == self.dies_at:
            raise Killed

    def _read(self, path):
        found = re.search(r"/namespaces/([^/]+)/(\w+)/([^/]+)$", path)
        if found:
            namespace, kind, name = found.groups()
            if (kind, f"{namespace}/{name}") not in self.objects:
                raise NotFoundError(f"{kind} {name} not found", retry=False)
            return self.get(kind, name, namespace)
        kind = path.rpartition("/")[2]
        return {"items": [each for (of, _), each in self.objects.items() if of == kind]}

    def _patched(self, path, body, manager):
        namespace, kind, name, part = re.search(r"/namespaces/([^/]+)/(\w+)/([^/]+)/?(\w*)$", path).groups()
        made = self._read(f"/namespaces/{namespace}/{kind}/{name}")
        version = body.get("metadata", {}).pop("resourceVersion", made["metadata"]["resourceVersion"])
        if version != made["metadata"]["resourceVersion"]:
            raise ConflictError("the object has been modified", retry=False)
        before = copy.deepcopy(made)
        _merge(made, body)
        if made != before:
            self._touch(made)
        if part == "scale" and made["spec"]["replicas"] != before["spec"]["replicas"]:
            self._own(made, manager)
        return made


def _merge(made, patch):
    """A JSON merge patch."""
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        elif isinstance(value, dict):
            _merge(made.setdefault(key, {}), value)
        else:
            made[key] = value


class World:
    """Deployment and ServicePolicy "chat" in namespace "models", and the loop. now_s, utc: clocks that a test moves."""

    def __init__(self, prometheus_url="", replicas=2, **spec):
        self.api = Api()
        self.now_s, self.utc, self.leads = 1000.0, MONDAY, True
        self.prometheus = Prometheus(prometheus_url) if prometheus_url else None
        self.fits = []
        self.api.put("deployments", "vllm", spec={"replicas": replicas, "selector": {"matchLabels": {"app": "vllm"}}})
        told = {"scaleTargetRef": {"name": "vllm"}, "replicas": {"min": 2, "max": 10}, **spec}
        self.api.put("servicepolicies", "chat", spec=told, status={})
        self.restart()

    def restart(self):
        """A new process: nothing but the objects is left."""
        forecasting = Forecasting(self.prometheus, lambda: self.now_s, self._fit)
        self.loop = Scaling(
            self.api,
            Policies(self.api),
            self.prometheus,
            forecasting,
            lambda: self.now_s,
            lambda: self.leads,
            lambda: self.utc,
        )

    async def _fit(self, history, steps):
        self.fits.append((history, steps))
        return Refusal(NoForecast.SHORT, "no history")

    async def turn(self, *, minutes=0.0):
        """A turn, after some time."""
        self.pass_time(minutes)
        await self.loop.turn()

    def pass_time(self, minutes):
        self.now_s += minutes * 60
        self.utc += timedelta(minutes=minutes)

    async def calm(self, *, minutes=6):
        """Turns for some minutes."""
        for _ in range(minutes):
            await self.turn(minutes=1)

    @property
    def replicas(self):
        return self.api.get("deployments", "vllm")["spec"]["replicas"]

    @property
    def status(self):
        return self.api.get("servicepolicies", "chat")["status"]

    @property
    def spec(self):
        return self.api.get("servicepolicies", "chat")["spec"]

    def change_policy(self, **spec):
        made = self.api.get("servicepolicies", "chat")
        made["spec"] = {**made["spec"], **spec}
        made["metadata"]["generation"] += 1

    def condition(self, kind):
        (found,) = [each for each in self.status["conditions"] if each["type"] == kind]
        return found["status"], found["reason"]

    def scalings(self):
        return [body["spec"]["replicas"] for path, body in self.api.writes if path.endswith("/scale")]

    def metric(self, name, **labels):
        return self.loop.registry.get_sample_value(name, labels)
