"""Parquet files for an Iceberg table: one for each window of which a task has rows.

    <directory>/_window_start=20150517T100000Z/w7_a2_t12_3f6c0a9be01d.parquet

A file is written under a name that begins with a dot, then flushed and renamed when the task succeeds; files of a task that fails
are removed. Files of a killed task, or of a task attempt that loses against another, are never reported to the driver, so they
never count. Dead letters go to the attempt's table in PostgreSQL, as with every sink: they belong to the ledger.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq
from logbus import atomic_write, model
from logbus.loads.directory import Directory, window_folder
from logbus.parsing.batches import ROW_FIELDS
from pyarrow import fs

from logbus_spark.records import StagedWindow, TaskJob
from logbus_spark.sinks.postgres import BUFFERED_BYTES_MAX, BUFFERED_ROWS_MAX, PostgresTaskSink

COMPRESSION = "zstd"

# Never null (logbus.windows.table_names.SYSTEM_COLUMNS): a table with required columns refuses a file in which they may be null.
REQUIRED = ("_topic", "_partition", "_offset", "_window_start", "_fingerprint")


def file_schema(parsed: pa.Schema, field_ids: Mapping[str, int]) -> pa.Schema:
    """The schema of the files, with the table's field ids. `parsed`: the parser's columns."""
    return pa.schema(
        [
            pa.field(
                field.name,
                field.type,
                nullable=field.name not in REQUIRED,
                metadata={b"PARQUET:field_id": str(field_ids[field.name]).encode()},
            )
            for field in (*ROW_FIELDS, *parsed)
        ]
    )


class DeadLetters:
    """The attempt's table of dead letters. Connects only at the first dead letter; usually there is none."""

    def __init__(self, sink: PostgresTaskSink) -> None:
        self._sink = sink
        self._is_connected = False

    def write(self, window: StagedWindow, rows: pa.RecordBatch) -> None:
        if not self._is_connected:
            self._sink.__enter__()
            self._is_connected = True
        self._sink.write_dead_letters(window, rows)

    @property
    def transaction(self) -> str | None:
        return self._sink.transaction

    def end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Commits, or rolls back what was written if there is an error."""
        if self._is_connected:
            self._sink.__exit__(kind, error, trace)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFile:
    """A file being written. `name` is its final name, relative to the directory."""

    name: str
    writing_path: str
    path: str
    writer: pq.ParquetWriter


class IcebergTaskSink:
    """A context manager: its files have their final names after a normal exit, and are removed otherwise."""

    def __init__(self, job: TaskJob, schema: pa.Schema, task: int) -> None:
        self._directory = Directory.at(job.sink_options["directory"])
        self._schema = file_schema(schema, job.sink_options["field_ids"])
        self._dead_letters = DeadLetters(PostgresTaskSink(job, schema, task))
        self._task = task
        self._waiting: dict[int, list[pa.RecordBatch]] = {}
        self._rows = 0
        self._bytes = 0
        self._windows: dict[int, StagedWindow] = {}
        self._open: dict[int, TaskFile] = {}
        self.files: dict[int, tuple[str, ...]] = {}

    @property
    def transaction(self) -> str | None:
        """Of the dead letters: what counts among the rows are the files that are reported."""
        return self._dead_letters.transaction

    def __enter__(self) -> IcebergTaskSink:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self.flush()
                for window_id, file in self._open.items():
                    self._finish(file)
                    self.files[window_id] = (f"{self._directory.uri}/{file.name}",)
            self._dead_letters.end(kind, error, trace)
        except BaseException as failure:
            if kind is None:
                self._dead_letters.end(type(failure), failure, failure.__traceback__)
            self._abandon()
            raise
        if kind is not None:
            self._abandon()

    def write_rows(self, window: StagedWindow, rows: pa.RecordBatch) -> None:
        self._windows[window.window_id] = window
        self._waiting.setdefault(window.window_id, []).append(rows)
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        if self._rows >= BUFFERED_ROWS_MAX or self._bytes >= BUFFERED_BYTES_MAX:
            self.flush()

    def write_dead_letters(self, window: StagedWindow, rows: pa.RecordBatch) -> None:
        self._dead_letters.write(window, rows)

    def flush(self) -> None:
        """Writes the buffered rows, a row group for each window."""
        for window_id, batches in self._waiting.items():
            file = self._open.get(window_id) or self._create(self._windows[window_id])
            table = pa.Table.from_batches(batches)
            file.writer.write_table(pa.Table.from_arrays(table.columns, schema=self._schema))
        self._waiting, self._rows, self._bytes = {}, 0, 0

    def _create(self, window: StagedWindow) -> TaskFile:
        folder = window_folder(model.EPOCH + timedelta(milliseconds=window.start_ms))
        name = f"w{window.window_id}_a{window.attempt}_t{self._task}_{uuid.uuid4().hex[:12]}.parquet"
        parent, filesystem = f"{self._directory.path}/{folder}", self._directory.filesystem
        filesystem.create_dir(parent, recursive=True)
        writing_path = f"{parent}/.{name}"
        writer = pq.ParquetWriter(writing_path, self._schema, filesystem=filesystem, compression=COMPRESSION)
        file = TaskFile(name=f"{folder}/{name}", writing_path=writing_path, path=f"{parent}/{name}", writer=writer)
        self._open[window.window_id] = file
        return file

    def _finish(self, file: TaskFile) -> None:
        file.writer.close()
        is_local = isinstance(self._directory.filesystem, fs.LocalFileSystem)
        if is_local:
            atomic_write.sync(file.writing_path)
        self._directory.filesystem.move(file.writing_path, file.path)
        if is_local:
            atomic_write.sync(os.path.dirname(file.path))

    def _abandon(self) -> None:
        """Removes whatever was written. A file that cannot be removed now is a leftover that is never reported."""
        for file in self._open.values():
            for step in (file.writer.close, lambda file=file: self._remove(file)):
                try:
                    step()
                except (OSError, pa.ArrowException):
                    pass

    def _remove(self, file: TaskFile) -> None:
        self._directory.remove(file.writing_path)
        self._directory.remove(file.path)
