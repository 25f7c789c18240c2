"""Apache Iceberg: rows in Parquet files, the window in the partition spec, the ledger entry in the snapshot's properties.

    settings {"sink": "iceberg", "warehouse": "/data/lake"}     catalog: SQL, in the warehouse's own PostgreSQL
    settings {"sink": "iceberg", "catalog": "prod"}             any catalog, as pyiceberg's own configuration describes it

The tasks write files under names of their own attempt, which no reader sees. Rows in files and the ledger in PostgreSQL cannot
share a transaction, so a window has two commits, in an order that a crash between them cannot break, under the lock on its row
in the ledger:

1. one transaction is opened in PostgreSQL: the fence, the equation, the dead letters, the ledger's entry; not committed yet
2. the table's own commit, one snapshot: the window's former files out, this attempt's in; it carries the ledger entry
3. the transaction commits

A crash before 2 leaves everything as it was. A crash between 2 and 3 leaves the table ahead of the ledger, which the next attempt
detects and repairs (`bring_up_ledger`). Until then the lock keeps newer attempts from beginning; if the connection that holds it
dies, the table's own fence remains: a snapshot is refused if another writer has added files to the window since we read the
table, so an attempt never replaces the files of a newer one. Commits to other windows only make it try again.

Passwords belong in pyiceberg's configuration (~/.pyiceberg.yaml, PYICEBERG_CATALOG__PROD__...), never in settings.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyiceberg.expressions import And, EqualTo
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import InterfaceError, OperationalError

from logbus import errors, model
from logbus.loads import commit_checks, tally, target
from logbus.loads.commit import commit_in, committed_counts, connection_died
from logbus.loads.completeness import complete_until
from logbus.loads.directory import AttemptFile, Directory
from logbus.loads.engine import COPY_SETTINGS, libpq_uri
from logbus.loads.sinks import ROWS_OF_RECORD_MAX, MaintenanceOptions, PublicTable, iceberg_table, snapshot_entry
from logbus.loads.sinks.postgres import create_dead_letters, lock_current, seal
from logbus.windows.rows import ATTEMPT_RUNNING, COMMITTED, FAILED, SUPERSEDED
from logbus.windows.table_names import TableName, parse_table

# Before another try, the ledger is asked whether the last one took effect.
COMMIT_TRIES_MAX = 3

# A snapshot's properties. The entry contains everything; window and attempt are repeated for searches.
ENTRY_PROPERTY = "logbus.entry"
WINDOW_PROPERTY = "logbus.window"

# The table's: before which instant all of it was audited, without a gap, when the last window was committed.
COMPLETE_UNTIL_PROPERTY = "logbus.complete-until"

# Each try reads the table first, so a commit whose answer was lost is not done twice; one that is still on its way will find
# another snapshot than it expects and be refused. More than a few conflicts in one window are not a coincidence.
PUBLISH_TRIES_MAX = 5

# Its "commit failed, retrying" is normal for concurrent commits and not worth logging.
logging.getLogger("pyiceberg.table").setLevel(logging.ERROR)


class IcebergSink:
    """A pipeline's Iceberg table; its dead letters and the ledger are in PostgreSQL."""

    name = "iceberg"

    def __init__(self, pipeline: model.Pipeline, engine: Engine) -> None:
        self.pipeline = pipeline
        self.engine = engine
        self.target: TableName = parse_table(pipeline.table)
        self._table: Table | None = None
        # By window: what the table holds and the ledger lacks.
        self._unsettled: dict[datetime, snapshot_entry.LedgerEntry | None] = {}

    def has_target(self) -> bool:
        return iceberg_table.table_exists(iceberg_table.open_catalog(self.pipeline, self.engine), self.pipeline)

    def public_table(self) -> PublicTable | None:
        """By its location, which is the same for every engine and catalog."""
        if not self.has_target():
            return None
        table = self.table()
        location = urlsplit(table.location(), scheme="file")
        if location.scheme == "file":
            namespace, name = "file", location.path
        else:
            namespace, name = f"{location.scheme}://{location.netloc}", location.path.lstrip("/")
        columns = {field.name: str(field.field_type) for field in table.schema().fields}
        return PublicTable(namespace=namespace, name=name, uri=location.geturl(), columns=columns)

    def table(self) -> Table:
        """The table as it is now."""
        if self._table is None:
            self._table = iceberg_table.load_table(iceberg_table.open_catalog(self.pipeline, self.engine), self.pipeline)
        else:
            self._table.refresh()
        return self._table

    def directory(self) -> Directory:
        """Where the tasks put their files."""
        table = self._table or self.table()
        return Directory.at(f"{table.location()}/data")

    # The steps of a load.

    def ensure_target(self, columns: Mapping[str, str]) -> None:
        with self.engine.begin() as connection:
            target.lock_target(connection, self.target)  # catalogs race if two create a table
            try:
                self._table = iceberg_table.ensure_table(
                    iceberg_table.open_catalog(self.pipeline, self.engine), self.pipeline, columns
                )
            except OSError as error:
                raise errors.UserError(f"cannot create or read the Iceberg table {self.target}: {error}") from error

    def task_options(self, warehouse_url: URL) -> Mapping[str, Any]:
        """Files carry the table's field ids, so that readers match columns by id, as with any other writer's files."""
        fields = {field.name: field.field_id for field in self.table().schema().fields}
        return {
            "uri": libpq_uri(warehouse_url, **COPY_SETTINGS),
            "directory": self.directory().uri,
            "field_ids": fields,
        }

    def create_staging(self, attempts: Sequence[model.Attempt]) -> tuple[list[model.Attempt], list[model.Attempt]]:
        public = newest_entries(self.table())
        for attempt in attempts:
            start = attempt.interval.start
            self._unsettled[start] = snapshot_entry.bring_up_ledger(self.engine, attempt, public.get(start))
        with self.engine.begin() as connection:
            current, superseded = lock_current(connection, attempts)
            for attempt in current:
                create_dead_letters(connection, attempt)
        return current, superseded

    def seal(self, attempt: model.Attempt, winners: Collection[str], files: Sequence[str]) -> tally.Counted:
        """Files that no winner reported do not count, whichever task writes them and whenever: the report is the seal."""
        dead = seal(self.engine, attempt, winners)
        directory = self.directory()
        paths = [directory.path_of(file) for file in files]
        rows = iceberg_table.count_batches(lambda: iceberg_table.counted_batches(paths, directory.filesystem))
        return replace(iceberg_table.with_dead_letters(rows, dead), files=iceberg_table.content_hashes(directory, paths))

    def commit(self, load: commit_checks.SealedWindow, now: datetime) -> model.WindowCounts:
        try:
            counts = self._commit_both(load, now)
        except (errors.EquationMismatch, errors.ErrorBudgetExceeded, errors.OtherRecords, errors.AttemptSuperseded):
            with suppress(Exception):  # the refusal is what matters; `maintain` removes files that stay
                self.discard(load.attempt)
            raise
        with suppress(Exception):  # committed is committed
            self._remove_leftovers(load.attempt)
        return counts

    def _commit_both(self, load: commit_checks.SealedWindow, now: datetime) -> model.WindowCounts:
        before = self._published_before(load)
        for tries_left in reversed(range(COMMIT_TRIES_MAX)):
            try:
                with self.engine.begin() as connection:
                    done = commit_in(connection, load, now, _put_none, before)
                    until = complete_until(connection, self.pipeline.name)  # after the ledger's entry: this window is unproven
                    self.publish(snapshot_entry.entry_of(load, now, done.values, done.other_records), load.files, until)
                return done.counts
            except (OperationalError, InterfaceError) as error:
                if not connection_died(error):
                    raise errors.LoadFailed(f"window {load.attempt.interval} was not committed: {error.orig}") from error
                counts = committed_counts(self.engine, load.attempt)
                if counts is not None:
                    return counts
                if not tries_left:
                    raise errors.LoadFailed(
                        f"the connection was lost in {COMMIT_TRIES_MAX} tries to commit {load.attempt.interval}"
                    ) from error
        raise AssertionError("the last try returns or raises")

    def _published_before(self, load: commit_checks.SealedWindow) -> commit_checks.LoadedRecords | None:
        """What the table holds and the ledger lacks; if that is of other offsets, there is nothing to compare with."""
        entry = self._unsettled.get(load.window.interval.start)
        if entry is None or entry.ranges != load.window.ranges:
            return None
        return commit_checks.LoadedRecords(
            attempt=entry.attempt, fingerprint=entry.fingerprint, read=entry.counts.read, partitions=entry.partitions
        )

    def publish(self, entry: snapshot_entry.LedgerEntry, files: Sequence[str], until: datetime | None) -> None:
        """The table's own commit: the window's files are these and no others, and the table is complete `until` then. Doing it
        again changes nothing.

        Raises `AttemptSuperseded` if a newer attempt has published, `LoadFailed` if it failed or its outcome is not certain.
        """
        for tries_left in reversed(range(PUBLISH_TRIES_MAX)):
            table = self.table()
            public = _newest_entry(table, entry.interval.start)
            if public is not None and _is_same_attempt(public, entry):
                return
            if public is not None and public.attempt > entry.attempt:
                raise errors.AttemptSuperseded(f"the table holds window {entry.interval} as attempt {public.attempt} loaded it")
            try:
                replace_files(table, entry, files, until)
                return
            except Exception as error:  # refused, or unknown (a catalog has many errors): the next read of the table shows it
                if not tries_left and not self._has_published(entry):
                    raise errors.LoadFailed(f"window {entry.interval} was not committed to {self.target}: {error}") from error

    def _has_published(self, entry: snapshot_entry.LedgerEntry) -> bool:
        public = self.public_entry(entry.interval.start)
        return public is not None and _is_same_attempt(public, entry)

    # What the table holds.

    def public_entry(self, start: datetime) -> snapshot_entry.LedgerEntry | None:
        """The table's own entry for the window that begins at `start`, if that is loaded."""
        return _newest_entry(self.table(), start)

    def entries(self) -> Iterator[snapshot_entry.LedgerEntry]:
        """The newest entry of every window, oldest window first."""
        newest = newest_entries(self.table())
        return (newest[start] for start in sorted(newest))

    def recount(self, window: model.FrozenWindow) -> Mapping[int, model.PartitionTally]:
        dead = f"{tally.DEAD_LETTERS.sql} where window_id = :window_id"
        with self.engine.connect() as connection:
            dead_letters = tally.count(connection, None, dead, {"window_id": window.id})
        try:
            rows = iceberg_table.count_batches(lambda: self._public_batches(window.interval))
        except FileNotFoundError:  # `compare_values` reports which one
            rows = tally.Counted()
        return iceberg_table.with_dead_letters(rows, dead_letters).tallies

    def _public_batches(self, interval: model.Interval) -> Iterable[pa.RecordBatch]:
        """The window's public rows, only the columns that are counted."""
        scan = self.table().scan(row_filter=_window_filter(interval), selected_fields=tuple(iceberg_table.COUNTED_COLUMNS))
        return scan.to_arrow_batch_reader()

    def rows_of(self, window: model.FrozenWindow, partition: int, offset: int) -> Sequence[Mapping[str, Any]]:
        of_record = And(_window_filter(window.interval), EqualTo("_partition", partition), EqualTo("_offset", offset))
        rows: list[dict[str, Any]] = self.table().scan(row_filter=of_record, limit=ROWS_OF_RECORD_MAX).to_arrow().to_pylist()
        return rows

    def compare_values(self, window: model.FrozenWindow) -> tally.ValuesReport:
        then = tally.published_checksums(window)
        if then is None:
            return tally.ValuesReport()
        if then.files is None:
            return tally.WITHOUT_CHECKSUM
        with self.engine.connect() as connection:
            dead_letters = tally.compare_dead_letters(connection, window)
        directory = self.directory()
        tasks = self.table().scan(row_filter=_window_filter(window.interval)).plan_files()
        paths = [directory.path_of(task.file.file_path) for task in tasks]
        return tally.join_reports(iceberg_table.compare_files(directory, then.files, paths), dead_letters)

    # Files that are no longer needed.

    def maintain(self, options: MaintenanceOptions) -> list[str]:
        """Expires snapshots, and removes files that are not public, unless they are recent or their attempt is running."""
        done = self._expire_snapshots(options.now)
        is_needed, running = self._is_needed(), snapshot_entry.attempts_in(self.engine, self.pipeline.name, ATTEMPT_RUNNING)
        over = [
            file
            for file in self.directory().all_attempt_files()
            if file.changed_at < options.now - options.keep_replaced
            and (file.start, file.number) not in running
            and not is_needed(file)
        ]
        for file in over:
            self.directory().remove(file.path)
        return [*done, *([f"{len(over)} files removed that are not public (any more)"] if over else [])]

    def _expire_snapshots(self, now: datetime) -> list[str]:
        """Expires those older than the setting `keep_snapshots_days`; by default all stay: a lost ledger is rebuilt from them."""
        days = self.pipeline.options.keep_snapshots_days
        if days is None:
            return []
        table = self.table()
        before = len(table.metadata.snapshots)
        table.maintenance.expire_snapshots().older_than(now - timedelta(days=days)).commit()
        count = before - len(self.table().metadata.snapshots)
        return [f"{count} snapshots older than {days} days expired"] if count else []

    def _is_needed(self) -> Callable[[AttemptFile], bool]:
        """A test of whether a file is still needed now: any snapshot reads it, or its attempt is not in this ledger and so may be
        another ledger's."""
        table, name = self.table(), self.pipeline.name
        live = {urlsplit(task.file.file_path).path for task in table.scan().plan_files()}
        published = {(entry.interval.start, entry.attempt) for entry in _all_entries(table)}
        over = snapshot_entry.attempts_in(self.engine, name, FAILED, SUPERSEDED) - published
        if set(table.refs()) == {MAIN_BRANCH}:  # a tag keeps files alive that no entry mentions
            over |= _replaced_attempts(snapshot_entry.attempts_in(self.engine, name, COMMITTED), published)
        return lambda file: file.path in live or (file.start, file.number) not in over

    def discard(self, attempt: model.Attempt) -> None:
        """Removes the files of an attempt that never published."""
        entry = self.public_entry(attempt.interval.start)
        if entry is None or entry.attempt != attempt.number:
            self.directory().remove_attempts(attempt.interval.start, lambda number: number == attempt.number)

    def _remove_leftovers(self, attempt: model.Attempt) -> None:
        """Removes files of older attempts that never published. They no longer can: the table's fence has passed them."""
        start = attempt.interval.start
        if all(file.number >= attempt.number for file in self.directory().attempt_files(start)):
            return  # the usual case, without a query of target or ledger
        # The attempts of every remaining snapshot, so that time travel keeps working.
        kept = {entry.attempt for entry in _all_entries(self.table()) if entry.interval.start == start}
        kept |= snapshot_entry.committed_attempts(self.engine, attempt.window_id)
        self.directory().remove_attempts(start, lambda number: number < attempt.number and number not in kept)


