"""Scripted faults: what goes wrong at which request. Pure: it counts, the server does.

One JSON object, given at the start or, live, by ``POST /faults``, replaces the script before it::

    {"faults": [{"kind": "reset", "every": 7, "when": "after"}], "slow-factor": 3}

Refuses unknown keys and kinds: a misspelt fault would be a test that passes because nothing happened.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from cardwise.errors import UserError
from cardwise.files import decode_json
from cardwise.settings_file import MisfitError, converted


class FaultKind(StrEnum):
    """What the client sees."""

    STATUS = "status"
    """An answer with ``status``."""
    RESET = "reset"
    """The connection is reset (TCP RST)."""
    HANG = "hang"
    """No answer, for as long as the client stays."""
    HALF_OPEN = "half-open"
    """No answer, and the connection stays open even when the client has left: as if the machine were gone."""
    WRONG_SHAPE = "wrong-shape"
    """A well-formed answer with one row (or choice) too few."""
    MALFORMED = "malformed"
    """A complete answer that is not JSON."""
    CUT = "cut"
    """The connection closes in the middle of the answer."""
    EXIT = "exit"
    """The process dies with exit code 137, and every connection with it."""


class When(StrEnum):
    """Before the work (nothing was executed), half-way through it, or after it (executed, and the answer is lost)."""

    BEFORE = "before"
    DURING = "during"
    AFTER = "after"


SPOILS = frozenset({FaultKind.WRONG_SHAPE, FaultKind.MALFORMED, FaultKind.CUT})
"""These need an answer to spoil."""
Count = Annotated[int, msgspec.Meta(ge=0)]
Factor = Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]


class Fault(msgspec.Struct, forbid_unknown_fields=True, rename="kebab", frozen=True):
    """What goes wrong at every ``every``-th request after the first ``skip``, ``times`` times (0: always).

    retry_after_s: told with ``status``; 0: nothing is.
    """

    kind: FaultKind
    every: Annotated[int, msgspec.Meta(ge=1)] = 1
    skip: Count = 0
    times: Count = 0
    status: Annotated[int, msgspec.Meta(ge=400, le=599)] = 500
    retry_after_s: Count = 0
    when: When | None = None

    @property
    def moment(self) -> When:
        """When it strikes: as told, else before the work, or after it where there must be an answer to spoil."""
        return self.when or (When.AFTER if self.kind in SPOILS else When.BEFORE)


class Script(msgspec.Struct, forbid_unknown_fields=True, rename="kebab", frozen=True):
    """All that is wrong with a replica.

    slow_factor: times the time of what is asked from now on. contention_factor: times kappa of a contended card, also
    for what runs: 2.78 moves a knee from 5 to 3. ready, live: False fails that probe.
    """

    faults: list[Fault] = msgspec.field(default_factory=list)
    slow_factor: Factor = 1.0
    contention_factor: Factor = 1.0
    ready: bool = True
    live: bool = True


def read_script(text: bytes | str) -> Script:
    """The script of a JSON text. Raises UserError that names the key and says what to write."""
    try:
        return script_of(text)
    except MisfitError as exc:
        raise UserError(f"{exc.key or 'not a script of faults'}: {exc}") from exc


def script_of(text: bytes | str) -> Script:
    """The same, for who has more to say of where the text comes from: raises MisfitError."""
    try:
        script = converted(decode_json(text, object), Script)
    except msgspec.DecodeError as exc:
        raise MisfitError("", f"is no JSON: {exc}") from exc
    for i, fault in enumerate(script.faults):
        if fault.kind in SPOILS and fault.moment is not When.AFTER:
            raise MisfitError(f"faults[{i}].when", f'{fault.kind} spoils an answer; leave it out, or write "after"')
    return script


class Counting:
    """A script, and how far each of its faults has counted."""

    def __init__(self, script: Script | None = None) -> None:
        """Count from zero."""
        self.script = script or Script()
        self._seen = [0] * len(self.script.faults)
        self._struck = [0] * len(self.script.faults)

    def strike(self) -> Fault | None:
        """Count one request; the fault that it meets, the first of the list if there are several."""
        met: Fault | None = None
        for idx, fault in enumerate(self.script.faults):
            self._seen[idx] += 1
            if met is None and self._is_due(idx, fault):
                self._struck[idx] += 1
                met = fault
        return met

    def _is_due(self, idx: int, fault: Fault) -> bool:
        past = self._seen[idx] - fault.skip
        return past > 0 and past % fault.every == 0 and not 0 < fault.times <= self._struck[idx]
