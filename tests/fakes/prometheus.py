"""Prometheus' API on loopback, whose answers a test writes. The real one is in tests/e2e/test_prometheus.py."""

from __future__ import annotations

import contextlib

from aiohttp import web

from tests.fakes.loopback import served


class FakePrometheus:
    """values: the number, or list of numbers, by query; a query that is not in it has no series.

    raw: what is answered instead, as (status, body). history: by query, pairs of time and value; series: in place of
    that, for any query, by the label "service". asked: parameters.
    """

    def __init__(self):
        self.values, self.history, self.warnings = {}, {}, []
        self.raw = self.series = None
        self.asked = []
        self.url = ""

    @contextlib.asynccontextmanager
    async def serving(self):
        asked = web.post("/api/v1/query", self._instant), web.post("/api/v1/query_range", self._range)
        async with served(*asked) as port:
            self.url = f"http://127.0.0.1:{port}"
            yield self

    async def _instant(self, request):
        told = await self._told(request)
        found = self.values.get(told["query"], [])
        numbers = found if isinstance(found, list) else [found]
        result = [{"metric": {"n": str(i)}, "value": [1.0, str(each)]} for i, each in enumerate(numbers)]
        return self._answer({"resultType": "vector", "result": result})

    async def _range(self, request):
        told = await self._told(request)
        named = self.series
        if named is None:
            named = {"": self.history[told["query"]]} if told["query"] in self.history else {}
        begin, end = float(told["start"]), float(told["end"])
        result = [
            {
                "metric": {"service": name} if name else {},
                "values": [[at, str(v)] for at, v in points if begin <= at <= end],
            }
            for name, points in named.items()
        ]
        return self._answer({"resultType": "matrix", "result": result})

    async def _told(self, request):
        told = dict(await request.post())
        self.asked.append({**told, "authorization": request.headers.get("Authorization")})
        return told

    def _answer(self, data):
        if self.raw is not None:
            status, body = self.raw
            return web.Response(status=status, body=body)
        return web.json_response({"status": "success", "data": data, "warnings": self.warnings})
