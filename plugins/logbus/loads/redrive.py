"""Redrive: the dead letters of a loaded window are parsed again, after the parser or the columns were fixed.

Those that now parse become rows of the same window; the others stay, with their new reason. All of it is one transaction under
the window's lock: rows, dead letters, counts, the ledger's record of it. It begins by comparing the window's checksums, as an
audit does, because afterwards they are the checksums of what the redrive leaves. Before it ends, the window is counted as an
audit counts it; the records are the same, so its fingerprint must be the same, and anything else rolls back. A second redrive
finds less to do.

It does not use Spark, because dead letters are few; values are processed in bounded batches. A concurrent load does no harm: it
has read all records of the window again, and its commit replaces rows and dead letters alike.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, TextClause, insert, select, text, update
from sqlalchemy.exc import DBAPIError

from logbus.errors import EquationMismatch, LoadFailed, UserError, WindowUnknown
from logbus.fingerprint import as_text
from logbus.loads import audit, commit_checks, dead_letters, ledger, tally
from logbus.loads.dead_letters import Value
from logbus.loads.sinks import sink_for
from logbus.loads.tally import DEAD_LETTERS, Published, join_reports
from logbus.loads.target import ROWS_OF_WINDOW, finding_partitions, table_columns, window_parameters
from logbus.model import FrozenWindow, Pipeline, instant_text
from logbus.parsing import Parser, Unparsable, batches, parser_for, schema_format
from logbus.parsing.decoders import FORMATS, Decoders, with_prefixes
from logbus.windows import registration, schema
from logbus.windows.rows import load_windows
from logbus.windows.table_names import TableName, parse_table, quoted

# A reload or a merge of leaves may hold locks on the window's rows; both take seconds.
LOCK_TIMEOUT_MS = 60_000


@dataclass(slots=True, kw_only=True)
class Redriven:
    """What became of a window's dead letters. `errors` counts those that stay by their class; `left_out`: by partition the sum of
    the hashes of those that the parser now filters out."""

    start: datetime
    tried: int = 0
    loaded: int = 0
    filtered: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    left_out: dict[int, int] = field(default_factory=dict)

    @property
    def dead_lettered(self) -> int:
        return sum(self.errors.values())

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values."""
        same = ("tried", "loaded", "filtered", "dead_lettered", "errors")
        return {"start": instant_text(self.start), **{name: getattr(self, name) for name in same}}


@dataclass(slots=True, kw_only=True)
class Sorted:
    """A batch after parsing."""

    rows: list[tuple[Value, Sequence[Any]]] = field(default_factory=list)
    left_out: list[Value] = field(default_factory=list)
    refused: list[tuple[Value, Unparsable]] = field(default_factory=list)


def parse_batch(parser: Parser, batch: Sequence[Value]) -> Sorted:
    """As a load parses them, over the same Arrow columns: a value of another type than its column's (a float for an integer, a
    datetime without a zone) would otherwise be another one in the table, depending on who put it there; and what a load refuses
    (a NUL, a number that is too large), a redrive refuses, too."""
    values = [value.value for value in batch] if parser.decoders is None else described_values(batch)
    parsed = batches.parse_chunk(parser, batches.parser_schema(parser.columns), values)
    rows = zip(*(column.to_pylist() for column in parsed.rows.columns), strict=True)
    return Sorted(
        rows=[(batch[index], row) for index, row in zip(parsed.indexes, rows, strict=True)],
        left_out=[batch[index] for index in parsed.filtered],
        refused=[(batch[index], error) for index, error in parsed.rejected],
    )


def described_values(batch: Sequence[Value]) -> Sequence[bytes | None]:
    """The values, each beginning with the name of its schema."""
    headers = [[(name, sent_content(content)) for name, content in value.headers or ()] for value in batch]
    return with_prefixes([value.value for value in batch], headers)


def sent_content(content: Any) -> bytes | None:
    """A header's content as it was sent."""
    if content is None:
        return None
    return base64.b64decode(content["base64"]) if isinstance(content, dict) else str.encode(content)


