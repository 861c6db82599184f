"""Which dashboards there are. A new one is a module with ``made`` and a line here."""

from __future__ import annotations

from dashboards import cluster, controller, gateway, node, quota, scheduler, service
from dashboards.parts import text_of

BOARDS = {
    "cluster": cluster.made,
    "node": node.made,
    "service": service.made,
    "scheduler": scheduler.made,
    "gateway": gateway.made,
    "controller": controller.made,
    "quota": quota.made,
}


def texts() -> dict[str, str]:
    """The JSON of each, by its file's name."""
    return {f"{name}.json": text_of(made()) for name, made in BOARDS.items()}
