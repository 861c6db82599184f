"""Replicas by the hours of the day, by forecast and by load; gateways by the hours of the day (SPEC J1, D2).

A turn, for each ServicePolicy: read it, its Deployment and its metrics; decide (``core/fleet/scale.py``); write the
number of replicas through the scale subresource; bring the gateway's Service to the window that holds; say what was
found.

What holds now follows from the schedule and the clock alone, what was done stands in the objects, so a controller that
is killed at any step and started again does nothing twice. What it does not know after a start is how long a service
has been quiet: it waits a whole cool-down before it takes replicas away. Refuses to fight: where an autoscaler or
somebody else sets the number, it keeps its hands off and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import msgspec
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from cardwise.adapters import wire
from cardwise.adapters.kube.instants import stamp
from cardwise.adapters.kube.port import ClusterPort
from cardwise.adapters.policies import Policies, Target
from cardwise.adapters.prometheus import Prometheus, Reading
from cardwise.adapters.service_policy import (
    InForce,
    LoadSpec,
    PolicySpec,
    PolicyStatus,
    ServicePolicy,
    about_policy,
    annotations_of,
    in_force,
    limits_of,
)
from cardwise.controller import metrics
from cardwise.controller.forecasting import Forecasting
from cardwise.controller.service_conditions import (
    ALLOWED,
    FORECAST,
    GATEWAY,
    LIMITED,
    PODS,
    READY,
    SIGNAL,
    TWO_NODES,
    Found,
    HandsOff,
    conditions,
    hands_off,
    turned_bad,
)
from cardwise.controller.telling import tell
from cardwise.controller.turns import take_turns
from cardwise.core.fleet.forecast import Refusal
from cardwise.core.fleet.scale import Decision, Past, Readings, Why, decide
from cardwise.errors import ClusterError, ConflictError, NotFoundError, UserError
from cardwise.said import Said

log = structlog.get_logger()

PERIOD_S = 15.0
ASKED_AT_ONCE = 8
WRITTEN_EVERY_S = 60.0
"""Numbers that change all the time are written into the status so often."""
SAID_EVERY_S = 300.0
"""What is not well with a policy is said again so often at most."""
_FLAGS = (("oversubscribable", wire.ANNOTATION_OVERSUBSCRIBE), ("preemptible", wire.ANNOTATION_PREEMPTIBLE))


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


@dataclass(slots=True)
class _Memory:
    """What is known of a service beside the objects. written_s: when its status was last written."""

    target_uid: str
    past: Past
    written_s: float = float("-inf")


@dataclass(frozen=True, slots=True)
class _Measured:
    """Of one service: what was measured, and what to say of it."""

    readings: Readings
    found: tuple[Found, ...] = ()
    forecast: str | None = None


@dataclass(slots=True)
class Scaling:
    """The loop. prometheus: None if the settings name none. now_s: a steady clock; utc: the wall clock, for schedules.

    leads: whether this replica works now.
    """

    port: ClusterPort
    policies: Policies
    prometheus: Prometheus | None
    forecasting: Forecasting
    now_s: Callable[[], float]
    leads: Callable[[], bool]
    utc: Callable[[], datetime] = utc_now
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    _memory: dict[str, _Memory] = field(default_factory=dict)
    _gauged: set[tuple[str, str]] = field(default_factory=set)
    _said: Said = field(init=False)
    _absent: bool = False
    _scalings: Counter = field(init=False)
    _refusals: Counter = field(init=False)
    _wanted: Gauge = field(init=False)
    _signal: Gauge = field(init=False)

    def __post_init__(self) -> None:
        """Make the metrics, and remember what is said."""
        registry = self.registry
        self._scalings = metrics.SCALINGS.counter(registry)
        self._refusals = metrics.SCALING_REFUSALS.counter(registry)
        self._wanted = metrics.SCALING_WANTED.gauge(registry)
        self._signal = metrics.SCALING_SIGNAL.gauge(registry)
        self._said = Said(self.now_s, SAID_EVERY_S)

    async def run(self) -> None:
        """A turn every 15 seconds, until cancelled."""
        said = "services could not be scaled, they are with the next turn"
        await take_turns(self.turn, self.leads, PERIOD_S, said)

    async def turn(self) -> None:
        """Apply all policies once."""
        policies = await self.policies.all()
        if policies is None:
            if not self._absent:
                log.info("there are no ServicePolicies: their definition is not installed")
            self._absent = True
            return
        self._absent = False
        self._forget(policies)
        if not policies:
            return
        autoscalers, now = await self.policies.autoscalers(), self.utc()
        measured = await self._measure(policies, now)
        taken: dict[tuple[str, str], str] = {}
        for policy in sorted(policies, key=lambda each: (each.created, each.key)):
            try:
                await self._apply(policy, measured[policy.uid], autoscalers, taken, now)
            except ConflictError as exc:
                log.info("an object changed meanwhile, the next turn decides anew", policy=policy.key, why=str(exc))
            except ClusterError as exc:  # the others go on
                if self._said.is_news((policy.uid, "failed"), str(exc)):
                    said = "a policy could not be applied, it is with the next turn"
                    log.warning(said, policy=policy.key, why=str(exc))

    # ---------------------------------------------------------------- one policy

    async def _apply(
        self,
        policy: ServicePolicy,
        measured: _Measured,
        autoscalers: Mapping[tuple[str, str], str],
        taken: dict[tuple[str, str], str],
        now: datetime,
    ) -> None:
        spec = policy.spec
        if spec is None:
            await self._not_ready(policy, "InvalidSpec", policy.fault, now)
            return
        place = policy.namespace, spec.scale_target_ref.name
        if (other := taken.setdefault(place, policy.name)) != policy.name:
            text = f"the older policy {other} scales Deployment {place[1]}; delete one of them"
            await self._not_ready(policy, "TargetTaken", text, now)
            return
        try:
            target = await self.policies.target(*place)
        except NotFoundError:
            self._memory.pop(policy.uid, None)
            await self._not_ready(policy, "TargetNotFound", f"there is no Deployment {place[1]} here", now)
            return
        told = in_force(policy, now)
        decision = self._decide(policy, target, told, measured)
        off = hands_off(policy, target, autoscalers.get(place), now)
        found = [*measured.found, *_of_decision(decision, off)]
        scaled = await self._scale(policy, target, decision, off)
        found += [each for each in (await self._gateway(policy, told), _pods_agree(spec, target)) if each is not None]
        if spec.two_nodes:
            found.append(await self._on_two_nodes(target))
        status = self._status(policy, target, told, decision, measured, off, scaled, found, now)
        await self._tell(policy, status, found)

    def _decide(self, policy: ServicePolicy, target: Target, told: InForce, measured: _Measured) -> Decision:
        assert policy.spec is not None  # noqa: S101 - in_force has read it
        limits, now_s = limits_of(policy.spec, told.replicas), self.now_s()
        memory = self._memory.get(policy.uid)
        if memory is None or memory.target_uid != target.uid:
            memory = self._memory[policy.uid] = _Memory(target.uid, Past(now_s))
        readings = replace(measured.readings, ready=target.ready)
        decision = decide(now_s, target.replicas, limits, readings, memory.past)
        past = memory.past.with_want(now_s, decision.wanted, limits.cool_down_s)
        memory.past = past
        self._gauged.add((policy.namespace, policy.name))
        self._wanted.labels(policy.namespace, policy.name).set(decision.wanted)
        self._signal.labels(policy.namespace, policy.name).set(decision.why is not Why.NO_SIGNAL)
        return decision

    async def _scale(
        self, policy: ServicePolicy, target: Target, decision: Decision, off: HandsOff | None
    ) -> int | None:
        """Set the number if it is another and ours to set; the number that was set."""
        if decision.replicas == target.replicas or not self.leads():
            return None
        if off is not None:
            self._refusals.labels(policy.namespace, policy.name, off.reason).inc()
            return None
        await self.policies.scale(target, decision.replicas)
        memory = self._memory[policy.uid]
        if decision.replicas < target.replicas:
            memory.past = replace(memory.past, changed_s=self.now_s())
        text = f"{target.name}: {target.replicas} → {decision.replicas} replicas ({decision.text})"
        log.info("scaled", policy=policy.key, why=decision.why.value, text=text)
        self._scalings.labels(policy.namespace, policy.name, decision.why.value).inc()
        await self._post(policy, "CardwiseScaled", f"{decision.why.value}: {text}", warning=False)
        return decision.replicas

    async def _gateway(self, policy: ServicePolicy, told: InForce) -> Found | None:
        """Bring the gateway's Service to the window that holds."""
        spec = policy.spec
        if spec is None or spec.gateway is None or told.gateway is None:
            return None
        name = spec.gateway.service
        try:
            annotations = (await self.policies.service(policy.namespace, name)).metadata.annotations
        except NotFoundError:
            return Found(GATEWAY, False, "ServiceNotFound", f"there is no Service {name} here")
        if wire.ANNOTATION_GATEWAY not in annotations:
            text = f"Service {name} has no gateway: annotate it with {wire.ANNOTATION_GATEWAY}"
            return Found(GATEWAY, False, "NoGateway", text)
        wanted = annotations_of(told.gateway)
        changed = {key: text for key, text in wanted.items() if annotations.get(key) != text}
        if changed and self.leads():
            await self.policies.annotate_service(policy.namespace, name, changed)
            text = ", ".join(
                f"{key.removeprefix(wire.ANNOTATION_GATEWAY_PREFIX)} {each}" for key, each in wanted.items()
            )
            said = f"Service {name}, {told.window or 'outside all windows'}: {text}"
            log.info("gateway told", policy=policy.key, text=said)
            await self._post(policy, "CardwiseGatewayTold", said, warning=False)
        return Found(GATEWAY, True, "Applied", f"Service {name} has the numbers of this hour")

    async def _on_two_nodes(self, target: Target) -> Found:
        ready = [pod.spec.node_name for pod in await self.policies.pods_of(target) if pod.ready and pod.spec.node_name]
        if len(set(ready)) > 1:
            return Found(TWO_NODES, True, "Spread", "its ready replicas are on two nodes or more")
        text = f"{len(ready)} replicas are ready, on {len(set(ready))} nodes"
        return Found(TWO_NODES, False, "NotSpread", text)

    # ---------------------------------------------------------------- metrics

    async def _measure(self, policies: Iterable[ServicePolicy], now: datetime) -> dict[str, _Measured]:
        """Of all services, a few at a time. Once Prometheus does not answer, nobody waits for it again in this turn."""
        turns, away = asyncio.Semaphore(ASKED_AT_ONCE), list[str]()

        async def one(policy: ServicePolicy) -> tuple[str, _Measured]:
            if policy.spec is None or policy.spec.load is None:
                return policy.uid, _Measured(Readings())
            async with turns:
                return policy.uid, await self._read(policy, policy.spec.load, now, away)

        return dict(await asyncio.gather(*map(one, policies)))

    async def _read(self, policy: ServicePolicy, load: LoadSpec, now: datetime, away: list[str]) -> _Measured:
        demand = await self._ask(load.query, load, now, away)
        p99 = await self._ask(load.p99_query, load, now, away) if load.p99_query else None
        if p99 is not None and p99.is_nan and demand.value == 0:
            p99 = None  # of no requests there is none
        asked = {"load.query": demand, **({} if p99 is None else {"load.p99Query": p99})}
        missing = [f"{name}: {why}" for name, each in asked.items() if (why := _doubt(each))]
        if missing:
            text = f"no replicas are taken away; {'; '.join(missing)}"
            signal = Found(SIGNAL, False, Why.NO_SIGNAL.value, text)
        else:
            signal = Found(SIGNAL, True, "Measured", "its metrics are there")
        forecast, said = None, list[Found]()
        if load.forecast is not None:
            expected = self.forecasting.highest(policy.key, load, now)
            said.append(_of_forecast(expected))
            forecast = expected if isinstance(expected, float) else None
        readings = Readings(True, demand.value, None if p99 is None else p99.value, forecast, bool(missing))
        return _Measured(readings, (signal, *said), None if forecast is None else f"{forecast:.4g}")

    async def _ask(self, query: str, load: LoadSpec, now: datetime, away: list[str]) -> Reading:
        if self.prometheus is None:
            return Reading(None, "the controller's settings name no [prometheus]")
        if away:
            return Reading(None, away[0])
        try:
            reading = await self.prometheus.instant(query, now, max_age_s=float(load.max_age_seconds))
        except ClusterError as exc:
            away.append(str(exc))
            return Reading(None, str(exc))
        except UserError as exc:
            return Reading(None, str(exc))
        if reading.value is not None and reading.value < 0:
            return Reading(None, f"it is {reading.value:g}, below 0")
        return reading

    # ---------------------------------------------------------------- what is said

    def _status(
        self,
        policy: ServicePolicy,
        target: Target,
        told: InForce,
        decision: Decision,
        measured: _Measured,
        off: HandsOff | None,
        scaled: int | None,
        found: Iterable[Found],
        now: datetime,
    ) -> PolicyStatus:
        assert policy.spec is not None  # noqa: S101 - see _decide
        before, limits = policy.status, limits_of(policy.spec, told.replicas)
        known = before.scaled_replicas if before.target_uid == target.uid else None
        demand = measured.readings.demand
        return PolicyStatus(
            observed_generation=policy.generation,
            window=told.window,
            next_change=None if told.until is None else stamp(told.until),
            min_replicas=limits.min_replicas,
            max_replicas=limits.max_replicas,
            replicas=target.replicas if scaled is None else scaled,
            wanted_replicas=decision.wanted,
            why=decision.why.value if off is None else off.reason,
            demand=None if demand is None else f"{demand:.4g}",
            forecast=measured.forecast,
            target_uid=target.uid,
            scaled_replicas=scaled if scaled is not None else (target.replicas if off and off.by else known),
            last_scale_time=before.last_scale_time if scaled is None else stamp(now),
            hands_off_until=stamp(off.until) if off and off.until else None,
            hands_off_by=off.by if off and off.by else None,
            conditions=conditions(policy, found, now),
        )

    async def _not_ready(self, policy: ServicePolicy, reason: str, text: str, now: datetime) -> None:
        """It cannot be applied. What it did stays as it is."""
        found = [Found(READY, False, reason, text)]
        status = msgspec.structs.replace(
            policy.status, observed_generation=policy.generation, why=reason, conditions=conditions(policy, found, now)
        )
        await self._tell(policy, status, found)

    async def _tell(self, policy: ServicePolicy, status: PolicyStatus, found: Iterable[Found]) -> None:
        for each in turned_bad(policy, found):
            if not self._said.is_news((policy.uid, each.type, each.reason), None):
                continue  # what comes and goes by the turn is said now and then
            log.warning(
                "a policy is not well", policy=policy.key, condition=each.type, reason=each.reason, why=each.message
            )
            self._refusals.labels(policy.namespace, policy.name, each.reason).inc()
            await self._post(policy, f"Cardwise{each.reason}", each.message)
        memory, now_s = self._memory.get(policy.uid), self.now_s()
        if _steady(status) == _steady(policy.status):
            fresh = memory is not None and now_s - memory.written_s < WRITTEN_EVERY_S
            if fresh or status == policy.status:
                return
        if self.leads():
            await self.policies.write_status(policy, status)
            if memory is not None:
                memory.written_s = now_s

    async def _post(self, policy: ServicePolicy, reason: str, text: str, *, warning: bool = True) -> None:
        await tell(self.port, about_policy(policy), reason, text, warning=warning, policy=policy.key)

    def _forget(self, policies: Iterable[ServicePolicy]) -> None:
        """What belongs to policies that are gone."""
        kept = {each.uid: each for each in policies}
        self._said.forget_old()
        for uid in self._memory.keys() - kept.keys():
            del self._memory[uid]
        self.forecasting.forget({each.key for each in kept.values()})
        for labels in self._gauged - {(each.namespace, each.name) for each in kept.values()}:
            self._gauged.discard(labels)
            self._wanted.remove(*labels)
            self._signal.remove(*labels)


