"""The generator against a real server: every request is counted once, and a stall is seen by all who met it."""

import asyncio
import os
import signal
import threading
import time

import pytest

from cardwise.errors import UserError
from cardwise.loadtest import run as running
from cardwise.loadtest.client import Client
from cardwise.loadtest.plan import (
    Arrivals,
    Kind,
    Load,
    Plan,
    Search,
    Target,
    endpoint_of,
    oip_bodies,
    openai_bodies,
    path_of,
    split_url,
)
from cardwise.loadtest.run import reach, run, tensors_of
from cardwise.loadtest.timer import Timer
from tests.loadtest.service import serving

OPEN, CLOSED = Load(rate_per_s=200.0), Load(concurrency=8)
RATES = Search("rate", 50.0, 3200.0)
PROBE = 1


def target(service, kind=Kind.PLAIN, path="", **more):
    parts = split_url(service.url.rstrip("/") + path)
    bodies = {Kind.OPENAI: openai_bodies("m", 8, 8, 1), Kind.PLAIN: (b"{}",)}.get(kind, (b"{}",))
    return Target(endpoint_of(parts), path_of(parts, kind, "m"), kind, **{"bodies": bodies} | more)


def curve_of(service, *steps, kind=Kind.PLAIN, more=None, **plan):
    settings = {"seconds": 1.0, "warm_up_s": 0.2, "timeout_s": 60.0, "arrivals": Arrivals.CONSTANT}
    return run(target(service, kind, **more or {}), Plan(steps=steps, **settings | plan))


def asked_in(curve):
    return PROBE + sum(each.issued + each.warm_up_issued for each in [*curve.steps, *curve.set_aside])


@pytest.mark.parametrize("load", [OPEN, CLOSED], ids=["open", "closed"])
@pytest.mark.parametrize(
    ("script", "counts"),
    [
        ({"latency_s": 0.01}, "ok"),
        ({"latency_s": 0.01, "close": True}, "ok"),
        ({"undelimited": True}, "ok"),
        ({"early_hints": True}, "ok"),
        ({"slow_body_s": 0.02}, "ok"),
        ({"latency_s": 0.01, "capacity_per_s": 60.0}, "ok rejected"),
        ({"status": 503}, "rejected"),
        ({"status": 500}, "error"),
        ({"reset_every": 10}, "ok error"),
        ({"cut_every": 10}, "ok error"),
        ({"garbage": True}, "error"),
        ({"silent_every": 10}, "ok timeout"),
    ],
    ids=lambda it: " ".join(it) if isinstance(it, dict) else "",
)
def test_every_request_is_counted_once_and_as_the_server_counts(script, counts, load):
    timeout_s = 0.5 if "silent_every" in script else 60.0  # no less than a busy machine stalls the service
    with serving(**script) as service:
        curve = curve_of(service, load, timeout_s=timeout_s)
        asked = service.counts()["asked"]
    (step,) = curve.steps
    out = step.outcomes
    assert asked == asked_in(curve)
    assert step.issued == out.ok + out.rejected + out.error + out.timeout + out.unfinished > 0
    assert step.offered == step.issued
    assert {name for name in ("ok", "rejected", "error", "timeout", "unfinished") if getattr(out, name)} == set(
        counts.split()
    )
    assert sum(step.errors.values()) == out.error


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ({"status": 500}, "status-500"),
        ({"reset_every": 1}, "reset"),
        ({"cut_every": 1}, "cut"),
        ({"garbage": True}, "malformed"),
    ],
    ids=["status", "reset", "cut", "garbage"],
)
def test_errors_are_told_apart(script, reason):
    with serving(**script) as service:
        (step,) = curve_of(service, OPEN).steps
    assert set(step.errors) == {reason}


def test_rejections_with_retry_after_are_told_apart():
    with serving(status=429, retry_after="1") as service:
        (step,) = curve_of(service, OPEN).steps
    assert step.rejected_with_retry_after == step.outcomes.rejected > 0
    assert step.rejection_ms.count == step.outcomes.rejected
    with serving(status=503) as service:
        (step,) = curve_of(service, OPEN).steps
    assert step.rejected_with_retry_after == 0


def test_a_stall_is_in_the_latency_of_all_who_were_due_in_it():
    """Half a second of two: in the open loop a quarter of the requests waited, evenly from 0 to 0.5 s.

    At least: whatever else stalls, as a busy machine does, is in their latencies too.
    """
    with serving(latency_s=0.002, stall=(0.8, 0.5)) as service:
        (step,) = curve_of(service, OPEN, seconds=2.0, warm_up_s=0.0).steps
    waited = step.judged.counts.sum() * 0.25
    slow = sum(
        count
        for block in step.blocks
        for bucket, count in zip(block.buckets, block.counts, strict=True)
        if 1e-6 * 1.01**bucket > 0.05
    )
    assert slow > waited * 0.9 * 0.75
    assert step.latency_ms.p90 > 300 * 0.7
    assert step.latency_ms.max > 500 * 0.8
    assert 1e-6 * 1.01 ** min(bucket for block in step.blocks for bucket in block.buckets) < 0.05
    assert step.outcomes.ok == step.issued == pytest.approx(400, abs=2)


