"""``cardwise loadtest``: what a service can do, found by asking it; and what changed since the last time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from cardwise.cli.inputs import SEED, FilePath, NumberRange
from cardwise.cli.terminal import console
from cardwise.compare.report import render_comparison
from cardwise.core.comparison.verdict import Comparison
from cardwise.errors import UserError
from cardwise.files import check_output, plain, write_text
from cardwise.loadtest.compare import compare
from cardwise.loadtest.curve import Curve, Step, curve_text, read_curve
from cardwise.loadtest.plan import (
    FACTS,
    WINDOW,
    Arrivals,
    Kind,
    Load,
    Plan,
    Search,
    Target,
    endpoint_of,
    media_type,
    oip_bodies,
    openai_bodies,
    parse_facts,
    parse_header,
    parse_sweep,
    parse_tensor,
    path_of,
    read_body,
    split_url,
    swept,
)
from cardwise.loadtest.report import details, notes_of, render, row
from cardwise.loadtest.run import Listener, run, tensors_of

EXIT_REGRESSION, EXIT_NOTHING_HOLDS, EXIT_INTERRUPTED = 1, 3, 130
DEFAULT_TARGET_MS = {Kind.OIP: 200.0, Kind.PLAIN: 200.0, Kind.OPENAI: 1000.0}
SECONDS = NumberRange(min=0.1, max=3600)
POSITIVE = NumberRange(min=0, min_open=True, max=1e6)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user said of the requests."""

    oip: str | None
    openai: str | None
    tensors: tuple[str, ...]
    body: Path | None
    method: str | None
    headers: tuple[str, ...]
    prompt_words: int
    max_tokens: int
    window_header: str | None
    insecure: bool
    seed: int


