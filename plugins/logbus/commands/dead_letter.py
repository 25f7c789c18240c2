"""`logbus dead-letter`: which records did not parse, why, and their bytes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

import click

from logbus.commands import options, output
from logbus.console.formatting import without_control
from logbus.errors import UserError
from logbus.model import instant_text
from logbus.proof import dead_letters
from logbus.proof.dead_letters import DeadLetter, Selection
from logbus.wording import inert_json, many

SHOWN_CHARACTERS_MAX = 200

class_option = click.option("--error-class", help="Only those of this class.")


@click.group("dead-letter")
def command() -> None:
    """Dead letters: records that did not parse, kept with the reason and their bytes."""


@command.command("ls")
@options.pipeline_option
@options.since_option
@options.until_option
@class_option
@options.warehouse_option
@options.json_option
def list_groups(
    pipeline_name: str, since: datetime | None, until: datetime | None, error_class: str | None, warehouse_url: str, as_json: bool
) -> None:
    """Count dead letters by window and class."""
    ledger = options.open_ledger(warehouse_url)
    ledger.pipeline(pipeline_name)
    selection = Selection(pipeline=pipeline_name, since=since, until=until, error_class=error_class)
    found = dead_letters.groups(ledger.engine, selection)
    if as_json:
        rows = [(instant_text(group.window_start), group.error_class, group.count, group.error) for group in found]
        output.show_json([dict(zip(("window", "error_class", "count", "error"), row, strict=True)) for row in rows])
        return
    table = output.Table("window", "error class", "records", "one of the errors")
    for group in found:
        table.add_row(instant_text(group.window_start), group.error_class, str(group.count), short(group.error))
    output.show(table)


@command.command("show")
@options.pipeline_option
@class_option
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True)
@options.warehouse_option
@options.json_option
@click.argument("start", type=options.Instant())
def show(pipeline_name: str, error_class: str | None, limit: int, warehouse_url: str, as_json: bool, start: datetime) -> None:
    """Show the dead letters of the window that begins at START, one by one."""
    ledger = options.open_ledger(warehouse_url)
    ledger.window(pipeline_name, start)
    selection = Selection(pipeline=pipeline_name, since=start, until=start, error_class=error_class)
    found = list(dead_letters.stream(ledger.engine, selection, limit))
    if as_json:
        output.show_json([letter.summary() for letter in found])
        return
    for letter in found:
        output.tell(*lines_of(letter))


def lines_of(letter: DeadLetter) -> Iterable[str]:
    """A record in a few lines."""
    at = instant_text(letter.timestamp) if letter.timestamp else "without timestamp"
    run = f"attempt {letter.attempt} of run {letter.run_id or '?'}"
    yield f"{letter.topic}-{letter.partition} offset {letter.offset}, {at}, {run}"
    yield f"  {letter.error_class}: {short(letter.error)}"
    yield f"  key {letter.key!r}  headers {json.dumps(letter.headers)}"
    yield f"  value ({len(letter.value or b'')} bytes) {short(repr(letter.value))}"


def short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS_MAX else text[:SHOWN_CHARACTERS_MAX] + "..."


@command.command("export")
@options.pipeline_option
@options.since_option
@options.until_option
@class_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "raw"]),
    default="jsonl",
    show_default=True,
    help="One JSON object a line, or the values alone, each with a line end.",
)
@click.option(
    "--file",
    "--output",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to write them; by default standard output.",
)
@options.warehouse_option
def export(
    pipeline_name: str,
    since: datetime | None,
    until: datetime | None,
    error_class: str | None,
    form: str,
    file: Path | None,
    warehouse_url: str,
) -> None:
    """Write out dead letters, in full."""
    ledger = options.open_ledger(warehouse_url)
    ledger.pipeline(pipeline_name)
    selection = Selection(pipeline=pipeline_name, since=since, until=until, error_class=error_class)
    letters = dead_letters.stream(ledger.engine, selection)
    if file is None:
        write(letters, form, sys.stdout.buffer, is_terminal=sys.stdout.isatty())
        return
    try:
        with file.open("wb") as opened:
            count = write(output.tracked(letters, f"writing {file.name}"), form, opened)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}") from None
    output.say(f"{many(count, 'dead letter')} in {file}")


def write(letters: Iterable[DeadLetter], form: str, file: BinaryIO, *, is_terminal: bool = False) -> int:
    """A terminal is shown the control characters in a value and does not obey them, as with `consume`."""
    count = 0
    for letter in letters:
        value = letter.value or b""
        raw = without_control(value) if is_terminal else value
        line = inert_json(json.dumps(letter.summary(), ensure_ascii=False)).encode() if form == "jsonl" else raw
        file.write(line + b"\n")
        count += 1
    file.flush()
    return count
