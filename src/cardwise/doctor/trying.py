"""Whether the admission webhook answers, found out by asking the API server for a pod that is never made.

Only a call tells: an endpoint may be ready behind a wrong certificate, a closed port, a network policy. The pod is
created with ``dryRun=All``: it goes through admission and is not stored, not scheduled, not started; the API server
itself refuses a dry run where a webhook of the cluster would have effects. Refuses to insist: who may not create pods
there, or whose pods another rule refuses, is told that nothing was tried.
Source: Kubernetes, "Dry-run", in the API concepts; "Side effects", in dynamic admission control.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from cardwise.adapters import wire
from cardwise.adapters.capture import Tried
from cardwise.adapters.kube.port import Requests
from cardwise.adapters.symptoms import ToldPod, WebhookConfiguration
from cardwise.errors import ClusterError

TRY_TIMEOUT_S = 35.0
"""A webhook may take 30 s at most. Source: admissionregistration.k8s.io/v1, timeoutSeconds."""
FIRST, MOST_NAMESPACES = "default", 3
UNREACHED = "failed calling webhook"
"""How the API server says that it could not ask a webhook. Its own refusals read "denied the request"."""
DENIED = "denied the request"


class _Spec(msgspec.Struct, rename="camel"):
    scheduler_name: str = ""


class _Made(msgspec.Struct):
    spec: _Spec = msgspec.field(default_factory=_Spec)


def hooks_of(items: Iterable[object]) -> list[WebhookConfiguration]:
    """Our webhook's configurations among objects."""
    return [
        each for each in items if isinstance(each, WebhookConfiguration) and each.metadata.name == wire.SCHEDULER_NAME
    ]


async def try_webhook(api: Requests, items: Sequence[object]) -> tuple[Tried | None, str]:
    """What became of a pod with an ask, and why it is not known; one of both says nothing.

    items: of the cluster. Nothing is tried where our webhook is not configured.
    """
    hooks = [hook for each in hooks_of(items) for hook in each.webhooks]
    if not hooks:
        return None, ""
    names = {hook.name for hook in hooks}
    tried, why = None, ""
    for namespace in _namespaces(items):
        tried, why = await _in(api, namespace, names)
        if why or (tried is not None and (tried.translated or tried.refused)):
            break
    return tried, why


def _namespaces(items: Iterable[object]) -> list[str]:
    """Where the webhook may be asked: where users begin, and where its pods are."""
    bound = Counter(
        each.metadata.namespace
        for each in items
        if isinstance(each, ToldPod) and wire.ANNOTATION_ALLOC in each.metadata.annotations
    )
    often = sorted(bound, key=lambda name: (-bound[name], name))
    return list(dict.fromkeys([FIRST, *often]))[:MOST_NAMESPACES]


async def _in(api: Requests, namespace: str, hooks: set[str]) -> tuple[Tried | None, str]:
    path = f"/api/v1/namespaces/{namespace}/pods"
    try:
        content = await api.request("POST", path, _pod(), timeout_s=TRY_TIMEOUT_S, params={"dryRun": "All"})
    except ClusterError as exc:
        told = str(exc)
        ours = any(f'"{name}"' in told for name in hooks)
        if ours and UNREACHED in told:
            return Tried(namespace, refused=told[told.index(UNREACHED) :]), ""
        if ours and DENIED in told:  # it was asked, and answers
            return Tried(namespace, translated=True), ""
        return None, f"whether the admission webhook answers was not tried: {told}"
    try:
        made = msgspec.json.decode(content, type=_Made)
    except msgspec.DecodeError as exc:
        return None, f"whether the admission webhook answers is not known: POST {path}: {exc}"
    return Tried(namespace, translated=made.spec.scheduler_name == wire.SCHEDULER_NAME), ""


def _pod() -> Mapping[str, Any]:
    """A small one that strict namespaces take too."""
    ask = {wire.GPU: "1", wire.USER_MEMORY: "1024", wire.USER_CORES: "10"}
    amounts = {"cpu": "10m", "memory": "16Mi"}
    container = {
        "name": "main",
        "image": "registry.k8s.io/pause:3.10",
        "resources": {"limits": {**amounts, **ask}, "requests": amounts},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    security = {"runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "cardwise-doctor-"},
        "spec": {"containers": [container], "securityContext": security, "automountServiceAccountToken": False},
    }