@click.command("loadtest")
@click.argument("url", required=False)
@click.option(
    "--oip", metavar="MODEL", help="Open Inference Protocol v2: POST to /v2/models/MODEL/infer below the URL."
)
@click.option(
    "--tensor",
    "tensors",
    multiple=True,
    metavar="NAME:TYPE:DIMS",
    help="With --oip: an input to make up, such as x:FP32:1,16; may be repeated. Default: by the model's metadata.",
)
@click.option("--openai", metavar="MODEL", help="OpenAI chat completions, streamed. The target is for the first token.")
@click.option("--prompt-words", type=click.IntRange(1, 100_000), default=64, show_default=True, help="With --openai.")
@click.option("--max-tokens", type=click.IntRange(1, 100_000), default=64, show_default=True, help="With --openai.")
@click.option("--body", type=FilePath(), help="Send this file. Without it, --oip and --openai, the request is a GET.")
@click.option("--method", metavar="NAME", help="Default: POST with a body, else GET.")
@click.option("--header", "headers", multiple=True, metavar="NAME:VALUE", help="Also send this; may be repeated.")
@click.option("--insecure", is_flag=True, help="Do not check the server's certificate.")
@click.option("--rate", type=POSITIVE, help="Open loop: one step of so many requests per second.")
@click.option("--concurrency", type=click.IntRange(1, 100_000), help="Closed loop: one step of so many callers.")
@click.option(
    "--sweep",
    metavar="AXIS=N,N,...",
    help="A step per value: rate=100,200 or concurrency=1,2,4,8 or, with --rate or --concurrency, batch-window=0,5,20.",
)
@click.option(
    "--window-header",
    metavar="NAME",
    help=f"With --sweep batch-window: the header that sets it, in ms. Or write {WINDOW} in the URL.",
)
@click.option(
    "--find",
    type=click.Choice(["rate", "concurrency"]),
    help="Step up to the knee, in the open or the closed loop. Default where no load is named: rate.",
)
@click.option("--from", "start", type=POSITIVE, help="With --find: where to start. Default: 10/s, or 1 caller.")
@click.option("--most", type=POSITIVE, help="With --find: where to end at the latest. Default: 20000/s, 1024 callers.")
@click.option(
    "--arrivals",
    type=click.Choice([each.value for each in Arrivals]),
    default=Arrivals.POISSON.value,
    show_default=True,
    help="Open loop: when requests are due.",
)
@click.option(
    "--target-p99", type=POSITIVE, metavar="MS", help="What the P99 may be.  [default: 200; 1000 for a first token]"
)
@click.option("--seconds", type=SECONDS, default=10, show_default=True, help="Per step, counted.")
@click.option(
    "--warm-up", type=NumberRange(0, 600), default=2, show_default=True, help="Seconds per step, not counted."
)
@click.option("--timeout", type=SECONDS, default=10, show_default=True, help="Seconds, from when a request was due.")
@click.option(
    "--unfinished",
    type=click.IntRange(1, 100_000),
    default=2000,
    show_default=True,
    help="Open loop: so many at most at a time; what is due beyond is held back, and counted.",
)
@click.option(
    "--limit", type=NumberRange(1, 86_400), default=600, show_default=True, help="Seconds, for the whole test."
)
@click.option("--seed", type=SEED, default=1, show_default=True, help="Of arrivals and of made-up content.")
@click.option("--facts", metavar="KEY=N,...", help=f"Kept with the results, for --compare: {', '.join(FACTS)}.")
@click.option(
    "--out",
    type=FilePath(),
    default=Path("loadtest.json"),
    show_default=True,
    help="The results; an older file is replaced.",
)
@click.option("--html", type=FilePath(), help="Also write a self-contained report with plots.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout, and nothing else there.")
@click.option(
    "--compare",
    "compared",
    nargs=2,
    type=FilePath(),
    metavar="BEFORE AFTER",
    help="Instead of a test: compare the results of two, at equal load.",
)
@click.option("--fail-on-regression", is_flag=True, help="With --compare: exit code 1 if it is one.")
def loadtest_command(
    *,
    url: str | None,
    oip: str | None,
    tensors: tuple[str, ...],
    openai: str | None,
    prompt_words: int,
    max_tokens: int,
    body: Path | None,
    method: str | None,
    headers: tuple[str, ...],
    insecure: bool,
    rate: float | None,
    concurrency: int | None,
    sweep: str | None,
    window_header: str | None,
    find: str | None,
    start: float | None,
    most: float | None,
    arrivals: str,
    target_p99: float | None,
    seconds: float,
    warm_up: float,
    timeout: float,
    unfinished: int,
    limit: float,
    seed: int,
    facts: str | None,
    out: Path,
    html: Path | None,
    as_json: bool,
    compared: tuple[Path, Path] | None,
    fail_on_regression: bool,
) -> None:
    """Find what a service can do: its knee, or its latency at the loads you name. Results go to one JSON file.

    In the open loop requests are sent when they are due, whatever the service does, and latency counts from then.

    Exit code 3: no load holds the target. 130: interrupted, with the results so far. With --compare and
    --fail-on-regression, 1: a regression.
    """
    if compared is not None:
        _refuse_test_with_compare(url, rate, concurrency, sweep, find)
        _compare(*compared, html=html, as_json=as_json, fail_on_regression=fail_on_regression)
        return
    if fail_on_regression:
        raise UserError("--fail-on-regression goes with --compare BEFORE AFTER")
    if url is None:
        raise UserError("give the URL to test, or --compare BEFORE AFTER")
    base = Plan(
        arrivals=Arrivals(arrivals),
        seconds=seconds,
        warm_up_s=warm_up,
        timeout_s=timeout,
        most_unfinished=unfinished,
        limit_s=limit,
        seed=seed,
    )
    loaded = _with_loads(base, rate, concurrency, sweep, find, start, most)
    told = parse_facts(facts) if facts is not None else {}
    asked = Asked(oip, openai, tensors, body, method, headers, prompt_words, max_tokens, window_header, insecure, seed)
    _check_outputs(out, html, body)
    target = _target(url, asked, sweeps_window=any(each.batch_window_ms is not None for each in loaded.steps))
    plan = replace(loaded, target_p99_ms=target_p99 or DEFAULT_TARGET_MS[target.kind])
    messages = console(stderr=True)
    with _listening(messages, wanted=not as_json) as listener:
        curve = msgspec.structs.replace(run(target, plan, listener), facts=told)
    curve = msgspec.structs.replace(curve, notes=notes_of(curve))
    _finish(curve, out, html, messages, as_json=as_json)


