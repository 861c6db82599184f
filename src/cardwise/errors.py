"""Every exception that cardwise raises on purpose.

::

    CardwiseError
    ├── UserError      a flag, a file or a manifest is wrong: the user's turn (exit 2, HTTP 400, no traceback)
    │   └── InputError   the same, with the file, line and field
    ├── ClusterError   API server, kubelet or Prometheus: says whether to try again
    │   ├── NotFoundError  the object is not there
    │   ├── ConflictError  the object is not as the caller believed
    │   ├── BudgetError    a PodDisruptionBudget forbids the eviction
    │   └── ExpiredError   the point in history from which to watch is forgotten: list again
    ├── DriverError    the NVIDIA driver of this node cannot be asked, or changed under us: says what to do
    ├── OutputError    stdout takes nothing: a full disk, a closed descriptor (exit 1)
    └── CardError      NVML, MPS or a limit that is not in force: names the card, fences it

A refusal is not an error: "does not fit" is a value, a :class:`cardwise.core.reasons.Reason`.
Anything else that is raised is a bug of ours and keeps its traceback.
"""

from __future__ import annotations


class CardwiseError(Exception):
    """Base of all errors that cardwise raises on purpose."""


class UserError(CardwiseError):
    """The user's turn: the message says what was wrong, where, and what to write instead."""


class InputError(UserError):
    """A file that cannot be used as it is. ``where`` reads like a compiler's: ``pods.csv:17: gpu_milli``."""

    def __init__(self, file: str, message: str, *, line: int | None = None, field: str | None = None) -> None:
        """Build the message ``file:line: field: message`` from the parts that are known."""
        self.file = file
        self.line = line
        self.field = field
        where = file if line is None else f"{file}:{line}"
        super().__init__(": ".join(part for part in (where, field, message) if part))


class ClusterError(CardwiseError):
    """An outside system failed. ``retry`` says whether the same call may succeed later."""

    def __init__(self, message: str, *, retry: bool) -> None:
        """Keep whether a retry makes sense beside the message."""
        self.retry = retry
        super().__init__(message)


class NotFoundError(ClusterError):
    """The object is not there (404)."""


class ConflictError(ClusterError):
    """The object is not as the caller believed (409): changed, bound, or there already."""


class BudgetError(ClusterError):
    """A PodDisruptionBudget forbids the eviction for now (429)."""


class ExpiredError(ClusterError):
    """The API server has forgotten the history that was asked for (410): list again."""


class DriverError(CardwiseError):
    """The NVIDIA driver of this node cannot be asked at all: absent, not loaded, or changed under a running agent."""


class OutputError(CardwiseError):
    """What was found cannot be told: stdout is full or closed."""


class CardError(CardwiseError):
    """A card or its limits failed. The agent fences the card and lives on."""

    def __init__(self, card_uuid: str, message: str) -> None:
        """Name the card first: a node has several."""
        self.card_uuid = card_uuid
        super().__init__(f"card {card_uuid}: {message}")
