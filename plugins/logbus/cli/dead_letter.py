"""`logbus dead-letter` and `logbus redrive`: records that did not parse, and parsing them again; a dry run unless --execute."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

import click

from logbus import errors, formatting, model
from logbus.cli import options, output
from logbus.kafka.client_config import read_client_config
from logbus.kafka.console_format import without_control
from logbus.loads import dead_letters
from logbus.loads.dead_letters import DeadLetter, Selection
from logbus.loads.redrive import Redrive, Redriven, parser_of, windows_to_redrive

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
    groups = dead_letters.groups(ledger.engine, selection)
    if as_json:
        rows = [(model.instant_text(group.window_start), group.error_class, group.count, group.error) for group in groups]
        output.show_json([dict(zip(("window", "error_class", "count", "error"), row, strict=True)) for row in rows])
        return
    table = output.Table("window", "error class", "records", "one of the errors")
    for group in groups:
        table.add_row(model.instant_text(group.window_start), group.error_class, str(group.count), short(group.error))
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
    letters = list(dead_letters.stream(ledger.engine, selection, limit))
    if as_json:
        output.show_json([letter.summary() for letter in letters])
        return
    for letter in letters:
        output.echo(*lines_of(letter))


def lines_of(letter: DeadLetter) -> Iterable[str]:
    """A record in a few lines."""
    at = model.instant_text(letter.timestamp) if letter.timestamp else "without timestamp"
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
        raise errors.UserError(f"cannot write {file}: {error.strerror}") from None
    output.echo_err(f"{formatting.many(count, 'dead letter')} in {file}")


def write(letters: Iterable[DeadLetter], form: str, file: BinaryIO, *, is_terminal: bool = False) -> int:
    """A terminal is shown the control characters in a value and does not obey them, as with `consume`."""
    count = 0
    for letter in letters:
        value = letter.value or b""
        raw = without_control(value) if is_terminal else value
        line = formatting.inert_json(json.dumps(letter.summary(), ensure_ascii=False)).encode() if form == "jsonl" else raw
        file.write(line + b"\n")
        count += 1
    file.flush()
    return count


@click.command("redrive")
@options.pipeline_option
@click.option("--window", "starts", type=options.Instant(), multiple=True, help="Start of a window; may be repeated.")
@options.since_option
@options.until_option
@options.execute_option
@options.client_config_option
@options.warehouse_option
@options.json_option
def redrive_command(
    pipeline_name: str,
    starts: Sequence[datetime],
    since: datetime | None,
    until: datetime | None,
    is_executed: bool,
    client_config: Path | None,
    warehouse_url: str,
    as_json: bool,
) -> None:
    """Parse the dead letters of loaded windows again, with the parser and the settings that the pipeline has now."""
    if starts and (since or until):
        raise click.UsageError("name windows by --window, or a span by --since and --until; not both")
    ledger = options.open_ledger(warehouse_url)
    pipeline = ledger.pipeline(pipeline_name)
    windows = windows_to_redrive(ledger.engine, pipeline, since, until)
    if starts:
        windows = [window for window in windows if window.interval.start in starts]
    redrive = Redrive(
        engine=ledger.engine,
        pipeline=pipeline,
        parser=parser_of(ledger.engine, pipeline, windows, read_client_config(client_config) if client_config else {}),
        run_id="command line",
        now=options.clock,
    )
    redrive.refuse_other_sinks()
    act = redrive.run if is_executed else redrive.plan
    outcomes = [act(window) for window in windows]
    if as_json:
        output.show_json({"executed": is_executed, "windows": [outcome.summary() for outcome in outcomes]})
    else:
        tell_redriven(outcomes, is_executed)


def tell_redriven(outcomes: Sequence[Redriven], executed: bool) -> None:
    if not outcomes:
        output.echo("these windows have no dead letters")
        return
    table = output.Table("window", "dead letters", "loaded" if executed else "would load", "stay", "why")
    for outcome in outcomes:
        why = ", ".join(f"{name} {count}" for name, count in sorted(outcome.errors.items(), key=lambda error: -error[1]))
        numbers = map(str, (outcome.tried, outcome.loaded, outcome.dead_lettered))
        table.add_row(model.instant_text(outcome.start), *numbers, why or "-")
    output.show(table)
    if not executed:
        output.echo_err("dry run: nothing was changed; --execute does it; audit the windows afterwards (logbus window audit)")
