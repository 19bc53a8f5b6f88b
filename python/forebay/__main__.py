"""The program ``forebay``: ``python -m forebay`` does the same."""

from __future__ import annotations

import signal
import sys

from . import _forebay


def main() -> int:
    """Runs the command line; its exit code."""
    # Ctrl-C is the program's own, which ends between two steps.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _forebay.run_command_line(["forebay", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
