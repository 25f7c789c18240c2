"""Apache Iceberg: the window in the partition spec, the ledger entry in the snapshot's properties.

    settings {"sink": "iceberg", "warehouse": "/data/lake"}     catalog: SQL, in the warehouse's own PostgreSQL
    settings {"sink": "iceberg", "catalog": "prod"}             any catalog, as pyiceberg's own configuration describes it

A commit is one snapshot: the window's files out, the new ones in. It is refused if another writer has added files to the
window since we read the table, so an attempt cannot overwrite a newer one; commits to other windows only make it try again.
Passwords belong in pyiceberg's configuration (~/.pyiceberg.yaml, PYICEBERG_CATALOG__PROD__...), never in settings.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyiceberg.expressions import EqualTo
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from logbus.errors import AttemptSuperseded, LoadFailed, LogbusError, UserError
from logbus.ledger.attempts import COMMITTED, FAILED, SUPERSEDED
from logbus.model import Interval, instant_text, utc
from logbus.warehouse.directory import AttemptFile, Directory
from logbus.warehouse.sinks.base import Upkeep
from logbus.warehouse.sinks.counting import COUNTED_COLUMNS
from logbus.warehouse.sinks.entry import LedgerEntry, from_json
from logbus.warehouse.sinks.files import FileSink
from logbus.warehouse.sinks.iceberg_table import ensure_table, load_table, open_catalog
from logbus.warehouse.sinks.settle import attempts_in
from logbus.warehouse.target import lock_target

# A snapshot's properties. The entry contains everything; window and attempt are repeated for searches.
ENTRY_PROPERTY = "logbus.entry"
WINDOW_PROPERTY = "logbus.window"

# Each try reads the table first, so a commit whose answer was lost is not done twice; one that is still on its way will find
# another snapshot than it expects and be refused. More than a few conflicts in one window are not a coincidence.
PUBLISH_TRIES_MAX = 5

# Its "commit failed, retrying" is normal for concurrent commits and not worth logging.
logging.getLogger("pyiceberg.table").setLevel(logging.ERROR)


class IcebergSink(FileSink):
    """A pipeline's Iceberg table."""

    name = "iceberg"
    _table: Table | None = None

    def ensure_target(self, columns: Mapping[str, str]) -> None:
        with self.engine.begin() as connection:
            lock_target(connection, self.target)  # catalogs race if two create a table
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
        """Files carry the table's field ids, so that readers match columns by id, as with any other writer's files."""
        fields = {field.name: field.field_id for field in self.table().schema().fields}
        return {**super().task_options(), "field_ids": fields}

    def public_entry(self, start: datetime) -> LedgerEntry | None:
        return newest_entry(self.table(), start)

    def public_entries(self, starts: Collection[datetime]) -> Mapping[datetime, LedgerEntry]:
        newest = newest_entries(self.table())
        return {start: newest[start] for start in starts if start in newest}

    def entries(self) -> Iterator[LedgerEntry]:
        newest = newest_entries(self.table())
        return (newest[start] for start in sorted(newest))

    def kept_attempts(self, start: datetime) -> set[int]:
        """The attempts of every remaining snapshot, so that time travel keeps working."""
        return {entry.attempt for entry in all_entries(self.table()) if entry.interval.start == start}

    def maintain(self, upkeep: Upkeep) -> list[str]:
        return [*self.expire_snapshots(upkeep.now), *super().maintain(upkeep)]

    def expire_snapshots(self, now: datetime) -> list[str]:
        """Expires those older than the setting `keep_snapshots_days`; by default all stay: a lost ledger is rebuilt from them."""
        days = self.pipeline.options.keep_snapshots_days
        if days is None:
            return []
        table = self.table()
        before = len(table.metadata.snapshots)
        table.maintenance.expire_snapshots().older_than(now - timedelta(days=days)).commit()
        count = before - len(self.table().metadata.snapshots)
        return [f"{count} snapshots older than {days} days expired"] if count else []

    def keeps(self) -> Callable[[AttemptFile], bool]:
        """Keeps the files of any snapshot, and files of attempts that this ledger does not have: they may be another ledger's."""
        table, name = self.table(), self.pipeline.name
        live = {urlsplit(task.file.file_path).path for task in table.scan().plan_files()}
        published = {(entry.interval.start, entry.attempt) for entry in all_entries(table)}
        over = attempts_in(self.engine, name, FAILED, SUPERSEDED) - published
        if set(table.refs()) == {MAIN_BRANCH}:  # a tag keeps files alive that no entry mentions
            over |= replaced_attempts(attempts_in(self.engine, name, COMMITTED), published)
        return lambda file: file.path in live or (file.start, file.number) not in over

    def publish(self, entry: LedgerEntry, files: Sequence[str]) -> None:
        for tries_left in reversed(range(PUBLISH_TRIES_MAX)):
            table = self.table()
            public = newest_entry(table, entry.interval.start)
            if public is not None and is_same_attempt(public, entry):
                return
            if public is not None and public.attempt > entry.attempt:
                raise AttemptSuperseded(f"the table holds window {entry.interval} as attempt {public.attempt} loaded it")
            try:
                replace_files(table, entry, files)
                return
            except Exception as error:  # refused, or unknown (a catalog has many errors): the next read of the table shows it
                if not tries_left and not self.has_published(entry):
                    raise LoadFailed(f"window {entry.interval} was not committed to {self.target}: {error}") from error

    def has_published(self, entry: LedgerEntry) -> bool:
        public = self.public_entry(entry.interval.start)
        return public is not None and is_same_attempt(public, entry)

    def public_batches(self, interval: Interval) -> Iterable[pa.RecordBatch]:
        scan = self.table().scan(row_filter=window_filter(interval), selected_fields=tuple(COUNTED_COLUMNS))
        return scan.to_arrow_batch_reader()

    def public_paths(self, interval: Interval) -> list[str]:
        directory = self.directory()
        tasks = self.table().scan(row_filter=window_filter(interval)).plan_files()
        return [directory.path_of(task.file.file_path) for task in tasks]


