"""`logbus broker ...`: become the broker's own process.

The pipeline reaches the broker over the wire only, so this hands the terminal over to `python -m broker` instead of importing it.
"""

from __future__ import annotations

import os
import sys

import click


@click.command("broker", context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Run the log broker; all arguments go to `python -m broker`."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "broker", *arguments])
