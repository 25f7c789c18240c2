"""Iceberg tables in DuckDB: views over exactly the files of a table's current snapshot.

    import duckdb
    from logbus.loads.duckdb_views import create_view

    with duckdb.connect() as connection:
        create_view(connection, table, "access_log")        # a pyiceberg Table
        connection.sql("select status, count(*) from access_log group by all").show()

pyiceberg plans the scan, DuckDB reads the files. So every query through a view sees the same windows, each complete; create it
again to see what was loaded since.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pyiceberg import types
from pyiceberg.table import FileScanTask, Table

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

TYPES: dict[types.IcebergType, str] = {
    types.StringType(): "VARCHAR",
    types.IntegerType(): "INTEGER",
    types.LongType(): "BIGINT",
    types.FloatType(): "FLOAT",
    types.DoubleType(): "DOUBLE",
    types.BooleanType(): "BOOLEAN",
    types.TimestamptzType(): "TIMESTAMPTZ",
    types.BinaryType(): "BLOB",
}
NAME_MAPPING_PROPERTY = "schema.name-mapping.default"  # set where files without field ids were added to a table


def create_view(connection: DuckDBPyConnection, table: Table, name: str) -> None:
    """Creates or replaces the temporary view."""
    scan = table.scan()
    tasks = list(scan.plan_files())
    if not _can_read_files(table, tasks):
        connection.register(name, scan.to_arrow())
        return
    files = ", ".join(literal(urlsplit(task.file.file_path).path) for task in tasks)
    # By field id, as Iceberg has it: a column that was renamed keeps its values, and one that was added since is null.
    columns = ", ".join(
        f"{field.field_id}: {{name: {literal(field.name)}, type: {literal(TYPES[field.field_type])}, default_value: NULL}}"
        for field in table.schema().fields
    )
    quoted = '"' + name.replace('"', '""') + '"'
    connection.execute(
        f"create or replace temp view {quoted} as select * from read_parquet([{files}], schema = MAP {{{columns}}})"
    )


def _can_read_files(table: Table, tasks: Sequence[FileScanTask]) -> bool:
    """Whether DuckDB can read the files itself. Otherwise pyiceberg reads them, all of them and all columns: what another writer
    deleted by delete files, a type that no load writes, a file system that is not local."""
    return (
        bool(tasks)
        and not any(task.delete_files or urlsplit(task.file.file_path).scheme not in ("", "file") for task in tasks)
        and all(field.field_type in TYPES for field in table.schema().fields)
        and NAME_MAPPING_PROPERTY not in table.properties
    )


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def query(connection: DuckDBPyConnection, statement: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Column names and rows. Fetched as Arrow: DuckDB's own rows need another library for instants."""
    relation = connection.sql(statement)
    if relation is None:
        return [], []
    table = relation.to_arrow_table()
    columns = [column.to_pylist() for column in table.columns]
    return list(table.column_names), list(zip(*columns, strict=True)) if columns else []
