"""A cluster without a cluster: nodes and pods in memory behind the same port as the API server.

It keeps what the scheduler relies on and an API server promises: one write puts node name and annotations on a pod,
writes that rest on an old belief are refused, and every follower hears all changes in the order in which they were
made. Refuses to decide, to wait and to look at a clock: controllers, kubelet and scheduler are its callers.
Source: kubernetes pkg/registry/core/pod/storage (assignPod), checked by ``tests/adapters/test_hollow.py``.
"""

from __future__ import annotations

import asyncio
import copy
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from cardwise.adapters import wire
from cardwise.adapters.kube.port import (
    All,
    Binding,
    Evictee,
    Gone,
    LeaseRecord,
    NodeEvent,
    PodEvent,
    Put,
    Release,
)
from cardwise.adapters.kube_objects import Budget, Node, Pod, Workload
from cardwise.adapters.selecting import covers
from cardwise.errors import BudgetError, ConflictError, NotFoundError, UserError

Raw = dict[str, Any]
"""An object as JSON has it."""
Admit = Callable[[Pod, Mapping[str, Any]], list[dict[str, Any]]]
"""Admission: the JSON patch that makes a pod ours; raises UserError to deny it."""
MOST_EVENTS = 1000
"""Kubernetes forgets events after an hour; here the oldest go first."""
_UIDS = uuid.UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")

_ObjectT = TypeVar("_ObjectT", Pod, Node)
_TypedT = TypeVar("_TypedT", Pod, Node, Budget, Workload)


