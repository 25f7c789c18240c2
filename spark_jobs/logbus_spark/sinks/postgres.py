"""PostgreSQL: rows and dead letters of many windows, appended over ONE connection to the attempt's staging tables.

ADBC's COPY was the fastest measured way into PostgreSQL; the low-level interface is used because the other one imports pandas,
which costs each worker a second. Everything a task writes is one transaction: all of it is stored if the task succeeds, and
nothing otherwise. The task reports its number, which the server keeps with each row (`xmin`): a task that Spark runs twice counts
once.

Only what differs is copied: the window's columns are defaults of its table, and a column without any value has no default there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import adbc_driver_postgresql
import pyarrow as pa
import pyarrow.compute as pc
from adbc_driver_manager import AdbcConnection, AdbcStatement, StatementOptions
from logbus.parsing.batches import is_json
from logbus.windows.table_names import STAGING_SCHEMA, WINDOW_COLUMNS

from logbus_spark.records import StagedWindow, TaskJob

# PostgreSQL's binary form of jsonb is its text after one version byte; COPY accepts that as it is.
JSONB_VERSION, NOTHING = b"\x01", b""

APPEND = {
    StatementOptions.INGEST_MODE.value: "adbc.ingest.mode.append",
    StatementOptions.INGEST_TARGET_DB_SCHEMA.value: STAGING_SCHEMA,
}

# The 32 bits of it that rows have; null if nothing was written.
TRANSACTION = "select cast(cast(pg_current_xact_id_if_assigned() as xid) as text)"

# Rows buffered to be written together, over all windows, here and for Iceberg: COPY's own cost becomes small, a row group of a
# few megabytes reads well, and a worker's memory stays bounded.
BUFFERED_ROWS_MAX = 50_000
BUFFERED_BYTES_MAX = 16 * 1024 * 1024


class PostgresTaskSink:
    """A context manager: commits on a normal exit, leaves nothing behind otherwise."""

    files: Mapping[int, tuple[str, ...]] = {}  # the driver has the names of the tables

    def __init__(self, job: TaskJob, schema: pa.Schema, task: int) -> None:
        self._uri: str = job.sink_options["uri"]  # a libpq URI, and a secret
        self.transaction: str | None = None
        self._waiting: dict[str, list[pa.RecordBatch]] = {}
        self._rows = 0
        self._bytes = 0
        # While the server stores one part of the rows, the task reads and parses the next one.
        self._copier = ThreadPoolExecutor(1)
        self._copying = Future[None]()
        self._copying.set_result(None)

    def __enter__(self) -> PostgresTaskSink:
        self._database = adbc_driver_postgresql.connect(self._uri)
        self._connection = AdbcConnection(self._database)
        self._connection.set_autocommit(False)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self.flush()
                self._copying.result()
                with AdbcStatement(self._connection) as statement:
                    statement.set_sql_query(TRANSACTION)
                    stream, _ = statement.execute_query()
                    self.transaction = pa.RecordBatchReader.from_stream(stream).read_all()[0][0].as_py()
                self._connection.commit()
            else:
                self._copier.shutdown()  # waits: until its end the connection is the copy's
                self._connection.rollback()
        finally:
            self._copier.shutdown()
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
        """Begins to append the buffered rows, once those before are appended; they become visible with the commit."""
        self._copying.result()  # or what it has failed with
        self._copying = self._copier.submit(self._copy, self._waiting)
        self._waiting, self._rows, self._bytes = {}, 0, 0

    def _copy(self, waiting: Mapping[str, Sequence[pa.RecordBatch]]) -> None:
        """One COPY per table."""
        for table, batches in waiting.items():
            rows, copied = pa.Table.from_batches(batches), {}
            for field, column in zip(rows.schema, rows.columns, strict=True):
                if field.name in WINDOW_COLUMNS or column.null_count == len(column):
                    continue
                if is_json(field):
                    column = pc.binary_join_element_wise(JSONB_VERSION, column.cast(pa.binary()), NOTHING)
                copied[field.name] = column
            with AdbcStatement(self._connection) as statement:
                statement.set_options(**APPEND, **{StatementOptions.INGEST_TARGET_TABLE.value: table})
                statement.bind_stream(pa.table(copied).to_reader())
                statement.execute_update()
