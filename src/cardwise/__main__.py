"""``python -m cardwise``, and where the command ``cardwise`` begins: what is seen before anything else is imported."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command. Ctrl-C during the imports, which take a while, has nothing to clean up and ends it at once."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else the shell has it ignored
        signal.signal(signal.SIGINT, _end)
    from cardwise.cli.main import main as run  # noqa: PLC0415 - as above

    run()


def _end(_number: int, _frame: FrameType | None) -> None:
    sys.stderr.write("interrupted\n")
    sys.stderr.flush()
    os._exit(130)


if __name__ == "__main__":
    main()
