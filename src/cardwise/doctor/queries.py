"""What Prometheus is asked, by name. Each answer is a set of series over the same half hour, so that times compare.

Cards are ``uuid``, slices ``namespace`` and ``pod`` besides, services ``service``, as in our own series; agents are the
``node`` that their scrape target has. DCGM's exporter stands in for a card where no agent tells of it. Sources:
dcgm-exporter, default-counters.csv; cAdvisor, docs/storage/prometheus.md; node_exporter, timex collector; vLLM,
docs/design/metrics.md.
"""

from __future__ import annotations

WINDOW_S, STEP_S = 1800.0, 30.0
"""What is looked at, and its steps: spikes of a minute stand out, and the store answers in a second."""
RATE_S = 120
"""Of rates: four scrapes of 30 s."""
_SLICE = "uuid, namespace, pod"
_OF_OURS = "and on (namespace, pod) cardwise_slice_memory_granted_mib"


def _dcgm(name: str) -> str:
    return f'label_replace({name}, "uuid", "$1", "UUID", "(.+)")'


def _rate(name: str) -> str:
    return f"rate({name}[{RATE_S}s])"


def _of_pods(expression: str) -> str:
    """Of pods that hold a slice only: a cluster has thousands of others."""
    return f"({expression}) {_OF_OURS}"


_CPU = _rate('container_cpu_usage_seconds_total{container!=""}')
_DROPPED = " + ".join(
    f"sum by (namespace, pod) ({_rate(f'container_network_{way}_packets_dropped_total')})"
    for way in ("receive", "transmit")
)

ENDS_ONLY = frozenset({"slice_compute_granted_pct", "slice_memory_used_mib", "slice_memory_granted_mib"})
"""Of these the latest number is read, and there is one for each slice: they are asked at both ends of the window."""
QUERIES: dict[str, str] = {
    "card_busy_pct": (
        f"max by (uuid) (cardwise_card_utilization_percent) or max by (uuid) ({_dcgm('DCGM_FI_DEV_GPU_UTIL')})"
    ),
    "card_memory_used_mib": (
        f"max by (uuid) (cardwise_card_memory_used_mib) or max by (uuid) ({_dcgm('DCGM_FI_DEV_FB_USED')})"
    ),
    "card_holds_compute": "min by (uuid) (cardwise_card_holds_compute)",
    "card_holds_memory": "min by (uuid) (cardwise_card_holds_memory)",
    "slice_sm_pct": f"max by ({_SLICE}) (cardwise_slice_sm_percent)",
    "slice_compute_granted_pct": f"max by ({_SLICE}) (cardwise_slice_compute_granted_percent)",
    "slice_memory_used_mib": f"sum by ({_SLICE}) (cardwise_slice_memory_used_mib)",
    "slice_memory_granted_mib": f"sum by ({_SLICE}) (cardwise_slice_memory_granted_mib)",
    "mps_alarms": "sum by (instance, node, kind) (increase(cardwise_agent_mps_alarms_total[10m]))",
    "bypasses": "sum by (instance, node) (cardwise_agent_bypasses)",
    "publish_failures": "sum by (instance, node) (increase(cardwise_agent_publish_failures_total[10m]))",
    "registrations": "sum by (instance, node) (increase(cardwise_agent_registrations_total[10m]))",
    "qps": f"sum by (service) ({_rate('cardwise_gateway_requests_total')})",
    "p99_s": (f"histogram_quantile(0.99, sum by (service, le) ({_rate('cardwise_gateway_latency_seconds_bucket')}))"),
    "target_s": "max by (service) (cardwise_gateway_target_seconds)",
    "queue_length": "sum by (service) (cardwise_gateway_queue_length)",
    "batch_mean": (
        f"sum by (service) ({_rate('cardwise_gateway_batch_size_sum')}) / "
        f"sum by (service) ({_rate('cardwise_gateway_batch_size_count')})"
    ),
    "in_flight": "sum by (service) (cardwise_gateway_in_flight)",
    "limit": "sum by (service) (cardwise_gateway_limit)",
    "replica_pods": "max by (service, namespace, pod) (cardwise_gateway_replica_info)",
    "engine_running": "sum by (namespace, pod) (vllm:num_requests_running)",
    "pod_cpu_cores": _of_pods(f"sum by (namespace, pod) ({_CPU})"),
    "pod_cpu_throttled_share": _of_pods(
        f"sum by (namespace, pod) ({_rate('container_cpu_cfs_throttled_periods_total')}) / "
        f"sum by (namespace, pod) ({_rate('container_cpu_cfs_periods_total')})"
    ),
    "pod_cpu_waiting_share": _of_pods(
        f"max by (namespace, pod) ({_rate('container_pressure_cpu_waiting_seconds_total')})"
    ),
    "pod_packets_dropped_s": _of_pods(_DROPPED),
    "clock_off_s": "max by (instance) (abs(node_timex_offset_seconds))",
}
