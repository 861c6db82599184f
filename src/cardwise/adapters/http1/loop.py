"""Which event loop: uvloop's where it runs, at half the cost of a request. Refuses to need it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """For ``asyncio.Runner``; None for asyncio's own loop, where there is no uvloop for this system."""
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:
        return None
    return uvloop.new_event_loop