def _put_none(connection: Connection, load: commit_checks.SealedWindow) -> tally.Checksum | None:
    """The rows are not in this database."""
    return None


class CommitTransaction(Transaction):
    """One snapshot and nothing else. The library's own copies the table's metadata at every access, seventeen times a commit, and
    the cost of a copy grows with the table's history: 84 commits took 16 s of CPU with it and take 5 s with this."""

    @property
    def table_metadata(self) -> TableMetadata:
        return super().table_metadata if self._updates else self._table.metadata


def _is_same_attempt(public: snapshot_entry.LedgerEntry, entry: snapshot_entry.LedgerEntry) -> bool:
    """If two have the same number, one may be from before the ledger was restored from a backup."""
    return (public.attempt, public.key) == (entry.attempt, entry.key)


AttemptKey = tuple[datetime, int]


def _replaced_attempts(committed: Collection[AttemptKey], published: Collection[AttemptKey]) -> set[AttemptKey]:
    """Attempts whose files no snapshot reads: a later attempt replaced them, and its own snapshot has expired too."""
    expired: dict[datetime, int] = {}
    for start, number in set(committed) - set(published):
        expired[start] = max(number, expired.get(start, 0))
    return {key for key in set(committed) - set(published) if key[1] < expired.get(key[0], 0)}


