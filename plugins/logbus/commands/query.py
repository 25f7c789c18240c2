"""`logbus query`: SQL over the Parquet tables of pipelines, with DuckDB."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click
from sqlalchemy import URL

from logbus.commands import options, output
from logbus.errors import UserError
from logbus.ledger.ledger import Ledger
from logbus.ledger.migrations import create_ledger
from logbus.ledger.table_names import parse_table
from logbus.model import Pipeline, instant_text
from logbus.warehouse.duckdb_view import create_view, query
from logbus.warehouse.engine import connect
from logbus.warehouse.sinks.parquet import table_directory

NO_TABLE = re.compile(r"Table with name (\S+) does not exist")


@click.command("query")
@click.argument("statement")
@options.warehouse_option
@options.json_option
def command(statement: str, warehouse_url: str, as_json: bool) -> None:
    """Run the SQL STATEMENT over the tables of all pipelines whose sink is parquet. Each window is seen whole, or not at all."""
    try:
        import duckdb
    except ModuleNotFoundError:
        raise UserError("queries need duckdb, which is not installed: pip install 'logbus[duckdb]'") from None
    engine = connect(warehouse_url)
    create_ledger(engine)
    pipelines = Ledger(engine).pipelines()
    with duckdb.connect() as connection:
        for pipeline in pipelines:
            if pipeline.options.sink == "parquet":
                make_view(connection, pipeline)
        try:
            names, rows = query(connection, statement)
        except duckdb.Error as error:
            missing = NO_TABLE.search(str(error))
            why = str(error) if missing is None else why_no_table(missing[1], pipelines, psql_command(engine.url, statement))
            raise UserError(f"the query failed: {why}") from None
    if as_json:
        output.show_json([dict(zip(names, map(shown, row), strict=True)) for row in rows])
    else:
        output.show(to_table(names, rows))


def why_no_table(name: str, pipelines: Sequence[Pipeline], psql: str) -> str:
    """What DuckDB cannot know about a table that it does not have. `psql`: the command that asks PostgreSQL instead."""
    for pipeline in pipelines:
        sink = pipeline.options.sink
        if parse_table(pipeline.table).name.casefold() != name.casefold():
            continue
        if sink == "parquet":
            return f"no window of pipeline {pipeline.name} is loaded yet, so {pipeline.table} has no files"
        advice = psql if sink == "postgres" else "pyiceberg or Spark reads it"
        return (
            f"{pipeline.table} of pipeline {pipeline.name} is of the sink {sink}, and this command reads Parquet files: {advice}"
        )
    readable = [one.table for one in pipelines if one.options.sink == "parquet"]
    return f"there is no table {name}; those in Parquet files are {', '.join(readable) or 'none'}"


def psql_command(url: URL, statement: str) -> str:
    """Without a password: psql asks for it."""
    plain = url.set(drivername="postgresql", password=None).difference_update_query(["password"])
    return f"psql {shlex.quote(plain.render_as_string())} -c {shlex.quote(statement)}"


def make_view(connection: Any, pipeline: Pipeline) -> None:
    """Does nothing if no window was ever loaded."""
    directory = table_directory(pipeline.options.directory, pipeline.name, pipeline.table)
    if (directory / "_manifests").is_dir():
        create_view(connection, directory)


def to_table(names: list[str], rows: list[tuple[Any, ...]]) -> output.Table:
    table = output.Table(*names)
    for row in rows:
        table.add_row(*("" if value is None else str(shown(value)) for value in row))
    return table


def shown(value: Any) -> Any:
    """A value in a form that suits JSON and people."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return instant_text(value)
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return value if isinstance(value, str | int | float | bool | None) else str(value)
