"""One service: what its callers see, beside what its cards do."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from dashboards.parts import NONE_MISSING, Query, board, choice, line, number, put

PODS = 'cardwise_gateway_replica_info{service="$service"}'
CARDS = "max by (uuid, node, index) (cardwise_card_info)"
NAME = "{{node}} {{index}}"


def of_service(record: str) -> str:
    """The chosen service's value."""
    return f'{record}{{service="$service"}}'


def of_pods(expr: str) -> str:
    """Of its pods. By ``and``, so that pods of several services are in each."""
    return f"sum by (namespace, pod) ({expr}) and on (namespace, pod) {PODS}"


def of_cards(expr: str) -> str:
    """Of the cards that its pods hold slices of, with node and number."""
    held = f"(cardwise_slice_memory_granted_mib and on (namespace, pod) {PODS})"
    return f"max by (uuid) ({expr}) * on (uuid) group_left (node, index) {CARDS} and on (uuid) {held}"


def made() -> Dashboard:
    """The dashboard."""
    page = board(
        "service",
        "Service",
        "What callers of a service see, beside what its cards and CPUs do. The lower half needs a gateway that knows "
        "its replicas' pods: one that follows the cluster's Services.",
        choice("service", "Service", "label_values(cardwise_gateway_queue_depth, service)", several=False),
    )
    put(
        page,
        "Now",
        number("Requests per second", "reqps", of_service("service:cardwise_requests:rate5m")),
        number("P99", "s", of_service("service:cardwise_latency_seconds:p99_5m")),
        number(
            "Errors",
            "percentunit",
            of_service("service:cardwise_errors:share5m"),
            steps=((None, "text"), (0.05, "red")),
        ),
        number(
            "Replicas ready",
            "none",
            'sum(cardwise_gateway_replicas_ready{service="$service"})',
            steps=NONE_MISSING,
        ),
    )
    latency = "service:cardwise_latency_seconds"
    put(
        page,
        "Callers",
        line(
            "Requests per second",
            "reqps",
            Query(
                'sum by (status) (rate(cardwise_gateway_requests_total{service="$service"}[$__rate_interval]))',
                "{{status}}",
            ),
        ),
        line(
            "Latency",
            "s",
            Query(of_service(f"{latency}:mean5m"), "mean"),
            Query(of_service(f"{latency}:p50_5m"), "P50"),
            Query(of_service(f"{latency}:p99_5m"), "P99"),
            Query('max(cardwise_gateway_target_seconds{service="$service"})', "target"),
            why="Of answers by replicas, from the head of the request to the end of the answer, over five minutes.",
        ),
        line(
            "Refused, by reason",
            "reqps",
            Query(
                'sum by (reason) (rate(cardwise_gateway_rejections_total{service="$service"}[$__rate_interval]))',
                "{{reason}}",
            ),
        ),
    )
    put(
        page,
        "Queue",
        line(
            "Queue",
            "none",
            Query('sum(cardwise_gateway_queue_length{service="$service"})', "waiting"),
            Query('sum(cardwise_gateway_queue_depth{service="$service"})', "places"),
            Query(f"sum({of_pods('pod:cardwise_engine_waiting:sum')})", "in the engines"),
        ),
        line("Wait in the queue, P99", "s", Query(of_service("service:cardwise_queue_wait_seconds:p99_5m"), "P99")),
        line("Batch size", "short", Query(of_service("service:cardwise_batch_size:mean5m"), "mean")),
        line(
            "In flight",
            "none",
            Query('sum by (replica) (cardwise_gateway_in_flight{service="$service"})', "{{replica}}"),
            Query('sum by (replica) (cardwise_gateway_limit{service="$service"})', "{{replica}} limit"),
        ),
    )
    pods = "{{namespace}}/{{pod}}"
    put(
        page,
        "Slices",
        line("SMs, of a card", "percent", Query(of_pods("cardwise_slice_sm_percent"), pods)),
        line(
            "Memory",
            "mbytes",
            Query(of_pods("cardwise_slice_memory_used_mib"), f"{pods} used"),
            Query(of_pods("cardwise_slice_memory_granted_mib"), f"{pods} granted"),
        ),
        line("KV cache of the engines", "percentunit", Query(of_pods("pod:cardwise_engine_cache:share"), pods), most=1),
    )
    put(
        page,
        "CPU of its pods",
        line(
            "CPU",
            "short",
            Query(of_pods("pod:cardwise_cpu:cores5m"), pods),
            why="Cores, from the kubelet's cAdvisor. Latency up, CPU busy or short, card idle: the CPU starves it.",
            usually=1,
        ),
        line(
            "CPU they lack",
            "percentunit",
            Query(of_pods("pod:cardwise_cpu_throttled:share5m"), f"{pods} held back by its limit"),
            Query(of_pods("pod:cardwise_cpu_waiting:share5m"), f"{pods} waits for a CPU"),
            most=1,
            why="Periods in which the kernel held the pod back, for its CPU limit was used up; time in which some task "
            "of it waited for a CPU. Above a quarter, with an idle card: see CW404 of `cardwise doctor`.",
        ),
    )
    put(
        page,
        "Its cards",
        line("Busy, all tenants", "percentunit", Query(of_cards("uuid:cardwise_busy:share"), NAME), most=1),
        line(
            "Memory used, all tenants", "percentunit", Query(of_cards("uuid:cardwise_memory_used:share"), NAME), most=1
        ),
        line("Memory bandwidth", "percentunit", Query(of_cards("uuid:cardwise_memory_busy:share"), NAME), most=1),
        line(
            "PCIe",
            "Bps",
            Query(of_cards("uuid:cardwise_pcie_sent:bytes_per_second"), f"{NAME} sent"),
            Query(of_cards("uuid:cardwise_pcie_received:bytes_per_second"), f"{NAME} received"),
        ),
    )
    put(
        page,
        "Their health",
        line("SM clock", "rotmhz", Query(of_cards("cardwise_card_sm_clock_mhz"), NAME)),
        line("Memory clock", "rotmhz", Query(of_cards("cardwise_card_memory_clock_mhz"), NAME)),
        line("Temperature", "celsius", Query(of_cards("cardwise_card_temperature_celsius"), NAME)),
        line("Power", "watt", Query(of_cards("cardwise_card_power_watts"), NAME)),
    )
    return page