def _refuse_test_with_compare(*given: object) -> None:
    if any(each is not None for each in given):
        raise UserError("--compare reads results of tests that were made: leave out the URL and the load")


def _with_loads(
    plan: Plan,
    rate: float | None,
    concurrency: int | None,
    sweep: str | None,
    find: str | None,
    start: float | None,
    most: float | None,
) -> Plan:
    """The steps, or the search for the knee."""
    if rate is not None and concurrency is not None:
        raise UserError("--rate is the open loop, --concurrency the closed one: give one of them")
    fixed = rate is not None or concurrency is not None
    if find is not None and (fixed or sweep is not None):
        raise UserError("--find chooses the loads itself: leave out --rate, --concurrency and --sweep")
    if (start is not None or most is not None) and (fixed or sweep is not None):
        raise UserError("--from and --most go with --find")
    if sweep is not None:
        return replace(plan, steps=_swept(sweep, Load(rate, concurrency)))
    if fixed:
        return replace(plan, steps=(Load(rate, concurrency),))
    return replace(plan, search=_search(find or "rate", start, most))


def _swept(sweep: str, base: Load) -> tuple[Load, ...]:
    axis, values = parse_sweep(sweep)
    fixed = base.rate_per_s is not None or base.concurrency is not None
    if axis == "batch-window" and not fixed:
        raise UserError("--sweep batch-window is at one load: give --rate or --concurrency too")
    if axis != "batch-window" and fixed:
        raise UserError(f"--sweep {axis} names the loads: leave out --rate and --concurrency")
    return swept(axis, values, base)


def _search(axis: str, start: float | None, most: float | None) -> Search:
    first, last = (start or 10.0, most or 20_000.0) if axis == "rate" else (start or 1.0, most or 1024.0)
    if first > last:
        raise UserError(f"--from {first:g} is more than --most {last:g}: swap them")
    return Search(axis, first, last)


def _target(url: str, asked: Asked, *, sweeps_window: bool) -> Target:
    """What to send, from all that was said of it."""
    kind = _kind(asked)
    carried = asked.window_header is not None or WINDOW in url
    if sweeps_window and not carried:
        raise UserError(
            f"--sweep batch-window: name the header that sets it, --window-header NAME, or {WINDOW} in the URL"
        )
    if carried and not sweeps_window:
        raise UserError(f"--window-header and {WINDOW} go with --sweep batch-window=0,5,20")
    parts = split_url(url)
    given = [parse_header(each) for each in asked.headers]
    has_body = kind is not Kind.PLAIN or asked.body is not None
    method = (asked.method or ("POST" if has_body else "GET")).upper()
    if method not in {"GET", "POST", "PUT", "PATCH", "DELETE"} or (method == "GET" and has_body):
        raise UserError(f"--method {plain(method)} is none that is sent here; write POST, PUT, PATCH or DELETE")
    target = Target(
        endpoint=endpoint_of(parts, verify=not asked.insecure),
        path=path_of(parts, kind, asked.oip),
        kind=kind,
        method=method,
        headers=tuple(_headers(given, asked.body, has_body=has_body)),
        window_header=parse_header(f"{asked.window_header}:")[0] if asked.window_header is not None else None,
    )
    return replace(target, bodies=_bodies(target, asked))


def _kind(asked: Asked) -> Kind:
    if asked.oip is not None and asked.openai is not None:
        raise UserError("--oip and --openai are two protocols: give one of them")
    kind = Kind.OIP if asked.oip is not None else Kind.OPENAI if asked.openai is not None else Kind.PLAIN
    if asked.tensors and (kind is not Kind.OIP or asked.body is not None):
        raise UserError("--tensor goes with --oip MODEL, and not with --body, which is the whole request")
    return kind


def _headers(given: list[tuple[str, str]], body: Path | None, *, has_body: bool) -> list[tuple[str, str]]:
    names = {name.lower() for name, _ in given}
    own = [("User-Agent", "cardwise-loadtest"), ("Accept", "*/*")]
    if has_body:
        own.append(("Content-Type", media_type(body)))
    return [*((name, value) for name, value in own if name.lower() not in names), *given]


