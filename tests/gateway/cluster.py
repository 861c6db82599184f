"""A cluster of a few lines: what its streams tell is what the test says, in the order in which it says it."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from cardwise.adapters import wire
from cardwise.adapters.kube.port import All, Gone, Lost, Put
from cardwise.adapters.kube_objects import EndpointSlice, Service
from cardwise.gateway.main import Gateway
from cardwise.gateway.settings import Settings, faults_of
from tests.gateway.world import World, told


def endpoint(url, *, ready=True, terminating=False, uid=""):
    host, _, _ = url.removeprefix("http://").rpartition(":")
    ref = {"targetRef": {"kind": "Pod", "uid": uid}} if uid else {}
    conditions = {"ready": ready and not terminating, "serving": ready, "terminating": terminating}
    return {"addresses": [host], "conditions": conditions, **ref}


def slice_of(name, *endpoints, port, service="s", namespace="ns"):
    metadata = {"name": name, "namespace": namespace, "labels": {wire.LABEL_SERVICE_NAME: service}}
    ports = [{"name": "http", "port": port}]
    body = {"metadata": metadata, "addressType": "IPv4", "endpoints": list(endpoints), "ports": ports}
    return msgspec.convert(body, EndpointSlice)


def slice_at(url, name="s-1", service="s", **more):
    """A slice with one endpoint."""
    return slice_of(name, endpoint(url, **more), port=int(url.rpartition(":")[2]), service=service)


def annotated(name="s", namespace="ns", made="2026-01-01T00:00:00Z", gateway="cardwise", **settings):
    annotations = {wire.ANNOTATION_GATEWAY: gateway} if gateway else {}
    annotations |= {wire.ANNOTATION_GATEWAY_PREFIX + key.replace("_", "-"): value for key, value in settings.items()}
    metadata = {"name": name, "namespace": namespace, "annotations": annotations, "creationTimestamp": made}
    return msgspec.convert({"metadata": metadata}, Service)


class Cluster:
    """An :class:`~cardwise.adapters.kube.port.EndpointPort`."""

    def __init__(self):
        self.slices, self.services = asyncio.Queue(), asyncio.Queue()
        self.followed = []

    def follow_services(self, namespace):
        self.followed.append(("services", namespace))
        return self._stream(self.services)

    def follow_slices(self, namespace, services=()):
        self.followed.append(("slices", namespace, *sorted(services)))
        return self._stream(self.slices)

    async def _stream(self, queue):
        while True:
            yield await queue.get()

    def all_slices(self, *slices):
        self.slices.put_nowait(All(slices))

    def put(self, *slices):
        for each in slices:
            self.slices.put_nowait(Put(each))

    def gone(self, each):
        self.slices.put_nowait(Gone(each))

    def all_services(self, *services):
        self.services.put_nowait(All(services))

    def put_service(self, each):
        self.services.put_nowait(Put(each))

    def lost(self):
        self.slices.put_nowait(Lost("away"))
        self.services.put_nowait(Lost("away"))


def named(**more):
    """Settings of one service whose replicas are the endpoints of ns/s."""
    usual = {"name": "s", "kind": "pass", "probe_path": "/ready", "probe_every_ms": 200}
    at = {"namespace": "ns", "service": "s"}
    return {"services": [{**told({**usual, **more}), "kubernetes": at}]}


def open_to(*namespaces, **defaults):
    """Settings of a gateway of which every service opts in."""
    usual = {"kind": "pass", "probe_path": "/ready", "probe_every_ms": 200, **defaults}
    return {"kubernetes": {"namespaces": list(namespaces), "defaults": told(usual)}}


@contextlib.asynccontextmanager
async def gateway(cluster, settings):
    usual = {"host": "127.0.0.1", "port": 0, "admin-host": "127.0.0.1", "admin-port": 0, "drain-s": 5}
    built = Gateway.build(converted := msgspec.convert({**usual, **settings}, Settings), cluster)
    assert list(faults_of(converted)) == []
    async with built.running() as (port, admin_port):
        yield World(built, port, admin_port)
