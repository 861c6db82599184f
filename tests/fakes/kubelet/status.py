"""A pod's status as the kubelet writes it.

Sources: kubelet_pods.go (getPhase, convertToAPIContainerStatuses), status/generate.go, kubelet.go (rejectPod).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.kubelet.faults import ContainerError, Refused
from tests.fakes.kubelet.pods import (
    Container,
    Pod,
    all_containers,
    app_containers,
    container_named,
    init_containers,
    is_sidecar,
)


def now() -> str:
    return f"{dt.datetime.now(dt.UTC):%Y-%m-%dT%H:%M:%SZ}"


@dataclass
class ContainerState:
    """``current`` and ``last`` are ContainerState objects of the API."""

    current: Mapping[str, Any]
    last: Mapping[str, Any] = field(default_factory=dict)
    restarts: int = 0
    ran: bool = False

    @property
    def runs(self) -> bool:
        return "running" in self.current

    @property
    def exit_code(self) -> int | None:
        """None while it has not ended."""
        return self.current.get("terminated", {}).get("exitCode")

    def start(self) -> None:
        self.restarts += self.ran
        self.ran, self.current = True, {"running": {"startedAt": now()}}

    def end(self, exit_code: int) -> None:
        started = self.current.get("running", {}).get("startedAt", now())
        reason = "Error" if exit_code else "Completed"
        ended = {"exitCode": exit_code, "reason": reason, "startedAt": started, "finishedAt": now()}
        self.current = {"terminated": ended}
        self.last = self.current

    def fail(self, error: ContainerError) -> None:
        self.current = {"waiting": {"reason": error.reason, "message": error.message}}


class PodState:
    """The states of a pod's containers, and what follows of them."""

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        waits = "PodInitializing" if init_containers(pod) else "ContainerCreating"
        self.containers = {each["name"]: ContainerState({"waiting": {"reason": waits}}) for each in all_containers(pod)}
        self.refused: Refused | None = None
        self._start = now()
        self._conditions: dict[str, Mapping[str, str]] = {}

    def is_initialized(self) -> bool:
        return all(self.is_past(each) for each in init_containers(self.pod))

    def is_past(self, container: Container) -> bool:
        """Whether the next container may start after this init container."""
        state = self.containers[container["name"]]
        return state.runs if is_sidecar(container) else state.exit_code == 0

    def restarts(self, name: str) -> bool:
        """Whether a container that has ended is started again."""
        if is_sidecar(container_named(self.pod, name)):
            return True
        policy = self.pod["spec"].get("restartPolicy", "Always")
        return policy == "Always" or (policy == "OnFailure" and self.containers[name].exit_code != 0)

    def is_over(self) -> bool:
        """Whether no container will run again."""
        if self.refused:
            return True
        names = [each["name"] for each in app_containers(self.pod)]
        return all(self.containers[each].exit_code is not None and not self.restarts(each) for each in names)

    def end_all(self, exit_code: int) -> None:
        for each in self.containers.values():
            if each.runs:
                each.end(exit_code)

    def phase(self, gone: bool = False) -> str:
        apps = [self.containers[each["name"]] for each in app_containers(self.pod)]
        if self.refused or gone or self.is_over():
            return "Succeeded" if not self.refused and all(each.exit_code == 0 for each in apps) else "Failed"
        waits = any("waiting" in each.current and not each.last for each in apps)
        return "Pending" if waits or not self.is_initialized() else "Running"

    def patch(self, gone: bool = False) -> dict[str, Any]:
        """A strategic merge patch of the pod's status; ``gone``: its containers were ended because it is deleted."""
        if self.refused:
            words = f"Pod was rejected: {self.refused.message}"
            status: dict[str, Any] = {"phase": "Failed", "reason": self.refused.reason, "message": words}
        else:
            status = {
                "phase": self.phase(gone),
                "startTime": self._start,
                "conditions": self._told_conditions(gone),
                "initContainerStatuses": [self._status(each) for each in init_containers(self.pod)],
                "containerStatuses": [self._status(each) for each in app_containers(self.pod)],
            }
        return {"metadata": {"uid": self.pod["metadata"]["uid"]}, "status": status}

    def _status(self, container: Container) -> dict[str, Any]:
        name = container["name"]
        state = self.containers[name]
        ordinary = container in init_containers(self.pod) and not is_sidecar(container)
        told = {
            "name": name,
            "image": container.get("image", ""),
            "imageID": "",
            "ready": state.exit_code == 0 if ordinary else state.runs,
            "started": state.runs,
            "restartCount": state.restarts,
            "state": state.current,
        }
        before = state.last if state.last and state.last != state.current else {}
        return {**told, "lastState": before} if before else told

    def _told_conditions(self, gone: bool) -> list[Mapping[str, str]]:
        apps = [each["name"] for each in app_containers(self.pod)]
        sidecars = [each["name"] for each in init_containers(self.pod) if is_sidecar(each)]
        unready = [each for each in (*sidecars, *apps) if not self.containers[each].runs]
        uninitialized = [each["name"] for each in init_containers(self.pod) if not self.is_past(each)]
        ready = {"status": "True"} if not unready else _not("ContainersNotReady", "unready", unready)
        started = any(each.ran for each in self.containers.values()) or self.is_initialized()
        told = {
            "PodReadyToStartContainers": {"status": "True" if started and not gone else "False"},
            "Initialized": {"status": "True"}
            if not uninitialized or gone
            else _not("ContainersNotInitialized", "incomplete", uninitialized),
            "ContainersReady": ready,
            "Ready": ready,
        }
        for kind, condition in told.items():
            self._note(kind, condition)
        return list(self._conditions.values())

    def _note(self, kind: str, condition: Mapping[str, str]) -> None:
        """The transition's time changes with the status only."""
        old = self._conditions.get(kind, {})
        since = old["lastTransitionTime"] if old.get("status") == condition["status"] else now()
        empty = {"reason": None, "message": None}  # a merge patch removes what was said before
        self._conditions[kind] = {"type": kind, **empty, **condition, "lastTransitionTime": since}


def _not(reason: str, state: str, names: list[str]) -> dict[str, str]:
    return {"status": "False", "reason": reason, "message": f"containers with {state} status: [{' '.join(names)}]"}
