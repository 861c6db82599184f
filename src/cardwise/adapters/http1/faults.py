"""What the server's side of HTTP refuses by itself, before anyone behind it is asked; each has its word.

The words are stable: clients read them in ``x-cardwise-reason``, operators in metrics.
"""

from __future__ import annotations

import enum

REASON = b"x-cardwise-reason"


class Fault(enum.Enum):
    """One kind: its word, and its status. 0: the connection closes without an answer, for nobody reads one."""

    MALFORMED = "malformed", 400
    UNSUPPORTED = "unsupported", 501
    LONG_HEAD = "long-head", 431
    MANY_HEADERS = "many-headers", 431
    LARGE_BODY = "large-body", 413
    SLOW_HEAD = "slow-head", 408
    SLOW_BODY = "slow-body", 408
    UNREAD = "unread", 0
    MEMORY = "memory", 503
    CONNECTIONS = "connections", 503
    STOPPING = "draining", 503
    BUG = "bug", 500

    def __init__(self, word: str, status: int) -> None:
        """Name the parts."""
        self.word = word
        self.status = status
