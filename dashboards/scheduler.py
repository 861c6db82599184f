"""The scheduler: how fast it answers, who waits and why, and what is left."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from dashboards.parts import JUST_ONE, NONE_BAD, Query, board, grown, line, number, put

SECONDS = "cardwise_scheduler_request_seconds"


def made() -> Dashboard:
    """The dashboard."""
    page = board("scheduler", "Scheduler", "How fast it answers, which pods wait and why, and what is left to give.")
    put(
        page,
        "Now",
        number(
            "Replicas that bind", "none", "sum(cardwise_scheduler_leader)", "One, or nothing is bound.", steps=JUST_ONE
        ),
        number("Pods that wait", "none", "max(cardwise_scheduler_pods_waiting)"),
        number(
            "Conflicts",
            "none",
            "max(cardwise_scheduler_conflicts)",
            "Pods that hold what their node does not have.",
            steps=NONE_BAD,
        ),
        number("Bindings under way", "none", "max(cardwise_scheduler_bindings_under_way)"),
    )
    put(
        page,
        "Answers",
        line("Per second", "reqps", Query(f"sum by (verb) (rate({SECONDS}_count[$__rate_interval]))", "{{verb}}")),
        line(
            "P99",
            "s",
            Query(
                f"histogram_quantile(0.99, sum by (verb, le) (rate({SECONDS}_bucket[$__rate_interval])))", "{{verb}}"
            ),
        ),
        line(
            "Mean",
            "s",
            Query(
                f"sum by (verb) (rate({SECONDS}_sum[$__rate_interval])) "
                f"/ on (verb) (sum by (verb) (rate({SECONDS}_count[$__rate_interval])) > 0)",
                "{{verb}}",
            ),
        ),
        line(
            "Bindings",
            "reqps",
            Query("sum by (result) (rate(cardwise_scheduler_answers_total[$__rate_interval]))", "{{result}}"),
        ),
    )
    put(
        page,
        "Who waits",
        line("Pods that wait", "none", Query("max(cardwise_scheduler_pods_waiting)", "pods")),
        line(
            "Refused by every node, by reason",
            "none",
            Query(grown("cardwise_scheduler_refusals_total", "reason"), "{{reason}}"),
            why="By the reason that most nodes gave. cardwise explain NAMESPACE/POD has it per card.",
        ),
    )
    put(
        page,
        "What is left",
        line(
            "Memory",
            "mbytes",
            Query("max(cardwise_scheduler_memory_free_mib)", "free"),
            Query("max(cardwise_scheduler_memory_allocatable_mib)", "allocatable"),
        ),
        line(
            "Compute, in cards",
            "short",
            Query("max(cardwise_scheduler_compute_free_cards)", "free"),
            Query("max(cardwise_scheduler_cards)", "cards"),
        ),
        line(
            "Not in use",
            "none",
            Query("max(cardwise_scheduler_nodes_fenced)", "nodes that take no pods"),
            Query("max(cardwise_scheduler_cards_sick)", "cards that take no slices"),
        ),
    )
    return page
