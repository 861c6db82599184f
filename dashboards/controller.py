"""What changes while things run: replicas, evictions, moves, weights fetched ahead, memory taken back."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from dashboards.parts import JUST_ONE, NONE_BAD, Query, board, grown, line, number, put


def made() -> Dashboard:
    """The dashboard."""
    page = board(
        "controller",
        "Controller",
        "Scaling, preemption, moves for others and off bad cards, prefetching, and reclaiming.",
    )
    put(
        page,
        "Now",
        number("Replicas that work", "none", "sum(cardwise_controller_leader)", steps=JUST_ONE),
        number("Pods left on bad ground", "none", "max(sum by (instance) (cardwise_rescue_pods_left))", steps=NONE_BAD),
        number(
            "Policies without metrics",
            "none",
            "count(max by (namespace, policy) (cardwise_scaling_signal) == 0) or vector(0)",
            steps=NONE_BAD,
        ),
    )
    put(
        page,
        "Scaling",
        line(
            "Replicas wanted",
            "none",
            Query("max by (namespace, policy) (cardwise_scaling_wanted_replicas)", "{{namespace}}/{{policy}}"),
        ),
        line(
            "Replicas set, by what decided",
            "none",
            Query(grown("cardwise_scaling_scalings_total", "policy, why"), "{{policy}} {{why}}"),
        ),
        line(
            "Kept from it",
            "none",
            Query(grown("cardwise_scaling_refusals_total", "policy, reason"), "{{policy}} {{reason}}"),
        ),
    )
    put(
        page,
        "Preemption",
        line(
            "Pods evicted for another",
            "none",
            Query(grown("cardwise_preemption_evictions_total", "namespace"), "{{namespace}}"),
        ),
        line(
            "Pods for which others go",
            "none",
            Query("sum(increase(cardwise_preemption_nominations_total[$__rate_interval]))", "pods"),
        ),
        line(
            "Nobody goes, by reason", "none", Query(grown("cardwise_preemption_refusals_total", "reason"), "{{reason}}")
        ),
    )
    put(
        page,
        "Room for pods that wait",
        line(
            "Pods for which replicas move",
            "none",
            Query("sum(increase(cardwise_consolidation_nominations_total[$__rate_interval]))", "pods"),
        ),
        line(
            "Nobody moves, by reason",
            "none",
            Query(grown("cardwise_consolidation_refusals_total", "reason"), "{{reason}}"),
        ),
    )
    put(
        page,
        "Moves",
        line("Bad grounds", "none", Query("max by (why) (cardwise_rescue_bad_grounds)", "{{why}}")),
        line("Steps", "none", Query(grown("cardwise_rescue_steps_total", "step"), "{{step}}")),
        line("Pods that stay", "none", Query("max by (because) (cardwise_rescue_pods_left)", "{{because}}")),
    )
    put(
        page,
        "Weights and memory",
        line(
            "Weights",
            "none",
            Query("sum(increase(cardwise_prefetch_loads_total[$__rate_interval]))", "loads"),
            Query("sum(increase(cardwise_prefetch_failures_total[$__rate_interval]))", "came to nothing"),
        ),
        line("Wishes for weights", "none", Query("max by (state) (cardwise_prefetch_wishes)", "{{state}}")),
        line("Memory taken back, steps", "none", Query(grown("cardwise_agent_reclaims_total", "step"), "{{step}}")),
    )
    return page
