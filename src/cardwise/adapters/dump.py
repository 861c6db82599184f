"""A live cluster's dump as a history: what ``kubectl get nodes,pods -A -o json`` shows at one moment.

The quickest way to ask "what would cardwise do with my cluster": nothing to install, nothing sent anywhere.
Refuses to be more than a moment: it tells no deletions and no finished pods, and what Kubernetes constrains beyond
cards, CPU and memory (taints, affinities, claims) is a note. A pod that could fit no node is left out, with a note.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType

from cardwise.adapters import wire
from cardwise.adapters.asks import GpuAsk, has_unread_selectors, pod_gpu_ask, pod_shape, unread_resources
from cardwise.adapters.inventory import Inventory
from cardwise.adapters.kube_objects import Pod
from cardwise.adapters.kubectl_list import WANT, Found, Listing, read_listing
from cardwise.adapters.notes import Notes
from cardwise.adapters.quantity import NotAQuantityError
from cardwise.adapters.sizes import SizeRule, first_match, parse_card_memory, parse_size_rule
from cardwise.core.history import History, PodRecord
from cardwise.core.inventory import NodeSpec
from cardwise.core.request import PodRequest
from cardwise.errors import InputError
from cardwise.files import plain

__all__ = ["SizeRule", "parse_card_memory", "parse_size_rule", "read_dump"]

_FINISHED = frozenset({"Succeeded", "Failed"})
_NO_MEMORY: Mapping[str, int] = MappingProxyType({})


def read_dump(path: Path, sizes: Sequence[SizeRule] = (), card_memory: Mapping[str, int] = _NO_MEMORY) -> History:
    """Read a dump. The history's notes tell every assumption.

    sizes: what pods that hold whole cards really need; the first rule that matches counts.
    card_memory: MiB of one card by product, for nodes without the label ``nvidia.com/gpu.memory``; wins over labels.
    Raises InputError if the dump cannot be used as it is.
    """
    listing, notes = read_listing(path), Notes()
    inventory = Inventory(card_memory, notes)
    nodes = tuple(inventory.read(found) for found in listing.nodes)
    if not any(node.cards for node in nodes):
        message = f"no node offers {wire.GPU}; give a dump of a cluster with GPU nodes and their device plugin: {WANT}"
        raise InputError(str(path), message, field="items")
    reader = _Pods(nodes, inventory.shared_nodes, sizes, notes)
    pods = reader.read(listing)
    for product in inventory.unused_products():
        notes.add("No node has the cards of --card-memory", product)
    for pattern in reader.unused_patterns():
        notes.add("No pod with whole cards matches --slice", pattern)
    return History(plain(str(path)), nodes, pods, notes.lines())


class _Pods:
    """Reads the pods of a dump, once its nodes are known."""

    def __init__(
        self, nodes: Iterable[NodeSpec], shared_nodes: set[str], sizes: Sequence[SizeRule], notes: Notes
    ) -> None:
        """shared_nodes: where ``nvidia.com/gpu: 1`` never meant a whole card."""
        self._nodes = {node.name for node in nodes}
        self._shared_nodes = shared_nodes
        self._sizes = sizes
        self._notes = notes
        self._used: set[str] = set()

    def read(self, listing: Listing) -> tuple[PodRecord, ...]:
        """All pods that still run or wait; creation times count from the first of them."""
        living = [found for found in listing.pods if not self._is_finished(found.object)]
        times = [found.object.metadata.creation_timestamp for found in living]
        start = min((time for time in times if time is not None), default=None)
        records = [self._record(found, start) for found in living]
        return tuple(record for record in records if record is not None)

    def unused_patterns(self) -> list[str]:
        """Patterns of size rules that changed no pod."""
        return [rule.pattern for rule in self._sizes if rule.pattern not in self._used]

    def _is_finished(self, pod: Pod) -> bool:
        finished = pod.status.phase in _FINISHED
        if finished:
            self._notes.add("Finished pods hold nothing and were left out", pod.name)
        return finished

    def _record(self, found: Found[Pod], start: datetime | None) -> PodRecord | None:
        pod = found.object
        service = service_of(pod)
        try:
            asked = pod_gpu_ask(pod.spec)
            ask = self._sized(pod, asked, service)
            request = PodRequest(pod.name, pod_shape(pod, ask), service=service, tenant=pod.metadata.namespace)
        except NotAQuantityError as exc:
            raise found.error(f"pod {pod.name}", str(exc)) from exc
        except ValueError as exc:
            self._notes.add("Pods that could fit no node were left out", f"{pod.name} ({exc})")
            return None
        self._note_limits(pod, ask)
        created = pod.metadata.creation_timestamp
        created_s = (created - start).total_seconds() if created is not None and start is not None else None
        node = self._node(pod)
        return PodRecord(request, created_s, node=node, cards_held=self._held(pod, asked) if node else frozenset())

    def _held(self, pod: Pod, asked: GpuAsk) -> frozenset[str]:
        """Names of the cards that a running pod holds today: HAMi tells them, whole cards are a pod's own."""
        allocated = pod.metadata.annotations.get(wire.ANNOTATION_HAMI_ALLOCATED, "")
        uuids = {card.partition(",")[0] for card in allocated.replace(";", ":").split(":") if card.strip()}
        if uuids:
            return frozenset(uuids)
        if asked.whole and pod.spec.node_name not in self._shared_nodes:
            return frozenset(f"{pod.name}#{i}" for i in range(asked.cards))
        if asked.cards:
            self._notes.add("Which cards these pods share today is not told, so cards in use are not counted", pod.name)
        return frozenset()

    def _sized(self, pod: Pod, ask: GpuAsk, service: str) -> GpuAsk:
        """The ask, or what a size rule makes of whole cards."""
        rule = first_match(self._sizes, pod.name, service) if ask.whole and not ask.remark else None
        if rule is None:
            return ask
        self._used.add(rule.pattern)
        self._notes.add(f"Whole cards became slices of {rule.memory_mib} MiB and {rule.cores_pct} %", pod.name)
        return replace(ask, memory_mib=rule.memory_mib, cores_pct=rule.cores_pct)

    def _node(self, pod: Pod) -> str:
        node = pod.spec.node_name
        if node and node not in self._nodes:
            self._notes.add("Pods on nodes that the dump does not have count as not placed", f"{pod.name} on {node}")
            return ""
        return node

    def _note_limits(self, pod: Pod, ask: GpuAsk) -> None:
        if ask.remark:
            self._notes.add(ask.remark, pod.name)
        if ask.whole and pod.spec.node_name in self._shared_nodes:
            self._notes.add("Pods that share cards by count are read as whole cards; tell their size", pod.name)
        for resource in sorted(unread_resources(pod)):
            self._notes.add(f"The resource {resource} is not read", pod.name)
        if has_unread_selectors(pod.spec):
            self._notes.add("Node selectors and affinities are read for card models only", pod.name)
        if pod.spec.resource_claims:
            self._notes.add("Resource claims (DRA) are not read", pod.name)
        if any(name in pod.metadata.annotations for name in wire.ANNOTATIONS_HAMI_TYPES):
            self._notes.add("HAMi's annotations that choose card models are not read", pod.name)


def service_of(pod: Pod) -> str:
    """Whose replica a pod is: "namespace/owner", for a Deployment without the hash; empty for a pod of its own."""
    owners = pod.metadata.owner_references
    owner = next((owner for owner in owners if owner.controller), owners[0] if owners else None)
    if owner is None or owner.kind == "Node":  # a static pod belongs to its node
        return ""
    hashes = [pod.metadata.labels.get(label) for label in wire.LABEL_POD_HASHES]
    suffixes = [f"-{pod_hash}" for pod_hash in hashes if pod_hash and owner.kind == "ReplicaSet"]
    name = owner.name
    for suffix in suffixes:
        name = name.removesuffix(suffix)
    return f"{pod.metadata.namespace}/{name}"
