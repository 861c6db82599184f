"""A progress bar on stderr where a person looks at it, and nothing where nobody does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def shown(console: Console, what: str, *, wanted: bool = True) -> Iterator[Callable[[int, int], None]]:
    """Yield the function to call with (done, total); it draws a bar if ``console`` is a terminal."""
    if not (wanted and console.is_terminal):
        yield lambda _done, _total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
