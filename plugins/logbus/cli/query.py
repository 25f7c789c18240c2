"""`logbus query`: SQL over the Iceberg tables of pipelines, with DuckDB."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click
from sqlalchemy import URL, Engine

from logbus import errors, model
from logbus.cli import options, output
from logbus.loads.engine import connect
from logbus.loads.ledger import Ledger
from logbus.windows.migrations import create_ledger
from logbus.windows.table_names import parse_table

NO_TABLE = re.compile(r"Table with name (\S+) does not exist")


@click.command("query")
@click.argument("statement")
@options.warehouse_option
@options.json_option
def command(statement: str, warehouse_url: str, as_json: bool) -> None:
    """Run the SQL STATEMENT over the Iceberg tables of pipelines. It sees each window as a whole, or not at all."""
    import duckdb

    from logbus.loads.duckdb_views import query

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
    from logbus.loads.duckdb_views import create_view
    from logbus.loads.sinks.iceberg_table import find_table, open_catalog

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
