"""The queue layer beside its peers, as ratios in one run.

peers      LitServe, BentoML, Ray Serve and MLServer before the same emulated card, at 1 to 128 callers
overload   what is left at twice the load, and who hears at once
claim      batch 1 and no wait, 32 and 20 ms, the default: throughput and P99 on one engine (SPEC D2)
limiter    how soon the limit finds the knee, beside the best fixed limit of the same run (SPEC D3)
proxy      what passing a request on costs, beside nginx

``peers`` and ``overload`` install the peers once, each in an environment of its own in the cache (1.5 GiB). Every row
says how many cores others took meanwhile (``foreign``): repeat what was not quiet. Linux.

Run: ``python -m benchmarks.serving [peers overload claim limiter proxy] [--quick]``
"""

from __future__ import annotations

import argparse
import signal
import sys
import time

from benchmarks.serving import claim, closed_loop, limiter, machine, overload, procs, proxy, table
from cardwise.errors import UserError

EXPERIMENTS = {
    "peers": closed_loop.run,
    "overload": overload.run,
    "claim": claim.run,
    "limiter": limiter.run,
    "proxy": proxy.run,
}
EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the experiments that were named, or all."""
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.serving", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help=f"of {', '.join(EXPERIMENTS)}")
    options.add_argument("--quick", action="store_true", help="shorter, and rougher")
    options.add_argument("--tune", action="store_true", help="instead: find the best wait for a batch of each peer")
    told = options.parse_args()
    if wrong := [name for name in told.experiments if name not in EXPERIMENTS]:
        options.error(f"no experiment is called {', '.join(wrong)}; there are {', '.join(EXPERIMENTS)}")
    if not sys.platform.startswith("linux"):
        options.error("CPU time and cores are read as Linux has them; run it there")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: all that was started ends
    procs.adopt_orphans()
    try:
        if told.tune:
            closed_loop.tune()
        for name in () if told.tune else told.experiments or EXPERIMENTS:
            _run(name, quick=told.quick)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _run(name: str, *, quick: bool) -> None:
    """One experiment; if it cannot be run, say why and let the others."""
    began = time.monotonic()
    table.CONSOLE.print(f"== {name}: {machine.said()}", style="bold")
    try:
        EXPERIMENTS[name](quick=quick)
    except (UserError, procs.StartError) as error:
        table.CONSOLE.print(f"{name} failed: {error}\n")
    table.CONSOLE.print(f"{name} took {time.monotonic() - began:.0f} s\n", style="dim")


if __name__ == "__main__":
    main()