class HollowCluster:
    """An :class:`~cardwise.adapters.kube.port.EvictingPort` that lives in this process. One event loop owns it.

    admit: asked before a pod is stored. now: the time for timestamps. events: what was posted, oldest first.
    """

    def __init__(self, now: Callable[[], datetime], admit: Admit = lambda _pod, _raw: []) -> None:
        """Start empty."""
        self.events: deque[Raw] = deque(maxlen=MOST_EVENTS)
        self._now, self._admit = now, admit
        self._version = 0
        self._pods: dict[tuple[str, str], Raw] = {}
        self._nodes: dict[str, Raw] = {}
        self._budgets: dict[str, Raw] = {}
        self._workloads: dict[str, Raw] = {}
        self._leases: dict[tuple[str, str], LeaseRecord] = {}
        self._pod_followers: list[_Follower[Pod]] = []
        self._node_followers: list[_Follower[Node]] = []

    # ---------------------------------------------------------------- the port

    def follow_pods(self) -> AsyncIterator[PodEvent]:
        """See the port."""
        return _follow(self._pod_followers, self._living_pods)

    def follow_nodes(self) -> AsyncIterator[NodeEvent]:
        """See the port."""
        return _follow(self._node_followers, lambda: tuple(map(_node, self._nodes.values())))

    async def get_pod(self, namespace: str, name: str) -> Pod:
        """See the port."""
        return _pod(self._stored(namespace, name))

    async def bind(self, binding: Binding) -> None:
        """See the port. Like the API server it does not ask whether there is such a node."""
        raw = copy.deepcopy(self._stored(binding.namespace, binding.pod))
        metadata, spec, who = raw["metadata"], raw["spec"], f"pod {binding.namespace}/{binding.pod}"
        if binding.uid and metadata["uid"] != binding.uid:
            raise _conflict(f"{who}: the UID in the precondition is {binding.uid}, the pod's is {metadata['uid']}")
        if "deletionTimestamp" in metadata:
            raise _conflict(f"{who} is being deleted, cannot be assigned to a host")
        if spec.get("nodeName"):
            raise _conflict(f"{who} is already assigned to node {spec['nodeName']}")
        if spec.get("schedulingGates"):
            raise _conflict(f"{who} has scheduling gates")
        spec["nodeName"] = binding.node
        for key, given in (("annotations", binding.annotations), ("labels", binding.labels)):
            metadata[key] = {**(metadata.get(key) or {}), **given}
        _set_condition(raw, {"type": "PodScheduled", "status": "True"})
        self._store_pod(raw)

    async def annotate_node(self, name: str, annotations: Mapping[str, str | None]) -> None:
        """See the port."""
        raw = self._stored_node(name)
        merged = {**(raw["metadata"].get("annotations") or {}), **annotations}
        raw["metadata"]["annotations"] = {key: text for key, text in merged.items() if text is not None}
        self._store_node(raw)

    async def set_node_condition(self, name: str, condition: Mapping[str, str]) -> None:
        """See the port."""
        raw = self._stored_node(name)
        _set_condition(raw, dict(condition))
        self._store_node(raw)

    async def post_event(self, event: Mapping[str, Any], namespace: str) -> None:
        """See the port."""
        raw = copy.deepcopy(dict(event))
        raw["metadata"] = {**(raw.get("metadata") or {}), "namespace": namespace}
        self.events.append(raw)

    async def list_leases(self, _namespace: str, _prefix: str) -> dict[str, str]:
        """No agents run here, so no node has a Lease of one."""
        return {}

    async def read_lease(self, namespace: str, name: str) -> LeaseRecord:
        """See the port."""
        if (namespace, name) not in self._leases:
            raise NotFoundError(f"lease {namespace}/{name} not found", retry=False)
        return self._leases[namespace, name]

    async def write_lease(self, namespace: str, name: str, record: LeaseRecord) -> LeaseRecord:
        """See the port."""
        known = self._leases.get((namespace, name))
        if record.version and known is None:
            raise NotFoundError(f"lease {namespace}/{name} not found", retry=False)
        if known is not None and known.version != record.version:
            what = "has been modified" if record.version else "already exists"
            raise _conflict(f"lease {namespace}/{name} {what}")
        written = replace(record, version=self._next_version())
        self._leases[namespace, name] = written
        return written

    async def annotate_pod(self, namespace: str, name: str, uid: str, annotations: Mapping[str, str | None]) -> None:
        """See the port."""
        raw = self._this_very(namespace, name, uid)
        merged = {**(raw["metadata"].get("annotations") or {}), **annotations}
        raw["metadata"]["annotations"] = {key: text for key, text in merged.items() if text is not None}
        self._store_pod(raw)

    async def nominate(self, namespace: str, name: str, uid: str, node: str) -> None:
        """See the port."""
        raw = self._this_very(namespace, name, uid)
        raw.setdefault("status", {})["nominatedNodeName"] = node
        self._store_pod(raw)

    async def evict(self, evictee: Evictee, *, dry_run: bool = False) -> None:
        """See the port. Like the API server it counts a budget down, and more than one for a pod is an error."""
        raw = self._this_very(evictee.namespace, evictee.name, evictee.uid)
        if "deletionTimestamp" in raw["metadata"]:
            return
        labels = raw["metadata"].get("labels") or {}
        covering = [budget for budget in await self.list_budgets() if covers(budget.spec.selector, labels)]
        covering = [budget for budget in covering if budget.metadata.namespace == evictee.namespace]
        if any(budget.status.disruptions_allowed < 1 for budget in covering):
            raise BudgetError("Cannot evict pod as it would violate the pod's disruption budget.", retry=True)
        if dry_run:
            return
        for budget in covering:
            self._budgets[budget.name]["status"]["disruptionsAllowed"] -= 1
        self.delete_pod(evictee.namespace, evictee.name, graceful=bool(raw["spec"].get("nodeName")))

    async def release_pod(self, release: Release, annotations: Mapping[str, str | None]) -> None:
        """See the port."""
        self._relabel(release, None, annotations, controls=False)

    async def take_back_pod(self, release: Release, annotations: Mapping[str, str | None]) -> None:
        """See the port. There is no ReplicaSet here that would adopt it by itself."""
        self._relabel(release, release.pod_hash, annotations, controls=True)

    def _relabel(
        self, release: Release, pod_hash: str | None, annotations: Mapping[str, str | None], *, controls: bool
    ) -> None:
        raw = self._this_very(release.namespace, release.name, release.uid)
        metadata = raw["metadata"]
        changes = (("labels", {wire.LABEL_POD_HASHES[0]: pod_hash}), ("annotations", annotations))
        for key, change in changes:
            merged = {**(metadata.get(key) or {}), **change}
            metadata[key] = {name: text for name, text in merged.items() if text is not None}
        for owner in metadata.get("ownerReferences") or ():
            if owner["uid"] == release.owner_uid:
                owner["controller"] = controls
        self._store_pod(raw)

    async def list_budgets(self) -> list[Budget]:
        """See the port."""
        return [_typed(raw, Budget) for raw in self._budgets.values()]

    async def list_workloads(self) -> list[Workload]:
        """See the port."""
        return [_typed(raw, Workload) for raw in self._workloads.values()]

    # ---------------------------------------------------------------- what controllers and kubelets do

    def put_budget(self, raw: Mapping[str, Any]) -> None:
        """Create a PodDisruptionBudget, or replace it; its status is the caller's, as its controller's."""
        made = copy.deepcopy(dict(raw))
        made.setdefault("status", {}).setdefault("disruptionsAllowed", 0)
        self._budgets[_typed(made, Budget).name] = made

    def put_workload(self, raw: Mapping[str, Any]) -> None:
        """Create a Workload of Kueue, or replace it."""
        made = copy.deepcopy(dict(raw))
        self._workloads[_typed(made, Workload).metadata.name] = made

    def create_pod(self, raw: Mapping[str, Any]) -> Pod:
        """Admit and store a pod. Raises ConflictError if the name is taken, UserError if it is denied or no pod."""
        made = copy.deepcopy(dict(raw))
        metadata = made.setdefault("metadata", {})
        metadata.setdefault("namespace", "default")
        where = metadata["namespace"], metadata.get("name", "")
        if where in self._pods:
            raise _conflict(f"pod {'/'.join(where)} already exists")
        _default_requests(made)
        apply_patch(made, self._admit(_pod(made), made))
        version = self._next_version()
        metadata["uid"] = str(uuid.uuid5(_UIDS, f"{'/'.join(where)}/{version}"))
        metadata["creationTimestamp"] = _moment(self._now())
        made.setdefault("status", {"phase": "Pending"})
        return self._store_pod(made)

    def start_pod(self, namespace: str, name: str) -> None:
        """As a kubelet whose containers start at once: the pod is initialized and runs."""
        raw = copy.deepcopy(self._stored(namespace, name))
        raw.setdefault("status", {})["phase"] = "Running"
        _set_condition(raw, {"type": "Initialized", "status": "True"})
        self._store_pod(raw)

    def ready_pod(self, namespace: str, name: str, *, ready: bool = True) -> None:
        """As a kubelet whose probes pass, or fail."""
        raw = copy.deepcopy(self._stored(namespace, name))
        _set_condition(raw, {"type": "Ready", "status": str(ready)})
        self._store_pod(raw)

    def end_pod(self, namespace: str, name: str, phase: str = "Succeeded") -> None:
        """As a kubelet whose containers have ended for good. Followers hear that the pod is gone."""
        raw = copy.deepcopy(self._stored(namespace, name))
        raw.setdefault("status", {})["phase"] = phase
        self._store_pod(raw)

    def delete_pod(self, namespace: str, name: str, *, graceful: bool = False) -> None:
        """Remove a pod; ``graceful``: only mark it as being deleted, as the API server does while it still runs."""
        raw = copy.deepcopy(self._stored(namespace, name))
        raw["metadata"]["deletionTimestamp"] = _moment(self._now())
        if graceful:
            self._store_pod(raw)
            return
        del self._pods[namespace, name]
        raw["metadata"]["resourceVersion"] = self._next_version()
        if not (gone := _pod(raw)).ended:
            _tell(self._pod_followers, Gone(gone))

    def put_node(self, raw: Mapping[str, Any]) -> None:
        """Create a node, or replace it."""
        self._store_node(copy.deepcopy(dict(raw)))

    def delete_node(self, name: str) -> None:
        """Remove a node. Its pods stay until somebody deletes them."""
        gone = self._stored_node(name)
        del self._nodes[name]
        gone["metadata"]["resourceVersion"] = self._next_version()
        _tell(self._node_followers, Gone(_node(gone)))

    async def heard(self) -> None:
        """Wait until every follower has dealt with all that happened so far."""
        for pods in tuple(self._pod_followers):
            await pods.queue.join()
        for nodes in tuple(self._node_followers):
            await nodes.queue.join()

    # ---------------------------------------------------------------- inside

    def _living_pods(self) -> tuple[Pod, ...]:
        return tuple(pod for pod in map(_pod, self._pods.values()) if not pod.ended)

    def _stored(self, namespace: str, name: str) -> Raw:
        if (namespace, name) not in self._pods:
            raise NotFoundError(f"pod {namespace}/{name} not found", retry=False)
        return self._pods[namespace, name]

    def _this_very(self, namespace: str, name: str, uid: str) -> Raw:
        """A copy of a pod to change, if it is the one that is meant."""
        raw = copy.deepcopy(self._stored(namespace, name))
        if uid and raw["metadata"]["uid"] != uid:
            raise _conflict(f"pod {namespace}/{name}: the UID in the precondition is {uid}, it is another one by now")
        return raw

    def _stored_node(self, name: str) -> Raw:
        """A copy to change."""
        if name not in self._nodes:
            raise NotFoundError(f"node {name} not found", retry=False)
        return copy.deepcopy(self._nodes[name])

    def _next_version(self) -> str:
        self._version += 1
        return str(self._version)

    def _store_pod(self, raw: Raw) -> Pod:
        """Keep the new state and tell it. A pod that ended leaves the stream, which is of the living."""
        where = raw["metadata"]["namespace"], raw["metadata"]["name"]
        before = self._pods.get(where)
        if raw == before:
            return _pod(raw)
        raw["metadata"]["resourceVersion"] = self._next_version()
        pod = _pod(raw)
        self._pods[where] = raw
        if not pod.ended:
            _tell(self._pod_followers, Put(pod))
        elif before is not None and not _pod(before).ended:
            _tell(self._pod_followers, Gone(pod))
        return pod

    def _store_node(self, raw: Raw) -> None:
        name = raw["metadata"]["name"]
        if raw == self._nodes.get(name):
            return
        raw["metadata"]["resourceVersion"] = self._next_version()
        node = _node(raw)
        self._nodes[name] = raw
        _tell(self._node_followers, Put(node))


