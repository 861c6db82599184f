"""Each alert by promtool's unit tests: it fires for what it is about, with its labels, and is silent for all else."""

from __future__ import annotations

import subprocess

import pytest
import yaml

from tests.dashboards.server import RULES, must_have, rules

ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}
MINUTES = 40
CARD = 'uuid="U1",node="n1"'
AGENT = 'instance="10.0.0.1:10261",node="n1"'
AT = 'instance="10.0.0.1:9090"'
SLICE = 'uuid="U1",namespace="a",pod="p",container="c"'
BUSY = {'cardwise_gateway_requests_total{service="s",status="200"}': "0+600x40"}
"""10 requests a second."""


def requests(status, per_minute):
    return {f'cardwise_gateway_requests_total{{service="s",status="{status}"}}': f"0+{per_minute}x40"}


def slow(bucket):
    """All answers within this bucket, of 10 s or 0.1 s."""
    lower = "0+600x40" if bucket == "0.1" else "0x40"
    return {
        'cardwise_gateway_latency_seconds_bucket{service="s",le="0.1"}': lower,
        'cardwise_gateway_latency_seconds_bucket{service="s",le="10.0"}': "0+600x40",
        'cardwise_gateway_latency_seconds_bucket{service="s",le="+Inf"}': "0+600x40",
        'cardwise_gateway_target_seconds{service="s"}': "0.5x40",
    }


def filter_seconds(below):
    return {
        'cardwise_scheduler_request_seconds_bucket{verb="filter",le="0.5"}': f"0+{below}x40",
        'cardwise_scheduler_request_seconds_bucket{verb="filter",le="2.0"}': "0+100x40",
        'cardwise_scheduler_request_seconds_bucket{verb="filter",le="+Inf"}': "0+100x40",
    }


def gauge(name, labels, bad, good):
    """A gauge that is bad, and one that is good."""
    series = f"{name}{{{labels}}}"
    return {series: f"{bad}x40"}, {series: f"{good}x40"}


def grows(name, labels, per_minute=1):
    """A counter that rises, and one that stands still."""
    series = f"{name}{{{labels}}}"
    return {series: f"0+{per_minute}x40"}, {series: "5x40"}


