"""PostgreSQL: rows and dead letters of many windows, appended over ONE connection to the attempt's staging tables.

ADBC's COPY was the fastest measured way into PostgreSQL; the low-level interface is used because the other one imports pandas,
which costs each worker a second. Everything a task writes is one transaction: all of it is stored if the task succeeds, and
nothing otherwise. Each row carries the task attempt that wrote it (`_task`), so a task that Spark runs twice counts once.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

import adbc_driver_postgresql
import pyarrow as pa
import pyarrow.compute as pc
from adbc_driver_manager import AdbcConnection, AdbcStatement, StatementOptions
from logbus.parsing.batches import is_json
from logbus.windows.table_names import STAGING_SCHEMA, TASK_COLUMN

from logbus_spark.job import StagedWindow, TaskJob

# PostgreSQL's binary form of jsonb is its text after one version byte; COPY accepts that as it is.
JSONB_VERSION = pa.scalar(b"\x01", pa.binary())
NOTHING = pa.scalar(b"", pa.binary())

APPEND = {
    StatementOptions.INGEST_MODE.value: "adbc.ingest.mode.append",
    StatementOptions.INGEST_TARGET_DB_SCHEMA.value: STAGING_SCHEMA,
}

# Rows buffered to be written together, over all windows, here and for Iceberg: COPY's own cost becomes small, a row group of a
# few megabytes reads well, and a worker's memory stays bounded.
BUFFERED_ROWS_MAX = 50_000
BUFFERED_BYTES_MAX = 16 * 1024 * 1024


class PostgresTaskSink:
    """A context manager: commits on a normal exit, leaves nothing behind otherwise."""

    files: Mapping[int, tuple[str, ...]] = {}  # the driver has the names of the tables

    def __init__(self, job: TaskJob, schema: pa.Schema, task: int) -> None:
        self._uri: str = job.sink_options["uri"]  # a libpq URI, and a secret
        self._task = pa.scalar(task, pa.int64())
        self._waiting: dict[str, list[pa.RecordBatch]] = {}
        self._rows = 0
        self._bytes = 0

    def __enter__(self) -> PostgresTaskSink:
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

    def write_rows(self, window: StagedWindow, rows: pa.RecordBatch) -> None:
        self._add(window.staging_table, rows)

    def write_dead_letters(self, window: StagedWindow, rows: pa.RecordBatch) -> None:
        self._add(window.dead_letter_table, rows)

    def _add(self, table: str, rows: pa.RecordBatch) -> None:
        self._waiting.setdefault(table, []).append(rows)
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        if self._rows >= BUFFERED_ROWS_MAX or self._bytes >= BUFFERED_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Appends the buffered rows, one COPY per table; they become visible with the commit."""
        for table, batches in self._waiting.items():
            tagged = []  # as COPY takes them: JSON in PostgreSQL's form, and the task attempt as the last column
            for batch in batches:
                columns = dict(zip(batch.schema.names, batch.columns, strict=True))
                for name in [field.name for field in batch.schema if is_json(field)]:
                    columns[name] = pc.binary_join_element_wise(JSONB_VERSION, columns[name].cast(pa.binary()), NOTHING)
                tagged.append(pa.RecordBatch.from_pydict({**columns, TASK_COLUMN: pa.repeat(self._task, batch.num_rows)}))
            with AdbcStatement(self._connection) as statement:
                statement.set_options(**APPEND, **{StatementOptions.INGEST_TARGET_TABLE.value: table})
                statement.bind_stream(pa.RecordBatchReader.from_batches(tagged[0].schema, tagged))
                statement.execute_update()
        self._waiting, self._rows, self._bytes = {}, 0, 0
