"""Is another device plugin at work on this node? Two that serve the same cards each hand them out in full.

What tells: amounts that the node offers under another plugin's names, HAMi's annotation, and sockets in the kubelet's
folder that are called as NVIDIA's are. Refuses to judge what cannot be seen from there: a socket's name does not say
which resource it registered. The kubelet goes by whoever registered last, so a plugin that registers *our* resource
shows only as a kubelet that leaves us again and again (``registering.py`` counts that). The scheduler is not misled by
it: it goes by our inventory (case C14).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

import structlog

from cardwise.adapters import wire
from cardwise.adapters.kube.port import NodePort
from cardwise.adapters.kube_objects import Amounts, Node
from cardwise.adapters.quantity import parse_count
from cardwise.agent.telling import Teller
from cardwise.errors import ClusterError

log = structlog.get_logger()

REASON = "CardwiseRival"
LOOK_EVERY_S, TRY_AGAIN_S = 600.0, 30.0
"""A plugin may also come later: an operator that is upgraded, a DaemonSet without a node selector."""

LABEL_OPERATOR, LABEL_GKE = "nvidia.com/gpu.deploy.device-plugin", "cloud.google.com/gke-accelerator"
_OTHERS = {
    "volcano.sh/vgpu-number": "Volcano's vGPU plugin",
    "aliyun.com/gpu-mem": "Alibaba's gpushare plugin",
    "tencent.com/vcuda-core": "Tencent's gpu-manager",
}
"""Resources of others that share NVIDIA's cards, beside NVIDIA's own names."""
_SOCKETS = ("nvidia-", "nvidiaGPU")
"""How the sockets of NVIDIA's plugin and of HAMi begin, and those of GKE's."""


def rivals(node: Node, sockets: Iterable[str], own: str) -> Sequence[str]:
    """A sentence for each sign of another plugin: what was found, and what to do.

    sockets: names of files in the kubelet's folder for device plugins. own: the resource that this agent offers.
    """
    offers = _offers(node.status.allocatable, own)
    hami = wire.ANNOTATION_HAMI_CARDS in node.metadata.annotations
    found = [_of_offers(who, names, node) for who, names in _by_owner(offers, hami=hami).items()]
    if hami and not offers:
        found.append(
            f"HAMi has listed this node's cards (annotation {wire.ANNOTATION_HAMI_CARDS}): take its device plugin off "
            f"the node; if that is done, kubectl annotate node {node.metadata.name} {wire.ANNOTATION_HAMI_CARDS}-"
        )
    left = sorted(name for name in sockets if name.startswith(_SOCKETS) and name.endswith(".sock"))
    if left and not offers and not hami:
        found.append(
            f"another device plugin for NVIDIA's cards has its socket here ({', '.join(left)}) and offers none at the "
            "moment: take it off the node; if no pod of it runs here any more, remove the file"
        )
    return found


def _offers(allocatable: Amounts, own: str) -> dict[str, str | int]:
    """What the node hands out under the name of a plugin that serves the same cards, and not of ours."""
    return {
        name: amount
        for name, amount in sorted(allocatable.items())
        if name != own
        and (name in (wire.GPU, wire.GPU_SHARED) or name.startswith(wire.MIG_RESOURCES) or name in _OTHERS)
        and _is_some(amount)
    }


def _is_some(amount: str | int) -> bool:
    try:
        return parse_count(amount) > 0
    except ValueError:
        return True


def _by_owner(offers: dict[str, str | int], *, hami: bool) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, amount in offers.items():
        who = _OTHERS.get(name, "HAMi's device plugin" if hami else "NVIDIA's device plugin")
        found.setdefault(who, []).append(f"{name}: {amount}")
    return found


def _of_offers(who: str, names: Sequence[str], node: Node) -> str:
    return (
        f"{who} hands out this node's cards too ({', '.join(names)}): neither knows what the other gave away, and no "
        f"limit holds for its containers. {_advice(who, node)}"
    )


def _advice(who: str, node: Node) -> str:
    name, labels = node.metadata.name, node.metadata.labels
    if who.startswith("NVIDIA") and LABEL_OPERATOR in labels:
        return f"Take it off the node: kubectl label node {name} {LABEL_OPERATOR}=false --overwrite"
    if who.startswith("NVIDIA") and LABEL_GKE in labels:
        return "Take it off the node: label the node pool gke-no-default-nvidia-gpu-device-plugin=true"
    return (
        "Keep its DaemonSet off nodes with the label cardwise.dev/agent, or take that label off this node: "
        f"kubectl label node {name} cardwise.dev/agent-"
    )


async def tell_of_rivals(
    port: NodePort,
    teller: Teller,
    folder: Path,
    own: str,
    *,
    look_every_s: float = LOOK_EVERY_S,
    try_again_s: float = TRY_AGAIN_S,
) -> None:
    """Say what :func:`rivals` finds, in the log and as events of the node, at the start and later; until cancelled."""
    told: Sequence[str] = ()
    while True:
        try:
            node = await port.get_node(teller.node)
        except ClusterError as exc:
            log.info("it is not known yet whether another device plugin is here", why=str(exc))
            await asyncio.sleep(try_again_s)
            continue
        found = rivals(node, _sockets(folder), own)
        for text in found:
            if text not in told:
                log.error("another device plugin serves the same cards", what=text)
            teller.of_node(REASON, text)
        told = found
        await asyncio.sleep(look_every_s)


def _sockets(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:  # without the folder there is no kubelet, which registering tells
        return []
