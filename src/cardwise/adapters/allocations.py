"""The allocation annotation on a pod, both ways. What is written can be read again without loss (case C9).

Refuses what it does not understand: an allocation of another version or with nonsense in it is an error, never "none".
"""

from __future__ import annotations

import msgspec

from cardwise.adapters import wire
from cardwise.adapters.claims import MODE_NAMES, NAMED_MODES, read_claim
from cardwise.adapters.kube_objects import Pod
from cardwise.core.allocation import Allocation, BoundPod, Share
from cardwise.files import decode_json

VERSION = 1


class _Share(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    uuid: str
    mib: int
    cores: int
    mode: str = "any"
    whole: bool = False
    lent: int = 0
    """Left out where nothing is lent: such an allocation is read by a scheduler that knows of no lending, too."""


class ToldAllocation(msgspec.Struct, forbid_unknown_fields=True):
    """An allocation as it is written."""

    v: int
    epoch: int
    seq: int
    node: str
    ctr: dict[str, list[_Share]]


def encode(allocation: Allocation) -> str:
    """The annotation's text."""
    return msgspec.json.encode(told_allocation(allocation)).decode()


def told_allocation(allocation: Allocation) -> ToldAllocation:
    """As it is written."""
    containers = {
        container: [
            _Share(share.uuid, share.memory_mib, share.compute_pct, MODE_NAMES[share.mode], share.whole, share.lent_mib)
            for share in shares
        ]
        for container, shares in allocation.containers
    }
    return ToldAllocation(VERSION, allocation.epoch, allocation.seq, allocation.node, containers)


def decode(text: str) -> Allocation:
    """Read an annotation. Raises ValueError if it is not one of ours."""
    try:
        told = decode_json(text, ToldAllocation)
    except msgspec.DecodeError as exc:
        raise ValueError(f"{wire.ANNOTATION_ALLOC} is not readable: {exc}") from exc
    return read_allocation(told)


def read_allocation(told: ToldAllocation) -> Allocation:
    """Back from what is written. Raises ValueError if it is not one of ours."""
    if told.v != VERSION:
        raise ValueError(f"{wire.ANNOTATION_ALLOC} has version {told.v}, this scheduler reads {VERSION}")
    containers = tuple((name, tuple(map(_share, shares))) for name, shares in told.ctr.items())
    return Allocation(told.node, containers, told.epoch, told.seq)


def _share(told: _Share) -> Share:
    if told.mode not in NAMED_MODES or not 0 <= told.lent <= told.mib or not 0 <= told.cores <= 100:
        raise ValueError(f"{wire.ANNOTATION_ALLOC}: impossible share {told}")
    return Share(told.uuid, told.mib, told.cores, told.whole, NAMED_MODES[told.mode], told.lent)


def bound_pod(pod: Pod) -> BoundPod:
    """A pod on a node as the ledger counts it. Raises ValueError that names the pod if its allocation is unreadable."""
    text = pod.metadata.annotations.get(wire.ANNOTATION_ALLOC)
    try:
        allocation = None if text is None else decode(text)
    except ValueError as exc:
        raise ValueError(f"pod {pod.name}: {exc}") from exc
    claim, _faults = read_claim(pod)  # whatever is wrong with it, it runs
    return BoundPod(claim, pod.spec.node_name, allocation, pod.initialized)
