"""How containers ended or why they wait, and how many names a sentence holds. For checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from cardwise.adapters.symptoms import ToldContainerStatus, ToldEnded, ToldPod

SHOWN = 3
"""Names that a sentence holds; how many more there are is said."""


def some(names: Sequence[str]) -> str:
    """A few names, and how many more."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def statuses(pod: ToldPod) -> Iterable[ToldContainerStatus]:
    """Of all of the pod's containers."""
    return (*pod.status.init_container_statuses, *pod.status.container_statuses)


def ends(pod: ToldPod) -> Iterator[tuple[ToldContainerStatus, ToldEnded]]:
    """Every end of a container that is known: the latest, and the one before."""
    for status in statuses(pod):
        for state in (status.state, status.last_state):
            if state.terminated is not None:
                yield status, state.terminated


def last_words(pod: ToldPod) -> Iterator[tuple[str, str]]:
    """Container, and what it or its kubelet said as it failed to start or ended."""
    for status in statuses(pod):
        if status.state.waiting is not None and status.state.waiting.message:
            yield status.name, status.state.waiting.message
    for status, end in ends(pod):
        if end.message:
            yield status.name, end.message
