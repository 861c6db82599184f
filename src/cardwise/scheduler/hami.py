"""What HAMi reads of a pod and cardwise does not: told to whoever makes it, for on HAMi's nodes it had an effect.

HAMi's names for cards, memory, compute and card models are read (``claims.py``). Refuses to deny: manifests written for
HAMi run as they are (SPEC A1); and to imitate: a wish that is followed only sometimes is worse than one that is not.
Source: HAMi v2.10, ``pkg/device/nvidia/device.go`` and ``pkg/util/types.go``.
"""

from __future__ import annotations

from collections.abc import Iterator

from cardwise.adapters import wire
from cardwise.adapters.kube_objects import Pod

_INSTEAD = {
    wire.ANNOTATION_HAMI_USE_UUID: f"cards are chosen anew for each pod; write {wire.ANNOTATION_GPU_MODEL} for a model",
    wire.ANNOTATION_HAMI_NO_UUID: f"cards are chosen anew for each pod; write {wire.ANNOTATION_GPU_MODEL} for a model",
    wire.ANNOTATION_HAMI_NUMA: "several cards of one pod are near each other where there are such",
    wire.ANNOTATION_HAMI_MODE: f"write {wire.ANNOTATION_ISOLATION}",
    wire.ANNOTATION_HAMI_NODE_POLICY: f"a policy is of a class of pods; write {wire.ANNOTATION_CLASS}",
    wire.ANNOTATION_HAMI_CARD_POLICY: f"a policy is of a class of pods; write {wire.ANNOTATION_CLASS}",
}
"""Annotations that HAMi reads, and what there is in their place."""


def unread_wishes(pod: Pod) -> Iterator[str]:
    """A sentence for each wish of a pod that asks for cards that nobody will follow."""
    for key, instead in _INSTEAD.items():
        if key in pod.metadata.annotations:
            yield f"annotation {key}: is HAMi's, and not read; {instead}"
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    asked = [each.resources.requests.keys() | each.resources.limits.keys() for each in containers]
    with_cards = set[str]().union(*(names for names in asked if names & wire.READ_RESOURCES))
    for name in sorted(with_cards & wire.IGNORED_RESOURCES):
        yield f"{name}: is HAMi's, and was taken out; write spec.priorityClassName"
