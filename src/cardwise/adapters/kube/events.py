"""Events as Kubernetes keeps them: what happened to a node or a pod, and who says so.

Refuses to be long: the API server takes 1,024 characters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import structlog

from cardwise.adapters.kube.instants import stamp_now
from cardwise.errors import ClusterError

log = structlog.get_logger()

MOST_TEXT = 1000


class Posting(Protocol):
    """The part of the API server's client that is used here."""

    async def post_event(self, event: Mapping[str, Any], namespace: str) -> None:
        """Write an event."""
        ...


def about_pod(namespace: str, name: str, uid: str) -> dict[str, str]:
    """Whom an event of a pod is about."""
    return {"kind": "Pod", "namespace": namespace, "name": name, "uid": uid, "apiVersion": "v1"}


def about_node(name: str) -> dict[str, str]:
    """Whom an event of a node is about. Its UID is its name, as for the kubelet's own: so ``describe`` finds it."""
    return {"kind": "Node", "name": name, "uid": name, "apiVersion": "v1"}


def event(
    about: dict[str, str],
    reason: str,
    text: str,
    *,
    component: str,
    namespace: str = "default",
    host: str = "",
    warning: bool = True,
) -> dict[str, Any]:
    """An event that happens now, once. host: the node on which ``component`` runs, if it matters."""
    now = stamp_now()
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{component}-", "namespace": namespace},
        "involvedObject": about,
        "type": "Warning" if warning else "Normal",
        "reason": reason,
        "message": text[:MOST_TEXT],
        "source": {"component": component, "host": host} if host else {"component": component},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


async def post(port: Posting, told: Mapping[str, Any], **of: str) -> None:
    """Write an event where it says that it belongs. What cannot be written is logged, with ``of``, and forgotten."""
    try:
        await port.post_event(told, told["metadata"]["namespace"])
    except ClusterError as exc:
        log.warning("an event could not be written", **of, why=str(exc))
