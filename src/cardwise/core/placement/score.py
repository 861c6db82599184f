"""The scores of SPEC B2 and B4, one small function each, all in [0, 1], more is better.

A score looks at one fact. What it is worth beside the others is a policy's business.
"""

from __future__ import annotations

import numpy as np

from cardwise.core.arrays import BoolArray, FloatArray, Rows
from cardwise.core.cluster import Cluster
from cardwise.core.placement.filter import memory_taken_mib
from cardwise.core.request import PodRequest, Shape
from cardwise.units import MILLI_PER_CARD


def score_free_memory(cluster: Cluster, shape: Shape, rows: Rows, usable: BoolArray) -> FloatArray:
    """Share of each card's memory left free after placing one card of ``shape``.

    usable: bool [R, C]. Returns float64 [R, C] in [0, 1]; 0 where ``usable`` is False.
    Source: SPEC B2; LeastAllocated in kube-scheduler, per card instead of per node.
    """
    left = cluster.memory_free_mib[rows] - memory_taken_mib(cluster, shape, rows)
    share = left / np.maximum(cluster.memory_total_mib[rows], 1)
    return np.asarray(np.where(usable, np.clip(share, 0.0, 1.0), 0.0))


def score_compute_headroom(cluster: Cluster, shape: Shape, rows: Rows, usable: BoolArray) -> FloatArray:
    """Share of each card's compute that is idle, by measurement, after placing one card of ``shape``.

    Measured utilization plus what was reserved since it was measured; where nothing was measured, what is reserved.
    usable: bool [R, C]. Returns float64 [R, C] in [0, 1]; 0 where ``usable`` is False. Source: SPEC B2.
    """
    free = cluster.compute_free_milli[rows] / MILLI_PER_CARD
    since = np.maximum(cluster.compute_free_reported_milli[rows] / MILLI_PER_CARD - free, 0.0)
    measured = cluster.compute_used_share[rows]
    idle = np.where(np.isnan(measured), free, 1.0 - measured - since)
    asked = 1.0 if shape.whole else shape.compute_milli / MILLI_PER_CARD
    return np.asarray(np.where(usable, np.clip(idle - asked, 0.0, 1.0), 0.0))


def score_model_cache(cluster: Cluster, model_key: str, rows: Rows) -> FloatArray:
    """1 on nodes that hold the model's weights on disk, else 0; float64 [R]. Source: SPEC B2, F1.

    A pod that names no model scores 0 everywhere: nothing to prefer.
    """
    idx = np.arange(cluster.nodes_total)[rows]
    if not model_key:
        return np.zeros(len(idx))
    return np.array([float(model_key in cluster.cached_models[i]) for i in idx])


def score_domain_spread(cluster: Cluster, service: str, rows: Rows) -> FloatArray:
    """Share of the service's replicas that lie outside each card's failure domains, float64 [R, C].

    Domains nest: card, node, zone; each weighs a third. 1 for a service without replicas. Source: SPEC B2, B5.
    """
    replicas = _replicas(cluster, service)
    shape = cluster.card_exists[rows].shape
    if not replicas:
        return np.ones(shape)
    on_card = np.zeros(cluster.card_exists.shape)
    on_node = np.zeros(cluster.nodes_total)
    in_zone = np.zeros(len(cluster.domains))
    for pod in replicas:
        held = cluster.slices[pod]
        on_card[held.node_idx, list(held.places)] += 1.0
        on_node[held.node_idx] += 1.0
        in_zone[cluster.node_domain[held.node_idx]] += 1.0
    near = on_card[rows] + on_node[rows][:, None] + in_zone[cluster.node_domain[rows]][:, None]
    return np.asarray(1.0 - near / (3.0 * len(replicas)))


def node_share(cluster: Cluster, service: str) -> FloatArray:
    """Share of the service's replicas that each node holds, float64 [N]; 0 for a service without replicas."""
    share = np.zeros(cluster.nodes_total)
    replicas = _replicas(cluster, service)
    for pod in replicas:
        share[cluster.slices[pod].node_idx] += 1.0 / len(replicas)
    return share


def sole_node(cluster: Cluster, request: PodRequest) -> int | None:
    """The node that holds all replicas of the pod's service, if one does: the next replica should go elsewhere (B5)."""
    nodes = {cluster.slices[pod].node_idx for pod in _replicas(cluster, request.service)}
    return nodes.pop() if len(nodes) == 1 else None


def _replicas(cluster: Cluster, service: str) -> set[str]:
    """Names of the service's pods that hold a slice."""
    return cluster.service_slices.get(service, set()) if service else set()
