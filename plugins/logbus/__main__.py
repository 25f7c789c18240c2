"""`python -m logbus`: the same as the command `logbus`."""

from __future__ import annotations

from logbus.cli import main

if __name__ == "__main__":
    main(prog_name="logbus")
