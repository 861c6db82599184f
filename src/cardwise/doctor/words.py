"""How containers ended or why they wait, what a node denies, and how much of it a sentence holds. For checks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from cardwise.adapters.symptoms import ToldContainerStatus, ToldEnded, ToldNode, ToldPod

RECENT_S, OFTEN = 86400.0, 3
STEADY_S = 600.0
"""A kubelet waits five minutes at most before it starts a container again. Source: Kubernetes, "Pod Lifecycle"."""
SHOWN = 3
"""Names that a sentence holds; how many more there are is said."""


def some(names: Sequence[str], between: str = ", ") -> str:
    """A few names, and how many more."""
    more = len(names) - SHOWN
    return between.join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def around(found: re.Match[str], shown: int = 60) -> str:
    """What was found, with so many characters on both sides of it."""
    return found.string[max(0, found.start() - shown) : found.end() + shown]


def denied(node: ToldNode, condition: str) -> str:
    """How it reads that a condition of a node is False; empty if it is not."""
    for each in node.status.conditions:
        if (each.type, each.status) == (condition, "False"):
            return f"condition {each.type} is False: {each.message or each.reason or 'no reason is told'}"
    return ""


def statuses(pod: ToldPod) -> Iterable[ToldContainerStatus]:
    """Of all of the pod's containers."""
    return (*pod.status.init_container_statuses, *pod.status.container_statuses)


def ends(pod: ToldPod) -> Iterator[tuple[ToldContainerStatus, ToldEnded]]:
    """Every end of a container that is known: the latest, and the one before."""
    for status in statuses(pod):
        for state in (status.state, status.last_state):
            if state.terminated is not None:
                yield status, state.terminated


def last_words(pod: ToldPod, now: datetime, *, overcome: bool = False) -> Iterator[tuple[str, str]]:
    """Container, and what it or its kubelet said as it failed to start or ended, within the last day.

    overcome: also what a container said that has run well since: a node that boots starts pods before its driver.
    """
    for status in statuses(pod):
        if status.state.waiting is not None and status.state.waiting.message:
            yield status.name, status.state.waiting.message
    for status, end in ends(pod):
        if end.message and is_recent(end, now) and (overcome or not has_overcome(status, now)):
            yield status.name, end.message


def is_recent(end: ToldEnded, now: datetime) -> bool:
    """Whether a container ended within the last day, or nobody tells when."""
    return end.finished_at is None or now - end.finished_at <= timedelta(seconds=RECENT_S)


def began(status: ToldContainerStatus) -> datetime | None:
    """When a container started that runs, or that ran and ended; None for one that waits."""
    state = status.state
    if state.running is not None:
        return state.running.started_at
    return state.terminated.started_at if state.terminated is not None else None


def fails_again(status: ToldContainerStatus, now: datetime) -> bool:
    """Whether a container ends soon after each start. Restarts alone tell little: a machine that boots adds one."""
    last = status.last_state.terminated
    lived = last.finished_at - last.started_at if last and last.finished_at and last.started_at else timedelta(0)
    return status.restart_count >= OFTEN and lived.total_seconds() < STEADY_S and not has_overcome(status, now)


def has_overcome(status: ToldContainerStatus, now: datetime) -> bool:
    """Whether it runs for longer than a container that fails again and again would."""
    since = began(status) if status.state.running is not None else None
    return since is not None and now - since > timedelta(seconds=STEADY_S)
