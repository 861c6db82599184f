"""The kubelet's other half: an API server's pods are admitted, started, reported and ended.

Sources: kubelet.go (HandlePodAdditions, syncPod), pod_workers.go, kuberuntime_manager.go (SyncPod, steps 7 and 9),
status/status_manager.go (a pod is deleted when its containers have ended), nodestatus/setters.go. Faster than the real
one in one thing: a container that failed to start is tried again after 1, 2, 4, 8 and then every 15 s, not after 10–15.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.controlplane.cluster import ApiError
from tests.fakes.kubelet.faults import ContainerError, Refused
from tests.fakes.kubelet.node import FakeKubelet
from tests.fakes.kubelet.pods import Container, Pod, app_containers, init_containers, is_sidecar, key_of, uid_of
from tests.fakes.kubelet.started import Started
from tests.fakes.kubelet.status import PodState, now

Api = Callable[..., Any]
"""``ControlPlane.api``: method, path, body, ``content_type=``. It blocks, so it runs in a thread."""

RETRY_S = (1.0, 2.0, 4.0, 8.0, 15.0)
NOT_FOUND, CONFLICT = 404, 409
BUSY = (429, 500, 502, 503, 504)  # as good as no answer
LOST = (OSError, http.client.HTTPException)
TERMINAL = ("Succeeded", "Failed")
KILLED = 143
STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"


class Worker:
    """One pod that was admitted."""

    def __init__(self, pod: Pod) -> None:
        self.state = PodState(pod)
        self.news = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.ended = False
        self.asked_to_delete = False

    @property
    def pod(self) -> Pod:
        return self.state.pod

    def take(self, pod: Pod) -> None:
        """What the API server says now; a change that is not the status's alone is worked on at once."""
        changed = any(_told(pod, part) != _told(self.pod, part) for part in ("labels", "annotations"))
        self.state.pod = pod
        if changed:
            self.news.set()

    async def rest(self, longest_s: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.news.wait(), longest_s)
        self.news.clear()