LEAD = 'cardwise_scheduler_leader{instance="%s"}'
CASES = {
    "CardwiseServiceWithoutReplica": (
        *gauge("cardwise_gateway_replicas_ready", f'service="s",{AT}', 0, 1),
        'service="s"',
    ),
    "CardwiseServiceErrors": (
        {**BUSY, **requests(503, 60)},
        {**BUSY, **requests(503, 20), **requests(429, 600)},
        'service="s"',
    ),
    "CardwiseServiceSheds": (
        {**BUSY, 'cardwise_gateway_rejections_total{service="s",reason="full"}': "0+60x40"},
        {**BUSY, 'cardwise_gateway_rejections_total{service="s",reason="full"}': "0+20x40"},
        'service="s"',
    ),
    "CardwiseServiceSlow": ({**BUSY, **slow("10.0")}, {**BUSY, **slow("0.1")}, 'service="s"'),
    "CardwiseReplicaFails": (
        *grows("cardwise_gateway_replica_failures_total", 'service="s",failure="lost"', 60),
        'service="s",failure="lost"',
    ),
    "CardwiseServiceRefused": (
        *gauge("cardwise_gateway_services_refused", f'job="g",{AT}', 2, 0),
        f'job="g",{AT}',
    ),
    "CardwiseGatewayBlind": (
        *grows("cardwise_gateway_cluster_breaks_total", f'namespace="a",{AT}'),
        f'namespace="a",{AT}',
    ),
    "CardwiseCardFenced": (*gauge("cardwise_card_health", CARD, 2, 1), CARD),
    "CardwiseCardDegraded": (*gauge("cardwise_card_health", CARD, 1, 0), CARD),
    "CardwiseCardTakesNothing": (
        {f"cardwise_card_takes_slices{{{CARD}}}": "0x40", f"cardwise_card_health{{{CARD}}}": "0x40"},
        {f"cardwise_card_takes_slices{{{CARD}}}": "0x40", f"cardwise_card_health{{{CARD}}}": "2x40"},
        CARD,
    ),
    "CardwiseCardHot": (*gauge("cardwise_card_slowdown_margin_celsius", CARD, 3, 20), CARD),
    "CardwiseCardXid": (*grows("cardwise_card_xids_total", f'{CARD},xid="79"'), f'{CARD},xid="79"'),
    "CardwiseCardDeaf": (*gauge("cardwise_card_events_heard", CARD, 0, 1), CARD),
    "CardwiseMemoryReclaimed": (*gauge("cardwise_card_memory_level", CARD, 2, 1), CARD),
    "CardwiseMemoryShort": (*gauge("cardwise_card_memory_short_mib", CARD, 512, 0), CARD),
    "CardwiseSliceOverGrant": (
        *gauge("cardwise_slice_memory_over_mib", SLICE, 100, 0),
        'namespace="a",pod="p",container="c"',
    ),
    "CardwiseLimitNotInForce": (
        *grows("cardwise_agent_mps_alarms_total", f'{AGENT},kind="limit-not-in-force"'),
        f'{AGENT},kind="limit-not-in-force"',
    ),
    "CardwiseMpsBypassed": (*gauge("cardwise_agent_bypasses", AGENT, 1, 0), AGENT),
    "CardwiseStrangers": (*gauge("cardwise_agent_strangers", AGENT, 1, 0), AGENT),
    "CardwiseStartsRefused": (
        *grows("cardwise_agent_mismatches_total", f'{AGENT},reason="slots"'),
        f'{AGENT},reason="slots"',
    ),
    "CardwiseAgentDown": (
        *gauge("up", f'job="cardwise-system/cardwise-agent",{AGENT}', 0, 1),
        f'job="cardwise-system/cardwise-agent",{AGENT}',
    ),
    "CardwiseAgentUnregistered": (*gauge("cardwise_agent_registered", AGENT, 0, 1), AGENT),
    "CardwiseAgentCannotPublish": (*grows("cardwise_agent_publish_failures_total", AGENT), AGENT),
    "CardwiseSchedulerLeaderless": (
        {LEAD % "a": "0x40", LEAD % "b": "0x40"},
        {LEAD % "a": "0x40", LEAD % "b": "1x40"},
        "",
    ),
    "CardwiseSchedulerSlow": (filter_seconds(0), filter_seconds(100), 'verb="filter"'),
    "CardwisePodsWait": (*gauge("cardwise_scheduler_pods_waiting", AT, 3, 0), ""),
    "CardwiseLedgerConflicts": (*gauge("cardwise_scheduler_conflicts", AT, 1, 0), ""),
    "CardwiseControllerLeaderless": (*gauge("cardwise_controller_leader", AT, 0, 1), ""),
    "CardwiseScalingBlind": (
        *gauge("cardwise_scaling_signal", 'namespace="a",policy="p"', 0, 1),
        'namespace="a",policy="p"',
    ),
    "CardwisePodsStuck": (
        {'cardwise_rescue_pods_left{because="no_room"}': "1x40"},
        {'cardwise_rescue_pods_left{because="no_room"}': "0x40", 'cardwise_rescue_pods_left{because="turn"}': "3x40"},
        'because="no_room"',
    ),
    "CardwiseQuotaUnreadable": (*gauge("cardwise_quota_file_unreadable", AT, 1, 0), ""),
}
"""By alert: series that make it fire, series that do not, and the labels it then has besides its severity."""
NOT_BY_ABSENCE = 'cardwise_scheduler_leader{instance="x"}'
"""Present in every test but the one about it: its absence is an alert of its own."""


