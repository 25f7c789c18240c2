"""`logbus audit-table`: which records of a topic are missing from a table that others load, and which it has twice; `logbus
query`: SQL over the Iceberg tables of pipelines, with DuckDB.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

import click
from sqlalchemy import URL, Engine

from logbus import errors, model
from logbus.cli import options, output
from logbus.kafka import client, topics
from logbus.loads import engine, table_audit, target
from logbus.loads.engine import connect
from logbus.loads.ledger import Ledger
from logbus.windows.migrations import create_ledger
from logbus.windows.table_names import parse_table

COLOURS = {table_audit.EXACT: "green", table_audit.WRONG: "red", table_audit.UNKNOWN: "yellow"}


@click.command("audit-table")
@click.argument("table_name", metavar="TABLE")
@click.option("--topic", required=True, metavar="NAME", help="The topic.", shell_complete=options.complete_topics)
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
def audit_table_command(
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
    columns = target.Columns(topic=topic_column, partition=partition_column, offset=offset_column, timestamp=timestamp_column)
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
    table_name: str, url: str | None, catalog: str | None, columns: target.Columns
) -> AbstractContextManager[target.ForeignTable]:
    if catalog is not None:
        return target.iceberg_table(catalog, table_name, columns)
    if url is None:
        raise click.UsageError("name where the table is: --database or --warehouse (PostgreSQL), or --catalog (Iceberg)")
    return target.postgres_table(engine.connect(url), table_name, columns)


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


# `logbus query`: SQL over the Iceberg tables of pipelines, with DuckDB.


NO_TABLE = re.compile(r"Table with name (\S+) does not exist")


@click.command("query")
@click.argument("statement")
@options.warehouse_option
@options.json_option
def query_command(statement: str, warehouse_url: str, as_json: bool) -> None:
    """Run the SQL STATEMENT over the Iceberg tables of pipelines. It sees each window as a whole, or not at all."""
    import duckdb

    from logbus.loads.sinks.iceberg_table import query

    engine = connect(warehouse_url)
    create_ledger(engine)
    pipelines = Ledger(engine).pipelines()
    with duckdb.connect() as connection:
        try:
            # Only of tables that the statement names: planning a scan reads a table's manifests.
            names = {name.casefold() for name in connection.get_table_names(statement)}
            for pipeline in pipelines:
                if pipeline.options.sink == "iceberg" and parse_table(pipeline.table).name.casefold() in names:
                    make_view(connection, pipeline, engine)
            columns, rows = query(connection, statement)
        except duckdb.Error as error:
            missing = NO_TABLE.search(str(error))
            why = str(error) if missing is None else why_no_table(missing[1], pipelines, psql_command(engine.url, statement))
            raise errors.UserError(f"the query failed: {why}") from None
    if as_json:
        output.show_json([dict(zip(columns, map(shown, row), strict=True)) for row in rows])
    else:
        output.show(to_table(columns, rows))


def why_no_table(name: str, pipelines: Sequence[model.Pipeline], psql: str) -> str:
    """What DuckDB cannot know about a table that it does not have. `psql`: the command that asks PostgreSQL instead."""
    for pipeline in pipelines:
        if parse_table(pipeline.table).name.casefold() != name.casefold():
            continue
        if pipeline.options.sink == "iceberg":
            return f"no window of pipeline {pipeline.name} is loaded yet, so {pipeline.table} does not exist"
        return f"{pipeline.table} of pipeline {pipeline.name} is a table in PostgreSQL: {psql}"
    readable = [pipeline.table for pipeline in pipelines if pipeline.options.sink == "iceberg"]
    return f"there is no table {name}; the Iceberg tables are {', '.join(readable) or 'none'}"


def psql_command(url: URL, statement: str) -> str:
    """Without a password: psql asks for it."""
    plain = url.set(drivername="postgresql", password=None).difference_update_query(["password"])
    return f"psql {shlex.quote(plain.render_as_string())} -c {shlex.quote(statement)}"


def make_view(connection: Any, pipeline: model.Pipeline, engine: Engine) -> None:
    """Does nothing if no window was ever loaded."""
    from logbus.loads.sinks.iceberg_table import create_view, find_table, open_catalog

    table = find_table(open_catalog(pipeline, engine), pipeline)
    if table is not None:
        create_view(connection, table, parse_table(pipeline.table).name)


def to_table(names: list[str], rows: list[tuple[Any, ...]]) -> output.Table:
    table = output.Table(*names)
    for row in rows:
        table.add_row(*("" if value is None else str(shown(value)) for value in row))
    return table


def shown(value: Any) -> Any:
    """A value in a form that suits JSON and people."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return model.instant_text(value)
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return value if isinstance(value, str | int | float | bool | None) else str(value)
