"""Parquet tables in DuckDB: views over exactly the files that are public.

    import duckdb
    from logbus.warehouse.duckdb_view import create_view

    with duckdb.connect() as connection:
        create_view(connection, "/data/logs/access_log")
        connection.sql("select status, count(*) from access_log group by all").show()

The files are taken from the manifests when the view is created, so every query through it sees the same windows, each
complete; create it again to see what was loaded since. Files that a reload replaced stay on disk for a day.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logbus.errors import UserError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


def public_files(directory: Path) -> list[str]:
    """The current files of all windows of a table, and the file without rows that has every column."""
    manifests = sorted((directory / "_manifests").glob("*.json"))
    if not manifests:
        raise UserError(f"{directory} is not a table of Parquet files that logbus has loaded: it has no manifests")
    return [str(directory / name) for path in manifests for name in json.loads(path.read_text())["files"]]


def create_view(connection: DuckDBPyConnection, directory: str | Path, name: str | None = None) -> str:
    """Creates or replaces the temporary view, by default named after the directory. Returns its name."""
    place = Path(directory)
    view = name or place.name.rpartition(".")[2]
    files = ", ".join("'" + file.replace("'", "''") + "'" for file in public_files(place))
    quoted = '"' + view.replace('"', '""') + '"'
    connection.execute(
        f"create or replace temp view {quoted} as "
        f"select * from read_parquet([{files}], union_by_name = true, hive_partitioning = false)"
    )
    return view


def query(connection: DuckDBPyConnection, statement: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Column names and rows. Fetched as Arrow: DuckDB's own rows need another library for instants."""
    found = connection.sql(statement)
    if found is None:
        return [], []
    table = found.to_arrow_table()
    columns = [column.to_pylist() for column in table.columns]
    return list(table.column_names), list(zip(*columns, strict=True)) if columns else []
