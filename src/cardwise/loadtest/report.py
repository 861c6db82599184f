"""What a load test says: the sentence, the terminal table, and the rows that the HTML report shows too.

Refuses to hide what spoils a figure: requests held back, the generator's own stalls, a test that ended early.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cardwise.loadtest.carried import short_notes
from cardwise.loadtest.curve import Curve, Knee, Step
from cardwise.loadtest.measure import Quantiles

WHY = {"p99": "no: P99", "goodput": "no: goodput", "backlog": "no: backlog", "empty": "nothing due"}
COLUMNS = ("load", "issued", "rejected", "error", "timeout", "in time/s", "p50", "p90", "p99", "p99.9", "holds")
STALL_SHARE = 0.1


def render(curve: Curve) -> RenderableType:
    """Table, sentence and notes."""
    knee = None if curve.knee is None else curve.knee.load
    styles = [
        ("bold green" if step.load == knee else "") if step.holds else "dim"  # what the eye should find first
        for step in curve.steps
    ]
    table = _table(COLUMNS, [row(step) for step in curve.steps], styles)
    legend = Text(legend_of(curve), style="dim")
    notes = [Text(f"note: {note}", style="dim") for note in notes_of(curve)]
    return Group(table, legend, Text(headline(curve)), *notes)


def row(step: Step) -> list[str]:
    """The step's cells, in the order of ``COLUMNS``."""
    out = step.outcomes
    counts = [f"{each:,}" for each in (step.issued, out.rejected, out.error, out.timeout)]
    holds = "yes" if step.holds else "cut short" if step.cut_short else WHY.get(step.why, step.why)
    return [step.name, *counts, f"{step.goodput_per_s:,.1f}", *latencies(judged_of(step)), holds]


def judged_of(step: Step) -> Quantiles | None:
    """The quantiles that the target is for."""
    return step.stream.first_token_ms if step.stream is not None else step.latency_ms


def latencies(quantiles: Quantiles | None) -> list[str]:
    """Four cells, in milliseconds."""
    if quantiles is None:
        return ["–"] * 4
    return [milliseconds(each) for each in (quantiles.p50, quantiles.p90, quantiles.p99, quantiles.p999)]


def milliseconds(time_ms: float) -> str:
    """Three digits, whatever the size."""
    return f"{time_ms:,.0f}" if time_ms >= 100 else f"{time_ms:.1f}" if time_ms >= 10 else f"{time_ms:.2f}"


def legend_of(curve: Curve) -> str:
    """What the columns mean."""
    what = "first token" if curve.settings.judged == "first token" else "whole answer"
    loop = "a request was due" if any(step.rate_per_s is not None for step in curve.steps) else "the caller sent it"
    return (
        f"p50 … p99.9: ms from when {loop} to the {what}, of ok; in time: ok within {curve.settings.target_p99_ms:g} ms"
    )


def headline(curve: Curve) -> str:
    """The result in one sentence."""
    if curve.knee is not None:
        return knee_sentence(curve.knee, curve.settings.target_p99_ms)
    held = [step for step in curve.steps if step.holds]
    if not held:
        return f"No step holds a P99 of {curve.settings.target_p99_ms:g} ms."
    best = max(held, key=lambda step: step.goodput_per_s)
    return f"Most answers in time: {best.goodput_per_s:,.1f}/s at {best.name}, P99 {milliseconds(best.p99_ms)} ms."


def knee_sentence(knee: Knee, target_p99_ms: float) -> str:
    """Where it is, and what stopped the search."""
    because = {
        "p99": f"the P99 exceeds {target_p99_ms:g} ms",
        "goodput": "goodput falls: too few are answered in time",
        "backlog": "answers end more slowly than requests come: they pile up",
        "empty": "nothing was due",
    }
    if knee.load is None:
        why = because.get(knee.stopped_by, f"the search ended early ({knee.stopped_by})")
        return f"No knee: not even {amount(knee.axis, knee.broken_at or 0.0)} holds; {why}."
    held = f"{knee.goodput_per_s or 0:,.1f} answers/s in time, P99 {milliseconds(knee.p99_ms or 0.0)} ms"
    at = f"{amount(knee.axis, knee.load)}: {held}"
    if knee.stopped_by == "most":
        return f"No knee up to {at}; all of it holds. Raise --most."
    if knee.stopped_by in {"time", "interrupt"}:
        return f"The knee was not reached: the most that was seen to hold is {at}."
    above = "" if knee.broken_at is None else f" At {amount(knee.axis, knee.broken_at)} {because[knee.stopped_by]}."
    return f"Knee at {at}.{above}"


