"""EndpointSlices read as places where a Service's replicas answer, and what each may get.

An endpoint may be told several times: by one slice per family of addresses, and by the old slice and the new one while
it is moved, of which one is older than the other. It is known by its pod, and of what is said of it the careful part
counts: one that is told as terminating anywhere gets nothing more. Refuses to depend on the order of the slices.
Source: k8s.io/api/discovery/v1 types.go; kubernetes.io/docs, EndpointSlices, "Duplicate endpoints".
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cardwise.adapters.kube_objects import Endpoint, EndpointConditions, EndpointSlice, SlicePort

USUAL_PORT = "http"
"""The port's name where the Service has several and none is told."""
_FAMILIES = {"IPv4": 0, "IPv6": 1}
"""Of a pod with both the first is taken. Names (FQDN) are none: they are no single replica."""


class State(enum.IntEnum):
    """What an endpoint may get. Of two that are told of one, the higher counts."""

    WAITING = 0
    """Nothing: it is not ready."""
    READY = 1
    """Requests, once it has answered a warm-up."""
    ENDING = 2
    """Nothing new; what it has it finishes."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where one replica answers. uid: of its pod, for an address may be another pod's by now; "" if it is none.

    pod: its namespace and name, which the UID has decided already.
    """

    host: str
    port: int
    uid: str = ""
    pod: tuple[str, str] | None = field(default=None, compare=False)

    @property
    def url(self) -> str:
        """As a replica's address is written."""
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"


def places_of(slices: Iterable[EndpointSlice], port: str) -> dict[Place, State]:
    """Places of all endpoints of one Service and their states; each pod once, whatever the order of the slices.

    port: the name of the Service's port, or the number of the pods'; "" for the only one, or the one called "http".
    """
    told: dict[str | tuple[str, int], list[tuple[int, Place, State]]] = {}
    for each in slices:
        family, number = _FAMILIES.get(each.address_type), port_of(each, port)
        if family is None or number is None:
            continue
        for endpoint in each.endpoints or ():
            if endpoint.addresses:
                place = Place(endpoint.addresses[0], number, *_pod_of(endpoint, each.metadata.namespace))
                told.setdefault(place.uid or (place.host, number), []).append(
                    (family, place, state_of(endpoint.conditions))
                )
    return {min(found)[1]: max(state for *_, state in found) for found in told.values()}


def state_of(told: EndpointConditions) -> State:
    """What its conditions say. Absent is as the API has it: ready, and not terminating.

    A Service that publishes addresses that are not ready says ready of all of them; then serving still tells.
    """
    if told.terminating:
        return State.ENDING
    return State.WAITING if told.ready is False or told.serving is False else State.READY


def port_of(told: EndpointSlice, wanted: str) -> int | None:
    """The number of the wanted port at the endpoints of this slice; None if it has none."""
    ports = list(_tcp(told))
    if wanted.isdigit():
        number = int(wanted)
        return number if not ports or any(each.port in {number, None} for each in ports) else None
    if not wanted and len(ports) == 1:
        return ports[0].port
    return next((each.port for each in ports if each.name == (wanted or USUAL_PORT)), None)


def _tcp(told: EndpointSlice) -> Iterator[SlicePort]:
    return (each for each in told.ports or () if each.protocol in {None, "TCP"})


def _pod_of(endpoint: Endpoint, namespace: str) -> tuple[str, tuple[str, str] | None]:
    """UID, namespace and name of the pod: endpoints are of their slice's namespace."""
    target = endpoint.target_ref
    if target is None or target.kind != "Pod":
        return "", None
    return target.uid, (namespace, target.name) if target.name else None