def _window_filter(interval: model.Interval) -> EqualTo:
    return EqualTo("_window_start", interval.start.isoformat())


def replace_files(table: Table, entry: snapshot_entry.LedgerEntry, files: Sequence[str], until: datetime | None) -> None:
    """Commits one snapshot: the window's files are these. The predicate makes concurrent changes of the window a conflict."""
    window = _window_filter(entry.interval)
    former = [task.file for task in table.scan(row_filter=window).plan_files()]
    with CommitTransaction(table) as transaction:
        with transaction.update_snapshot(snapshot_properties=snapshot_properties(entry)).overwrite() as snapshot:
            snapshot.delete_by_predicate(window)
            for data_file in former:
                snapshot.delete_data_file(data_file)
            for file in files:
                snapshot.append_data_file(parquet_file_to_data_file(table.io, transaction.table_metadata, file))
        # Last: from the first update on, each look at the transaction's metadata copies it.
        if until is not None:
            transaction.set_properties({COMPLETE_UNTIL_PROPERTY: model.instant_text(until)})
        elif COMPLETE_UNTIL_PROPERTY in table.properties:
            transaction.remove_properties(COMPLETE_UNTIL_PROPERTY)


def snapshot_properties(entry: snapshot_entry.LedgerEntry) -> dict[str, str]:
    return {
        "logbus.pipeline": entry.pipeline,
        WINDOW_PROPERTY: model.instant_text(entry.interval.start),
        "logbus.attempt": str(entry.attempt),
        ENTRY_PROPERTY: entry.to_json(),
    }