def parser_of(engine: Engine, pipeline: Pipeline, windows: Sequence[FrozenWindow], settings: Mapping[str, Any]) -> Parser:
    """The pipeline's parser with its current settings, for the dead letters of these windows: with the schemas that they name and
    a column for each field of those. `settings`: the client's, which may have the registry's credentials."""
    if pipeline.parse not in FORMATS:
        return parser_for(pipeline.parse, pipeline.settings)
    book = commit_checks.schema_book(engine, pipeline.name)
    decoders = Decoders(format=FORMATS[pipeline.parse], book=book)
    with commit_checks.asking_registry(book, pipeline, settings), engine.connect() as connection:
        for window in windows:
            for batch in dead_letters.batches(connection, window.id):
                book.meet(set(filter(None, decoders.prefixes(described_values(batch)))))
    columns = schema_format.schema_columns(decoders, pipeline.options.columns)
    return parser_for(pipeline.parse, {**pipeline.settings, "columns": columns}, book)


def tell(outcome: Redriven, batch: Sorted) -> None:
    outcome.tried += len(batch.rows) + len(batch.left_out) + len(batch.refused)
    outcome.loaded += len(batch.rows)
    outcome.filtered += len(batch.left_out)
    for value in batch.left_out:
        outcome.left_out[value.partition] = outcome.left_out.get(value.partition, 0) + value.fingerprint
    for _, error in batch.refused:
        outcome.errors[error.kind] = outcome.errors.get(error.kind, 0) + 1


def windows_to_redrive(
    engine: Engine, pipeline: Pipeline, since: datetime | None = None, until: datetime | None = None
) -> list[FrozenWindow]:
    """The loaded windows that have dead letters and start within [since, until], by start."""
    windows = ledger.Ledger(engine).windows(pipeline.name, since, until)
    return [window for window in windows if window.counts is not None and window.counts.dead_lettered]


