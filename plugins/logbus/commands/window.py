"""`logbus window`: what the ledger knows about frozen windows."""

from __future__ import annotations

import json
from datetime import datetime

import click
from rich.console import Console
from rich.table import Table

from logbus.commands import options
from logbus.warehouse.engine import connect
from logbus.windows.ledger import Ledger
from logbus.windows.migrations import create_ledger
from logbus.windows.model import FrozenWindow, WindowCounts, instant_text


@click.group("window")
def command() -> None:
    """Frozen windows: which offsets belong to which hour, and what became of them."""


@command.command("ls")
@options.pipeline_option
@options.since_option
@options.until_option
@options.warehouse_option
@options.json_option
def list_windows(pipeline_name: str, since: datetime | None, until: datetime | None, warehouse_url: str, as_json: bool) -> None:
    """List the windows of a pipeline."""
    windows = open_ledger(warehouse_url).windows(pipeline_name, since, until)
    if as_json:
        click.echo(json.dumps([window.summary() for window in windows]))
    else:
        Console().print(windows_table(windows))


@command.command("show")
@options.pipeline_option
@options.warehouse_option
@click.argument("start", type=options.Instant())
def show(pipeline_name: str, warehouse_url: str, start: datetime) -> None:
    """Show everything about the window that begins at START, as JSON."""
    window = open_ledger(warehouse_url).window(pipeline_name, start)
    click.echo(json.dumps(window.summary(), indent=2))


def open_ledger(warehouse_url: str) -> Ledger:
    engine = connect(warehouse_url)
    create_ledger(engine)
    return Ledger(engine)


def windows_table(windows: list[FrozenWindow]) -> Table:
    table = Table("window", "state", "records", "read", "loaded", "dead-lettered", "attempt", "fingerprint")
    for window in windows:
        counts = window.counts or WindowCounts()
        loaded = (counts.read, counts.loaded, counts.dead_lettered) if window.counts else ("-", "-", "-")
        table.add_row(
            instant_text(window.interval.start),
            str(window.state),
            str(window.record_count),
            *map(str, loaded),
            str(window.loaded_attempt or "-"),
            window.fingerprint or "-",
        )
    return table
