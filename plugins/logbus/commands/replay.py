"""`logbus replay`: load windows again, from the same records; `plan` says before what that would do."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from logbus import spark_submit
from logbus.commands import options, output
from logbus.commands.interrupting import raising
from logbus.commands.load import show_reports
from logbus.loading import Load, Loader
from logbus.windows import replay
from logbus.windows.log_offsets import LogOffsets
from logbus.windows.model import instant_text
from logbus.windows.replay import ReplayPlan, ReplayWindow, Span


@click.group("replay")
def command() -> None:
    """Load windows again, exactly the records that they hold; look at the plan first."""


def of_span(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that plan and run share."""
    shared = (
        options.json_option,
        options.client_config_option,
        options.bootstrap_option,
        options.warehouse_option,
        click.option("--window", "starts", type=options.Instant(), multiple=True, help="The start of a window; may be repeated."),
        click.option("--until", type=options.Instant(), help="Windows that begin before this instant."),
        click.option("--since", type=options.Instant(), help="Windows that end after this instant."),
        options.pipeline_option,
    )
    for option in shared:
        function = option(function)
    return function


@command.command("plan")
@of_span
def show_plan(
    pipeline_name: str,
    since: datetime | None,
    until: datetime | None,
    starts: tuple[datetime, ...],
    warehouse_url: str,
    bootstrap: str,
    client_config: Path | None,
    as_json: bool,
) -> None:
    """Show windows, records, bytes, whether they are still retained, rows to be replaced, and who is at work on them."""
    log = LogOffsets(options.client_config(bootstrap, client_config))
    span = Span(since=since, until=until, starts=starts)
    found = replay.plan(options.open_ledger(warehouse_url), log, pipeline_name, span, options.clock())
    if as_json:
        output.show_json(found.summary())
        return
    output.show(plan_table(found))
    for line in (*totals(found), *found.notes):
        click.echo(line)


@command.command("run")
@of_span
@click.option("--skip-lost", is_flag=True, help="Leave out windows of which retention has deleted records.")
@click.option(
    "--supersede", is_flag=True, help="Take over windows that another run is at work on; its attempts cannot commit then."
)
@click.option("--master", default=spark_submit.LOCAL_MASTER, show_default=True, help="Where Spark runs.")
def run(
    pipeline_name: str,
    since: datetime | None,
    until: datetime | None,
    starts: tuple[datetime, ...],
    warehouse_url: str,
    bootstrap: str,
    client_config: Path | None,
    as_json: bool,
    skip_lost: bool,
    supersede: bool,
    master: str,
) -> None:
    """Load the windows again with one Spark application, and audit each. All or nothing but for --skip-lost."""
    config = options.client_config(bootstrap, client_config)
    span = Span(since=since, until=until, starts=starts)
    found = replay.plan(options.open_ledger(warehouse_url), LogOffsets(config), pipeline_name, span, options.clock())
    chosen = found.starts(skip_lost=skip_lost, supersede=supersede)
    for line in (*totals(found), *found.notes):
        click.echo(line, err=True)
    loader = Loader(
        warehouse_url=warehouse_url, client_config=config, now=options.clock, say=lambda line: click.echo(line, err=True)
    )
    with raising():
        reports = loader.reload(Load(pipeline=pipeline_name, master=master, run_id="logbus replay"), chosen)
    show_reports(reports, as_json)


def plan_table(plan: ReplayPlan) -> Table:
    table = Table("window", "state", "records", "bytes", "rows replaced", "can be loaded again")
    for one in plan.windows:
        size = "-" if one.bytes is None else str(one.bytes)
        values = (str(one.window.state), str(one.window.record_count), size, str(one.rows_replaced))
        table.add_row(instant_text(one.start), *values, verdict(one))
    return table


def verdict(one: ReplayWindow) -> str:
    if one.lost:
        return f"no: deleted {', '.join(one.lost)}"
    return f"busy: {one.busy}" if one.busy else "yes"


def totals(plan: ReplayPlan) -> list[str]:
    summary = plan.summary()
    lost = f"; {summary['lost_windows']} windows are lost" if summary["lost_windows"] else ""
    count = len(plan.windows) - summary["lost_windows"]
    return [f"{count} windows, {summary['records']} records, {summary['rows_replaced']} rows to be replaced{lost}"]
