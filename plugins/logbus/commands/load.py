"""`logbus load`: the closed hours of a pipeline into the warehouse, exactly once, and the proof beside it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click
from rich.table import Table

from logbus import spark_submit
from logbus.commands import options, output
from logbus.commands.interrupting import raising
from logbus.errors import AuditMismatch
from logbus.loading import Load, Loader
from logbus.windows.model import AuditReport, WindowCounts, instant_text


@click.command("load")
@options.pipeline_option
@options.since_option
@options.until_option
@options.warehouse_option
@options.bootstrap_option
@options.client_config_option
@options.json_option
@click.option("--limit", type=click.IntRange(min=1), help="At most this many windows.")
@click.option("--only-missing", is_flag=True, help="Leave windows alone that are loaded already.")
@click.option("--master", default=spark_submit.LOCAL_MASTER, show_default=True, help="Where Spark runs.")
def command(
    pipeline_name: str,
    since: datetime | None,
    until: datetime | None,
    warehouse_url: str,
    bootstrap: str,
    client_config: Path | None,
    as_json: bool,
    limit: int | None,
    only_missing: bool,
    master: str,
) -> None:
    """Freeze the closed hours of a pipeline, load them in one Spark application, audit each."""
    loader = Loader(
        warehouse_url=warehouse_url,
        client_config=options.client_config(bootstrap, client_config),
        now=options.clock,
        say=lambda line: click.echo(line, err=True),
    )
    load = Load(pipeline=pipeline_name, since=since, until=until, limit=limit, only_missing=only_missing, master=master)
    with raising():
        reports = loader.load(load)
    show_reports(reports, as_json)


def show_reports(reports: list[AuditReport], as_json: bool) -> None:
    """Prints the audits; `AuditMismatch` where one is not exact."""
    if as_json:
        output.show_json([report.summary() for report in reports])
    else:
        output.show(report_table(reports))
    for report in reports:
        for note in report.notes:
            output.say(f"note: {instant_text(report.window.interval.start)}: {note}")
    wrong = [report for report in reports if not report.ok]
    if wrong:
        raise AuditMismatch(f"{len(wrong)} of {len(reports)} windows are not exact; the first: {'; '.join(wrong[0].problems)}")


def report_table(reports: list[AuditReport]) -> Table:
    """A line for each window: hour, read, loaded, dead-lettered, audited."""
    table = Table("window", "read", "loaded", "dead-lettered", "fingerprint", "audited")
    for report in reports:
        counts = report.window.counts or WindowCounts()
        table.add_row(
            instant_text(report.window.interval.start),
            str(counts.read),
            str(counts.loaded),
            str(counts.dead_lettered),
            report.window.fingerprint or "-",
            "exact" if report.ok else "; ".join(report.problems),
        )
    return table
