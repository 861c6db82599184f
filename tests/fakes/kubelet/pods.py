"""What the kubelet reads of a pod, which is a plain object as the API server sends it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Pod = Mapping[str, Any]
Container = Mapping[str, Any]


def uid_of(pod: Pod) -> str:
    return pod["metadata"]["uid"]


def key_of(pod: Pod) -> tuple[str, str]:
    """Namespace and name."""
    return pod["metadata"].get("namespace", "default"), pod["metadata"]["name"]


def init_containers(pod: Pod) -> list[Container]:
    return pod["spec"].get("initContainers") or []


def app_containers(pod: Pod) -> list[Container]:
    return pod["spec"].get("containers") or []


def all_containers(pod: Pod) -> list[Container]:
    """In the order of admission: init containers first, sidecars among them."""
    return [*init_containers(pod), *app_containers(pod)]


def is_sidecar(container: Container) -> bool:
    return container.get("restartPolicy") == "Always"


def container_named(pod: Pod, name: str) -> Container:
    for each in all_containers(pod):
        if each["name"] == name:
            return each
    raise KeyError(f"pod {'/'.join(key_of(pod))} has no container {name}")


def limits(container: Container) -> Iterator[tuple[str, str]]:
    """The device manager looks at limits only: extended resources are never overcommitted."""
    yield from ((container.get("resources") or {}).get("limits") or {}).items()


def env_of(pod: Pod, container: Container) -> dict[str, str]:
    """Plain values and fields of the pod; secrets and config maps are not here."""
    return {each["name"]: _value(pod, each) for each in container.get("env") or []}


def _value(pod: Pod, entry: Mapping[str, Any]) -> str:
    if "valueFrom" not in entry:
        return entry.get("value") or ""
    path = entry["valueFrom"].get("fieldRef", {}).get("fieldPath", "")
    for kind in ("annotations", "labels"):
        start = f"metadata.{kind}['"
        if path.startswith(start):  # a key that is absent is an empty text, not an error
            return (pod["metadata"].get(kind) or {}).get(path.removeprefix(start).removesuffix("']"), "")
    known = {f"metadata.{field}": pod["metadata"].get(field, "") for field in ("name", "namespace", "uid")}
    known["spec.nodeName"] = pod["spec"].get("nodeName", "")
    if path not in known:
        raise NotImplementedError(f"env {entry['name']}: the fake kubelet does not know valueFrom {entry['valueFrom']}")
    return known[path]
