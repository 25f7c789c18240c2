"""Parquet files in a directory, for a laptop: `{"sink": "parquet", "directory": "/data/logs"}`. DuckDB and others read them.

    /data/logs/access_log/
        _manifests/20150517T100000Z.json     the window's files, and its ledger entry
        _window_start=20150517T100000Z/...   files; only those that a manifest names are public
        _schema.parquet                      no rows, every column
        read.sql                             creates a view in DuckDB

A window becomes public, or is replaced, by the rename of its manifest. So a reader that takes the files from the
manifests (`logbus.warehouse.duckdb_view`, `logbus query`, read.sql) sees all of a window or nothing of it, while one that
reads `**/*.parquet` sees files of running loads. What a reload replaced is kept for a day, for readers that have begun
(`logbus maintain` removes it). The directory must be local: an object store has no rename and no lock.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from logbus.durable_files import replace_atomically
from logbus.errors import AttemptSuperseded, LoadFailed, UserError
from logbus.ledger.table_names import identifier
from logbus.model import Interval
from logbus.warehouse.directory import AttemptFile, Directory
from logbus.warehouse.sinks.counting import counted_batches
from logbus.warehouse.sinks.entry import LedgerEntry, from_json
from logbus.warehouse.sinks.files import FileSink
from logbus.warehouse.sinks.manifests import Manifests, locked
from logbus.warehouse.sinks.parquet_schema import SCHEMA_FILE, write_schema

READ_SQL = """\
-- In DuckDB: .read {directory}/read.sql
-- Run it again to see what was loaded since; a query sees the windows that were public when this ran.
SET VARIABLE {variable} = (
    SELECT list('{directory}/' || file)
    FROM (SELECT unnest(files) AS file FROM read_json('{directory}/_manifests/*.json', columns = {{files: 'VARCHAR[]'}}))
);
CREATE OR REPLACE TEMP VIEW {view} AS
    SELECT * FROM read_parquet(getvariable({variable_text}), union_by_name = true, hive_partitioning = false);
"""


class ParquetSink(FileSink):
    """A pipeline's directory of Parquet files."""

    name = "parquet"

    @cached_property
    def root(self) -> Path:
        return table_directory(self.pipeline.options.directory, self.pipeline.name, self.pipeline.table)

    @property
    def manifests(self) -> Manifests:
        return Manifests(self.root / "_manifests")

    def ensure_target(self, columns: Mapping[str, str]) -> None:
        try:
            (self.root / "_manifests").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the directory {self.root}: {error.strerror}") from None
        with locked(self.root):
            write_schema(self.root, self.pipeline, columns)
            self.manifests.write_schema([SCHEMA_FILE])
            variable = f"{self.target.name}_files"
            text = READ_SQL.format(
                directory=str(self.root).replace("'", "''"),
                view=identifier(self.target.name),
                variable=identifier(variable),
                variable_text="'" + variable.replace("'", "''") + "'",
            )
            replace_atomically(self.root / "read.sql", text.encode())

    def directory(self) -> Directory:
        return Directory.at(str(self.root))

    def public_entry(self, start: datetime) -> LedgerEntry | None:
        manifest = self.manifests.read(start)
        return None if manifest is None else from_json(json.dumps(manifest["entry"]))

    def entries(self) -> Iterator[LedgerEntry]:
        found = (manifest["entry"] for manifest in self.manifests.all())
        return (from_json(json.dumps(entry)) for entry in found if entry is not None)

    def public_entries(self, starts: Collection[datetime]) -> Mapping[datetime, LedgerEntry]:
        found = {start: self.public_entry(start) for start in starts}
        return {start: entry for start, entry in found.items() if entry is not None}

    def kept_attempts(self, start: datetime) -> Collection[int]:
        entry = self.public_entry(start)
        return () if entry is None else (entry.attempt,)

    def keeps(self) -> Callable[[AttemptFile], bool]:
        public = {str(self.root / name) for manifest in self.manifests.all() for name in manifest["files"]}
        return lambda file: file.path in public

    def publish(self, entry: LedgerEntry, files: Sequence[str]) -> None:
        names = [os.path.relpath(self.directory().path_of(file), self.root) for file in files]
        try:
            with locked(self.root):
                public = self.public_entry(entry.interval.start)
                if public is not None and public.attempt > entry.attempt:
                    raise AttemptSuperseded(f"the table holds window {entry.interval} as attempt {public.attempt} loaded it")
                self.manifests.write(entry, names)
        except OSError as error:
            raise LoadFailed(f"window {entry.interval} was not committed to {self.root}: {error}") from error

    def public_batches(self, interval: Interval) -> Iterable[pa.RecordBatch]:
        return counted_batches(self.public_paths(interval), self.directory().filesystem)

    def public_paths(self, interval: Interval) -> list[str]:
        manifest = self.manifests.read(interval.start)
        return [str(self.root / name) for name in manifest["files"]] if manifest else []


def table_directory(root: str | None, pipeline_name: str, table: str) -> Path:
    """Where a table's files are, below the directory of a pipeline's settings."""
    if not root or not Path(root).is_absolute():
        raise UserError(
            f"pipeline {pipeline_name} loads into Parquet files, so its settings name a local directory by its absolute path, "
            f'{{"directory": "/data/logs"}}; got {root!r}'
        )
    return Path(root) / table.removeprefix("public.")
