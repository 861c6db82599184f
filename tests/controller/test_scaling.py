"""Services follow their policies; who else writes is left alone; silence takes nothing; nothing is done twice."""

from __future__ import annotations

from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from cardwise.adapters import wire
from cardwise.errors import ClusterError
from tests.controller.scaling_world import LOAD, OFFICE, QUERY, Killed, World
from tests.fakes.prometheus import FakePrometheus

DAY = {**OFFICE, "replicas": {"min": 5, "max": 10}}


@pytest.fixture
async def fake():
    async with FakePrometheus().serving() as made:
        yield made


@pytest.fixture
async def measured(fake):
    """A service with metrics: 2 replicas carry 8 per second each."""
    fake.values[QUERY] = 16
    world = World(fake.url, load=LOAD)
    yield world
    await world.prometheus.close()


# ---------------------------------------------------------------- hours of the day


async def test_a_window_raises_at_its_beginning_and_says_so():
    world = World(windows=[DAY])
    await world.turn()
    assert (world.replicas, world.status["nextChange"]) == (2, "2026-06-01T06:00:00Z")
    await world.turn(minutes=120)
    assert (world.replicas, world.status["window"], world.status["why"]) == (5, "office", "Schedule")
    assert world.api.events == [("CardwiseScaled", "Schedule: vllm: 2 → 5 replicas (schedule 5)")]
    assert world.metric("cardwise_scaling_scalings_total", namespace="models", policy="chat", why="Schedule") == 1


async def test_after_its_end_replicas_go_by_steps_and_after_a_calm():
    world = World(windows=[DAY], replicas=5)
    await world.turn(minutes=13 * 60)
    await world.calm(minutes=60)
    assert world.status["window"] == ""
    await world.calm(minutes=3)
    assert world.replicas == 5
    await world.calm(minutes=20)
    assert world.scalings() == [3, 2]


async def test_a_clock_that_was_set_is_believed_for_what_holds_and_not_for_the_calm():
    world = World(windows=[DAY], replicas=5)
    world.utc += timedelta(hours=6)
    await world.turn()
    assert world.status["window"] == "office"
    world.utc += timedelta(hours=10)  # set forward; no time has passed
    await world.turn()
    assert (world.status["window"], world.replicas) == ("", 5)
    world.utc -= timedelta(hours=10)
    await world.turn()
    assert (world.status["window"], world.replicas) == ("office", 5)


async def test_a_gateway_is_told_the_numbers_of_the_hour():
    gateway = {"service": "vllm", "maxBatch": 8, "depth": 24}
    world = World(windows=[{**OFFICE, "gateway": {"maxBatch": 2}}], gateway=gateway)
    service = world.api.put("services", "vllm", metadata={"annotations": {wire.ANNOTATION_GATEWAY: "main", "a": "b"}})
    await world.turn()
    assert service["metadata"]["annotations"]["cardwise.dev/gateway-max-batch"] == "8"
    await world.turn(minutes=120)
    told = {"cardwise.dev/gateway-max-batch": "2", "cardwise.dev/gateway-depth": "24"}
    assert service["metadata"]["annotations"] == {wire.ANNOTATION_GATEWAY: "main", "a": "b", **told}
    assert [reason for reason, _ in world.api.events] == ["CardwiseGatewayTold"] * 2
    await world.turn()
    assert len(world.api.events) == 2


@pytest.mark.parametrize(
    ("annotations", "reason"), [(None, "ServiceNotFound"), ({}, "NoGateway")], ids=["no Service", "not opted in"]
)
async def test_a_gateway_that_is_not_there_is_told_once(annotations, reason):
    world = World(gateway={"service": "vllm", "maxBatch": 8})
    if annotations is not None:
        world.api.put("services", "vllm", metadata={"annotations": annotations})
    await world.turn()
    await world.turn()
    assert world.condition("GatewayApplied") == ("False", reason)
    assert [each for each, _ in world.api.events] == [f"Cardwise{reason}"]


# ---------------------------------------------------------------- load


