"""Quota: what Kueue's queues may have, have, and wait for. Kueue's own series, and ours of the windows.

Kueue tells quota and usage per resource where its settings say ``metrics.enableClusterQueueResources: true``.
"""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from dashboards.parts import Query, board, choice, line, number, put

CHOSEN = '{cluster_queue=~"$queue"}'
OURS = '{cluster_queue=~"$queue", resource=~"cardwise.dev/.*|nvidia.com/gpu.*"}'
NAME = "{{cluster_queue}}"


def made() -> Dashboard:
    """The dashboard."""
    page = board(
        "quota",
        "Quota",
        "What Kueue's queues may have, have and wait for; the upper half needs Kueue's enableClusterQueueResources.",
        choice("queue", "Queue", "label_values(kueue_pending_workloads, cluster_queue)"),
    )
    used = f"sum by (cluster_queue, resource) (kueue_cluster_queue_resource_usage{OURS})"
    quota = f"sum by (cluster_queue, resource) (kueue_cluster_queue_nominal_quota{OURS})"
    put(
        page,
        "Now",
        number("Waiting", "none", f"sum(kueue_pending_workloads{CHOSEN})"),
        number("Admitted", "none", f"sum(kueue_admitted_active_workloads{CHOSEN})"),
        number("Window in force", "none", "max(cardwise_quota_window)", "From 0 in the file's order; -1: none."),
        number("Quota file", "none", "max(cardwise_quota_file_unreadable)", "1 while it cannot be used."),
    )
    put(
        page,
        "Use",
        line(
            "Used",
            "percentunit",
            Query(f"{used} / ({quota} > 0)", "{{cluster_queue}} {{resource}}"),
            why="Of the nominal quota; above 100 % it is borrowed.",
        ),
        line("Used", "none", Query(used, "{{cluster_queue}} {{resource}}")),
        line("Quota", "none", Query(quota, "{{cluster_queue}} {{resource}}")),
    )
    put(
        page,
        "Waiting",
        line(
            "Workloads that wait",
            "none",
            Query(f"sum by (cluster_queue, status) (kueue_pending_workloads{CHOSEN})", "{{cluster_queue}} {{status}}"),
        ),
        line(
            "Until admitted, P99",
            "s",
            Query(
                "histogram_quantile(0.99, sum by (cluster_queue, le) ("
                f"rate(kueue_admission_wait_time_seconds_bucket{CHOSEN}[$__rate_interval])))",
                NAME,
            ),
        ),
        line(
            "Evicted, by reason",
            "none",
            Query(
                f"sum by (cluster_queue, reason) (increase(kueue_evicted_workloads_total{CHOSEN}[$__rate_interval]))",
                "{{cluster_queue}} {{reason}}",
            ),
        ),
        line(
            "Share in the cohort",
            "none",
            Query(f"max by (cluster_queue) (kueue_cluster_queue_weighted_share{CHOSEN})", NAME),
        ),
    )
    put(
        page,
        "Windows",
        line("Window in force", "none", Query("max(cardwise_quota_window)", "window")),
        line(
            "Queues written",
            "none",
            Query("sum by (outcome) (increase(cardwise_quota_writes_total[$__rate_interval]))", "{{outcome}}"),
        ),
    )
    return page