def amount(axis: str, load: float) -> str:
    """A load in words."""
    return f"{load:,g}/s" if axis == "rate" else f"{load:g} caller{'s' if load != 1 else ''}"


def notes_of(curve: Curve) -> list[str]:
    """What must be known to trust the figures."""
    notes = []
    if curve.ended != "complete":
        reason = "its limit of time" if curve.ended == "time" else "an interrupt"
        notes.append(f"the test ended early, by {reason}")
    stalled = [step.name for step in curve.steps if step.stall_ms > STALL_SHARE * curve.settings.target_p99_ms]
    if stalled:
        longest = f"the generator itself stalled, for {curve.generator_stall_ms:,.0f} ms at most"
        notes.append(f"{longest}, which is in the latencies of {', '.join(stalled)}: give it a quieter machine")
    held_back = {step.name: step.held_back for step in curve.steps if step.held_back}
    if held_back:
        told = ", ".join(f"{count:,} at {name}" for name, count in held_back.items())
        notes.append(f"held back, as {curve.settings.most_unfinished:,} requests were unfinished: {told}")
    if curve.set_aside:
        told = ", ".join(step.name for step in curve.set_aside)
        notes.append(f"run again, as the generator itself stalled: {told}")
    notes.extend(short_notes(curve, curve.steps))
    notes.extend(_service_notes(curve))
    return notes


def _service_notes(curve: Curve) -> list[str]:
    notes = []
    without = sum(step.outcomes.rejected - step.rejected_with_retry_after for step in curve.steps)
    if without:
        notes.append(f"{without:,} rejections told no Retry-After")
    errors: dict[str, int] = {}
    for step in curve.steps:
        for reason, count in step.errors.items():
            errors[reason] = errors.get(reason, 0) + count
    if errors:
        notes.append("errors: " + ", ".join(f"{count:,} {reason}" for reason, count in sorted(errors.items())))
    return notes


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str]) -> Table:
    """Without the columns that say nothing: a terminal is narrow."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    told = telling(names, rows)
    for i in told:
        table.add_column(names[i], justify="left" if names[i] in {"load", "holds"} else "right")
    for cells, style in zip(rows, styles, strict=True):
        table.add_row(*(Text(cells[i]) for i in told), style=style)
    return table


def telling(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Indices of the columns that say anything."""
    return [i for i in range(len(names)) if any(cells[i] not in {"0", "–"} for cells in rows)]


def detail_rows(curve: Curve) -> list[list[str]]:
    """What the service told in headers and streams, a row per step; empty if it told nothing."""
    rows = [[step.name, *detail_cells(step)] for step in curve.steps]
    return rows if any(cell != "–" for cells in rows for cell in cells[1:]) else []


def details(curve: Curve) -> RenderableType | None:
    """A second table of what the service told in headers and streams; None if it told nothing."""
    rows = detail_rows(curve)
    return _table(DETAILS, rows, [""] * len(rows)) if rows else None


DETAILS = ("load", "queue p50", "queue p99", "mean batch", "tokens/s", "between tokens p50", "between tokens p99")


def detail_cells(step: Step) -> list[str]:
    """In the order of ``DETAILS`` after the load; times in milliseconds."""
    queue = ["–", "–"] if step.queue_ms is None else [milliseconds(step.queue_ms.p50), milliseconds(step.queue_ms.p99)]
    answers = sum(step.batch_sizes.values())
    batch = sum(float(size) * count for size, count in step.batch_sizes.items()) / answers if answers else None
    stream = ["–", "–", "–"]
    if step.stream is not None:
        between = latencies(step.stream.between_tokens_ms)
        stream = [f"{step.stream.tokens_per_s:,.1f}", between[0], between[2]]
    return [*queue, "–" if batch is None else f"{batch:.1f}", *stream]
