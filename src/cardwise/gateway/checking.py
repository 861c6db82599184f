"""What follows from a service's settings, for who wrote them: its numbers by the hour, and what will not go well.

Refuses to refuse: what cannot be meant is told by ``settings.faults_of``. Here are numbers, and warnings of what can
be meant and seldom is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from cardwise.core.queue.limit import ClimbPolicy
from cardwise.gateway.routes import Route, route_of
from cardwise.gateway.settings import Plan, Profile, ServiceSettings, Settings, full_batch_s, plan_of

_GUARD_SHARE = ClimbPolicy().guard_share


def lines_of(settings: Settings) -> Iterator[str]:
    """A line per service and hour."""
    for service in settings.services:
        yield f"{service.name}: {_numbers(service, None)}"
        for profile in service.profiles:
            yield f"{service.name}, {profile.begin} to {profile.end} {profile.timezone}: {_numbers(service, profile)}"


def _numbers(service: ServiceSettings, profile: Profile | None) -> str:
    plan = plan_of(service, profile)
    told = [_depth(service, plan), _limit(service)]
    if service.batches:
        told += [f"batches of up to {plan.policy.max_batch}", _linger(service, plan)]
    return ", ".join([*told, _worst(service, plan)])


def _depth(service: ServiceSettings, plan: Plan) -> str:
    replicas = len(service.replicas)
    if not replicas:
        return f"depth {plan.depth} with one replica"
    return f"depth {plan.depth} over {replicas} replica{'s' if replicas > 1 else ''}"


def _limit(service: ServiceSettings) -> str:
    if service.batches:
        return f"limit {max(service.limit, 1)} batch{'es' if service.limit > 1 else ''} per replica"
    if service.limit:
        return f"limit {service.limit} per replica"
    return f"limit found, from {service.first_limit} per replica"


def _linger(service: ServiceSettings, plan: Plan) -> str:
    policy = plan.policy
    own = "" if service.one_ms else " (one-ms is not told)"
    most_s = min(policy.cap_s, policy.max_wait_s)
    return f"linger up to {_ms(most_s)}{own}"


def _worst(service: ServiceSettings, plan: Plan) -> str:
    """The last of a full queue, against the target."""
    target = f"target {_ms(service.target_s)}" if service.target_s else "no target"
    worst_s = worst_s_of(service, plan)
    if worst_s is None:
        return f"worst wait unknown, {target}"
    least = "" if service.batches else "at least "
    return f"the last of a full queue is answered after {least}{_ms(worst_s)}, {target}"


def worst_s_of(service: ServiceSettings, plan: Plan) -> float | None:
    """How long the last of a full queue takes, answer included; None if no time is told, or no limit that it needs."""
    mine = math.ceil(plan.depth / max(len(service.replicas), 1))
    if service.batches:
        max_batch = plan.policy.max_batch
        batch_s = full_batch_s(service, max_batch)
        return (mine / max_batch + 1) * batch_s if batch_s else None
    one_s = service.one_ms / 1000  # more where requests slow each other down
    return (mine / service.limit + 1) * one_s if one_s and service.limit else None


def warnings_of(settings: Settings) -> Iterator[str]:
    """What may be meant, and seldom is."""
    yield from _unasked(settings)
    for service in settings.services:
        yield from (f"services.{service.name}.{what}" for what in _warnings(service))


def _unasked(settings: Settings) -> Iterator[str]:
    """Services that never get a request, for one before them is at the same place."""
    before: dict[Route, str] = {}
    for service in settings.services:
        route = route_of(service)
        first = before.setdefault(route, service.name)
        if first != service.name:
            own = "write a path, model or hosts of its own"
            yield f"services.{service.name}: is never asked, for {first} serves {route.place}; {own}"


def _warnings(service: ServiceSettings) -> Iterator[str]:
    one_s, target_s = service.one_ms / 1000, service.target_s
    if not service.batches and one_s and target_s and one_s > _GUARD_SHARE * target_s and not service.limit:
        yield (
            f"one-ms: a request alone takes {_ms(one_s)}, more than {100 * _GUARD_SHARE:g} % of the target "
            f"({_ms(target_s)}): the limiter will keep the limit near 1; write a target of at least "
            f"{_ms(one_s / _GUARD_SHARE)}, or a limit"
        )
    if service.batches and service.target_s and not service.full_batch_ms:
        yield (
            "target-p99-ms: whether it can be met is not known; write one-ms and full-batch-ms, as cardwise loadtest "
            "measures them"
        )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.4g} ms"
