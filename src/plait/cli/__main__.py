"""`python -m plait.cli` is the same as `plait`."""

from plait.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
