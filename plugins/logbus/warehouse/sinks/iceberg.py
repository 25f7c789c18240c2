"""Apache Iceberg: the window in the partition spec, the ledger entry in the snapshot's properties.

    settings {"sink": "iceberg", "warehouse": "/data/lake"}     catalog: SQL, in the warehouse's own PostgreSQL
    settings {"sink": "iceberg", "catalog": "prod"}             any catalog, as pyiceberg's own configuration describes it

A commit is one snapshot: the window's files out, the new ones in. It is refused where anybody else has added files to
the window since we looked, so an attempt cannot overwrite a newer one; commits to other windows only make it try again.
Passwords belong into pyiceberg's configuration (~/.pyiceberg.yaml, PYICEBERG_CATALOG__PROD__...), never into settings.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import EqualTo
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from sqlalchemy import text

from logbus.errors import AttemptSuperseded, LoadFailed, LogbusError, UserError
from logbus.warehouse.directory import AttemptFile, Directory
from logbus.warehouse.sinks.counting import COUNTED_COLUMNS
from logbus.warehouse.sinks.entry import LedgerEntry, from_json
from logbus.warehouse.sinks.files import FileSink
from logbus.warehouse.sinks.iceberg_table import ensure_table, load_table, open_catalog
from logbus.warehouse.sinks.settle import ended_attempts
from logbus.warehouse.target import TARGET_LOCK
from logbus.windows.model import Interval, instant_text, utc

# A snapshot's property; beside it stand the window and the attempt, for whoever looks at snapshots with other tools.
ENTRY_PROPERTY = "logbus.entry"

# Each try looks at the table anew; more than a few conflicts in one window are not an accident.
PUBLISH_TRIES_MAX = 5

# Its "commit failed, retrying" is how concurrent commits work, and no news.
logging.getLogger("pyiceberg.table").setLevel(logging.ERROR)


class IcebergSink(FileSink):
    """A pipeline's Iceberg table."""

    name = "iceberg"
    _table: Table | None = None

    def ensure_target(self, columns: Mapping[str, str]) -> None:
        with self.engine.begin() as connection:  # one maker at a time: catalogs race where two make a table
            key = {"key": TARGET_LOCK, "name": self.target.sql}
            connection.execute(text("select pg_advisory_xact_lock(:key, hashtext(:name))"), key)
            try:
                self._table = ensure_table(open_catalog(self.pipeline, self.engine), self.pipeline, columns)
            except OSError as error:
                raise UserError(f"the Iceberg table {self.target} cannot be made or read: {error}") from error

    def table(self) -> Table:
        """The table as it is now."""
        if self._table is None:
            self._table = load_table(open_catalog(self.pipeline, self.engine), self.pipeline)
        else:
            self._table.refresh()
        return self._table

    def directory(self) -> Directory:
        table = self._table or self.table()
        return Directory.at(f"{table.location()}/data")

    def task_options(self) -> Mapping[str, Any]:
        """Files carry the table's field ids, so that readers match columns by id as in files of any other writer."""
        fields = {field.name: field.field_id for field in self.table().schema().fields}
        return {**super().task_options(), "field_ids": fields}

    def public_entry(self, start: datetime) -> LedgerEntry | None:
        found = (entry for entry in newest_first(self.table()) if entry.interval.start == start)
        return next(found, None)

    def entries(self) -> Iterator[LedgerEntry]:
        newest: dict[datetime, LedgerEntry] = {}
        for entry in newest_first(self.table()):
            newest.setdefault(entry.interval.start, entry)
        return (newest[start] for start in sorted(newest))

    def kept_attempts(self, start: datetime) -> set[int]:
        """Those of every snapshot that is left, so that reading the past goes on working."""
        return {entry.attempt for entry in all_entries(self.table()) if entry.interval.start == start}

    def keeps(self) -> Callable[[AttemptFile], bool]:
        """A file of any snapshot, and one that nobody here knows: another writer's catalog may."""
        published = {(entry.interval.start, entry.attempt) for entry in all_entries(self.table())}
        over = ended_attempts(self.engine, self.pipeline.name)
        return lambda file: (file.start, file.number) in published or (file.start, file.number) not in over

    def publish(self, entry: LedgerEntry, files: Sequence[str]) -> None:
        for tries_left in reversed(range(PUBLISH_TRIES_MAX)):
            public = self.public_entry(entry.interval.start)
            if public is not None and public.attempt == entry.attempt:
                return
            if public is not None and public.attempt > entry.attempt:
                raise AttemptSuperseded(f"the table holds window {entry.interval} as attempt {public.attempt} loaded it")
            try:
                replace_files(self.table(), entry, files)
                return
            except (CommitFailedException, ValidationException) as error:  # refused, for certain
                if not tries_left:
                    raise LoadFailed(f"window {entry.interval} was not committed to {self.target}: {error}") from error
            except Exception as error:  # a catalog's and a file system's errors are many
                self.refuse_unknown(entry, error)
                return

    def refuse_unknown(self, entry: LedgerEntry, error: Exception) -> None:
        """Nobody said whether the commit took place: the table's snapshots do."""
        public = self.public_entry(entry.interval.start)
        if public is None or public.attempt != entry.attempt:
            raise LoadFailed(f"window {entry.interval} was not committed to {self.target}: {error}") from error

    def public_batches(self, interval: Interval) -> Iterable[pa.RecordBatch]:
        scan = self.table().scan(row_filter=window_filter(interval), selected_fields=tuple(COUNTED_COLUMNS))
        return scan.to_arrow_batch_reader()


