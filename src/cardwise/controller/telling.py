"""What the controller's loops say: as events of one component. Whether it is news, :class:`~cardwise.said.Said` knows.

Refuses to fail: an event that cannot be written is logged.
"""

from __future__ import annotations

from cardwise.adapters.kube.events import Posting, about_pod, event, post
from cardwise.adapters.kube_objects import Pod

COMPONENT = "cardwise-controller"


async def tell(
    port: Posting, about: dict[str, str], reason: str, text: str, *, warning: bool = True, **of: str
) -> None:
    """Write an event about an object of a namespace. of: how the log names it."""
    namespace = about["namespace"]
    await post(port, event(about, reason, text, component=COMPONENT, namespace=namespace, warning=warning), **of)


async def tell_of_pod(port: Posting, pod: Pod, reason: str, text: str, *, warning: bool = True) -> None:
    """Write an event about a pod."""
    meta = pod.metadata
    about = about_pod(meta.namespace, meta.name, meta.uid)
    await tell(port, about, reason, text, warning=warning, pod=pod.name)
