"""Small builders for the situations of tests. Defaults are plain; a test names only what it is about."""

from __future__ import annotations

from dataclasses import replace

from cardwise.core.cluster import Cluster
from cardwise.core.inventory import CardSpec, NodeSpec
from cardwise.core.request import Isolation, PodRequest, Shape

CARD_MIB = 24576
"""A 24 GiB card: it takes five slices of 4096 MiB and 20 % (SPEC A1)."""


def card(uuid="", model="A10", memory_mib=CARD_MIB, **more):
    return CardSpec(uuid, model, memory_mib, **more)


def node(name="n0", cards=1, cpu_milli=64000, memory_mib=262144, **more):
    """A node with so many plain cards, or with the given ones; their UUIDs are made from the node's name."""
    specs = [card() for _ in range(cards)] if isinstance(cards, int) else list(cards)
    named = tuple(replace(spec, uuid=spec.uuid or f"{name}-card{i}") for i, spec in enumerate(specs))
    return NodeSpec(name, cpu_milli, memory_mib, named, **more)


def cluster(*nodes):
    return Cluster.build(nodes or [node()])


def slice_of(memory_mib=4096, pct=20, cards=1, **more):
    return Shape(cards=cards, memory_mib=memory_mib, compute_milli=10 * pct, **more)


def share_of(milli, cards=1, **more):
    return Shape(cards=cards, memory_milli=milli, compute_milli=milli, **more)


def whole(cards=1, **more):
    return Shape(cards=cards, whole=True, **more)


def cpu_only(cpu_milli=1000, **more):
    return Shape(cards=0, cpu_milli=cpu_milli, **more)


def pod(name="p0", shape=None, **more):
    return PodRequest(name, shape or slice_of(), **more)


MIG = frozenset({Isolation.MIG})
