"""The day as one HTML file that needs no network, and as tables on the terminal.

Refuses to leave half a file behind, and to say anything that ``findings`` does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.day.findings import ASSUMED, Day, faults, grounds, headline, usage, verdicts
from benchmarks.day.load import BEGIN, ZONE, Load
from benchmarks.day.sizing import CARD
from benchmarks.serving import machine, table
from cardwise.files import write_texts
from cardwise.report import needing_tools, render

with needing_tools():
    from benchmarks.day import plots

USAGE = (
    "<how",
    "cards",
    "to replicas",
    "most",
    "to batch",
    "lent GiB",
    "card-h done",
    "lost",
    "evicted",
    "wait s",
    "short min",
)
SAID = (
    "cards: in the cluster; to replicas: compute given to them, in cards (a whole card counts as one), mean and most",
    "card-h: of best-effort jobs that ended; lost: begun and evicted; wait: of a replica for its place",
    "short: service-minutes in which more was asked than ready replicas carry in full batches",
)
P99 = ("<hour", "<service", "asked/s", "target", "whole: replicas", "P99 ms", "cardwise: replicas", "P99 ms ", "lost")
SIZES = ("<service", "<model", "MiB", "compute", "carries/s", "at most", "whole card carries/s", "replicas")
EVICTED = ("<why", "<who", "times", "<as its event says, of one of them")


def usage_rows(day: Day) -> list[Sequence[str]]:
    """A row per arm."""
    return [
        (
            each.arm, str(each.cards), f"{each.sensitive_mean:.1f}", f"{each.sensitive_most:.1f}",
            f"{each.best_effort_mean:.1f}", f"{each.lent_mib / 1024:.1f}", f"{each.done_card_h:.0f}",
            f"{each.lost_card_h:.1f}", str(each.evicted), f"{each.waits_s:.0f}",
            f"{each.short_min:.0f}",
        )
        for each in (usage(played, day.tick_s) for played in day.days)
    ]  # fmt: skip


def p99_rows(day: Day) -> Iterator[Sequence[str]]:
    """A row per hour and service."""
    for theirs, mine in day.pairs():
        target = day.target_ms(mine.service)
        mark = "" if mine.p99_ms <= target else " ✗"
        yield (
            clock(mine.hour), mine.service, f"{mine.rate_per_s:.0f}", f"{target:.0f}", str(theirs.replicas),
            table.ms(theirs.p99_ms), str(mine.replicas), table.ms(mine.p99_ms) + mark, str(theirs.lost + mine.lost),
        )  # fmt: skip


def size_rows(day: Day) -> list[Sequence[str]]:
    """What the planner gave each service: a slice, and on whole cards."""
    return [
        (
            each.service.name, each.service.model, f"{each.memory_mib:,}", f"{each.compute_pct} %",
            f"{each.each_per_s:.0f}", str(each.for_peak), f"{whole.each_per_s:.0f}", str(whole.for_peak),
        )
        for each, whole in zip(day.ours.sizes, day.base.sizes, strict=True)
    ]  # fmt: skip


def evicted_rows(day: Day) -> list[Sequence[str]]:
    """Who had to go in ours."""
    return [(each.why, each.group, str(each.count), each.text) for each in grounds(day.ours)]


def clock(hour: float) -> str:
    """Of the local day."""
    return f"{int(hour):02}:{round(hour % 1 * 60):02}"


def conditions(day: Day) -> str:
    """Where and how, in a line."""
    foreign = max((each.foreign_cores for each in day.cells), default=0.0)
    stall_ms = max((each.step.stall_ms for cell in day.cells for each in cell.asked), default=0.0)
    fill, whole = (each.sizes[0].fill_pct for each in (day.ours, day.base))
    return (
        f"{BEGIN:%Y-%m-%d}, {ZONE}, seed {day.seed} · cards {CARD} · replicas filled to {fill} % (whole cards: "
        f"{whole} %) · interference {day.interference:g} · {day.seconds:g} s of requests per hour and way, rates "
        f"unscaled · up to {foreign:.1f} of {len(machine.cores())} cores taken by others meanwhile; longest stall of a "
        f"generator {stall_ms:.0f} ms"
    )


def show(day: Day) -> None:
    """On the terminal."""
    table.show(f"what each replica gets of a {CARD}", SIZES, size_rows(day))
    table.show("the cluster over the day", USAGE, usage_rows(day), SAID)
    table.show("what callers saw", P99, p99_rows(day), [conditions(day)])
    evicted = [(*row[:3], row[3][:70]) for row in evicted_rows(day)]
    table.show("who had to go, with cardwise", EVICTED, evicted)
    for sentence in verdicts(day):
        table.CONSOLE.print(sentence, soft_wrap=True)


def write(path: Path, day: Day, load: Load) -> None:
    """Raises UserError, and leaves what stood at ``path`` as it was, if the file cannot be written."""

    def draw() -> dict[str, object]:
        return {
            "load": plots.plot_load(load),
            "cards": plots.plot_cards(day),
            "replicas": plots.plot_replicas(day),
            "p99": plots.plot_p99(day) if day.cells else "",
        }

    figures = {
        "usage": [asdict(usage(each, day.tick_s)) for each in day.days],
        "asked": [
            {**{name: getattr(each, name) for name in _ASKED}, "latency_ms": each.step.latency_ms}
            for cell in day.cells
            for each in cell.asked
        ],
        "rows": [asdict(row) for row in day.ours.rows[:: max(len(day.ours.rows) // 288, 1)]],
    }
    text = render(
        "benchmarks.day",
        figures,
        draw,
        title=headline(day),
        verdicts=list(verdicts(day)),
        faults=list(faults(day)),
        conditions=conditions(day),
        said=SAID,
        assumed=ASSUMED,
        tables={
            "sizes": (SIZES, size_rows(day)),
            "usage": (USAGE, usage_rows(day)),
            "p99": (P99, list(p99_rows(day))),
            "evicted": (EVICTED, evicted_rows(day)),
        },
        card=CARD,
    )
    write_texts({path: text})


_ASKED = ("arm", "service", "hour", "rate_per_s", "replicas", "slow", "p99_ms", "lost")