async def test_load_brings_replicas(fake, measured):
    fake.values[QUERY] = 30
    await measured.turn()
    assert (measured.replicas, measured.status["why"], measured.status["demand"]) == (4, "Hot", "30")
    assert measured.condition("SignalSeen") == ("True", "Measured")


async def test_silence_takes_nothing_away_and_is_told(fake, measured):
    """No signal is not zero."""
    fake.values[QUERY] = 30
    await measured.turn()
    del fake.values[QUERY]
    await measured.calm(minutes=10)
    assert measured.replicas == 4
    assert measured.condition("SignalSeen") == ("False", "NoSignal")
    assert [reason for reason, _ in measured.api.events] == ["CardwiseScaled", "CardwiseNoSignal"]
    assert measured.metric("cardwise_scaling_signal", namespace="models", policy="chat") == 0


async def test_once_the_signal_is_back_the_calm_begins_anew(fake, measured):
    fake.values[QUERY] = 30
    await measured.turn()
    del fake.values[QUERY]
    await measured.calm(minutes=10)
    fake.values[QUERY] = 1
    await measured.calm(minutes=4)
    assert measured.replicas == 4
    await measured.calm(minutes=3)
    assert measured.replicas == 2


@pytest.mark.parametrize("minutes", [1, 600])
async def test_with_prometheus_away_only_a_window_raises(fake, minutes):
    world = World("http://127.0.0.1:9", load=LOAD, windows=[{**DAY, "begin": "06:30"}], replicas=7)
    await world.turn(minutes=minutes)
    await world.calm()
    assert world.replicas == 7
    world.api.set_replicas("vllm", 3)
    world.restart()
    await world.turn(minutes=60)
    assert world.replicas == 5
    await world.prometheus.close()


async def test_a_prometheus_that_is_away_is_asked_once_per_turn(fake):
    fake.raw = 503, b'{"status":"error","errorType":"unavailable","error":"starting"}'
    world = World(fake.url, load=LOAD)
    for i in range(30):
        world.api.put("deployments", f"d{i}", spec={"replicas": 2})
        spec = {"scaleTargetRef": {"name": f"d{i}"}, "replicas": {"min": 2}, "load": LOAD}
        world.api.put("servicepolicies", f"p{i}", spec=spec, status={})
    await world.turn()
    assert len(fake.asked) <= 8
    assert world.condition("SignalSeen") == ("False", "NoSignal")
    await world.prometheus.close()


async def test_without_a_prometheus_the_condition_says_what_to_set():
    world = World(load=LOAD)
    await world.turn()
    (said,) = [text for reason, text in world.api.events if reason == "CardwiseNoSignal"]
    assert "[prometheus]" in said


async def test_a_part_of_the_load_may_raise_and_not_lower(fake, measured):
    fake.values[QUERY], fake.warnings = 30, ["a store is away"]
    await measured.turn()
    fake.values[QUERY] = 1
    await measured.calm(minutes=10)
    assert measured.replicas == 4


async def test_a_p99_over_its_target_brings_one_more(fake):
    fake.values = {QUERY: 16, "p99": 400}
    world = World(fake.url, load={**LOAD, "p99Query": "p99"}, targetP99Ms=300)
    world.api.get("deployments", "vllm")["status"] = {"readyReplicas": 2}
    await world.turn()
    await world.turn()
    assert world.replicas == 3  # and no more, for the third is not ready
    await world.prometheus.close()


async def test_the_p99_of_no_requests_is_no_silence(fake):
    fake.values = {QUERY: 0, "p99": "NaN"}
    world = World(fake.url, load={**LOAD, "p99Query": "p99"}, targetP99Ms=300, replicas=4)
    world.spec["replicas"] = {"min": 2, "max": 10}
    world.api.set_replicas("vllm", 4)
    await world.calm(minutes=7)
    assert world.condition("SignalSeen") == ("True", "Measured")
    assert world.replicas == 2
    fake.values[QUERY] = 1
    await world.turn()
    assert world.condition("SignalSeen") == ("False", "NoSignal")
    await world.prometheus.close()