def test_in_the_closed_loop_the_same_stall_is_met_by_each_caller_once():
    with serving(latency_s=0.002, stall=(0.8, 0.5)) as service:
        (step,) = curve_of(service, Load(concurrency=2), seconds=2.0, warm_up_s=0.0).steps
    assert step.latency_ms.p90 < 100  # why the open loop is the default
    assert step.latency_ms.max > 300


def test_arrivals_never_wait_for_answers():
    with serving(latency_s=1.0) as service:
        (step,) = curve_of(service, OPEN).steps
    assert step.issued == pytest.approx(200, abs=2)
    assert step.outcomes.ok == step.issued
    assert step.lag_ms.p50 < 50 + step.stall_ms  # its own, and no answer's


def test_what_would_be_too_many_unfinished_is_held_back_and_counted():
    with serving(latency_s=0.5) as service:
        curve = curve_of(service, OPEN, most_unfinished=20, warm_up_s=0.0)
        asked = service.counts()["asked"]
    (step,) = curve.steps
    assert step.offered == pytest.approx(200, abs=2)
    assert step.held_back == step.offered - step.issued > 100
    assert asked == asked_in(curve)
    assert not step.holds


def test_poisson_arrivals_are_irregular_and_the_same_for_a_seed():
    with serving() as service:
        one, other = (curve_of(service, OPEN, arrivals=Arrivals.POISSON).steps[0].offered for _ in range(2))
    assert one == other
    assert one == pytest.approx(200, abs=50)


def test_warm_up_is_in_no_figure():
    with serving(stall=(0.0, 0.4)) as service:
        (step,) = curve_of(service, OPEN, warm_up_s=0.8).steps
    assert step.warm_up_issued == pytest.approx(160, abs=2)
    assert step.issued == step.outcomes.issued == step.latency_ms.count == pytest.approx(200, abs=2)
    assert step.lag_ms.count == step.issued
    assert sum(sum(block.counts) for block in step.blocks) == step.issued


def test_the_knee_of_a_rejecting_service_is_found():
    with serving(latency_s=0.005, capacity_per_s=200.0) as service:
        curve = curve_of(service, search=RATES, seconds=1.5, timeout_s=2.0, arrivals=Arrivals.POISSON)
    assert curve.knee.load == pytest.approx(200, rel=0.15)
    assert curve.knee.stopped_by == "goodput"


def test_the_knee_of_a_device_with_an_endless_queue_is_found():
    """Five milliseconds each: 200/s; beyond it the queue grows past the target."""
    with serving(serial_s=0.005) as service:
        curve = curve_of(service, search=RATES, seconds=4.0, timeout_s=2.0, target_p99_ms=400.0)
    assert curve.knee.load == pytest.approx(200, rel=0.15)
    assert curve.knee.stopped_by in {"p99", "goodput"}


def test_headers_of_the_gateway_are_gathered():
    headers = (("X-Cardwise-Queue-Ms", "7.5"), ("x-cardwise-batch-size", "4"), ("x-cardwise-attempts", "2"))
    with serving(headers=headers) as service:
        (step,) = curve_of(service, OPEN).steps
    assert step.queue_ms.p50 == pytest.approx(7.5, rel=0.01)
    assert step.batch_sizes == {"4": step.outcomes.ok}
    assert step.attempts == {"2": step.outcomes.ok}


def test_a_stream_is_measured_by_its_tokens():
    with serving(events=(0.1, 0.02, 0.02, 0.02)) as service:
        curve = curve_of(service, Load(rate_per_s=20.0), kind=Kind.OPENAI)
        paths = service.counts()["paths"]
    (step,) = curve.steps
    assert list(paths) == ["/v1/chat/completions"]
    assert step.stream.first_token_ms.p50 == pytest.approx(100, rel=0.4)
    assert step.stream.between_tokens_ms.p50 == pytest.approx(20, rel=0.4)
    assert step.stream.tokens == 4 * step.outcomes.ok
    assert step.p99_ms == pytest.approx(step.stream.first_token_ms.p99, rel=0.01)
    assert step.latency_ms.p50 > 150
    assert curve.settings.judged == "first token"


def test_the_engines_own_count_of_tokens_is_believed():
    with serving(events=(0.01, 0.01), usage=10) as service:
        (step,) = curve_of(service, Load(rate_per_s=20.0), kind=Kind.OPENAI).steps
    assert step.stream.tokens == 10 * step.outcomes.ok > 0


def test_a_stream_without_its_end_was_cut():
    with serving(events=(0.01,), done=False) as service:
        (step,) = curve_of(service, Load(rate_per_s=20.0), kind=Kind.OPENAI).steps
    assert step.errors == {"cut": step.issued}


