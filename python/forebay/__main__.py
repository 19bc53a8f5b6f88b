"""The program ``forebay``, also available as ``python -m forebay``."""

from __future__ import annotations

import signal
import sys

from . import _forebay


def main() -> int:
    """Runs the command line and returns its exit code."""
    # The program handles Ctrl-C itself and ends between two steps.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _forebay.run_command_line(["forebay", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
