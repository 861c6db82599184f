"""Writes profiles.csv beside it: cards that five invented services used, hour by hour, for two weeks."""

from __future__ import annotations

import csv
import math
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

BEGIN = datetime(2026, 6, 1, tzinfo=UTC)
SERVICES = {
    "chat": (13, 10.0),
    "search": (11, 8.0),
    "translate": (22, 6.0),
    "batch-embed": (3, 9.0),
    "moderate": (14, 4.0),
}
"""Hour of the peak, and its cards."""


def cards(hour: int, peak_hour: int, peak: float, draw: random.Random) -> float:
    """A peak a day, and some noise."""
    away = (hour - peak_hour + 12) % 24 - 12
    return round(peak * (0.15 + 0.85 * math.exp(-(away**2) / 18)) * draw.uniform(0.9, 1.1), 2)


def main() -> None:
    draw = random.Random(0)  # noqa: S311 - the same file every time
    with Path(__file__).with_name("profiles.csv").open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["time", *SERVICES])
        for step in range(14 * 24):
            at = BEGIN + timedelta(hours=step)
            out.writerow([f"{at:%Y-%m-%dT%H:%M:%SZ}", *(cards(at.hour, *told, draw) for told in SERVICES.values())])


if __name__ == "__main__":
    main()
