"""The columns of a table of Parquet files: `_schema.parquet`, a file without rows.

It makes a table without windows readable, and records the types, so that a column never changes its type from one
window to the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from logbus.durable_files import replace_atomically
from logbus.errors import UserError
from logbus.model import Pipeline
from logbus.warehouse.target import SYSTEM_COLUMNS, refuse_new_twins

SCHEMA_FILE = "_schema.parquet"

# By PostgreSQL's names, with which parsers declare columns. JSON is text.
TYPES: Mapping[str, pa.DataType] = {
    "text": pa.string(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "double precision": pa.float64(),
    "boolean": pa.bool_(),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "jsonb": pa.string(),
    "bytea": pa.binary(),
}


def declared_schema(root: Path) -> pa.Schema:
    """All columns that any window may have; an empty schema if nothing was ever loaded."""
    path = root / SCHEMA_FILE
    return pq.read_schema(path) if path.exists() else pa.schema([])


def write_schema(root: Path, pipeline: Pipeline, columns: Mapping[str, str]) -> None:
    """Adds the columns that are new; `UserError` if one already has another type."""
    present = declared_schema(root)
    wanted = {name: TYPES[kind.removesuffix(" not null")] for name, kind in {**SYSTEM_COLUMNS, **columns}.items()}
    for name, kind in wanted.items():
        if name in present.names and present.field(name).type != kind:
            raise UserError(
                f"column {name} of the files in {root} is {present.field(name).type}, but pipeline {pipeline.name} loads {kind}: "
                "declare the column as it is, or load into another table"
            )
    missing = [pa.field(name, kind) for name, kind in wanted.items() if name not in present.names]
    refuse_new_twins(f"the table of files in {root}", present.names, [field.name for field in missing])
    if missing:
        replace_schema(root, pa.schema([*present, *missing]))


def replace_schema(root: Path, schema: pa.Schema) -> None:
    written = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), written)
    replace_atomically(root / SCHEMA_FILE, written.getvalue().to_pybytes())