class CommitTransaction(Transaction):
    """One snapshot and nothing else. The library's own copies the table's metadata at every access, seventeen times a commit, and
    the cost of a copy grows with the table's history: 84 commits took 16 s of CPU with it and take 5 s with this."""

    @property
    def table_metadata(self) -> TableMetadata:
        return super().table_metadata if self._updates else self._table.metadata


def is_same_attempt(public: LedgerEntry, entry: LedgerEntry) -> bool:
    """If two have the same number, one may be from before the ledger was restored from a backup."""
    return (public.attempt, public.key) == (entry.attempt, entry.key)


AttemptKey = tuple[datetime, int]


def replaced_attempts(committed: Collection[AttemptKey], published: Collection[AttemptKey]) -> set[AttemptKey]:
    """Attempts whose files no snapshot reads: a later attempt replaced them, and its own snapshot has expired too."""
    expired: dict[datetime, int] = {}
    for start, number in set(committed) - set(published):
        expired[start] = max(number, expired.get(start, 0))
    return {key for key in set(committed) - set(published) if key[1] < expired.get(key[0], 0)}


def window_filter(interval: Interval) -> EqualTo:
    return EqualTo("_window_start", utc(interval.start).isoformat())


def replace_files(table: Table, entry: LedgerEntry, files: Sequence[str]) -> None:
    """Commits one snapshot: the window's files are these. The predicate makes concurrent changes of the window a conflict."""
    window = window_filter(entry.interval)
    former = [task.file for task in table.scan(row_filter=window).plan_files()]
    with (
        CommitTransaction(table) as transaction,
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
        WINDOW_PROPERTY: instant_text(entry.interval.start),
        "logbus.attempt": str(entry.attempt),
        ENTRY_PROPERTY: entry.to_json(),
    }


def newest_entry(table: Table, start: datetime) -> LedgerEntry | None:
    """The window's newest. Most snapshots are of other windows: a property shows that without parsing the entry."""
    name = instant_text(start)
    mine = (found for found in history(table) if property_of(found, WINDOW_PROPERTY) == name)
    return next((entry for entry in map(entry_in, mine) if entry is not None), None)


def newest_entries(table: Table) -> dict[datetime, LedgerEntry]:
    newest: dict[datetime, LedgerEntry] = {}
    for entry in map(entry_in, history(table)):
        if entry is not None:
            newest.setdefault(entry.interval.start, entry)
    return newest


def history(table: Table) -> Iterable[Snapshot]:
    """The snapshots that led to the current one, newest first; what was rolled back is not among them."""
    current = table.current_snapshot()
    return () if current is None else ancestors_of(current, table.metadata)


def property_of(snapshot: Snapshot, name: str) -> str | None:
    found: str | None = snapshot.summary.additional_properties.get(name) if snapshot.summary else None
    return found


def all_entries(table: Table) -> Iterator[LedgerEntry]:
    """The entries of every snapshot that the table still has, in no particular order."""
    return (entry for entry in map(entry_in, table.metadata.snapshots) if entry is not None)


def entry_in(snapshot: Snapshot) -> LedgerEntry | None:
    """The entry a snapshot carries. Snapshots of other writers (compaction, a delete by hand) carry none."""
    carried = property_of(snapshot, ENTRY_PROPERTY)
    if carried is None:
        return None
    try:
        return from_json(carried)
    except (ValueError, KeyError, TypeError) as error:
        raise LogbusError(f"snapshot {snapshot.snapshot_id} carries a ledger entry that cannot be read: {error!r}") from error
