"""All services of the gateways side by side, and what no service got to see."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from dashboards.parts import NONE_BAD, Query, board, choice, grown, line, number, put

CHOSEN = '{service=~"$service"}'
NAME = "{{service}}"


def rate_of(series: str, by: str) -> str:
    """Per second, of the chosen services."""
    return f"sum by ({by}) (rate({series}{CHOSEN}[$__rate_interval]))"


def made() -> Dashboard:
    """The dashboard."""
    page = board(
        "gateway",
        "Gateway",
        "All services side by side: load, latency, queue, limits and refusals.",
        choice("service", "Service", "label_values(cardwise_gateway_queue_depth, service)"),
    )
    put(
        page,
        "Now",
        number("Requests per second", "reqps", f"sum(service:cardwise_requests:rate5m{CHOSEN})"),
        number("Waiting", "none", f"sum(cardwise_gateway_queue_length{CHOSEN})"),
        number(
            "Services without a replica",
            "none",
            f"count(sum by (service) (cardwise_gateway_replicas_ready{CHOSEN}) == 0) or vector(0)",
            steps=NONE_BAD,
        ),
        number("Services refused", "none", "max(cardwise_gateway_services_refused)", steps=NONE_BAD),
    )
    put(
        page,
        "Load",
        line("Requests per second", "reqps", Query(f"service:cardwise_requests:rate5m{CHOSEN}", NAME)),
        line("Errors", "percentunit", Query(f"service:cardwise_errors:share5m{CHOSEN}", NAME), usually=0.05),
        line("P99", "s", Query(f"service:cardwise_latency_seconds:p99_5m{CHOSEN}", NAME)),
        line("Mean", "s", Query(f"service:cardwise_latency_seconds:mean5m{CHOSEN}", NAME)),
    )
    put(
        page,
        "Queue",
        line("Places taken", "percentunit", Query(f"service:cardwise_queue:share{CHOSEN}", NAME), most=1),
        line("Wait, P99", "s", Query(f"service:cardwise_queue_wait_seconds:p99_5m{CHOSEN}", NAME)),
        line("Batch size", "short", Query(f"service:cardwise_batch_size:mean5m{CHOSEN}", NAME)),
        line("Limit in use", "percentunit", Query(f"service:cardwise_in_flight:share{CHOSEN}", NAME), usually=1),
    )
    put(
        page,
        "Refused and failed",
        line(
            "Refused",
            "reqps",
            Query(rate_of("cardwise_gateway_rejections_total", "service, reason"), "{{service}} {{reason}}"),
        ),
        line(
            "Tries that failed",
            "reqps",
            Query(rate_of("cardwise_gateway_replica_failures_total", "service, failure"), "{{service}} {{failure}}"),
        ),
        line("Second tries", "reqps", Query(rate_of("cardwise_gateway_retries_total", "service"), NAME)),
        line("Clients that left", "reqps", Query(rate_of("cardwise_gateway_hung_up_total", "service"), NAME)),
    )
    put(
        page,
        "Replicas, and what no service got to see",
        line("Replicas ready", "none", Query(f"sum by (service) (cardwise_gateway_replicas_ready{CHOSEN})", NAME)),
        line(
            "Unserved",
            "reqps",
            Query("sum by (reason) (rate(cardwise_gateway_unserved_total[$__rate_interval]))", "{{reason}}"),
        ),
        line(
            "Watches that broke",
            "none",
            Query(grown("cardwise_gateway_cluster_breaks_total", "namespace"), "{{namespace}}"),
        ),
    )
    return page