def window_filter(interval: Interval) -> EqualTo:
    return EqualTo("_window_start", utc(interval.start).isoformat())


def replace_files(table: Table, entry: LedgerEntry, files: Sequence[str]) -> None:
    """One snapshot: the window's files are these. The predicate makes concurrent changes of the window a conflict."""
    window = window_filter(entry.interval)
    former = [task.file for task in table.scan(row_filter=window).plan_files()]
    with (
        table.transaction() as transaction,
        transaction.update_snapshot(snapshot_properties=snapshot_properties(entry)).overwrite() as snapshot,
    ):
        snapshot.delete_by_predicate(window)
        for data_file in former:
            snapshot.delete_data_file(data_file)
        for file in files:
            snapshot.append_data_file(parquet_file_to_data_file(table.io, transaction.table_metadata, file))


def snapshot_properties(entry: LedgerEntry) -> dict[str, str]:
    return {
        "logbus.pipeline": entry.pipeline,
        "logbus.window": instant_text(entry.interval.start),
        "logbus.attempt": str(entry.attempt),
        ENTRY_PROPERTY: entry.to_json(),
    }


def newest_first(table: Table) -> Iterator[LedgerEntry]:
    """The entries of the table's history; what was rolled back is not part of it."""
    current = table.current_snapshot()
    for snapshot in ancestors_of(current, table.metadata) if current is not None else ():
        entry = entry_in(snapshot)
        if entry is not None:
            yield entry


def all_entries(table: Table) -> Iterator[LedgerEntry]:
    """Those of every snapshot that the table still has, in no order."""
    return (entry for entry in map(entry_in, table.metadata.snapshots) if entry is not None)


def entry_in(snapshot: Snapshot) -> LedgerEntry | None:
    """The entry a snapshot carries. Snapshots of others (compaction, a delete by hand) carry none."""
    carried = snapshot.summary.additional_properties.get(ENTRY_PROPERTY) if snapshot.summary else None
    if carried is None:
        return None
    try:
        return from_json(carried)
    except (ValueError, KeyError, TypeError) as error:
        raise LogbusError(f"snapshot {snapshot.snapshot_id} carries a ledger entry that cannot be read: {error!r}") from error