def _steady(status: PolicyStatus) -> PolicyStatus:
    """Without the numbers that change all the time."""
    return msgspec.structs.replace(status, demand=None, forecast=None)


def _of_decision(decision: Decision, off: HandsOff | None) -> list[Found]:
    if decision.why is Why.OFF:
        ready = Found(READY, False, Why.OFF.value, decision.text)
    else:
        ready = Found(READY, True, "Applied", "the policy is applied")
    allowed = (
        Found(ALLOWED, True, "OnlyWriter", "nobody else sets the number of replicas")
        if off is None
        else Found(ALLOWED, False, off.reason, off.text)
    )
    reason, text = ("AtMaximum", decision.text) if decision.limited else ("WithinBounds", "it has what it needs")
    return [ready, allowed, Found(LIMITED, decision.limited, reason, text)]


def _doubt(reading: Reading) -> str:
    """Why a number is none, or a part of one; empty if it is whole."""
    if reading.value is None:
        return reading.why
    return f"only a part is known: {reading.warnings[0]}" if reading.warnings else ""


def _of_forecast(expected: float | Refusal | None) -> Found:
    if expected is None:
        return Found(FORECAST, None, "BeingMade", "a forecast is being made")
    if isinstance(expected, Refusal):
        return Found(FORECAST, False, expected.why.value, f"no forecast, schedule and load decide: {expected.text}")
    return Found(FORECAST, True, "Forecast", "replicas come before the load that is expected")


def _pods_agree(spec: PolicySpec, target: Target) -> Found | None:
    """Whether the template says of its pods what the policy says. It is not changed: that would replace all pods."""
    wanted = {name: "true" if told else "false" for key, name in _FLAGS if (told := getattr(spec, key)) is not None}
    if not wanted:
        return None
    wrong = [f'{key}: "{text}"' for key, text in wanted.items() if target.annotations.get(key, "false") != text]
    if wrong:
        text = f"write into the annotations of Deployment {target.name}'s pod template: {', '.join(wrong)}"
        return Found(PODS, False, "TemplateDiffers", text)
    return Found(PODS, True, "Agree", "the template says what the policy says")
