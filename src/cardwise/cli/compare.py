"""``cardwise compare``: what a change did, told from two windows of Prometheus' time or two load tests."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

import click
import msgspec

from cardwise.adapters.prometheus import Prometheus
from cardwise.cli.inputs import SEED, FilePath
from cardwise.cli.terminal import console
from cardwise.compare.asking import ask
from cardwise.compare.judging import compare
from cardwise.compare.report import render_comparison
from cardwise.compare.window import Window, parse_span, read_window, schema_of, window_text
from cardwise.core.comparison.verdict import Comparison, Overall
from cardwise.errors import UserError
from cardwise.files import check_output, plain, seen, write_text
from cardwise.loadtest.compare import compare as compare_curves
from cardwise.loadtest.curve import SCHEMA as CURVE_SCHEMA
from cardwise.loadtest.curve import read_curve

EXIT_REGRESSION, EXIT_UNKNOWN = 1, 3
ALERTS = "Cardwise.*"
TIMEOUT_S = 60.0
"""For one query: a month of histograms takes Prometheus a while."""
Side: TypeAlias = "Path | tuple[datetime, datetime] | None"
_SIDES = "give two files, or --prometheus URL with --before and --after, or one file and --prometheus URL with --after"


@click.command("compare")
@click.argument("files", nargs=-1, type=FilePath(), metavar="[BEFORE [AFTER]]")
@click.option("--prometheus", "url", metavar="URL", help="Ask this Prometheus about the windows that follow.")
@click.option("--before", metavar="START..END", help="A window: ISO 8601 times with a zone, or -2h..-1h, or -30m..now.")
@click.option("--after", metavar="START..END", help="The other one.")
@click.option("--service", "services", multiple=True, metavar="NAME", help="Only this one; may be repeated.")
@click.option("--alerts", default=ALERTS, show_default=True, metavar="REGEX", help="Names of alerts that count.")
@click.option("--token-file", type=FilePath(), help="A bearer token for Prometheus.")
@click.option("--save-before", type=FilePath(), help="Keep what Prometheus told, for when it has forgotten.")
@click.option("--save-after", type=FilePath(), help="The same of the other window.")
@click.option(
    "--card-price", "prices", multiple=True, metavar="MODEL=N", help="Of a card-hour; needed where models differ."
)
@click.option("--seed", type=SEED, default=1, show_default=True, help="Of the intervals.")
@click.option("--html", type=FilePath(), help="Write a report that needs no network.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, nothing else.")
@click.option("--fail-on-regression", is_flag=True, help="Exit code 1 if it is one.")
@click.option("--fail-on-unknown", is_flag=True, help="Exit code 3 if it cannot be told.")
def compare_command(
    *,
    files: tuple[Path, ...],
    url: str | None,
    before: str | None,
    after: str | None,
    services: tuple[str, ...],
    alerts: str,
    token_file: Path | None,
    save_before: Path | None,
    save_after: Path | None,
    prices: tuple[str, ...],
    seed: int,
    html: Path | None,
    as_json: bool,
    fail_on_regression: bool,
    fail_on_unknown: bool,
) -> None:
    """Say what a change did: resources, service quality, cost per request, stability.

    BEFORE and AFTER are files of `cardwise loadtest --out`, or of --save-before. A worse P99 is a regression, whatever
    it saves.

    Exit code 1, with --fail-on-regression: service quality or stability is worse. 3, with --fail-on-unknown: the data
    do not tell.
    """
    sides = _sides(files, url, (before, after), (save_before, save_after))
    _check_outputs(files, (save_before, save_after), sides, html)
    if len(files) == 2 and schema_of(files[0]) == CURVE_SCHEMA:
        _refuse_with_curves(services, prices)
        comparison = _compare_curves(files, html, seed)
    else:
        priced = _parse_prices(prices)
        asking = Asking(url=url, token_file=token_file, services=services, alerts=alerts)
        one, other = asyncio.run(asking.windows(sides))
        _save(zip((one, other), (save_before, save_after), strict=True))
        if one is None or other is None:
            return
        comparison = compare(one, other, (_name(sides[0], one), _name(sides[1], other)), prices=priced, seed=seed)
        if html is not None:
            _write_html(html, comparison, [one, other])
    _tell(comparison, as_json=as_json)
    if fail_on_regression and comparison.is_regression:
        sys.exit(EXIT_REGRESSION)
    if fail_on_unknown and comparison.overall is Overall.UNKNOWN:
        sys.exit(EXIT_UNKNOWN)


# -------------------------------------------------------------------- what is compared


def _sides(
    files: Sequence[Path],
    url: str | None,
    spans: tuple[str | None, str | None],
    saves: tuple[Path | None, Path | None],
) -> tuple[Side, Side]:
    """Before and after. None for one that is not wanted, as the other is only to be saved."""
    if len(files) > 2:
        raise UserError(f"{len(files)} files; {_SIDES}")
    if url is None and any(spans):
        raise UserError(f"--before and --after are windows of --prometheus URL; {_SIDES}")
    if url is not None and not any(spans):
        raise UserError(f"--prometheus goes with --before or --after; {_SIDES}")
    if files and (spans[0] or (len(files) == 2 and spans[1])):
        raise UserError(f"more than two things to compare; {_SIDES}")
    now = datetime.now(UTC)
    asked = [
        None if text is None else parse_span(text, option, now)
        for text, option in zip(spans, ("--before", "--after"), strict=True)
    ]
    before: Side = files[0] if files else asked[0]
    after: Side = files[1] if len(files) == 2 else asked[1]
    for side, save, option in ((asked[0], saves[0], "--save-before"), (asked[1], saves[1], "--save-after")):
        if save is not None and side is None:
            raise UserError(f"{option} keeps what Prometheus told of {option.replace('save-', '')}, which is not given")
    if (before is None or after is None) and not any(saves):
        raise UserError(f"only one thing to compare; {_SIDES}")
    if isinstance(before, tuple) and isinstance(after, tuple) and before[0] < after[1] and after[0] < before[1]:
        raise UserError("--before and --after overlap: what lies in both can tell no change")
    return before, after


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """Where windows come from that no file holds."""

    url: str | None
    token_file: Path | None
    services: tuple[str, ...]
    alerts: str

    async def windows(self, sides: Sequence[Side]) -> tuple[Window | None, Window | None]:
        """Both, from their files or from Prometheus."""
        found = [read_window(each) if isinstance(each, Path) else None for each in sides]
        if self.url is None:
            return found[0], found[1]
        async with Prometheus(self.url, token_file=self.token_file, timeout_s=TIMEOUT_S) as prometheus:
            for i, side in enumerate(sides):
                if isinstance(side, tuple):
                    found[i] = await ask(prometheus, self.url, side, self.services, self.alerts)
        return found[0], found[1]


def _name(side: Side, window: Window) -> str:
    return plain(str(side)) if isinstance(side, Path) else window.name


def _save(wanted: Iterable[tuple[Window | None, Path | None]]) -> None:
    for window, path in wanted:
        if window is not None and path is not None:
            write_text(path, window_text(window))
            console(stderr=True).print(plain(f"wrote {path}"))


def _refuse_with_curves(services: Sequence[str], prices: Sequence[str]) -> None:
    if services or prices:
        raise UserError("--service and --card-price are for Prometheus' windows: a load test has its --facts")


def _compare_curves(files: Sequence[Path], html: Path | None, seed: int) -> Comparison:
    if schema_of(files[1]) != CURVE_SCHEMA:
        raise UserError(f"{files[0]} is a load test and {files[1]} is none: give two of one kind")
    curves = [read_curve(each) for each in files]
    names = [plain(str(each)) for each in files]
    comparison = compare_curves(curves[0], curves[1], (names[0], names[1]), seed=seed)
    if html is not None:
        from cardwise.loadtest.html import write_report  # noqa: PLC0415 - its libraries are optional and slow to load

        write_report(html, curves, names, comparison)
        console(stderr=True).print(plain(f"wrote {html}"))
    return comparison


def _parse_prices(given: Sequence[str]) -> dict[str, float]:
    """Raises UserError for what is no MODEL=N."""
    made = {}
    for text in given:
        model, _, number = text.rpartition("=")
        try:
            price = float(number)
        except ValueError:
            price = math.nan
        if not model or not price > 0 or math.isinf(price):
            raise UserError(f"--card-price {seen(text)}: write MODEL=N, such as 'NVIDIA A10=0.9'")
        made[model] = price
    return made


# -------------------------------------------------------------------- what comes out


def _check_outputs(
    files: Sequence[Path], saves: Sequence[Path | None], sides: Sequence[Side], html: Path | None
) -> None:
    """Fail before the work, not after it."""
    outputs = [each for each in (*saves, html) if each is not None]
    if len({each.absolute() for each in outputs}) < len(outputs):
        raise UserError("two results in one file: give each its own")
    for each in outputs:
        check_output(each, files)
    if html is not None:
        if None in sides:
            raise UserError(f"--html tells of two; {_SIDES}")
        import cardwise.compare.html  # noqa: F401, PLC0415 - its libraries are optional and slow to load


def _write_html(path: Path, comparison: Comparison, windows: Sequence[Window]) -> None:
    from cardwise.compare.html import write_report  # noqa: PLC0415 - as above

    write_report(path, comparison, windows)
    console(stderr=True).print(plain(f"wrote {path}"))


def _tell(comparison: Comparison, *, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(comparison)).decode())
    else:
        console().print(render_comparison(comparison))