def _newest_entry(table: Table, start: datetime) -> snapshot_entry.LedgerEntry | None:
    """The window's newest. Most snapshots are of other windows: a property shows that without parsing the entry."""
    name = model.instant_text(start)
    of_window = (snapshot for snapshot in history(table) if _property_of(snapshot, WINDOW_PROPERTY) == name)
    return next((entry for entry in map(_entry_in, of_window) if entry is not None), None)


def newest_entries(table: Table) -> dict[datetime, snapshot_entry.LedgerEntry]:
    newest: dict[datetime, snapshot_entry.LedgerEntry] = {}
    for entry in map(_entry_in, history(table)):
        if entry is not None:
            newest.setdefault(entry.interval.start, entry)
    return newest


def history(table: Table) -> Iterable[Snapshot]:
    """The snapshots that led to the current one, newest first; what was rolled back is not among them."""
    current = table.current_snapshot()
    return () if current is None else ancestors_of(current, table.metadata)


def _property_of(snapshot: Snapshot, name: str) -> str | None:
    value: str | None = snapshot.summary.additional_properties.get(name) if snapshot.summary else None
    return value


def _all_entries(table: Table) -> Iterator[snapshot_entry.LedgerEntry]:
    """The entries of every snapshot that the table still has, in no particular order."""
    return (entry for entry in map(_entry_in, table.metadata.snapshots) if entry is not None)


def _entry_in(snapshot: Snapshot) -> snapshot_entry.LedgerEntry | None:
    """The entry a snapshot carries. Snapshots of other writers (compaction, a delete by hand) carry none."""
    carried = _property_of(snapshot, ENTRY_PROPERTY)
    if carried is None:
        return None
    try:
        return snapshot_entry.from_json(carried)
    except (ValueError, KeyError, TypeError) as error:
        raise errors.LogbusError(
            f"snapshot {snapshot.snapshot_id} carries a ledger entry that cannot be read: {error!r}"
        ) from error