async def test_a_signal_that_comes_and_goes_is_told_now_and_then(fake, measured):
    for i in range(20):
        fake.values[QUERY] = 16 if i % 2 else []
        await measured.turn(minutes=0.25)
    assert [reason for reason, _ in measured.api.events] == ["CardwiseNoSignal"]


async def test_a_need_beyond_the_maximum_is_told(fake, measured):
    fake.values[QUERY] = 500
    await measured.turn()
    assert measured.condition("ScalingLimited") == ("True", "AtMaximum")
    assert "CardwiseAtMaximum" in [reason for reason, _ in measured.api.events]


async def test_numbers_that_change_all_the_time_are_written_once_a_minute(fake, measured):
    await measured.turn()
    before = len(measured.api.writes)
    for i in range(8):
        fake.values[QUERY] = 15 + i / 10
        await measured.turn(minutes=0.25)
    assert len(measured.api.writes) - before == 2


# ---------------------------------------------------------------- forecast


async def test_a_forecast_that_is_not_there_is_told_with_its_reason(fake):
    world = World(fake.url, load={**LOAD, "forecast": {}})
    fake.values[QUERY] = 16
    fake.history[f"max_over_time(({QUERY})[1h:5m])"] = [(world.utc.timestamp() - 3600, 5)]
    await world.turn()
    assert world.condition("ForecastUsed") == ("Unknown", "BeingMade")
    await world.loop.forecasting.make_wanted()
    await world.turn()
    assert world.condition("ForecastUsed") == ("False", "HistoryTooShort")
    assert world.replicas == 2
    assert [len(history) for history, _ in world.fits] == [28 * 24]
    await world.prometheus.close()


async def test_a_forecast_that_takes_longer_than_a_turn_is_made_once(fake):
    world = World(fake.url, load={**LOAD, "forecast": {}})
    fake.values[QUERY] = 16
    fake.history[f"max_over_time(({QUERY})[1h:5m])"] = [(world.utc.timestamp() - 3600, 5)]
    fit = world.loop.forecasting.fit

    async def slowly(history, steps):
        await world.turn(minutes=0.25)
        return await fit(history, steps)

    world.loop.forecasting.fit = slowly
    await world.turn()
    await world.loop.forecasting.make_wanted()
    assert len(world.fits) == 1
    await world.prometheus.close()


async def test_a_forecast_of_a_query_that_changed_while_it_was_made_is_made_of_the_new_one(fake):
    world = World(fake.url, load={**LOAD, "forecast": {}})
    fake.values[QUERY] = 16
    for query in (QUERY, "other"):
        fake.history[f"max_over_time(({query})[1h:5m])"] = [(world.utc.timestamp() - 3600, 5)]
    fit = world.loop.forecasting.fit

    async def slowly(history, steps):
        world.change_policy(load={**LOAD, "query": "other", "forecast": {}})
        await world.turn(minutes=0.25)
        return await fit(history, steps)

    world.loop.forecasting.fit = slowly
    await world.turn()
    await world.loop.forecasting.make_wanted()
    await world.turn()
    assert world.condition("ForecastUsed") == ("False", "HistoryTooShort")
    assert len(world.fits) == 2
    await world.prometheus.close()


# ---------------------------------------------------------------- others who write


async def test_an_autoscaler_is_left_alone_and_told():
    world = World(windows=[DAY])
    ref = {"kind": "Deployment", "name": "vllm"}
    world.api.put("horizontalpodautoscalers", "hpa", spec={"scaleTargetRef": ref})
    await world.turn(minutes=120)
    assert (world.replicas, world.status["why"]) == (2, "HorizontalPodAutoscaler")
    assert world.condition("ScalingAllowed") == ("False", "HorizontalPodAutoscaler")
    del world.api.objects["horizontalpodautoscalers", "models/hpa"]
    await world.turn()
    assert world.replicas == 5


async def test_a_number_that_somebody_wrote_is_left_for_an_hour():
    world = World(windows=[DAY])
    await world.turn(minutes=120)
    world.api.set_replicas("vllm", 3, "kubectl-scale")
    await world.turn()
    assert world.condition("ScalingAllowed") == ("False", "OtherWriter")
    assert world.status["handsOffBy"] == "kubectl-scale"
    await world.turn(minutes=59)
    assert world.replicas == 3
    await world.turn(minutes=2)
    assert world.replicas == 5
    assert "handsOffBy" not in world.status


