"""The results of a load test as one JSON file, which ``plan`` and ``--compare`` read: the schema, and nothing else.

Refuses files of another schema, and files whose counts do not add up. Times are milliseconds, the date is UTC.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from cardwise.errors import InputError
from cardwise.files import decode_json, read_text
from cardwise.loadtest.measure import GROWTH, LEAST_S, Histogram, Quantiles, Stored, merged, restored

SCHEMA = "cardwise.dev/loadtest/v1"


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Where and with what it was measured."""

    url: str
    kind: str
    """``oip``, ``openai`` or ``plain``."""
    started: str
    """ISO 8601, UTC."""
    cardwise: str
    python: str
    event_loop: str
    """``uvloop`` or ``asyncio``."""
    host_cores: int


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of the generator: two curves compare best if these are the same."""

    arrivals: str
    """``poisson`` or ``constant``."""
    seconds: float
    warm_up_s: float
    timeout_s: float
    most_unfinished: int
    target_p99_ms: float
    judged: str
    """What the target is for: ``latency``, or ``first token`` of a stream."""
    seed: int


class Outcomes(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the issued requests, each in one place."""

    ok: int = 0
    rejected: int = 0
    """429 and 503."""
    error: int = 0
    timeout: int = 0
    unfinished: int = 0
    """Still open when the test ended early."""

    @property
    def issued(self) -> int:
        """All of them."""
        return self.ok + self.rejected + self.error + self.timeout + self.unfinished


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """Of OpenAI streams that ended well."""

    first_token_ms: Quantiles | None
    between_tokens_ms: Quantiles | None
    tokens: int
    tokens_per_s: float
    """Tokens that arrived in the counted time, over it."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One load, for some seconds. Warm-up is not in any figure but ``warm_up_issued``."""

    rate_per_s: float | None
    """Open loop: intended arrivals per second."""
    concurrency: int | None
    """Closed loop: callers, each with one request at a time."""
    batch_window_ms: float | None
    seconds: float
    offered: int
    """Arrivals that were due: ``issued`` + ``held_back``."""
    issued: int
    held_back: int
    """Due, and not sent: as many requests as allowed were unfinished."""
    warm_up_issued: int
    outcomes: Outcomes
    rejected_with_retry_after: int
    errors: dict[str, int]
    """Errors by what happened: ``status-500``, ``reset``, ``connect-ECONNREFUSED``, ``malformed``, ``cut``."""
    ok_per_s: float
    """Good answers that arrived in the counted time, over it."""
    goodput_per_s: float
    """The same, of those within the target."""
    good: int
    """Of the issued: answered well and within the target."""
    latency_ms: Quantiles | None
    """Of ok, from the intended start."""
    rejection_ms: Quantiles | None
    """How long a rejected caller waited to hear it."""
    lag_ms: Quantiles | None
    """How late the generator itself sent; part of every latency above."""
    stall_ms: float
    """The longest time that the generator did nothing though something was due."""
    stream: Stream | None
    queue_ms: Quantiles | None
    """Header ``x-cardwise-queue-ms`` of ok answers."""
    batch_sizes: dict[str, int]
    """Header ``x-cardwise-batch-size``: ok answers by size."""
    attempts: dict[str, int]
    """Header ``x-cardwise-attempts``: ok answers by attempts."""
    blocks: list[Stored]
    """What the target is for, of ok, by intended start: the counted time cut into equal parts. Together the whole."""
    cut_short: bool
    """The test ended inside this step: its figures are of a shorter time."""
    holds: bool
    why: str
    """Why the load does not hold: ``p99``, ``goodput``, ``backlog``, ``empty``; empty if it holds."""

    @property
    def judged(self) -> Histogram:
        """All blocks in one."""
        return merged(map(restored, self.blocks))

    @property
    def p99_ms(self) -> float:
        """The P99 that the target is for; nan without a good answer."""
        return 1000 * self.judged.quantile_s(0.99)

    @property
    def load(self) -> float:
        """Rate or callers."""
        return float(self.rate_per_s if self.rate_per_s is not None else self.concurrency or 0)

    @property
    def name(self) -> str:
        """As a table calls it."""
        if self.rate_per_s is not None:
            said = f"{self.rate_per_s:,g}/s"
        else:
            said = f"{self.concurrency} caller{'s' if self.concurrency != 1 else ''}"
        return said if self.batch_window_ms is None else f"{said}, window {self.batch_window_ms:g} ms"


class Knee(msgspec.Struct, frozen=True, kw_only=True):
    """The most that holds. ``load`` is None if not even the least load did."""

    axis: str
    """``rate`` or ``concurrency``."""
    load: float | None
    goodput_per_s: float | None
    p99_ms: float | None
    broken_at: float | None
    """The least load above it that did not hold; None if all did."""
    stopped_by: str
    """``p99``, ``goodput``, ``backlog``, ``most`` (the user's bound), ``time`` (the limit) or ``interrupt``."""


class HistogramForm(msgspec.Struct, frozen=True):
    """How to read ``blocks``."""

    growth: float = GROWTH
    least_s: float = LEAST_S


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """The file. docs/howto/loadtest.md says what its fields mean."""

    schema: str = SCHEMA
    environment: Environment
    settings: Settings
    generator_stall_ms: float
    """The longest of all steps."""
    ended: str
    """``complete``, ``time`` (the limit of the whole test) or ``interrupt``."""
    histogram: HistogramForm = HistogramForm()
    facts: dict[str, float] = {}
    """What the user said of the service: cards=2, cost-per-hour=3.1, restarts=0."""
    steps: list[Step]
    set_aside: list[Step] = []
    """Steps that failed while the generator itself stalled, and were run again: no figure counts them."""
    knee: Knee | None = None
    notes: list[str] = []
    """What must be known to trust the figures, in words: for who reads the file and not the table."""


def curve_text(curve: Curve) -> str:
    """What is written, and what ``--json`` prints."""
    return msgspec.json.format(msgspec.json.encode(curve)).decode() + "\n"


class _Head(msgspec.Struct):
    schema: str = ""


def read_curve(path: Path) -> Curve:
    """Raises InputError if it is no curve, one of another version, or one whose counts do not add up."""
    want = "a file that `cardwise loadtest --out` wrote"
    text = read_text(path, want)
    try:
        if (found := decode_json(text, _Head).schema) != SCHEMA:
            raise InputError(str(path), f"schema is {found!r}, not {SCHEMA!r}; give {want}")
        curve = decode_json(text, Curve)
        for i, step in enumerate(curve.steps):
            _check(step, f"{path}: steps[{i}]")
    except (msgspec.DecodeError, ValueError, OverflowError) as error:
        raise InputError(str(path), f"{error}; give {want}") from error
    if (curve.histogram.growth, curve.histogram.least_s) != (GROWTH, LEAST_S):
        raise InputError(str(path), f"its histograms have other buckets than this version's; give {want}")
    return curve


def _check(step: Step, where: str) -> None:
    if step.issued != step.outcomes.issued or step.offered != step.issued + step.held_back:
        raise InputError(where, "its counts do not add up: issued = ok + rejected + error + timeout + unfinished")
    if sum(restored(block).count for block in step.blocks) > step.outcomes.ok:
        raise InputError(where, "its histogram counts more than the ok answers")
