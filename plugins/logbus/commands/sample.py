"""`logbus sample FILE`: an access log to try things on."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from logbus.collector.sample import last_closed_hour, sample_lines, write_sample
from logbus.commands import options, output
from logbus.errors import UserError
from logbus.model import instant_text


@click.command("sample")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--lines", type=click.IntRange(1, 100_000_000), default=20_000, show_default=True, help="How many lines.")
@click.option("--hours", type=click.IntRange(1, 24 * 366), default=24, show_default=True, help="How many hours they cover.")
@click.option("--seed", type=int, default=2011, show_default=True, help="The same seed gives the same file.")
@click.option(
    "--end", type=click.DateTime(), show_default="the last hour that is closed", help="When it ends, in UTC, such as 2015-05-21."
)
@click.option("--force", is_flag=True, help="Overwrite a FILE that exists.")
def command(file: Path, lines: int, hours: int, seed: int, end: datetime | None, force: bool) -> None:
    """Write a small realistic access log of the last hours to FILE, or to standard output if that is -."""
    if str(file) == "-":
        ends_at = last_closed_hour(options.clock()) if end is None else end.replace(tzinfo=UTC)
        for line in sample_lines(lines=lines, hours=hours, seed=seed, end=ends_at):
            output.hand_over(line)
        return
    if file.exists() and not force:
        # The obvious name for a sample is often that of a real log.
        raise UserError(f"{file} exists already: choose another name, or --force to overwrite it")
    ends_at = last_closed_hour(options.clock()) if end is None else end.replace(tzinfo=UTC)
    try:
        write_sample(file, lines=lines, hours=hours, seed=seed, end=ends_at)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}") from error
    output.tell(f"{file}: {lines} lines over the {hours} hours before {instant_text(ends_at)}")