async def test_each_new_number_of_another_begins_the_hour_anew():
    world = World(windows=[DAY])
    await world.turn(minutes=120)
    for number in (3, 4):
        world.api.set_replicas("vllm", number)
        await world.turn(minutes=50)
    await world.turn(minutes=50)
    assert world.replicas == 4


async def test_a_policy_that_is_changed_takes_over_at_once():
    world = World(windows=[DAY])
    await world.turn(minutes=120)
    world.api.set_replicas("vllm", 3)
    await world.turn()
    world.change_policy(replicas={"min": 1, "max": 9})
    await world.turn()
    assert world.replicas == 5


async def test_two_writers_never_fight_faster_than_once_an_hour():
    world = World(windows=[DAY])
    await world.turn(minutes=120)
    for _ in range(180):
        if world.replicas != 3:
            world.api.set_replicas("vllm", 3, "argocd")
        await world.turn(minutes=1)
    assert len(world.scalings()) <= 4


async def test_the_clock_set_back_prolongs_an_hour_by_an_hour_at_most():
    world = World(windows=[DAY])
    await world.turn(minutes=300)
    world.api.set_replicas("vllm", 3)
    await world.turn()
    world.utc -= timedelta(hours=2)
    await world.turn()
    for _ in range(6):
        await world.turn(minutes=11)
    assert world.replicas == 5


async def test_what_somebody_switched_off_stays_off():
    world = World(windows=[DAY], replicas=0)
    await world.turn(minutes=120)
    assert world.replicas == 0
    assert world.condition("Ready") == ("False", "ScaledToZero")


async def test_two_policies_of_one_deployment_do_not_fight():
    world = World(windows=[DAY])
    spec = {"scaleTargetRef": {"name": "vllm"}, "replicas": {"min": 9}}
    world.api.put("servicepolicies", "second", spec=spec, status={})
    await world.turn(minutes=120)
    await world.turn()
    assert world.scalings() == [5]
    said = world.api.get("servicepolicies", "second")["status"]["conditions"][0]
    assert (said["reason"], "chat" in said["message"]) == ("TargetTaken", True)


async def test_a_write_that_met_another_is_decided_anew():
    world = World(windows=[DAY])
    await world.turn()
    read = world.loop.policies.target

    async def late(*place):
        found = await read(*place)
        world.api.set_replicas("vllm", 4)
        return found

    world.loop.policies.target = late
    await world.turn(minutes=120)
    assert world.replicas == 4
    world.loop.policies.target = read
    await world.turn()
    assert world.replicas == 5


# ---------------------------------------------------------------- what is not there, or wrong


async def test_a_deleted_deployment_is_told_once_and_taken_up_when_it_returns():
    world = World(windows=[DAY])
    await world.turn(minutes=120)
    del world.api.objects["deployments", "models/vllm"]
    await world.turn()
    await world.turn()
    assert world.condition("Ready") == ("False", "TargetNotFound")
    assert [reason for reason, _ in world.api.events].count("CardwiseTargetNotFound") == 1
    world.api.put("deployments", "vllm", spec={"replicas": 1})
    await world.turn()
    assert (world.replicas, world.condition("Ready")) == (5, ("True", "Applied"))


async def test_a_policy_that_cannot_be_read_says_where_and_does_not_hold_up_others():
    world = World(windows=[DAY])
    wrong = {"scaleTargetRef": {"name": "x"}, "replicas": {"min": 2}, "windows": [{**DAY, "timezone": "Mars/Base"}]}
    world.api.put("servicepolicies", "a-wrong", spec=wrong, status={})
    await world.turn(minutes=120)
    assert world.replicas == 5
    said = world.api.get("servicepolicies", "a-wrong")["status"]["conditions"][0]
    assert (said["reason"], said["message"].partition(":")[0]) == ("InvalidSpec", "spec.windows[0].timezone")