# ---------------------------------------------------------------- streams


class _Follower(Generic[_ObjectT]):
    """What one reader has not heard yet."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[All[_ObjectT] | Put[_ObjectT] | Gone[_ObjectT]] = asyncio.Queue()


async def _follow(
    followers: list[_Follower[_ObjectT]], present: Callable[[], tuple[_ObjectT, ...]]
) -> AsyncIterator[All[_ObjectT] | Put[_ObjectT] | Gone[_ObjectT]]:
    """All there is, then each change once the reader asks for it; from the first event on nothing is missed."""
    follower = _Follower[_ObjectT]()
    follower.queue.put_nowait(All(present()))
    followers.append(follower)
    try:
        while True:
            event = await follower.queue.get()
            try:
                yield event
            finally:
                follower.queue.task_done()
    finally:
        followers.remove(follower)
        while not follower.queue.empty():  # so that nobody waits for a reader that has left
            follower.queue.get_nowait()
            follower.queue.task_done()


def _tell(followers: list[_Follower[_ObjectT]], event: Put[_ObjectT] | Gone[_ObjectT]) -> None:
    for follower in followers:
        follower.queue.put_nowait(event)


# ---------------------------------------------------------------- objects


def apply_patch(raw: Raw, patch: list[dict[str, Any]]) -> None:
    """Apply a JSON patch in place. Only ``add`` is known, for admission writes nothing else.

    Raises ValueError for other operations and for paths that do not exist. Source: RFC 6902, 4.1; RFC 6901 (paths).
    """
    for change in patch:
        if change["op"] != "add":
            raise ValueError(f"only the operation add is applied here, not {change['op']}")
        *parents, last = (part.replace("~1", "/").replace("~0", "~") for part in change["path"].split("/")[1:])
        target: Any = raw
        try:
            for part in parents:
                target = target[int(part)] if isinstance(target, list) else target[part]
        except (KeyError, IndexError, TypeError) as exc:
            raise ValueError(f"{change['path']}: no such place") from exc
        value = copy.deepcopy(change["value"])
        if isinstance(target, list):
            target.insert(len(target) if last == "-" else int(last), value)
        else:
            target[last] = value


def _default_requests(raw: Raw) -> None:
    """What is limited and not requested is requested up to the limit. Source: SetDefaults_Pod in pkg/apis/core/v1."""
    spec = raw.get("spec") or {}
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        resources = container.get("resources") or {}
        if resources.get("limits"):
            container["resources"] = {
                **resources,
                "requests": {**resources["limits"], **(resources.get("requests") or {})},
            }


def _set_condition(raw: Raw, condition: dict[str, str]) -> None:
    """Set one condition; the others stay (a strategic merge by type)."""
    status = raw.setdefault("status", {})
    others = [each for each in status.get("conditions") or () if each["type"] != condition["type"]]
    status["conditions"] = [*others, condition]


def _pod(raw: Raw) -> Pod:
    return _typed(raw, Pod)


def _node(raw: Raw) -> Node:
    return _typed(raw, Node)


def _typed(raw: Raw, kind: type[_TypedT]) -> _TypedT:
    """Through JSON, as over the wire: what readers get shares nothing with what is stored."""
    try:
        return msgspec.json.decode(msgspec.json.encode(raw), type=kind)
    except msgspec.ValidationError as exc:
        raise UserError(f"not a {kind.__name__}: {exc}") from exc


def _conflict(message: str) -> ConflictError:
    return ConflictError(message, retry=False)


def _moment(now: datetime) -> str:
    return f"{now:%Y-%m-%dT%H:%M:%SZ}"
