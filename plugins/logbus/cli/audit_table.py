"""`logbus audit-table`: which records of a topic are missing from a table that others load, and which it has twice."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

import click

from logbus import errors, model
from logbus.cli import completion, options, output
from logbus.kafka import client, topics
from logbus.loads import engine, foreign_table, table_audit

COLOURS = {table_audit.EXACT: "green", table_audit.WRONG: "red", table_audit.UNKNOWN: "yellow"}


@click.command("audit-table")
@click.argument("table_name", metavar="TABLE")
@click.option("--topic", required=True, metavar="NAME", help="The topic.", shell_complete=completion.complete_topics)
@click.option("--shared", "is_shared", is_flag=True, help="The table holds other topics too: their rows are not foreign.")
@click.option("--topic-column", metavar="NAME", help="The column with the topic, if there is one.")
@click.option("--partition-column", metavar="NAME", help="The column with the partition; a dot leads into a struct.")
@click.option("--offset-column", metavar="NAME", help="The column with the offset.")
@click.option("--timestamp-column", metavar="NAME", help="The column with the record's time: foreign rows count in its hour.")
@click.option(
    "--database",
    "database_url",
    metavar="URL",
    callback=options.without_password,
    help="The PostgreSQL that holds the table; by default the warehouse.",
)
@click.option("--catalog", metavar="NAME", help="For an Iceberg table: its catalog in pyiceberg's configuration.")
@options.since_option
@options.until_option
@options.warehouse_if_named_option
@options.with_client
@options.json_option
def command(
    table_name: str,
    topic: str,
    is_shared: bool,
    topic_column: str | None,
    partition_column: str | None,
    offset_column: str | None,
    timestamp_column: str | None,
    database_url: str | None,
    catalog: str | None,
    since: datetime | None,
    until: datetime | None,
    warehouse_url: str | None,
    config: Mapping[str, Any],
    as_json: bool,
) -> None:
    """Compare a TABLE that others load with its topic, hour by hour; status 5 if records are missing, doubled or foreign.

    The table needs columns with each record's partition and offset; nothing in it is changed, and no pipeline is needed.
    Only offsets that it lacks are read from the log. With --warehouse the result is kept there, for pages and metrics.
    """
    columns = foreign_table.Columns(
        topic=topic_column, partition=partition_column, offset=offset_column, timestamp=timestamp_column
    )
    log = topics.Topics(client.Client.for_command(config))
    with opened(table_name, database_url or warehouse_url, catalog, columns) as table:
        report = table_audit.audit_table(log, table, topic, options.clock(), since=since, until=until, is_shared=is_shared)
    if warehouse_url:
        table_audit.record_report(options.open_ledger(warehouse_url).engine, report, options.clock())
    if as_json:
        output.show_json(report.summary())
    else:
        show(report)
    if not report.ok:
        raise errors.AuditMismatch(report.failure())


def opened(
    table_name: str, url: str | None, catalog: str | None, columns: foreign_table.Columns
) -> AbstractContextManager[foreign_table.ForeignTable]:
    if catalog is not None:
        return foreign_table.iceberg_table(catalog, table_name, columns)
    if url is None:
        raise click.UsageError("name where the table is: --database or --warehouse (PostgreSQL), or --catalog (Iceberg)")
    return foreign_table.postgres_table(engine.connect(url), table_name, columns)


def show(report: table_audit.TableReport) -> None:
    """A row for each hour that has records, then what is remarkable."""
    have_times = any(hour.foreign is not None for hour in report.hours)
    heads = ("RECORDS", "ROWS", "MISSING", "DOUBLED", *(["FOREIGN"] if have_times else []))
    table = output.Table("HOUR", "VERDICT", *heads, numbers_from=2)
    for hour in report.hours:
        counts = (hour.records, hour.rows, hour.missing.count, hour.doubled.count, hour.foreign)
        verdict = output.Coloured(hour.verdict, COLOURS[hour.verdict])
        table.add_row(model.instant_text(hour.start), verdict, *(f"{count:,}" for count in counts if count is not None))
    if report.hours:
        output.show(table)
    else:
        output.echo(f"no closed hour of topic {report.topic} has records in this span")
    output.echo(*(f"{model.instant_text(hour.start)} {remark}" for hour in report.hours for remark in hour.remarks()))
    output.echo(*report.problems, *(f"note: {note}" for note in report.notes))
