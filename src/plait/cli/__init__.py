"""The command line. Starting it imports no torch and no numpy; each verb loads what it needs."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 ok, 1 failed, 2 usage, 3 verification failed, 4 locked,
    5 refused input, 130 interrupted, 141 the reader of our output went away."""
    try:
        from plait.cli.entry import run

        return run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        print("plait: error: interrupted", file=sys.stderr)
        return 130
