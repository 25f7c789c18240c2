"""What sinks whose rows are Parquet files share: two commits in an order that a crash between them cannot break.

The tasks write files under names of their own attempt, which no reader sees. The commit of a window, under the lock on its
row in the ledger:

1. one transaction is opened in PostgreSQL: the fence, the equation, the dead letters, the ledger's entry; not committed yet
2. the target's own commit: the window's files are replaced by this attempt's; it carries the ledger entry
3. the transaction commits

A crash before 2 leaves everything as it was. A crash between 2 and 3 leaves the table ahead of the ledger, which the
next attempt detects and repairs (`settle`). Until then the lock keeps newer attempts from beginning; if the connection
that holds it dies, the target's own fence remains: an attempt never replaces the files of a newer one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import InterfaceError, OperationalError

from logbus.errors import AttemptSuperseded, EquationMismatch, ErrorBudgetExceeded, LoadFailed, OtherRecords
from logbus.ledger.rows import ATTEMPT_RUNNING
from logbus.ledger.table_names import TableName, parse_table
from logbus.ledger.values import NOT_WITNESSED, Checksum, ValuesReport, join
from logbus.model import Attempt, FrozenWindow, Interval, PartitionTally, Pipeline, WindowCounts
from logbus.proof import tally
from logbus.warehouse import staging
from logbus.warehouse.checksum import DEAD_LETTERS
from logbus.warehouse.commit import SealedWindow, commit_in, committed_counts, connection_died
from logbus.warehouse.directory import AttemptFile, Directory
from logbus.warehouse.engine import copy_uri
from logbus.warehouse.published import compare_dead_letters, of_window
from logbus.warehouse.same_records import LoadedRecords
from logbus.warehouse.sinks.base import Upkeep
from logbus.warehouse.sinks.content import compare_files, content_hashes
from logbus.warehouse.sinks.counting import count_batches, counted_batches, with_dead_letters
from logbus.warehouse.sinks.entry import LedgerEntry, entry_of
from logbus.warehouse.sinks.settle import attempts_in, committed_attempts, settle_window

# Before another try, the ledger is asked whether the last one took effect.
COMMIT_TRIES_MAX = 3


class FileSink:
    """A sink whose rows are in files and whose dead letters and ledger are in PostgreSQL."""

    name: str

    def __init__(self, pipeline: Pipeline, engine: Engine) -> None:
        self.pipeline = pipeline
        self.engine = engine
        self.target: TableName = parse_table(pipeline.table)
        self.unsettled: dict[datetime, LedgerEntry | None] = {}  # by window: what the table holds and the ledger lacks

    # Where the file sinks differ.

    @abstractmethod
    def ensure_target(self, columns: Mapping[str, str]) -> None: ...

    @abstractmethod
    def directory(self) -> Directory:
        """Where the tasks put their files."""

    @abstractmethod
    def public_entry(self, start: datetime) -> LedgerEntry | None:
        """The target's own entry for the window that begins at `start`, if that is loaded."""

    @abstractmethod
    def entries(self) -> Iterator[LedgerEntry]:
        """The newest entry of every window, oldest window first."""

    @abstractmethod
    def public_entries(self, starts: Collection[datetime]) -> Mapping[datetime, LedgerEntry]:
        """`public_entry` of many windows at once."""

    @abstractmethod
    def publish(self, entry: LedgerEntry, files: Sequence[str]) -> None:
        """The target's own commit: the window's files are these and no others. Doing it again changes nothing.

        Raises `AttemptSuperseded` if a newer attempt has published, `LoadFailed` if it failed or its outcome is not certain.
        """

    @abstractmethod
    def public_batches(self, interval: Interval) -> Iterable[pa.RecordBatch]:
        """The window's public rows, only the columns that are counted."""

    @abstractmethod
    def public_paths(self, interval: Interval) -> Sequence[str]:
        """The files that the target itself lists for the window, as paths of the directory's filesystem."""

    @abstractmethod
    def kept_attempts(self, start: datetime) -> Collection[int]:
        """Attempts at a window whose files may still be read."""

    @abstractmethod
    def keeps(self) -> Callable[[AttemptFile], bool]:
        """A test of whether a file is still needed now: it is public, or was and can still be read."""

    # What they share.

    def task_options(self) -> Mapping[str, Any]:
        return {"uri": copy_uri(self.engine), "directory": self.directory().uri}

    def create_staging(self, attempts: Sequence[Attempt]) -> tuple[list[Attempt], list[Attempt]]:
        public = self.public_entries([attempt.interval.start for attempt in attempts])
        for attempt in attempts:
            start = attempt.interval.start
            self.unsettled[start] = settle_window(self.engine, attempt, public.get(start))
        return staging.create_for_current(self.engine, attempts, staging.create_dead_letters)

    def seal(self, attempt: Attempt, winners: Collection[int], files: Sequence[str]) -> tally.Counted:
        """Files that no winner reported do not count, whichever task writes them and whenever: the report is the seal."""
        dead = staging.seal_dead_letters(self.engine, attempt, winners)
        directory = self.directory()
        paths = [directory.path_of(file) for file in files]
        rows = count_batches(lambda: counted_batches(paths, directory.filesystem))
        return replace(with_dead_letters(rows, dead), files=content_hashes(directory, paths))

    def commit(self, load: SealedWindow, now: datetime) -> WindowCounts:
        try:
            counts = self.commit_both(load, now)
        except (EquationMismatch, ErrorBudgetExceeded, OtherRecords, AttemptSuperseded):
            with suppress(Exception):  # the refusal is what matters; `maintain` removes files that stay
                self.discard(load.attempt)
            raise
        with suppress(Exception):  # committed is committed
            self.remove_leftovers(load.attempt)
        return counts

    def commit_both(self, load: SealedWindow, now: datetime) -> WindowCounts:
        before = self.published_before(load)
        for tries_left in reversed(range(COMMIT_TRIES_MAX)):
            try:
                with self.engine.begin() as connection:
                    done = commit_in(connection, load, now, put_none, before)
                    self.publish(entry_of(load, now, done.values, done.other_records), load.files)
                return done.counts
            except (OperationalError, InterfaceError) as error:
                if not connection_died(error):
                    raise LoadFailed(f"window {load.attempt.interval} was not committed: {error.orig}") from error
                counts = committed_counts(self.engine, load.attempt)
                if counts is not None:
                    return counts
                if not tries_left:
                    raise LoadFailed(
                        f"the connection died again and again while {load.attempt.interval} was committed"
                    ) from error
        raise AssertionError("the last try returns or raises")

    def published_before(self, load: SealedWindow) -> LoadedRecords | None:
        """What the table holds and the ledger lacks; if that is of other offsets, there is nothing to compare with."""
        entry = self.unsettled.get(load.window.interval.start)
        if entry is None or entry.ranges != load.window.ranges:
            return None
        return LoadedRecords(
            attempt=entry.attempt, fingerprint=entry.fingerprint, read=entry.counts.read, partitions=entry.partitions
        )

    def recount(self, window: FrozenWindow) -> Mapping[int, PartitionTally]:
        dead = tally.dead_letters(DEAD_LETTERS.sql, "window_id = :window_id")
        with self.engine.connect() as connection:
            dead_letters = tally.count(connection, tally.NO_ROWS, dead, {"window_id": window.id})
        try:
            rows = count_batches(lambda: self.public_batches(window.interval))
        except FileNotFoundError:  # `compare_values` reports which one
            rows = tally.Counted()
        return with_dead_letters(rows, dead_letters).tallies

    def compare_values(self, window: FrozenWindow) -> ValuesReport:
        then = of_window(window)
        if then is None or then.files is None:
            return NOT_WITNESSED
        with self.engine.connect() as connection:
            dead_letters = compare_dead_letters(connection, window)
        return join(compare_files(self.directory(), then.files, self.public_paths(window.interval)), dead_letters)

    def maintain(self, upkeep: Upkeep) -> list[str]:
        """Removes files that are not public, unless they are recent or their attempt is running."""
        keeps, running = self.keeps(), attempts_in(self.engine, self.pipeline.name, ATTEMPT_RUNNING)
        over = [
            file
            for file in self.directory().all_attempt_files()
            if file.changed_at < upkeep.now - upkeep.keep_replaced
            and (file.start, file.number) not in running
            and not keeps(file)
        ]
        for file in over:
            self.directory().remove(file.path)
        return [f"{len(over)} files removed that are not public (any more)"] if over else []

    def discard(self, attempt: Attempt) -> None:
        """Removes the files of an attempt that never published."""
        entry = self.public_entry(attempt.interval.start)
        if entry is None or entry.attempt != attempt.number:
            self.directory().remove_attempts(attempt.interval.start, lambda number: number == attempt.number)

    def remove_leftovers(self, attempt: Attempt) -> None:
        """Removes files of older attempts that never published. They no longer can: the target's fence has passed them."""
        start = attempt.interval.start
        if all(file.number >= attempt.number for file in self.directory().attempt_files(start)):
            return  # the usual case, without a query of target or ledger
        published = {*self.kept_attempts(start), *committed_attempts(self.engine, attempt.window_id)}
        self.directory().remove_attempts(start, lambda number: number < attempt.number and number not in published)


def put_none(connection: Connection, load: SealedWindow) -> Checksum | None:
    """The rows are not in this database."""
    return None
