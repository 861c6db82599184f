"""A client's end that is no socket, so that thousands of conversations run."""

from __future__ import annotations

import asyncio
from collections import deque


class Wire:
    """A transport. What comes is handed on, unless reading is paused."""

    def __init__(self):
        self.written, self.closed, self.paused = b"", False, False
        self.waiting = deque()
        self.connection = None

    def come(self, data):
        self.waiting.append(data)
        self._hand_on()

    def _hand_on(self):
        while self.waiting and not self.paused and not self.closed:
            self.connection.data_received(self.waiting.popleft())

    def write(self, data):
        assert not self.closed
        self.written += data

    def close(self):
        self.closed = True

    abort = close

    def is_closing(self):
        return self.closed

    def can_write_eof(self):
        return True

    def write_eof(self):
        pass

    def pause_reading(self):
        assert not self.paused
        self.paused = True

    def resume_reading(self):
        assert self.paused
        self.paused = False
        asyncio.get_running_loop().call_soon(self._hand_on)

    def get_extra_info(self, _name):
        return ("127.0.0.1", 1)
