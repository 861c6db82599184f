"""A timer to some ten microseconds: event loops wake to the millisecond, which would be part of every latency.

asyncio and uvloop both round waits up to whole milliseconds (epoll counts in them). A timerfd of Linux is a descriptor
that becomes readable at its time. Elsewhere the loop's own timer has to do, and ``lag_ms`` of a step shows it.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable

_CLOCK_MONOTONIC, _TFD_NONBLOCK, _TFD_CLOEXEC = 1, 0o4000, 0o2000000
"""Source: Linux, include/uapi/linux/time.h and timerfd.h."""


class _Spec(ctypes.Structure):
    _fields_ = (("every", ctypes.c_long * 2), ("first", ctypes.c_long * 2))


class Timer:
    """Calls back once per :meth:`start`, never before its time. Close it, or it keeps a descriptor."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_due: Callable[[], None]) -> None:
        self._loop, self._on_due = loop, on_due
        self._handle: asyncio.TimerHandle | None = None
        self._spec = _Spec()
        self._libc, self._fd = _timerfd()
        if self._fd is not None:
            loop.add_reader(self._fd, self._fire)

    def start(self, delay_s: float) -> None:
        """Call back in so many seconds; a second start replaces the first."""
        if self._fd is None or self._libc is None:
            if self._handle is not None:
                self._handle.cancel()
            self._handle = self._loop.call_later(max(delay_s, 0.0), self._on_due)
            return
        self._spec.first[:] = divmod(max(int(delay_s * 1e9), 1), 1_000_000_000)
        self._libc.timerfd_settime(self._fd, 0, ctypes.byref(self._spec), None)

    def close(self) -> None:
        """Never call back again."""
        if self._handle is not None:
            self._handle.cancel()
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def _fire(self) -> None:
        if self._fd is None:
            return
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # it was set anew since
            return
        self._on_due()


def _timerfd() -> tuple[ctypes.CDLL | None, int | None]:
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        fd = libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
    except (OSError, AttributeError):  # no Linux
        return None, None
    return (libc, fd) if fd >= 0 else (None, None)
