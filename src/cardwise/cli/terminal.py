"""What commands write to, and how it fails: stdout that is full or closed is one sentence, not a traceback.

Refuses to interpret text of the user's: a pod called ``[/x]`` or ``:x:`` is printed as it is called.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator

from rich.console import Console

from cardwise.errors import OutputError


def console(*, stderr: bool = False) -> Console:
    """The terminal, for text in which brackets and colons are brackets and colons."""
    return Console(stderr=stderr, markup=False, emoji=False)


def guard_stdout() -> None:
    """Let every failure to write to stdout raise OutputError; so does a stdout that is closed already."""
    stdout = getattr(sys, "stdout", None)
    if stdout is None:
        raise OutputError("cannot write to stdout: it is closed; redirect it to a file or to /dev/null")
    if isinstance(stdout, io.TextIOWrapper):  # else it is a stand-in that a caller put there
        encoding, buffered_by_line = stdout.encoding, stdout.line_buffering
        sys.stdout = _Stdout(
            stdout.detach(), encoding=encoding, errors="backslashreplace", line_buffering=buffered_by_line
        )


class _Stdout(io.TextIOWrapper):
    """stdout whose errors are ours."""

    def write(self, text: str, /) -> int:
        with _refusing():
            return super().write(text)

    def flush(self) -> None:
        with _refusing():
            super().flush()


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # the reader has seen enough, as in `| head`
        raise
    except OSError as error:
        _discard()
        raise OutputError(f"cannot write to stdout: {error.strerror}") from error


def _discard() -> None:
    """Let what is still buffered go nowhere: Python tries once more as it exits, and complains. Source: its docs."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
