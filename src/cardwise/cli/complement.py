"""``cardwise complement``: services whose peaks do not coincide, and what they save on the same cards."""

from __future__ import annotations

import asyncio
import math
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cardwise.cli.inputs import SEED, FilePath
from cardwise.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from cardwise.core.fleet.complement import Profiles, Together

MOST_SHOWN = 20


@click.command("complement")
@click.argument("profiles", type=FilePath(), required=False)
@click.option("--prometheus", "url", metavar="URL", help="Instead of a file: ask this Prometheus.")
@click.option("--query", help="With --prometheus: a series per service, such as sum by (service) (cards_used).")
@click.option("--label", default="service", show_default=True, help="With --prometheus: what names the service.")
@click.option(
    "--days", type=click.IntRange(3, 90), default=28, show_default=True, help="With --prometheus: so far back."
)
@click.option("--token-file", type=click.Path(path_type=Path), help="With --prometheus: a bearer token.")
@click.option("--most", type=click.IntRange(2, 16), default=4, show_default=True, help="Services in a group at most.")
@click.option(
    "--least",
    type=click.FloatRange(0, 100),
    default=10.0,
    show_default=True,
    metavar="PERCENT",
    help="What a group must save for sure.",
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Of the days drawn.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, nothing else.")
def complement_command(
    *,
    profiles: Path | None,
    url: str | None,
    query: str | None,
    label: str,
    days: int,
    token_file: Path | None,
    most: int,
    least: float,
    seed: int,
    as_json: bool,
) -> None:
    """Find services that peak at different times: together they need fewer cards than each for itself.

    PROFILES is a CSV file: time,SERVICE,SERVICE,... in one unit, such as cards or MiB, a line per hour, for some weeks.
    """
    if (profiles is None) == (url is None):
        raise UserError("profiles of which services? give either a CSV file, or --prometheus URL with --query")
    if url is not None and not query:
        raise UserError("--prometheus needs --query: a series per service")
    from cardwise.adapters.profiles import read_profiles  # noqa: PLC0415 - other commands start without numpy
    from cardwise.core.fleet.complement import groups, pairs  # noqa: PLC0415

    told = read_profiles(profiles) if profiles else _asked(url or "", query or "", label, days, token_file)
    found, together = pairs(told, seed), groups(told, least / 100, most, seed)
    if as_json:
        _print_json(found, together)
        return
    from cardwise.cli.terminal import console  # noqa: PLC0415

    out = console()
    if not found:
        out.print("no two of these services were measured together for three whole days, or none of them does anything")
        return
    out.print(_table("pairs, the surest saving first", found[:MOST_SHOWN]))
    if len(found) > MOST_SHOWN:
        out.print(f"{len(found) - MOST_SHOWN} more; --json has all\n")
    if together:
        out.print(_table(f"groups that save at least {least:g} % for sure", together))
    else:
        out.print(f"no group saves {least:g} % for sure")
    out.print(_NOTE)


_NOTE = """\
saves: 1 - peak of the sum / sum of the peaks, a peak being the 99th percentile; for sure: the lower end of its 90 %
interval over 400 draws of whole days. Correlation is told for comparison and decides nothing."""


def _asked(url: str, query: str, label: str, days: int, token_file: Path | None) -> Profiles:
    from cardwise.adapters.profiles import ask_profiles  # noqa: PLC0415
    from cardwise.adapters.prometheus import Prometheus  # noqa: PLC0415

    async def ask() -> tuple[Profiles, tuple[str, ...]]:
        async with Prometheus(url, token_file=token_file, timeout_s=60.0) as prometheus:
            return await ask_profiles(prometheus, query, label, days, 3600.0, datetime.now(UTC))

    found, warnings = asyncio.run(ask())
    for each in warnings:
        click.echo(f"note: Prometheus warns: {each}", err=True)
    return found


def _table(title: str, rows: Sequence[Together]) -> Table:
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("services")
    for name in ("saves", "for sure", "peak of the sum", "sum of the peaks", "correlation", "days"):
        table.add_column(name, justify="right")
    for each in rows:
        correlation = "-" if math.isnan(each.correlation) else f"{each.correlation:+.2f}"
        numbers = (f"{each.saving_share:.1%}", f"{each.low_share:.1%}", f"{each.peak_of_sum:.4g}")
        table.add_row(Text(" + ".join(each.names)), *numbers, f"{each.sum_of_peaks:.4g}", correlation, str(each.days))
    return table


def _print_json(found: Sequence[Together], together: Sequence[Together]) -> None:
    import msgspec  # noqa: PLC0415

    told = {"pairs": [_plain(each) for each in found], "groups": [_plain(each) for each in together]}
    click.echo(msgspec.json.format(msgspec.json.encode(told)).decode())


def _plain(each: Together) -> dict[str, object]:
    return {**asdict(each), "correlation": None if math.isnan(each.correlation) else each.correlation}
