"""ServicePolicies, Deployments and a Prometheus in memory, so that the controller's own scaling loop works on the day.

The objects are JSON behind the one call that ``adapters/policies.py`` makes; the Prometheus answers its two questions
from the load, a minute late as a ``rate(...[2m])`` is. Refuses calls that scaling does not make.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from benchmarks.day.load import ZONE, Load
from benchmarks.day.sizing import Sized
from cardwise.adapters.policies import FIELD_MANAGER
from cardwise.adapters.prometheus import Prometheus, Reading, Series
from cardwise.core.arrays import FloatArray
from cardwise.core.fleet.forecast import Forecast, Refusal, forecast
from cardwise.errors import ConflictError, NotFoundError

LATE_S = 60
NAMESPACE = "default"
LEAST = 2
BEFORE_H, AFTER_H = 2, 3
"""A window begins so long before the service's highest hour, and ends so long after it."""
_OBJECT = re.compile(r"/namespaces/([^/]+)/(\w+)/([^/?]+)(?:/(\w+))?$")
_SERVICE = re.compile(r'service="(\w+)"')


class Objects:
    """The part of an API server that ``Policies`` needs."""

    def __init__(self, sizes: Sequence[Sized], replicas: Mapping[str, int]) -> None:
        """A policy and a Deployment of each service. replicas: to begin with."""
        self._version = 0
        self._made: dict[tuple[str, str], dict[str, Any]] = {}
        for each in sizes:
            name = each.service.name
            self._put("servicepolicies", name, spec=_policy(each), status={})
            self._put("deployments", name, spec={"replicas": replicas[name], "selector": {}, "template": {}})

    def wanted(self, service: str) -> int:
        """Replicas that its Deployment asks for."""
        return int(self._made["deployments", service]["spec"]["replicas"])

    async def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content_type: str = "",  # noqa: ARG002 - the protocol has it
        *,
        timeout_s: float = 0.0,  # noqa: ARG002
        params: Mapping[str, str] | None = None,  # noqa: ARG002
    ) -> bytes:
        """See ``Requests``."""
        found = _OBJECT.search(path)
        if method == "GET":
            kind = path.rpartition("/")[2]
            return msgspec.json.encode(
                self._one(found[2], found[3])
                if found
                else {"items": [each for (of, _), each in self._made.items() if of == kind]}
            )
        if method != "PATCH" or found is None:
            raise NotFoundError(f"{method} {path} is nothing that scaling asks", retry=False)
        return msgspec.json.encode(self._patch(found[2], found[3], copy.deepcopy(dict(body or {}))))

    def _one(self, kind: str, name: str) -> dict[str, Any]:
        if (kind, name) not in self._made:
            raise NotFoundError(f"{kind} {name} not found", retry=False)
        return self._made[kind, name]

    def _put(self, kind: str, name: str, **more: object) -> None:
        metadata = {"name": name, "namespace": NAMESPACE, "uid": f"{kind}-{name}", "generation": 1}
        self._made[kind, name] = {"metadata": metadata, **more}
        self._touch(self._made[kind, name])

    def _patch(self, kind: str, name: str, body: dict[str, Any]) -> dict[str, Any]:
        made = self._one(kind, name)
        version = (body.pop("metadata", None) or {}).get("resourceVersion")
        if version is not None and version != made["metadata"]["resourceVersion"]:
            raise ConflictError("the object has been modified", retry=False)
        for part, told in body.items():
            kept = {**made[part], **told}
            made[part] = {key: value for key, value in kept.items() if value is not None}
        if "spec" in body:
            held = {"manager": FIELD_MANAGER, "operation": "Update", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
            made["metadata"]["managedFields"] = [held]
        self._touch(made)
        return made

    def _touch(self, made: dict[str, Any]) -> None:
        self._version += 1
        made["metadata"]["resourceVersion"] = str(self._version)


def _policy(size: Sized) -> dict[str, Any]:
    """Bounds, a window around the highest hour, and by load and forecast as the how-to has it."""
    service, peak = size.service, size.service.bumps[0].hour
    query = f'sum(rate(cardwise_gateway_requests_total{{service="{service.name}"}}[2m]))'
    return {
        "scaleTargetRef": {"kind": "Deployment", "name": service.name},
        "replicas": {"min": LEAST, "max": size.for_peak},
        "targetP99Ms": service.target_p99_ms,
        "windows": [
            {
                "name": "busy",
                "timezone": str(ZONE),
                "begin": _clock(peak - BEFORE_H),
                "end": _clock(peak + AFTER_H),
                "days": ["mon", "tue", "wed", "thu", "fri"],
                "replicas": {"min": max(size.for_peak // 2, LEAST), "max": size.for_peak},
            }
        ],
        "load": {"query": query, "perReplica": size.each_per_s, "fillPercent": size.fill_pct, "forecast": {}},
    }


def _clock(hour: float) -> str:
    minutes = round(hour * 60) % 1440
    return f"{minutes // 60:02}:{minutes % 60:02}"


class Traced(Prometheus):
    """Answers from the load instead of from a server."""

    def __init__(self, load: Load) -> None:
        """No address is ever asked."""
        super().__init__("http://the-load")
        self._load = load
        self._places = {each.name: i for i, each in enumerate(load.services)}

    async def instant(self, query: str, at: datetime, *, max_age_s: float | None = None) -> Reading:  # noqa: ARG002
        """The service's requests per second, a minute late."""
        late = datetime.fromtimestamp(at.timestamp() - LATE_S, at.tzinfo)
        return Reading(float(self._load.at(late)[self._place(query)]))

    async def range(self, query: str, begin: datetime, end: datetime, step_s: float) -> list[Series]:
        """The most of each hour."""
        hours = int((end - begin).total_seconds() // step_s) + 1
        return [Series({}, self._load.hourly(self._place(query), begin, hours))]

    def _place(self, query: str) -> int:
        found = _SERVICE.search(query)
        if found is None:
            raise NotFoundError(f"no service in {query}", retry=False)
        return self._places[found[1]]


class Fits:
    """The forecast's model in this process: fits that were made once are not made again for the next way of sizing."""

    def __init__(self) -> None:
        """None is made."""
        self.made: dict[bytes, Forecast | Refusal] = {}

    async def fit(self, history: FloatArray, steps: int) -> Forecast | Refusal:
        """See ``adapters/seasonal.py``, which does the same in a process of its own."""
        from cardwise.adapters.seasonal import stl  # noqa: PLC0415 - it imports its library when it is asked

        key = history.tobytes()
        if key not in self.made:
            self.made[key] = forecast(history, steps, stl)
        return self.made[key]
