"""`logbus window`: what the ledger records about windows, and whether it is still true."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import click

from logbus import errors, formatting, model
from logbus.cli import options, output, window_views
from logbus.cli.pipeline import ProgressView
from logbus.kafka import client, exact_reader, topics
from logbus.loads import history as comparison
from logbus.loads.audit import audit_window
from logbus.loads.history import WindowHistory, WindowReading, window_history
from logbus.loads.ledger import Ledger
from logbus.loads.sinks import each_sink_once
from logbus.status import ledger_checks
from logbus.windows import log_changes, missing, recovery


@click.group("window")
def command() -> None:
    """Frozen windows: which offsets belong to which hour, and what became of them."""


@command.command("ls")
@options.pipeline_option
@options.since_option
@options.until_option
@options.warehouse_option
@options.with_client
@options.json_option
def list_windows(
    pipeline_name: str,
    since: datetime | None,
    until: datetime | None,
    warehouse_url: str,
    config: Mapping[str, Any],
    as_json: bool,
) -> None:
    """List the windows of a pipeline, and the closed hours that are not frozen or not loaded.

    The broker says how far the log reaches; if it does not answer, only what the ledger itself shows is listed, with
    status 4.
    """
    ledger = options.open_ledger(warehouse_url)
    pipeline = ledger.pipeline(pipeline_name)
    windows = ledger.windows(pipeline_name, since, until)
    view = ProgressView(ledger, config)
    gaps = view.gaps(pipeline, since, None if until is None else pipeline.grid.after(until))
    note = view.note
    with ledger.engine.connect() as connection:
        failed = {start: error for start, _, error in ledger_checks.failed_attempts(connection, pipeline_name)}
    if as_json:
        summaries = [{**window.summary(), "failure": failed.get(window.interval.start)} for window in windows]
        shown = {"windows": summaries, "gaps": [gap.summary() for gap in gaps]}
        counts = (
            {"behind": missing.behind(gaps), "empty": missing.empty(gaps)} if note is None else {"behind": None, "empty": None}
        )
        output.show_json({**shown, **counts, "note": note})
        view.raise_unreachable()
        return
    output.show(window_views.windows_table(pipeline, windows, gaps, failed))
    if note is None:
        output.echo(window_views.behind_text(pipeline, gaps, is_span=since is not None or until is not None))
    view.raise_unreachable()
    if note:
        output.echo_err(f"note: {note}")


@command.command("show")
@options.pipeline_option
@options.warehouse_option
@options.json_option
@click.argument("start", type=options.Instant())
def show(pipeline_name: str, warehouse_url: str, as_json: bool, start: datetime) -> None:
    """Show everything about the window that begins at START: ranges, counts, attempts, dead letters."""
    history = window_history(options.open_ledger(warehouse_url).engine, pipeline_name, start)
    if as_json:
        output.show_json(history.summary(), indent=2)
        return
    output.echo(*window_views.history_lines(history))
    output.show(window_views.ranges_table(history))
    if history.attempts:
        output.show(window_views.attempts_table(history.attempts))
    output.echo(*window_views.failure_lines(history))


@command.command("diff")
@options.pipeline_option
@options.warehouse_option
@options.with_client
@options.json_option
@click.option("--attempts", type=(int, int), help="Compare two attempts at the one window named.")
@click.option("--against", type=click.Choice(["broker"]), help="Compare the one window named with the broker.")
@click.argument("windows", nargs=-1, required=True, metavar="[PIPELINE@]START...")
def diff(
    pipeline_name: str,
    warehouse_url: str,
    config: Mapping[str, Any],
    as_json: bool,
    attempts: tuple[int, int] | None,
    against: str | None,
    windows: tuple[str, ...],
) -> None:
    """Compare two windows, two attempts at one window, or a window and the broker as it is now. Status 5 if they differ."""
    engine = options.open_ledger(warehouse_url).engine
    if len(windows) != 1 + (attempts is None and against is None) or (attempts and against):
        raise click.UsageError("name two windows, or one with --attempts N M, or one with --against broker")
    histories = [window_history(engine, *place(name, pipeline_name)) for name in windows]
    if attempts:
        left, right = (comparison.attempt_reading(histories[0], number) for number in attempts)
    elif against:
        pipeline = Ledger(engine).pipeline(histories[0].window.pipeline)
        left = comparison.loaded_reading(histories[0])
        right = broker_reading(histories[0], pipeline, config)
    else:
        left, right = (comparison.loaded_reading(history) for history in histories)
    tell_differences(left, right, as_json)


def place(name: str, pipeline_name: str) -> tuple[str, datetime]:
    """`START` of the --pipeline, or `PIPELINE@START`."""
    pipeline, _, start = name.rpartition("@")
    try:
        return pipeline or pipeline_name, model.parse_instant(start)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def broker_reading(history: WindowHistory, pipeline: model.Pipeline, client_config: Mapping[str, Any]) -> WindowReading:
    def read(part: model.OffsetRange) -> Iterable[comparison.ComparedRecord]:
        places = (part.topic, part.partition, part.start_offset, part.end_offset)
        records = exact_reader.read_range(client_config, *places, isolation_level=pipeline.isolation_level, say=output.echo_err)
        return output.tracked(records, f"reading {part.topic}-{part.partition}", part.count)

    return comparison.broker_reading(history.window, topics.Topics(client.Client.for_command(client_config)), read)


def tell_differences(left: WindowReading, right: WindowReading, as_json: bool) -> None:
    differences = comparison.compare(left, right)
    if as_json:
        rows = [{"what": difference.what, "left": difference.left, "right": difference.right} for difference in differences]
        output.show_json({"left": left.name, "right": right.name, "same": not differences, "differences": rows})
    elif differences:
        output.show(window_views.differences_table(left, right, differences))
    else:
        output.echo(f"the same {formatting.many(left.read, 'record')}, fingerprint {left.fingerprint}")
    if differences:
        click.get_current_context().exit(errors.ExitCode.CHECK_FAILED)


@command.command("audit")
@options.pipeline_option
@options.warehouse_option
@options.with_client
@options.json_option
@click.argument("starts", type=options.Instant(), nargs=-1, required=True)
def audit(pipeline_name: str, warehouse_url: str, config: Mapping[str, Any], as_json: bool, starts: tuple[datetime, ...]) -> None:
    """Count the windows that begin at STARTS again, in the target and at the broker; status 5 unless all are exact."""
    ledger, log = options.open_ledger(warehouse_url), topics.Topics(client.Client.for_command(config))
    sinks, tracked = each_sink_once(), output.tracked(starts, "auditing", len(starts))
    reports = [audit_window(ledger.engine, log, pipeline_name, start, options.clock(), sinks) for start in tracked]
    if as_json:
        output.show_json([report.summary() for report in reports])
    for report in reports if not as_json else ():
        output.echo(f"{model.instant_text(report.window.interval.start)} {report.verdict}")
        for note in report.notes:
            output.echo(f"  note: {note}")
    if wrong := [report for report in reports if not report.ok]:
        raise errors.AuditMismatch(f"{len(wrong)} of {len(reports)} windows are not exact")


@command.command("accept-loss")
@options.pipeline_option
@click.argument("starts", type=options.Instant(), nargs=-1, required=True)
@click.option("--reason", required=True, help="Why it is accepted; kept with the window, and shown forever.")
@click.option("--by", help="Who accepts it; by default the user and machine this runs as.")
@options.warehouse_option
@options.with_client
def accept_loss(
    pipeline_name: str, starts: Sequence[datetime], reason: str, by: str | None, warehouse_url: str, config: Mapping[str, Any]
) -> None:
    """Accept that records are missing from the windows that begin at STARTS: what is left can then be loaded and audited.

    They are never called exact: every audit says who accepted the loss, when and why.
    """
    ledger, log = options.open_ledger(warehouse_url), topics.Topics(client.Client.for_command(config))
    grid = ledger.pipeline(pipeline_name).grid
    who = by or f"{getpass.getuser()}@{socket.gethostname()}"
    for start in starts:
        frozen = ledger.windows(pipeline_name, start, start)
        interval = frozen[0].interval if frozen else grid.window(start)
        window = recovery.accept_loss(ledger.engine, pipeline_name, interval, log, options.clock(), by=who, reason=reason)
        left = formatting.many(window.record_count, "record")
        output.echo(f"{model.instant_text(start)} {left} left; loss accepted {log_changes.loss_text(window.loss_accepted or {})}")
