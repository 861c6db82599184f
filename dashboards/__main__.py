"""Write all dashboards into the chart, and take away what is none of them any more."""

from __future__ import annotations

from pathlib import Path

from dashboards.all import texts

FOLDER = Path(__file__).resolve().parents[1] / "charts" / "cardwise" / "dashboards"

if __name__ == "__main__":
    told = texts()
    for path in FOLDER.glob("*.json"):
        if path.name not in told:
            path.unlink()
    for name, text in told.items():
        (FOLDER / name).write_text(text)
