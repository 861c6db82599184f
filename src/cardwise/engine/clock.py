"""A monotonic clock with an alarm that is exact to some 0.05 ms.

Event loops wake in whole milliseconds (epoll, and libuv's timers, which uvloop also reads the time from): a batch of
4.35 ms would take 5. Linux has timers as file descriptors (timerfd_create(2)), which any loop can wait for; elsewhere
the loop's own timer serves, and answers come up to 1 ms late. Refuses to spin: a core that polls is a core less for
what is measured.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Protocol

_CLOCK_MONOTONIC, _ABSOLUTE = 1, 1
_NONBLOCKING = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
"""TFD_NONBLOCK and TFD_CLOEXEC have the values of their O_ namesakes."""


class Alarm(Protocol):
    """Calls back once at the time that was set last."""

    def set(self, when_s: float | None) -> None:
        """Ring then, by :func:`now_s`; at once if that is past; not at all for None."""

    def close(self) -> None:
        """Never ring again."""


def now_s() -> float:
    """Seconds of CLOCK_MONOTONIC, read anew: uvloop's own time is cached and in milliseconds."""
    return time.monotonic()


def alarm(ring: Callable[[], None]) -> Alarm:
    """The most exact alarm of this machine, on the running loop."""
    return TimerAlarm(ring) if sys.platform == "linux" else LoopAlarm(ring)


class LoopAlarm:
    """By the loop's timers."""

    def __init__(self, ring: Callable[[], None]) -> None:
        """Nothing is set yet."""
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None

    def set(self, when_s: float | None) -> None:
        """Set anew."""
        self.close()
        if when_s is not None:
            self._handle = self._loop.call_later(max(0.0, when_s - now_s()), self._ring)

    def close(self) -> None:
        """Never ring again."""
        if self._handle is not None:
            self._handle.cancel()


class _Spec(ctypes.Structure):
    """struct itimerspec: interval and first expiry, each seconds and nanoseconds."""

    _fields_ = (("every_s", ctypes.c_long), ("every_ns", ctypes.c_long), ("s", ctypes.c_long), ("ns", ctypes.c_long))


class TimerAlarm:
    """By a timer that is a file descriptor."""

    def __init__(self, ring: Callable[[], None]) -> None:
        """Nothing is set yet."""
        self._ring = ring
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._loop = asyncio.get_running_loop()
        self._fd = _checked(self._libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCKING))
        self._loop.add_reader(self._fd, self._expired)
        self._set_s: float | None = None

    def set(self, when_s: float | None) -> None:
        """Set anew; a past time rings at once, and zero would disarm."""
        if when_s == self._set_s or self._fd < 0:
            return
        self._set_s = when_s
        ns = 0 if when_s is None else max(1, math.ceil(when_s * 1e9))
        spec = _Spec(0, 0, ns // 10**9, ns % 10**9)
        _checked(self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(spec), None))

    def close(self) -> None:
        """Never ring again."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _expired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # set anew since the loop saw it
            return
        self._set_s = None
        self._ring()


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