async def test_a_deleted_policy_leaves_its_deployment_and_no_metric():
    world = World(windows=[DAY])
    await world.turn(minutes=120)
    del world.api.objects["servicepolicies", "models/chat"]
    await world.turn()
    assert world.replicas == 5
    assert world.metric("cardwise_scaling_wanted_replicas", namespace="models", policy="chat") is None


async def test_pods_whose_template_says_otherwise_are_told_what_to_write():
    world = World(preemptible=True, oversubscribable=False)
    await world.turn()
    assert world.condition("PodsAgree") == ("False", "TemplateDiffers")
    assert wire.ANNOTATION_PREEMPTIBLE in world.api.events[0][1]
    template = {"metadata": {"annotations": {wire.ANNOTATION_PREEMPTIBLE: "true"}}}
    world.api.get("deployments", "vllm")["spec"]["template"] = template
    await world.turn()
    assert world.condition("PodsAgree") == ("True", "Agree")


async def test_whether_replicas_are_on_two_nodes_is_told():
    world = World(twoNodes=True)
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    for i, node in enumerate(("n0", "n0")):
        world.api.put("pods", f"p{i}", spec={"nodeName": node}, status=ready)
    await world.turn()
    assert world.condition("OnTwoNodes") == ("False", "NotSpread")
    world.api.put("pods", "p2", spec={"nodeName": "n1"}, status=ready)
    await world.turn()
    assert world.condition("OnTwoNodes") == ("True", "Spread")


# ---------------------------------------------------------------- restarts


async def test_who_did_not_look_for_a_while_waits_a_whole_calm():
    """As a replica that led, lost the lease, and leads again."""
    world = World(windows=[DAY], replicas=5)
    await world.turn(minutes=13 * 60)
    await world.turn(minutes=180)
    assert (world.status["window"], world.replicas) == ("", 5)
    await world.calm(minutes=6)
    assert world.replicas == 3


async def test_who_does_not_lead_writes_nothing():
    world = World(windows=[DAY])
    world.leads = False
    await world.turn(minutes=120)
    assert world.api.writes == []


async def test_after_a_restart_a_whole_calm_passes_before_anything_is_taken_away(fake, measured):
    fake.values[QUERY] = 30
    await measured.turn()
    fake.values[QUERY] = 1
    await measured.calm(minutes=4)
    measured.restart()
    await measured.calm(minutes=5)
    assert measured.replicas == 4
    await measured.calm(minutes=2)
    assert measured.replicas == 2


@pytest.mark.parametrize("before", [True, False], ids=["before it is written", "after"])
@pytest.mark.parametrize("at", range(6))
async def test_a_controller_that_is_killed_at_any_write_scales_once(at, before):
    world = World(windows=[{**DAY, "gateway": {"maxBatch": 2}}], gateway={"service": "vllm", "maxBatch": 8})
    service = world.api.put("services", "vllm", metadata={"annotations": {wire.ANNOTATION_GATEWAY: "main"}})
    world.pass_time(120)
    world.api.dies_at, world.api.before = at, before
    try:
        await world.turn()
    except Killed:
        world.api.dies_at = None
        world.restart()
        await world.turn()
    world.api.dies_at = None
    await world.turn()
    assert world.replicas == 5
    done = [body["spec"]["replicas"] for path, body in world.api.writes if path.endswith("/scale")]
    assert done in ([5], [5, 5] if before else [5])  # the second: the first had no effect
    assert world.status["replicas"] == 5
    assert world.condition("ScalingAllowed") == ("True", "OnlyWriter")
    assert service["metadata"]["annotations"]["cardwise.dev/gateway-max-batch"] == "2"


async def test_a_policy_that_cannot_be_applied_is_tried_at_every_turn_and_said_once():
    world, tried = World(windows=[DAY]), []

    def away(*what):
        tried.append(what)
        raise ClusterError("the API server is away", retry=True)

    world.api._patched = away
    with capture_logs() as logs:
        for _ in range(5):
            await world.turn()
    assert (len(tried) >= 5, [each["event"] for each in logs]) == (
        True,
        ["a policy could not be applied, it is with the next turn"],
    )
