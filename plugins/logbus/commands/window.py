"""`logbus window`: what the ledger knows about frozen windows."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from logbus.commands import options
from logbus.errors import AuditMismatch
from logbus.warehouse.sinks import sink_for
from logbus.windows.audit import audit_window
from logbus.windows.log_offsets import LogOffsets
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
    windows = options.open_ledger(warehouse_url).windows(pipeline_name, since, until)
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
    window = options.open_ledger(warehouse_url).window(pipeline_name, start)
    click.echo(json.dumps(window.summary(), indent=2))


@command.command("audit")
@options.pipeline_option
@options.warehouse_option
@options.bootstrap_option
@options.client_config_option
@options.json_option
@click.argument("starts", type=options.Instant(), nargs=-1, required=True)
def audit(
    pipeline_name: str,
    warehouse_url: str,
    bootstrap: str,
    client_config: Path | None,
    as_json: bool,
    starts: tuple[datetime, ...],
) -> None:
    """Count the windows that begin at STARTS again, in the target and at the broker; status 1 unless all are exact."""
    ledger, log = options.open_ledger(warehouse_url), LogOffsets(options.client_config(bootstrap, client_config))
    reports = [audit_window(ledger.engine, log, pipeline_name, start, options.clock(), sink_for) for start in starts]
    if as_json:
        click.echo(json.dumps([report.summary() for report in reports]))
    for report in reports if not as_json else ():
        click.echo(f"{instant_text(report.window.interval.start)} {'exact' if report.ok else '; '.join(report.problems)}")
    if wrong := [report for report in reports if not report.ok]:
        raise AuditMismatch(f"{len(wrong)} of {len(reports)} windows are not exact")


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