class ClusterKubelet:
    """Drives ``kubelet``, which the caller starts and stops, from an API server; the node object must exist.

    init_s: how long an ordinary init container runs. stop_s: how long containers take to end when a pod is deleted.
    """

    def __init__(
        self,
        kubelet: FakeKubelet,
        api: Api,
        *,
        poll_s: float = 0.2,
        retry_s: Sequence[float] = RETRY_S,
        init_s: float = 0.0,
        stop_s: float = 0.0,
    ) -> None:
        self.kubelet = kubelet
        self._call = api
        self._poll_s, self._retry_s, self.init_s, self.stop_s = poll_s, retry_s, init_s, stop_s
        self._workers: dict[str, Worker] = {}
        self._events: dict[tuple[str, ...], tuple[str, int]] = {}
        self._reported: Mapping[str, Any] = {}
        self._turn = asyncio.Lock()
        self._loop: asyncio.Task[None] | None = None

    # ---------------------------------------------------------------- for tests

    async def start(self) -> None:
        self._loop = asyncio.create_task(self._poll())

    async def stop(self) -> None:
        """Stop looking at the API server; raises what went wrong meanwhile. Containers run on."""
        tasks = [each.task for each in self._workers.values() if each.task]
        if self._loop:
            tasks.append(self._loop)
        for each in tasks:
            if not each.done():
                each.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    async def restart(self) -> None:
        """The kubelet restarts; pods that it refuses then are failed."""
        async with self._turn:
            for worker in self._workers.values():
                await _cancelled(worker.task)
            refused = await self.kubelet.restart()
            await self._report_node()
            for uid, worker in self._workers.items():
                if uid in refused:
                    await self._reject(worker, refused[uid])
                if worker.asked_to_delete:
                    worker.task = asyncio.create_task(self._end(worker))
                elif not worker.ended:
                    worker.task = asyncio.create_task(self._live(worker))

    def running(self) -> dict[tuple[str, str, str], Started]:
        """By namespace, pod and container."""
        names = {uid: key_of(worker.pod) for uid, worker in self._workers.items()}
        return {(*names[uid], name): each for (uid, name), each in self.kubelet.running().items() if uid in names}

    async def exit(self, namespace: str, name: str, container: str, exit_code: int = 1) -> None:
        """The container ends by itself; the pod's restart policy says whether it is started again."""
        worker = self._worker(namespace, name)
        self.kubelet.stop_container(uid_of(worker.pod), container)
        worker.state.containers[container].end(exit_code)
        await self._report(worker)
        worker.news.set()

    def _worker(self, namespace: str, name: str) -> Worker:
        for worker in self._workers.values():
            if key_of(worker.pod) == (namespace, name) and not worker.ended:
                return worker
        raise KeyError(f"no pod {namespace}/{name} on {self.kubelet.node}")

    # ---------------------------------------------------------------- the loop over pods

    async def _poll(self) -> None:
        while True:
            with contextlib.suppress(*LOST):
                async with self._turn:
                    await self._report_node()
                    await self._look()
            await asyncio.sleep(self._poll_s)

    async def _look(self) -> None:
        path = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{self.kubelet.node}"
        found = {uid_of(each): each for each in (await self._api("GET", path))["items"]}
        for uid in self._workers.keys() - found.keys():
            await self._forget(uid)
        for uid, pod in sorted(found.items(), key=lambda item: item[1]["metadata"]["creationTimestamp"]):
            await self._handle(uid, pod)

    async def _handle(self, uid: str, pod: Pod) -> None:
        if uid not in self._workers:
            await self._add(uid, pod)
        worker = self._workers[uid]
        worker.take(pod)
        if not worker.state.refused:
            self.kubelet.update_pod(pod)
        if pod["metadata"].get("deletionTimestamp") and not worker.asked_to_delete:
            worker.asked_to_delete = True
            await _cancelled(worker.task)
            worker.task = asyncio.create_task(self._end(worker))
        elif worker.task and worker.task.done() and not worker.task.cancelled():
            worker.task.result()  # a fault of ours ends the loop, and stop() tells it

    async def _add(self, uid: str, pod: Pod) -> None:
        """Admission, one pod after another: a plugin that is slow to allocate holds up all of the node."""
        worker = self._workers[uid] = Worker(pod)
        if pod["metadata"].get("deletionTimestamp") or (pod.get("status") or {}).get("phase") in TERMINAL:
            worker.ended = True
            self.kubelet.know(pod, terminal=True)
            return
        try:
            await self.kubelet.admit(pod)
        except Refused as error:
            await self._reject(worker, error)
        else:
            worker.task = asyncio.create_task(self._live(worker))

    async def _reject(self, worker: Worker, error: Refused) -> None:
        worker.state.refused, worker.ended = error, True
        await self._event(worker.pod, error.reason, error.message)
        await self._report(worker)

    async def _forget(self, uid: str) -> None:
        worker = self._workers.pop(uid)
        await _cancelled(worker.task)
        self.kubelet.remove_pod(uid)

    async def _end(self, worker: Worker) -> None:
        """Containers end, the status says so, and only then the pod is deleted."""
        await asyncio.sleep(self.stop_s)
        self.kubelet.end_pod(uid_of(worker.pod))
        if not worker.ended:
            worker.ended = True
            worker.state.end_all(KILLED)
            await self._report(worker, gone=True)
        with contextlib.suppress(Gone):
            await self._api(
                "DELETE",
                _path(worker.pod),
                {"gracePeriodSeconds": 0, "preconditions": {"uid": uid_of(worker.pod)}},
            )

    # ---------------------------------------------------------------- one pod

    async def _live(self, worker: Worker) -> None:
        failures = 0
        await self._report(worker)
        while not worker.state.is_over():
            if await self._sync(worker):
                failures = 0
                await worker.rest(None)
            else:
                await worker.rest(self._retry_s[min(failures, len(self._retry_s) - 1)])
                failures += 1
        worker.ended = True
        worker.state.end_all(0)  # sidecars
        self.kubelet.end_pod(uid_of(worker.pod))
        await self._report(worker)

    async def _sync(self, worker: Worker) -> bool:
        """Start what should run and does not. False: try again."""
        for container in init_containers(worker.pod):
            if not worker.state.is_past(container) and not await self._initialize(worker, container):
                return False
        outcomes = [await self._start(worker, each) for each in app_containers(worker.pod) if _is_due(worker, each)]
        return all(outcomes)

    async def _initialize(self, worker: Worker, container: Container) -> bool:
        started = await self._start(worker, container)
        if started and not is_sidecar(container):
            await asyncio.sleep(self.init_s)
            self.kubelet.stop_container(uid_of(worker.pod), container["name"])
            worker.state.containers[container["name"]].end(0)
            await self._report(worker)
        return started

    async def _start(self, worker: Worker, container: Container) -> bool:
        state = worker.state.containers[container["name"]]
        try:
            await self.kubelet.start_container(uid_of(worker.pod), container["name"])
        except ContainerError as error:
            state.fail(error)
            await self._event(worker.pod, "Failed", f"Error: {error.message}", container)
        else:
            state.start()
        await self._report(worker)
        return state.runs

    # ---------------------------------------------------------------- what the API server is told

    async def _api(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        try:
            return await asyncio.to_thread(self._call, method, path, body, content_type=content_type)
        except ApiError as error:
            if error.status in {NOT_FOUND, CONFLICT}:
                raise Gone(str(error)) from error
            if error.status in BUSY:
                raise ConnectionError(str(error)) from error
            raise

    async def _insist(self, method: str, path: str, body: Any, content_type: str = "application/json") -> Any:
        """Until the API server has answered; None if what it is about is gone."""
        while True:
            try:
                return await self._api(method, path, body, content_type)
            except Gone:
                return None
            except LOST:
                await asyncio.sleep(self._poll_s)

    async def _report(self, worker: Worker, gone: bool = False) -> None:
        await self._insist("PATCH", f"{_path(worker.pod)}/status", worker.state.patch(gone), STRATEGIC)

    async def _report_node(self) -> None:
        """Devices come and go: capacity is what the plugin names, allocatable what of it is healthy."""
        capacity, allocatable, gone = self.kubelet.devices.capacity()
        zero = dict.fromkeys(gone, "0")
        status = {
            "capacity": {name: str(count) for name, count in capacity.items()} | zero,
            "allocatable": {name: str(count) for name, count in allocatable.items()} | zero,
        }
        if (capacity or gone) and status != self._reported:
            with contextlib.suppress(Gone):
                await self._api("PATCH", f"/api/v1/nodes/{self.kubelet.node}/status", {"status": status}, MERGE)
                self._reported = status

    async def _event(self, pod: Pod, reason: str, message: str, container: Container | None = None) -> None:
        """An event of the same words is counted, as the kubelet's recorder does."""
        namespace, name = key_of(pod)
        kind = "initContainers" if container in init_containers(pod) else "containers"
        where = f"spec.{kind}{{{container['name']}}}" if container else ""
        events = f"/api/v1/namespaces/{namespace}/events"
        key = (uid_of(pod), where, reason, message)
        if key in self._events:
            event, count = self._events[key]
            self._events[key] = (event, count + 1)
            await self._insist("PATCH", f"{events}/{event}", {"count": count + 1, "lastTimestamp": now()}, MERGE)
            return
        about = {"kind": "Pod", "apiVersion": "v1", "namespace": namespace, "name": name, "uid": uid_of(pod)}
        body = {
            "metadata": {"generateName": f"{name}."},
            "involvedObject": {**about, "fieldPath": where},
            "reason": reason,
            "message": message,
            "type": "Warning",
            "count": 1,
            "firstTimestamp": now(),
            "lastTimestamp": now(),
            "source": {"component": "kubelet", "host": self.kubelet.node},
        }
        made = await self._insist("POST", events, body)
        if made:
            self._events[key] = (made["metadata"]["name"], 1)


class Gone(Exception):  # noqa: N818 - it is what the pod is
    """The API server knows the object no more, or knows another of that name."""


async def _cancelled(task: asyncio.Task[None] | None) -> None:
    """End a task; a fault of its own is raised."""
    if task is None:
        return
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _is_due(worker: Worker, container: Container) -> bool:
    state = worker.state.containers[container["name"]]
    return not state.runs and (state.exit_code is None or worker.state.restarts(container["name"]))


def _told(pod: Pod, part: str) -> Any:
    return pod["metadata"].get(part) or {}


def _path(pod: Pod) -> str:
    namespace, name = key_of(pod)
    return f"/api/v1/namespaces/{namespace}/pods/{name}"
