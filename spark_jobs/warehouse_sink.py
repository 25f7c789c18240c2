"""The sink: rows and dead letters of many windows, appended over ONE connection to the attempt's staging tables.

ADBC's COPY was the fastest way into PostgreSQL that was measured; its low-level interface, because the other one imports
pandas, which costs each worker a second. Everything a task writes is one transaction: it is there whole when the task
has ended well, and not at all otherwise. Each row carries the task attempt that wrote it, so a task that Spark runs
twice counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import adbc_driver_postgresql
import pyarrow as pa
from adbc_driver_manager import AdbcConnection, AdbcStatement, StatementOptions
from logbus.windows.places import STAGING_SCHEMA, TASK_COLUMN

# PostgreSQL's binary form of jsonb is its text behind one version byte, which COPY takes as it comes.
JSONB_VERSION = b"\x01"

TIMESTAMP = pa.timestamp("us", tz="UTC")

ARROW_TYPES: Mapping[str, pa.DataType] = {
    "text": pa.string(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "double precision": pa.float64(),
    "boolean": pa.bool_(),
    "timestamptz": TIMESTAMP,
    "jsonb": pa.binary(),
}

ROW_FIELDS = [
    ("_topic", pa.string()),
    ("_partition", pa.int32()),
    ("_offset", pa.int64()),
    ("_timestamp", TIMESTAMP),
    ("_key", pa.binary()),
    ("_window_start", TIMESTAMP),
    ("_fingerprint", pa.int64()),
    (TASK_COLUMN, pa.int64()),
]

DEAD_LETTER_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("window_id", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.binary()),
        ("error_class", pa.string()),
        ("error", pa.string()),
        ("attempt", pa.int32()),
        ("fingerprint", pa.int64()),
        (TASK_COLUMN, pa.int64()),
    ]
)

APPEND = {
    StatementOptions.INGEST_MODE.value: "adbc.ingest.mode.append",
    StatementOptions.INGEST_TARGET_DB_SCHEMA.value: STAGING_SCHEMA,
}

# Rows held back to be written together, over all windows: COPY's own cost becomes small, a worker's memory stays bounded.
BUFFERED_ROWS_MAX = 20_000
BUFFERED_BYTES_MAX = 16 * 1024 * 1024

PG_EPOCH_MS_MIN = -62_135_596_800_000  # year 1: what Python, Arrow and PostgreSQL all can say
PG_EPOCH_MS_MAX = 253_402_300_799_999  # year 9999


def row_schema(columns: Mapping[str, str]) -> pa.Schema:
    return pa.schema(ROW_FIELDS + [(name, ARROW_TYPES[kind]) for name, kind in columns.items()])


def jsonb(text: str | None) -> bytes | None:
    return None if text is None else JSONB_VERSION + text.encode()


def timestamp_us(timestamp_ms: int) -> int | None:
    """A record's timestamp for `_timestamp`; null where there is none (-1) or no calendar reaches."""
    return timestamp_ms * 1000 if PG_EPOCH_MS_MIN <= timestamp_ms <= PG_EPOCH_MS_MAX and timestamp_ms != -1 else None


class WarehouseSink:
    """A context manager: commits when it ends well, leaves nothing behind otherwise."""

    def __init__(self, uri: str, columns: Mapping[str, str]) -> None:
        self._uri = uri
        self._row_schema = row_schema(columns)
        self._json_columns = [index for index, kind in enumerate(columns.values()) if kind == "jsonb"]
        self._waiting: dict[tuple[str, bool], list[Sequence[Any]]] = {}
        self._rows = 0
        self._bytes = 0

    def __enter__(self) -> WarehouseSink:
        self._database = adbc_driver_postgresql.connect(self._uri)
        self._connection = AdbcConnection(self._database)
        self._connection.set_autocommit(False)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self.flush()
                self._connection.commit()
            else:
                self._connection.rollback()
        finally:
            self._connection.close()
            self._database.close()

    def add_row(self, table: str, system_values: Sequence[Any], values: Sequence[Any], size: int) -> None:
        """A row: the values of `ROW_FIELDS`, then the parser's."""
        if self._json_columns:
            values = list(values)
            for index in self._json_columns:
                values[index] = jsonb(values[index])
        self._add(table, False, (*system_values, *values), size)

    def add_dead_letter(self, table: str, values: Sequence[Any], size: int) -> None:
        """A dead letter: the values of `DEAD_LETTER_SCHEMA`."""
        self._add(table, True, values, size)

    def _add(self, table: str, is_dead: bool, values: Sequence[Any], size: int) -> None:
        self._waiting.setdefault((table, is_dead), []).append(values)
        self._rows += 1
        self._bytes += size
        if self._rows >= BUFFERED_ROWS_MAX or self._bytes >= BUFFERED_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Appends what waits; it becomes visible with the commit."""
        for (table, is_dead), rows in self._waiting.items():
            self._append(table, to_batch(rows, DEAD_LETTER_SCHEMA if is_dead else self._row_schema))
        self._waiting, self._rows, self._bytes = {}, 0, 0

    def _append(self, table: str, batch: pa.RecordBatch) -> None:
        with AdbcStatement(self._connection) as statement:
            statement.set_options(**APPEND, **{StatementOptions.INGEST_TARGET_TABLE.value: table})
            statement.bind(batch)
            statement.execute_update()


def to_batch(rows: Iterable[Sequence[Any]], arrow_schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, arrow_schema, strict=True)], schema=arrow_schema
    )