def _bodies(target: Target, asked: Asked) -> tuple[bytes, ...]:
    if asked.body is not None:
        return (read_body(asked.body),)
    if asked.oip is not None:
        tensors = [parse_tensor(each) for each in asked.tensors]
        return oip_bodies(
            tensors or tensors_of(target, target.path.partition("?")[0].removesuffix("/infer")), asked.seed
        )
    if asked.openai is not None:
        return openai_bodies(asked.openai, asked.prompt_words, asked.max_tokens, asked.seed)
    return (b"",)


def _check_outputs(out: Path, html: Path | None, body: Path | None) -> None:
    """Fail before minutes of test, not after, if the results cannot be written."""
    inputs = [body] if body is not None else []
    check_output(out, inputs)
    _check_html(html, [*inputs, out])


def _check_html(html: Path | None, inputs: list[Path]) -> None:
    if html is not None:
        import cardwise.loadtest.html  # noqa: F401, PLC0415 - its libraries are optional and slow to load

        check_output(html, inputs)


@contextmanager
def _listening(messages: Console, *, wanted: bool) -> Iterator[Listener]:
    """A bar for the step under way, and a line for each that is done, where a person looks at it."""
    if not (wanted and messages.is_terminal):
        yield Listener()
        return
    with Progress(TextColumn("{task.description}"), BarColumn(), console=messages, transient=True) as progress:
        task = progress.add_task("starting", total=1.0)

        def _on_progress(load: Load, share: float, sent: int, ok: int, unfinished: int) -> None:
            loop = f"{load.rate_per_s:g}/s" if load.rate_per_s is not None else f"{load.concurrency} callers"
            said = f"{loop}: {sent:,} sent, {ok:,} ok, {unfinished:,} unfinished"
            progress.update(task, completed=share, description=said)

        def _on_step(step: Step) -> None:
            cells = row(step)
            messages.print(f"{cells[0]}: {cells[5]}/s in time, P99 {cells[8]} ms, holds: {cells[-1]}")

        yield Listener(_on_step, _on_progress)


def _finish(curve: Curve, out: Path, html: Path | None, messages: Console, *, as_json: bool) -> None:
    """Write, tell, and end with the exit code that says how it went."""
    try:
        write_text(out, curve_text(curve))
        messages.print(plain(f"wrote {out}"))
        if html is not None and curve.steps:
            _write_html(html, [curve], [curve.environment.url], None)
            messages.print(plain(f"wrote {html}"))
    finally:  # minutes of work are told even if the file cannot be written any more
        _tell(curve, as_json=as_json)
    if curve.ended == "interrupt":
        sys.exit(EXIT_INTERRUPTED)
    if not any(step.holds for step in curve.steps):
        sys.exit(EXIT_NOTHING_HOLDS)


def _write_html(path: Path, curves: list[Curve], names: list[str], comparison: Comparison | None) -> None:
    from cardwise.loadtest.html import write_report  # noqa: PLC0415 - as above

    write_report(path, curves, names, comparison)


def _tell(curve: Curve, *, as_json: bool) -> None:
    if as_json:
        click.echo(curve_text(curve), nl=False)
        return
    shown = console()
    shown.print(render(curve))
    more = details(curve)
    if more is not None:
        shown.print(more)


def _compare(before: Path, after: Path, *, html: Path | None, as_json: bool, fail_on_regression: bool) -> None:
    _check_html(html, [before, after])
    curves = [read_curve(before), read_curve(after)]
    names = [plain(str(before)), plain(str(after))]
    comparison = compare(curves[0], curves[1], (names[0], names[1]))
    try:
        if html is not None:
            _write_html(html, curves, names, comparison)
            console(stderr=True).print(plain(f"wrote {html}"))
    finally:
        if as_json:
            click.echo(msgspec.json.format(msgspec.json.encode(comparison)).decode())
        else:
            console().print(render_comparison(comparison))
    if fail_on_regression and comparison.is_regression:
        sys.exit(EXIT_REGRESSION)
