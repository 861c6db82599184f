"""Requests to a real engine on loopback."""

from __future__ import annotations

from contextlib import asynccontextmanager

import httpx2

from cardwise.engine.faults import Script
from cardwise.engine.model import DeviceKind
from cardwise.engine.server import running
from cardwise.engine.settings import Settings

INFER = "/v2/models/emulated/infer"


@asynccontextmanager
async def engine_and_client(script=None, device="serial", **settings):
    """An engine whose card costs nothing unless told, and a client of it."""
    chosen = Settings(**{"t0_ms": 0.0, "t1_ms": 0.0, "test_doors": True, **settings, "device": DeviceKind(device)})
    async with running(chosen, script or Script()) as engine, httpx2.AsyncClient(base_url=engine.url) as client:
        yield engine, client


def tensor(rows, name="x", datatype="FP32"):
    return {
        "name": name,
        "shape": [len(rows), len(rows[0])],
        "datatype": datatype,
        "data": [value for row in rows for value in row],
    }


def batch(ids, width=3, **more):
    """A request of one row per id, whose values follow from it."""
    rows = [[each * 10 + column for column in range(width)] for each in ids]
    row_ids = {"name": "row_id", "shape": [len(ids)], "datatype": "INT64", "data": list(ids)}
    return {"inputs": [tensor(rows), row_ids], **more}


def outputs_of(answer):
    return {each["name"]: each["data"] for each in answer.json()["outputs"]}


def completion(tokens=4, prompt="a b c", **more):
    return {"model": "emulated", "prompt": prompt, "max_tokens": tokens, **more}