@dataclass(frozen=True, kw_only=True)
class Redrive:
    """One pipeline's redrive. `parser` is its parser with the current settings."""

    engine: Engine
    pipeline: Pipeline
    parser: Parser
    run_id: str
    now: Callable[[], datetime]

    @property
    def target(self) -> TableName:
        return parse_table(self.pipeline.table)

    def plan(self, window: FrozenWindow) -> Redriven:
        """What `run` would do, found by parsing; nothing is changed."""
        outcome = Redriven(start=window.interval.start)
        with self.engine.connect() as connection:
            for batch in dead_letters.batches(connection, window.id):
                tell(outcome, parse_batch(self.parser, batch))
        return outcome

    def run(self, window: FrozenWindow) -> Redriven:
        """Moves what now parses. Raises `UserError` (a file sink), `EquationMismatch` or `LoadFailed`: then nothing changed."""
        self.refuse_other_sinks()
        if self.parser.decoders is not None:
            registration.remember_columns(self.engine, self.pipeline, self.parser.columns, self.now())
        # Outside the transaction: a new column of the fixed parser needs a lock, for which running loads would otherwise have
        # to wait until the last dead letter is parsed.
        sink_for(self.pipeline, self.engine).ensure_target(self.parser.columns)
        try:
            with self.engine.begin() as connection:
                return self.run_in(connection, window)
        except DBAPIError as error:
            raise LoadFailed(
                f"the dead letters of window {window.interval} were not redriven: {error.orig}. "
                "Whatever happened, it happened as a whole: run the redrive again"
            ) from error

    def refuse_other_sinks(self) -> None:
        if (name := sink_for(self.pipeline, self.engine).name) != "postgres":
            raise UserError(
                f"pipeline {self.pipeline.name} loads into {name}, whose files are not changed row by row: load the windows "
                f"again (`logbus load --pipeline {self.pipeline.name} --since ... --until ...`), which parses everything anew"
            )

    def run_in(self, connection: Connection, window: FrozenWindow) -> Redriven:
        # The window's row is the lock for loads and redrives alike. Its checksums are compared before anything moves: afterwards
        # they are taken from the current rows, and a row that was changed by hand would count as loaded from then on.
        connection.execute(text(f"set local lock_timeout = {LOCK_TIMEOUT_MS}"))
        attempt = lock_loaded(connection, window)
        values = self.compared(connection, window)
        outcome = Redriven(start=window.interval.start)
        move = RedriveMove(connection=connection, window=window, target=self.target, columns=self.parser.columns)
        # The records of a batch are deleted, or updated in place, by their offsets, and the next batch begins after those
        # offsets: nothing is read twice.
        for batch in dead_letters.batches(connection, window.id):
            parsed = parse_batch(self.parser, batch)
            move.apply(parsed)
            tell(outcome, parsed)
        self.write_ledger(connection, window, attempt, outcome)
        if self.parser.decoders is not None:
            commit_checks.freeze_schemas(connection, self.pipeline, self.parser.decoders.book.schemas, self.now())
        if values is not None:
            self.write_values(connection, window, values, outcome)
        self.refuse_mismatch(connection, window)
        return outcome

    def compared(self, connection: Connection, window: FrozenWindow) -> Published | None:
        """The window's checksums, compared with what it holds now: otherwise a redrive would make a changed row look like a
        loaded one. Those that cannot be compared are left out."""
        (now,) = load_windows(connection, select(schema.window).where(schema.window.c.id == window.id))
        report = join_reports(tally.compare_table(connection, now, self.target), tally.compare_dead_letters(connection, now))
        if report.problems:
            raise EquationMismatch(
                f"window {window.interval} of {self.pipeline.name} does not add up: {'; '.join(report.problems)}. Load it again"
            )
        values = tally.published_checksums(now)
        # A note means that a checksum cannot be compared (it is missing, or this server hashes values differently). A new one
        # would vouch for values that were never compared; the next load writes one.
        return values if values is None or not report.notes else replace(values, table=None, dead_letters=None)

    def write_values(self, connection: Connection, window: FrozenWindow, before: Published, outcome: Redriven) -> None:
        """The checksums of what the redrive leaves."""
        # A fingerprint is a sum of hashes modulo a power of two, so what is left out is subtracted. Rows and dead letters are
        # summed together, so a record that only moves from one to the other leaves the sum unchanged.
        staged = {part: minus(fingerprint, outcome.left_out.get(part, 0)) for part, fingerprint in before.staged.items()}
        if before.table is not None:
            columns = {
                **before.table.columns,
                **tally.covered_columns(table_columns(connection, self.target), self.parser.columns),
            }
            parameters = window_parameters(window)
            table = tally.checksum_of(connection, self.target, columns, ROWS_OF_WINDOW, parameters)
            dead = tally.checksum_of_dead_letters(connection, window.id)
            before = replace(before, table=table, dead_letters=dead)
        row, after = schema.window, replace(before, staged=staged)
        connection.execute(update(row).where(row.c.id == window.id).values(values_hash=asdict(after)))

    def write_ledger(self, connection: Connection, window: FrozenWindow, attempt: int, outcome: Redriven) -> None:
        row, moved = schema.window, outcome.loaded + outcome.filtered
        counts = {
            "loaded_count": row.c.loaded_count + outcome.loaded,
            "filtered_count": row.c.filtered_count + outcome.filtered,
            "dead_lettered_count": row.c.dead_lettered_count - moved,
        }
        if moved:
            # The last audit was of other rows.
            unaudited = {"audited_at": None, "audit_problems": None}
            connection.execute(update(row).where(row.c.id == window.id).values(**counts, **unaudited))
        done = {
            "window_id": window.id,
            "attempt": attempt,
            "run_id": self.run_id,
            "redriven_at": self.now(),
            "tried_count": outcome.tried,
            "loaded_count": outcome.loaded,
            "dead_lettered_count": outcome.dead_lettered,
        }
        connection.execute(insert(schema.redrive).values(done))

    def refuse_mismatch(self, connection: Connection, window: FrozenWindow) -> None:
        """Counts the window as the audit does: rows, dead letters and ledger must agree, and the fingerprint be unchanged."""
        (after,) = load_windows(connection, select(schema.window).where(schema.window.c.id == window.id))
        tallies = tally.count_window(connection, window, self.target)
        assert after.counts is not None, "a loaded window has counts"
        # Filtered records leave gaps among the offsets of rows and dead letters; only their number is kept.
        gaps_allowed = self.pipeline.options.offset_gaps or after.counts.filtered > 0
        wrong = [
            *tally.problems(after, tallies, {}, gaps_allowed=gaps_allowed),
            *audit.ledger_problems(after, after.counts, tallies),
        ]
        if wrong:
            raise EquationMismatch(f"window {window.interval} of {self.pipeline.name} does not add up: {'; '.join(wrong)}")


