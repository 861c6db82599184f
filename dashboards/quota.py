"""Quota: what Kueue's queues may have, have, and wait for. Kueue's own series, and ours of the windows.

Kueue tells quota and usage per resource where its settings say ``metrics.enableClusterQueueResources: true``.
"""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from dashboards.parts import NONE_BAD, Query, board, choice, grown, line, number, put

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
        number(
            "Window in force", "none", "max(cardwise_quota_window)", "From 0 in the file's order.", words={-1: "none"}
        ),
        number(
            "Quota file",
            "none",
            "max(cardwise_quota_file_unreadable)",
            steps=NONE_BAD,
            words={0: "fine", 1: "cannot be used"},
        ),
    )
    put(
        page,
        "Use",
        line(
            "Used, of the quota",
            "percentunit",
            Query(f"{used} / ({quota} > 0)", "{{cluster_queue}} {{resource}}"),
            why="Of the nominal quota; above 100 % it is borrowed.",
            usually=1,
        ),
        line("Used", "short", Query(used, "{{cluster_queue}} {{resource}}")),
        line("Quota", "short", Query(quota, "{{cluster_queue}} {{resource}}")),
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
                grown(f"kueue_evicted_workloads_total{CHOSEN}", "cluster_queue, reason"), "{{cluster_queue}} {{reason}}"
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
        line("Window in force: -1 none", "none", Query("max(cardwise_quota_window)", "window"), least=-1),
        line(
            "Queues written",
            "none",
            Query(grown("cardwise_quota_writes_total", "outcome"), "{{outcome}}"),
        ),
    )
    return page
