"""One agent per node: a lock on a file in the state folder, held for as long as the process lives.

Two agents would each keep books of their own and take the kubelet's socket from each other. The kernel gives the lock
back when its holder ends, however it ends, and children do not inherit it: the next agent takes over at once. Refuses
to end because another is here: it waits, and says so.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from cardwise.errors import UserError

NAME = "agent.lock"
LOOK_S = 0.2
_TAKEN = {errno.EAGAIN, errno.EACCES}


class NodeLock:
    """The lock of one state folder."""

    def __init__(self, folder: Path) -> None:
        """Open the file, or make it. Raises UserError if that cannot be."""
        self._path = folder / NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise self._unusable(exc) from exc

    def take(self) -> bool:
        """Take it, if nobody has it; whether it is ours. Raises UserError where files cannot be locked."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            if exc.errno in _TAKEN:
                return False
            raise self._unusable(exc) from exc
        return True

    async def wait(self, say: Callable[[str], None], look_s: float = LOOK_S) -> None:
        """Until it is ours. say: is told once why that takes a while."""
        if self.take():
            return
        say(f"another agent runs here: it holds {self._path}; this one waits until it ends")
        while not self.take():
            await asyncio.sleep(look_s)

    def close(self) -> None:
        """Give it back."""
        os.close(self._file)

    def _unusable(self, exc: OSError) -> UserError:
        return UserError(
            f"{self._path}: {exc.strerror}; give the agent a state-folder on a local disk that it can write"
        )