def minus(fingerprint: str, hashes: int) -> str:
    return as_text(int(fingerprint, 16) - hashes)


def lock_loaded(connection: Connection, window: FrozenWindow) -> int:
    """Locks the window's row; returns the attempt that is loaded."""
    row = schema.window
    attempt: int | None = connection.execute(
        select(row.c.loaded_attempt).where(row.c.id == window.id).with_for_update()
    ).scalar_one()
    if attempt is None:
        raise WindowUnknown(
            f"window {window.interval} of {window.pipeline} is not loaded: load it, then there is something to redrive"
        )
    return attempt


# A row's origin, copied from the dead letter by SQL: none of it passes through Python.
ORIGIN = {
    "_topic": "topic",
    "_partition": '"partition"',
    "_offset": '"offset"',
    "_timestamp": '"timestamp"',
    "_key": "key",
    "_headers": "headers",
    "_window_start": ":window_start",
    "_fingerprint": "fingerprint",
}

PLACE = 'window_id = :window_id and "partition" = :partition and "offset" = :offset'


@dataclass(frozen=True, kw_only=True)
class RedriveMove:
    """The statements that move a window's dead letters, batch by batch."""

    connection: Connection
    window: FrozenWindow
    target: TableName
    columns: Mapping[str, str]

    def apply(self, batch: Sorted) -> None:
        rows = [{**self.place(value), **dict(zip(self.parameters(), values, strict=True))} for value, values in batch.rows]
        gone = [self.place(value) for value in [*(value for value, _ in batch.rows), *batch.left_out]]
        kept = [{**self.place(value), "kind": error.kind, "error": str(error)} for value, error in batch.refused]
        if rows:
            with finding_partitions(self.connection, self.target, self.window.interval):
                self.connection.execute(self.insertion(), rows)
        if gone:
            self.connection.execute(text(f"delete from {DEAD_LETTERS.sql} where {PLACE}"), gone)
        if kept:
            update_kept = text(f"update {DEAD_LETTERS.sql} set error_class = :kind, error = :error where {PLACE}")
            self.connection.execute(update_kept, kept)

    def place(self, value: Value) -> dict[str, Any]:
        key = {"window_id": self.window.id, "partition": value.partition, "offset": value.offset}
        return {**key, "window_start": self.window.interval.start}

    def parameters(self) -> list[str]:
        return [f"c{number}" for number in range(len(self.columns))]

    def insertion(self) -> TextClause:
        present = table_columns(self.connection, self.target)
        origin = {name: source for name, source in ORIGIN.items() if name in present}
        parsed = [f"cast(:{name} as {kind})" for name, kind in zip(self.parameters(), self.columns.values(), strict=True)]
        names = ", ".join(quoted(name) for name in [*origin, *self.columns])
        values = ", ".join([*origin.values(), *parsed])
        return text(f"insert into {self.target.sql} ({names}) select {values} from {DEAD_LETTERS.sql} where {PLACE}")
