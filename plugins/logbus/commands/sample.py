"""`logbus sample FILE`: an access log to try things on."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from logbus.collector.sample import END_DEFAULT, write_sample
from logbus.errors import UserError


@click.command("sample")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--lines", type=click.IntRange(1, 100_000_000), default=20_000, show_default=True, help="How many lines.")
@click.option("--hours", type=click.IntRange(1, 24 * 366), default=24, show_default=True, help="How many hours they cover.")
@click.option("--seed", type=int, default=2011, show_default=True, help="The same seed gives the same file.")
@click.option(
    "--end", type=click.DateTime(), default=END_DEFAULT.strftime("%Y-%m-%d"), show_default=True, help="When it ends, in UTC."
)
def command(file: Path, lines: int, hours: int, seed: int, end: datetime) -> None:
    """Write a small realistic access log to FILE."""
    try:
        write_sample(file, lines=lines, hours=hours, seed=seed, end=end.replace(tzinfo=UTC))
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}") from error
    click.echo(f"{file}: {lines} lines over {hours} hours")