def test_a_batch_window_is_swept_by_header_and_by_url():
    loads = [Load(concurrency=4, batch_window_ms=window) for window in (0.0, 50.0)]
    with serving(latency_s=0.005, window_s_per_ms=0.001) as service:
        fast, slow = curve_of(service, *loads, more={"window_header": "x-window"}).steps
    assert slow.latency_ms.p50 - fast.latency_ms.p50 == pytest.approx(50, rel=0.3)
    with serving() as service:
        curve_of(service, *loads, more={"path": "/p?window={window}"})
        assert {"/p?window=0", "/p?window=50"} <= set(service.counts()["paths"])


def test_made_up_tensors_differ_and_follow_the_models_metadata():
    with serving() as service:
        aim = target(service, Kind.OIP)
        tensors = tensors_of(aim, "/v2/models/m")
        assert [(each.name, each.shape) for each in tensors] == [("x", (1, 4))]
        curve_of(service, OPEN, kind=Kind.OIP, more={"bodies": oip_bodies(tensors, 1)})
        counts = service.counts()
    assert list(counts["paths"]) == ["/v2/models/m/infer"]
    assert counts["bodies"] == 16


def test_the_limit_of_the_whole_test_is_kept():
    with serving(latency_s=0.01) as service:
        curve = curve_of(service, OPEN, OPEN, seconds=10.0, limit_s=3.0)
    (step,) = curve.steps
    assert curve.ended == "time"
    assert step.cut_short
    assert 1.0 < step.seconds <= 2.8


def test_an_interrupt_gives_the_results_so_far_and_counts_what_is_unfinished():
    """The signal comes once the service has been asked a while, however slow this machine starts.

    Every second request is never answered, so that no time decides how many are unfinished.
    """

    def interrupt(service):
        while service.counts()["asked"] < 250:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    with serving(silent_every=2) as service:
        before = signal.getsignal(signal.SIGINT)
        threading.Thread(target=interrupt, args=(service,)).start()
        curve = curve_of(service, OPEN, OPEN, seconds=10.0)
        assert signal.getsignal(signal.SIGINT) is before
    (step,) = curve.steps
    assert curve.ended == "interrupt"
    assert step.outcomes.ok > 0
    assert step.outcomes.unfinished == step.issued - step.outcomes.ok >= 80


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_generator_that_stalls_for_longer_than_the_timeout_ends_and_loses_nothing(monkeypatch, loop):
    """Connections that are made while it stalls are given up at the moment they are there."""
    if loop == "asyncio":
        monkeypatch.setattr(running, "_new_loop", None)
    stalling = running.Listener(on_progress=lambda *_: time.sleep(0.3))
    with serving(close=True) as service:
        plan = Plan(steps=(OPEN,), seconds=3.0, warm_up_s=0.2, timeout_s=0.1, arrivals=Arrivals.CONSTANT)
        curve = run(target(service), plan, stalling)
    (step,) = curve.steps
    assert step.issued == step.outcomes.issued == pytest.approx(600, abs=3)
    assert step.outcomes.timeout > 0
    assert step.stall_ms > 200


def test_a_bug_in_what_ends_a_step_is_raised_and_hangs_nobody(monkeypatch):
    monkeypatch.setattr(Client, "expire", lambda *_: 1 / 0)
    with serving() as service, pytest.raises(ZeroDivisionError):
        curve_of(service, OPEN)


def test_it_runs_on_asyncios_own_loop_too(monkeypatch):
    monkeypatch.setattr(running, "_new_loop", None)
    with serving() as service:
        curve = curve_of(service, OPEN)
    assert curve.environment.event_loop == "asyncio"
    assert curve.steps[0].outcomes.ok == curve.steps[0].issued


def test_nobody_there_is_said_so():
    with serving() as service:
        url = service.url
    with pytest.raises(UserError, match=r"cannot connect to 127\.0\.0\.1:.*Connection refused"):
        reach(endpoint_of(split_url(url)))
    with pytest.raises(UserError, match=r"nowhere\.invalid: no such host"):
        reach(endpoint_of(split_url("http://nowhere.invalid/")))


@pytest.mark.parametrize(("status", "said"), [(404, "answers the first request with 404"), (307, "redirects")])
def test_a_service_that_does_not_understand_is_not_tested(status, said):
    with serving(status=status) as service, pytest.raises(UserError, match=said):
        curve_of(service, OPEN)


async def test_the_timer_never_fires_early_and_hardly_late():
    loop = asyncio.get_running_loop()
    fired = asyncio.Event()
    timer = Timer(loop, fired.set)
    delays = []
    for delay_s in (0.0, 0.0003, 0.0007, 0.003) * 10:  # hardly late at its best: the machine may be busy
        start_s = loop.time()
        timer.start(delay_s)
        await fired.wait()
        fired.clear()
        delays.append(loop.time() - start_s - delay_s)
    timer.close()
    assert min(delays) > -1e-5
    assert all(min(delays[kind::4]) < 0.005 for kind in range(4))
