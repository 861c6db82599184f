"""``make bench``: what can be shown in some minutes. The long tables have commands of their own (``tables.py``)."""

from __future__ import annotations

import subprocess
import sys

from cardwise.cli.inputs import find_trace

SHORT = (
    ("decision",),
    ("tables", "fill", "--variants", "default,gpushare60", "--seeds", "42,43"),
    ("tables", "churn", "--variants", "default", "--seeds", "42", "--arrivals", "20000"),
    ("serving", "claim", "limiter", "proxy", "--quick"),
)


def main() -> None:
    """Run the short benchmarks one after the other, those on the trace only where it is."""
    for name, *arguments in SHORT:
        if name == "tables" and find_trace() is None:
            print("skipped: the openb trace is not here (CARDWISE_OPENB)")
            continue
        if name == "serving" and not sys.platform.startswith("linux"):
            print("skipped: benchmarks.serving reads CPU time and cores as Linux has them")
            continue
        print(f"\n== python -m benchmarks.{name} {' '.join(arguments)}", flush=True)
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *arguments], check=True)


if __name__ == "__main__":
    main()
