"""What the controller tells Prometheus, loop by loop. What a loop counts it counts itself; here is what it is called.

A loop's series are there while the loop is enabled. Refuses a label per pod.
"""

from __future__ import annotations

from cardwise.series import Series, counter, gauge

_SCALING, _QUOTA = "while scaling is enabled", "with a quota file"
LEADER = gauge("cardwise_controller_leader", "1 if this replica works.")

PREEMPTION_EVICTIONS = counter("cardwise_preemption_evictions", "Pods evicted for another.", "namespace")
PREEMPTION_NOMINATIONS = counter("cardwise_preemption_nominations", "Pods for which others were chosen to go.")
PREEMPTION_REFUSALS = counter(
    "cardwise_preemption_refusals", "Times that nobody was evicted for a pod that waits, or not as decided.", "reason"
)

CONSOLIDATION_NOMINATIONS = counter(
    "cardwise_consolidation_nominations", "Pods for which healthy replicas were chosen to move."
)
CONSOLIDATION_REFUSALS = counter(
    "cardwise_consolidation_refusals", "Times that nobody moved for a pod that waits, or not as decided.", "reason"
)

RESCUE_STEPS = counter("cardwise_rescue_steps", "Steps taken to move pods, off bad ground or for others.", "step")
RESCUE_PODS_LEFT = gauge("cardwise_rescue_pods_left", "Pods on bad ground that stay for now.", "because")
RESCUE_BAD_GROUNDS = gauge("cardwise_rescue_bad_grounds", "Cards and nodes that services leave.", "why")

PREFETCH_LOADS = counter("cardwise_prefetch_loads", "Loads of weights that were begun.")
PREFETCH_FAILURES = counter("cardwise_prefetch_failures", "Loads that came to nothing.")
PREFETCH_WISHES = gauge("cardwise_prefetch_wishes", "Wishes, by how they stand.", "state")

SCALINGS = counter(
    "cardwise_scaling_scalings", "Times that replicas were set.", "namespace", "policy", "why", only=_SCALING
)
SCALING_REFUSALS = counter(
    "cardwise_scaling_refusals",
    "Times that something kept a policy from being applied.",
    "namespace",
    "policy",
    "reason",
    only=_SCALING,
)
SCALING_WANTED = gauge(
    "cardwise_scaling_wanted_replicas",
    "Replicas without steps and cool-down.",
    "namespace",
    "policy",
    only=_SCALING,
)
SCALING_SIGNAL = gauge(
    "cardwise_scaling_signal",
    "1 if the service's metrics are there, 0 if not.",
    "namespace",
    "policy",
    only=_SCALING,
)

QUOTA_WRITES = counter("cardwise_quota_writes", "Objects of Kueue's that had to change.", "outcome", only=_QUOTA)
QUOTA_UNREADABLE = gauge("cardwise_quota_file_unreadable", "1 while the quota file cannot be used.", only=_QUOTA)
QUOTA_WINDOW = gauge("cardwise_quota_window", "Number of the window that holds, from 0; -1: none.", only=_QUOTA)

SERIES: tuple[Series, ...] = (
    LEADER,
    PREEMPTION_EVICTIONS,
    PREEMPTION_NOMINATIONS,
    PREEMPTION_REFUSALS,
    CONSOLIDATION_NOMINATIONS,
    CONSOLIDATION_REFUSALS,
    RESCUE_STEPS,
    RESCUE_PODS_LEFT,
    RESCUE_BAD_GROUNDS,
    PREFETCH_LOADS,
    PREFETCH_FAILURES,
    PREFETCH_WISHES,
    SCALINGS,
    SCALING_REFUSALS,
    SCALING_WANTED,
    SCALING_SIGNAL,
    QUOTA_WRITES,
    QUOTA_UNREADABLE,
    QUOTA_WINDOW,
)