def promtool(folder, tests):
    """What promtool says of these unit tests; empty if they hold."""
    must_have("promtool")
    told = {"rule_files": [str(path) for path in RULES], "evaluation_interval": "1m", "tests": tests}
    (folder / "tests.yaml").write_text(yaml.safe_dump(told))
    command = ["promtool", "test", "rules", folder / "tests.yaml"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def series(values):
    return [{"series": name, "values": value} for name, value in values.items()]


def alerts_at(minute, expected):
    """Which alerts fire then, all of them."""
    samples = [{"labels": labels, "value": 1} for labels in expected]
    return {"expr": 'ALERTS{alertstate="firing"}', "eval_time": f"{minute}m", "exp_samples": samples}


def firing(name, labels):
    told = [f'alertname="{name}"', 'alertstate="firing"', f'severity="{ALERTS[name]["labels"]["severity"]}"', labels]
    return f"ALERTS{{{','.join(filter(None, told))}}}"


def test_every_alert_is_tested():
    assert set(CASES) == set(ALERTS)


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_fires_for_what_it_is_about_and_for_nothing_else(name, tmp_path):
    bad, good, labels = CASES[name]
    leads = {} if name == "CardwiseSchedulerLeaderless" else {NOT_BY_ABSENCE: "1x40"}
    expected = firing(name, labels)
    fires = {"interval": "1m", "input_series": series({**leads, **bad}), "promql_expr_test": []}
    fires["promql_expr_test"] = [alerts_at(0, [])] if ALERTS[name].get("for") else []
    fires["promql_expr_test"].append(alerts_at(MINUTES - 5, [expected]))
    only = f'ALERTS{{alertname="{name}"}}'
    quiet = [{"expr": only, "eval_time": f"{minute}m", "exp_samples": []} for minute in (1, 20, MINUTES - 5)]
    silent = {"interval": "1m", "input_series": series({**leads, **good}), "promql_expr_test": quiet}
    assert promtool(tmp_path, [fires, silent]) == ""


def test_a_scheduler_that_is_not_there_at_all_is_one_without_a_leader(tmp_path):
    expected = firing("CardwiseSchedulerLeaderless", "")
    assert (
        promtool(tmp_path, [{"interval": "1m", "input_series": [], "promql_expr_test": [alerts_at(5, [expected])]}])
        == ""
    )


def test_errors_of_a_service_that_hardly_anybody_asks_are_no_alert(tmp_path):
    few = {'cardwise_gateway_requests_total{service="s",status="503"}': "0+1x40", NOT_BY_ABSENCE: "1x40"}
    quiet = {"interval": "1m", "input_series": series(few), "promql_expr_test": [alerts_at(30, [])]}
    assert promtool(tmp_path, [quiet]) == ""


# ---------------------------------------------------------------- recording rules, by numbers worked by hand

U1, U2 = 'uuid="U1"', 'uuid="U2"'
GRANTED = 'cardwise_slice_memory_granted_mib{uuid="%s",namespace="a",pod="%s",container="c"}'
REPLICA = 'cardwise_gateway_replica_info{service="%s",replica="%s",namespace="a",pod="%s",instance="%s"}'
RECORDED = {
    "a card without slices is granted 0, not absent": (
        {
            f"cardwise_card_memory_allocatable_mib{{{U1}}}": "20480x10",
            f"cardwise_card_memory_allocatable_mib{{{U2}}}": "20480x10",
            GRANTED % ("U1", "p"): "4096x10",
            GRANTED % ("U1", "q"): "1024x10",
        },
        "uuid:cardwise_memory_granted:share",
        {U1: 0.25, U2: 0},
    ),
    "DCGM's value goes before ours, card by card": (
        {
            'DCGM_FI_PROF_SM_ACTIVE{UUID="U1",gpu="0",hostname="n"}': "0.7x10",
            f"cardwise_card_utilization_percent{{{U1}}}": "99x10",
            f"cardwise_card_utilization_percent{{{U2}}}": "40x10",
        },
        "uuid:cardwise_busy:share",
        {U1: 0.7, U2: 0.4},
    ),
    "a pod told by two gateways counts once": (
        {
            GRANTED % ("U1", "p"): "4096x10",
            REPLICA % ("s", "http://p:1", "p", "g1"): "1x10",
            REPLICA % ("s", "http://p:1", "p", "g2"): "1x10",
        },
        "service:cardwise_memory_granted:mib",
        {'service="s"': 4096},
    ),
    "pods of several services are told apart and break nothing": (
        {
            GRANTED % ("U1", "p"): "4096x10",
            GRANTED % ("U1", "q"): "1024x10",
            REPLICA % ("s", "http://p:1", "p", "g"): "1x10",
            REPLICA % ("s", "http://q:1", "q", "g"): "1x10",
            REPLICA % ("t", "http://q:2", "q", "g"): "1x10",
        },
        "service:cardwise_memory_granted:mib",
        {'service="s"': 4096, 'service="(several)"': 1024},
    ),
    "a service that answers everything has an error share of 0": (
        {'cardwise_gateway_requests_total{service="s",status="200"}': "0+60x10"},
        "service:cardwise_errors:share5m",
        {'service="s"': 0},
    ),
    "the mean is the sum over the count": (
        {
            'cardwise_gateway_latency_seconds_sum{service="s"}': "0+30x10",
            'cardwise_gateway_latency_seconds_count{service="s"}': "0+60x10",
        },
        "service:cardwise_latency_seconds:mean5m",
        {'service="s"': 0.5},
    ),
    "one engine's queue is read by whichever name it has": (
        {
            'vllm:num_requests_waiting{namespace="a",pod="p",model_name="m"}': "3x10",
            'sglang:num_queue_reqs{namespace="a",pod="q"}': "4x10",
            'nv_inference_pending_request_count{namespace="a",pod="r",model="m"}': "5x10",
            'nv_inference_pending_request_count{namespace="a",pod="r",model="n"}': "1x10",
        },
        "pod:cardwise_engine_waiting:sum",
        {'namespace="a",pod="p"': 3, 'namespace="a",pod="q"': 4, 'namespace="a",pod="r"': 6},
    ),
}


@pytest.mark.parametrize(("told", "record", "expected"), RECORDED.values(), ids=RECORDED)
def test_a_recording_rule_gives_the_number_worked_by_hand(told, record, expected, tmp_path):
    samples = [{"labels": f"{record}{{{labels}}}", "value": value} for labels, value in expected.items()]
    asked = {"expr": record, "eval_time": "10m", "exp_samples": samples}
    assert promtool(tmp_path, [{"interval": "1m", "input_series": series(told), "promql_expr_test": [asked]}]) == ""
