"""`logbus window`: what the ledger records about windows, and whether it is still true."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import click

from logbus.commands import losses, options, output, window_views
from logbus.commands.progress import ProgressView
from logbus.errors import AuditMismatch
from logbus.exit_codes import ExitCode
from logbus.kafka.client import Client
from logbus.kafka.exact_reader import read_range
from logbus.kafka.topics import Topics
from logbus.ledger import trouble
from logbus.ledger.ledger import Ledger
from logbus.ledger.missing import behind, empty
from logbus.model import OffsetRange, Pipeline, instant_text, parse_instant
from logbus.proof import comparison
from logbus.proof.audit import audit_window
from logbus.proof.comparison import WindowReading
from logbus.proof.history import WindowHistory, window_history
from logbus.warehouse.sinks import each_sink_once
from logbus.wording import many


@click.group("window")
def command() -> None:
    """Frozen windows: which offsets belong to which hour, and what became of them."""


command.add_command(losses.accept_loss)


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
    gaps = view.gaps(pipeline, since, None if until is None else until + pipeline.interval)
    note = view.note
    with ledger.engine.connect() as connection:
        failed = {start: error for start, _, error in trouble.failed_attempts(connection, pipeline_name)}
    if as_json:
        found = [{**window.summary(), "failure": failed.get(window.interval.start)} for window in windows]
        shown = {"windows": found, "gaps": [gap.summary() for gap in gaps]}
        known = {"behind": behind(gaps), "empty": empty(gaps)} if note is None else {"behind": None, "empty": None}
        output.show_json({**shown, **known, "note": note})
        view.raise_unreachable()
        return
    output.show(window_views.windows_table(pipeline, windows, gaps, failed))
    if note is None:
        output.tell(window_views.behind_text(pipeline, gaps, is_span=since is not None or until is not None))
    view.raise_unreachable()
    if note:
        output.say(f"note: {note}")


@command.command("show")
@options.pipeline_option
@options.warehouse_option
@options.json_option
@click.argument("start", type=options.Instant())
def show(pipeline_name: str, warehouse_url: str, as_json: bool, start: datetime) -> None:
    """Show everything about the window that begins at START: ranges, counts, attempts, dead letters."""
    found = window_history(options.open_ledger(warehouse_url).engine, pipeline_name, start)
    if as_json:
        output.show_json(found.summary(), indent=2)
        return
    output.tell(*window_views.history_lines(found))
    output.show(window_views.ranges_table(found))
    if found.attempts:
        output.show(window_views.attempts_table(found.attempts))
    output.tell(*window_views.failure_lines(found))


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
    found = [window_history(engine, *place(name, pipeline_name)) for name in windows]
    if attempts:
        left, right = (comparison.attempt_reading(found[0], number) for number in attempts)
    elif against:
        pipeline = Ledger(engine).pipeline(found[0].window.pipeline)
        left = comparison.loaded_reading(found[0])
        right = broker_reading(found[0], pipeline, config)
    else:
        left, right = (comparison.loaded_reading(history) for history in found)
    tell_differences(left, right, as_json)


def place(name: str, pipeline_name: str) -> tuple[str, datetime]:
    """`START` of the --pipeline, or `PIPELINE@START`."""
    pipeline, _, start = name.rpartition("@")
    try:
        return pipeline or pipeline_name, parse_instant(start)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def broker_reading(found: WindowHistory, pipeline: Pipeline, client_config: Mapping[str, Any]) -> WindowReading:
    def read(part: OffsetRange) -> Iterable[comparison.ComparedRecord]:
        places = (part.topic, part.partition, part.start_offset, part.end_offset)
        found = read_range(client_config, *places, isolation_level=pipeline.isolation_level, say=output.say)
        return output.tracked(found, f"reading {part.topic}-{part.partition}", part.count)

    return comparison.broker_reading(found.window, Topics(Client.of_a_command(client_config)), read)


def tell_differences(left: WindowReading, right: WindowReading, as_json: bool) -> None:
    differences = comparison.compare(left, right)
    if as_json:
        rows = [{"what": found.what, "left": found.left, "right": found.right} for found in differences]
        output.show_json({"left": left.name, "right": right.name, "same": not differences, "differences": rows})
    elif differences:
        output.show(window_views.differences_table(left, right, differences))
    else:
        output.tell(f"the same {many(left.read, 'record')}, fingerprint {left.fingerprint}")
    if differences:
        click.get_current_context().exit(ExitCode.NOT_AS_IT_SHOULD_BE)


@command.command("audit")
@options.pipeline_option
@options.warehouse_option
@options.with_client
@options.json_option
@click.argument("starts", type=options.Instant(), nargs=-1, required=True)
def audit(pipeline_name: str, warehouse_url: str, config: Mapping[str, Any], as_json: bool, starts: tuple[datetime, ...]) -> None:
    """Count the windows that begin at STARTS again, in the target and at the broker; status 5 unless all are exact."""
    ledger, log = options.open_ledger(warehouse_url), Topics(Client.of_a_command(config))
    sinks, tracked = each_sink_once(), output.tracked(starts, "auditing", len(starts))
    reports = [audit_window(ledger.engine, log, pipeline_name, start, options.clock(), sinks) for start in tracked]
    if as_json:
        output.show_json([report.summary() for report in reports])
    for report in reports if not as_json else ():
        output.tell(f"{instant_text(report.window.interval.start)} {report.verdict}")
        for note in report.notes:
            output.tell(f"  note: {note}")
    if wrong := [report for report in reports if not report.ok]:
        raise AuditMismatch(f"{len(wrong)} of {len(reports)} windows are not exact")
