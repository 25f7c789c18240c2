"""`logbus query`: SQL over the Parquet tables of pipelines, with DuckDB."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from logbus.commands import options, output
from logbus.errors import UserError
from logbus.ledger.ledger import Ledger
from logbus.ledger.migrations import create_ledger
from logbus.model import Pipeline, instant_text
from logbus.warehouse.duckdb_view import create_view, query
from logbus.warehouse.engine import connect
from logbus.warehouse.sinks.parquet import table_directory


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
    with duckdb.connect() as connection:
        for pipeline in Ledger(engine).pipelines():
            if pipeline.options.sink == "parquet":
                make_view(connection, pipeline)
        try:
            names, rows = query(connection, statement)
        except duckdb.Error as error:
            raise UserError(f"the query failed: {error}") from None
    if as_json:
        output.show_json([dict(zip(names, map(shown, row), strict=True)) for row in rows])
    else:
        output.show(to_table(names, rows))


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
