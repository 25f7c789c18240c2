"""The proof of a stream, hour of arrival by hour, once the window of that hour is loaded and audited.

Tiles: the parts of the hour are exactly the window's offsets. Records: by partition they are as many as the load has read, with
the same fingerprint. Values: the stream's rows of the hour, compared one by one with what the window's loaded rows add up to.
The stream's come from Arrow in Spark's tasks, the others from SQL in the warehouse: two witnesses, not one asked twice. Those
of a stream of rows are compared with the loaded ones as they are, and go: from then on the loaded ones are enough.

All of it is read in one snapshot, without a lock that a commit would wait for. The verdict is written in a transaction of its
own, under the stream's lock, which commits and proofs hold for milliseconds, and only if nothing of the hour has changed since:
an hour that is read to its end changes by a repair or a reset alone.

Where the two differ, the rows of the load take the place of the stream's: the batch is what was audited. Unless it lacks rows
that its load has brought: then the difference is kept and nothing is replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from logbus import errors, fingerprint, model
from logbus.formatting import many, several
from logbus.loads import target
from logbus.streams import epochs, stream_ledger
from logbus.streams.aggregate_listing import DIFFERENCES_MAX, PROBLEMS_KEPT_MAX, PROBLEMS_SHOWN_MAX, difference_sentences
from logbus.streams.definition import Stream, of_ledger
from logbus.streams.epoch_commit import add_parts, parts_of, repair_in
from logbus.streams.epochs import EpochPart, LoadedPart
from logbus.streams.hourly_aggregates import begin_snapshot
from logbus.streams.kinds import arrival_table, loaded_windows
from logbus.streams.listing import BEHIND, DIFFERENT, IS_AUDITED, IS_SAME_LOAD, PROVEN
from logbus.streams.statements import WindowStatements
from logbus.streams.tail import LoadedRows
from logbus.windows import rows, schema
from logbus.windows.table_names import parse_table

KEPT = "kept"
VERDICTS = (PROVEN, DIFFERENT, BEHIND, KEPT)
TRIES_MAX = 3  # of an hour that is repaired or reset while it is compared


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHourProof:
    """`behind`: not read to its end, or about to be repaired; `kept`: its rows in the pipeline's table are gone with an old
    partition, so it was not compared. `problems`: what differs, each as a sentence, the first of `difference_count` rows.
    `replaced_by`: the attempt whose rows the stream has now."""

    hour: datetime
    verdict: str
    problems: Sequence[str] = ()
    difference_count: int = 0
    replaced_by: int | None = None

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values."""
        same = ("verdict", "difference_count", "replaced_by")
        return {
            "hour": model.instant_text(self.hour),
            **{name: getattr(self, name) for name in same},
            "problems": list(self.problems),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamProof:
    """The verdict on each hour that was due, or asked about, by hour."""

    stream: str
    hours: Sequence[StreamHourProof]

    def of(self, verdict: str) -> list[datetime]:
        return [hour.hour for hour in self.hours if hour.verdict == verdict]

    def failure(self) -> str:
        different = [hour for hour in self.hours if hour.verdict == DIFFERENT]
        problems = [f"{model.instant_text(hour.hour)}: {problem}" for hour in different for problem in hour.problems]
        return (
            f"stream {self.stream} is not what was loaded in {many(len(different), 'hour')}: "
            f"{several(problems, PROBLEMS_SHOWN_MAX, separator='; ')}"
        )

    def summary(self) -> dict[str, Any]:
        """As JSON-ready values."""
        counts = {verdict: len(self.of(verdict)) for verdict in VERDICTS}
        return {"stream": self.stream, **counts, "hours": [hour.summary() for hour in self.hours]}


def refuse_different(proof: StreamProof) -> None:
    if proof.of(DIFFERENT):
        raise errors.AuditMismatch(proof.failure())


def prove_due(engine: sa.Engine, name: str, now: datetime) -> StreamProof:
    """Of the audited hours that were never proven, or of which the load is another by now."""
    with engine.connect() as connection:
        starts = list(connection.scalars(_audited(stream_ledger.row_of(connection, name)).where(_is_due(name))))
    return _prove(engine, name, starts, now)


def prove_span(
    engine: sa.Engine, name: str, now: datetime, *, since: datetime | None = None, until: datetime | None = None
) -> StreamProof:
    """Of all audited hours that begin in [since, until), proven ones as well."""
    window = schema.window
    with engine.connect() as connection:
        query = _audited(stream_ledger.row_of(connection, name))
        query = query if since is None else query.where(window.c.starts_at >= since)
        query = query if until is None else query.where(window.c.starts_at < until)
        starts = list(connection.scalars(query))
    return _prove(engine, name, starts, now)


def _audited(row: Mapping[Any, Any]) -> sa.Select[Any]:
    """The starts of windows that are loaded and audited, from where the stream begins on."""
    window = schema.window
    query = (
        sa.select(window.c.starts_at)
        .where(window.c.pipeline == row["pipeline"], window.c.topic_id == row["topic_id"], IS_AUDITED)
        .order_by(window.c.starts_at)
    )
    return query if row["since"] is None else query.where(window.c.starts_at >= row["since"])


def _is_due(name: str) -> sa.ColumnElement[bool]:
    window, hour = schema.window, schema.stream_hour
    return sa.not_(sa.exists().where(hour.c.stream == name, hour.c.hour == window.c.starts_at, IS_SAME_LOAD).correlate(window))


def _prove(engine: sa.Engine, name: str, starts: Iterable[datetime], now: datetime) -> StreamProof:
    return StreamProof(stream=name, hours=[_prove_hour(engine, name, start, now) for start in starts])


def _prove_hour(engine: sa.Engine, name: str, start: datetime, now: datetime) -> StreamHourProof:
    for _ in range(TRIES_MAX):
        comparison = _compare(engine, name, start)
        if comparison.verdict in (BEHIND, KEPT):
            return StreamHourProof(hour=start, verdict=comparison.verdict, problems=comparison.problems)
        if (proof := _write(engine, name, comparison, now)) is not None:
            return proof
    return StreamHourProof(hour=start, verdict=BEHIND, problems=("it was repaired or reset while it was compared",))


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedHour:
    """An hour, as one snapshot has it. `deltas`: the rows of the load, if they are to take the place of the stream's."""

    window: model.FrozenWindow
    verdict: str
    parts: Sequence[EpochPart] = ()
    loaded: Mapping[int, LoadedPart] = field(default_factory=dict)
    problems: Sequence[str] = ()
    difference_count: int = 0
    deltas: str | None = None

    @property
    def version(self) -> tuple[int, int]:
        """Another one once the hour's parts have changed: numbers of epochs are given once."""
        return version_of(self.parts)

    @property
    def load(self) -> tuple[int | None, int]:
        return self.window.loaded_attempt, self.window.counts.loaded if self.window.counts else 0


def version_of(parts: Sequence[EpochPart]) -> tuple[int, int]:
    return len(parts), max((part.epoch for part in parts), default=0)


def _compare(engine: sa.Engine, name: str, start: datetime) -> ComparedHour:
    with engine.connect() as connection:
        statements = _statements(connection, stream_ledger.find(connection, name))
    with engine.begin() as connection:
        # The leaf of a reload that swaps it would be empty in an older snapshot: the table is locked first, as readers do.
        begin_snapshot(connection, None if statements is None else statements.source)
        row = stream_ledger.row_of(connection, name)
        window = _window(connection, row, start)
        parts = parts_of(connection, name, schema.epoch_part.c.hour == start)
        positions = stream_ledger.positions_in(connection, name)
        behind = [part for part in window.ranges if positions.get(part.partition, 0) < part.end_offset]
        if behind:
            return ComparedHour(window=window, verdict=BEHIND, problems=[f"{part} is not read to its end" for part in behind])
        problems = epochs.tiling_problems(window.ranges, parts)
        if problems and (repair := repair_in(connection, row)) is not None and start in repair.hours:
            return ComparedHour(window=window, verdict=BEHIND, problems=problems)
        loaded = _loaded_parts(connection, window)
        problems = problems or epochs.reading_problems(loaded, parts)
        return _compare_values(connection, row, statements, window, parts, loaded, problems)


def _statements(connection: sa.Connection, stream: Stream) -> WindowStatements | LoadedRows | None:
    """None as long as the pipeline has loaded nothing."""
    pipeline = rows.pipeline_row(connection, stream.pipeline)
    table = parse_table(pipeline["table_name"])
    columns = target.table_columns(connection, table)
    return loaded_windows(stream, pipeline["topic"], table, columns) if columns else None


def _window(connection: sa.Connection, row: Mapping[Any, Any], start: datetime) -> model.FrozenWindow:
    window = schema.window
    query = sa.select(window).where(window.c.pipeline == row["pipeline"], window.c.starts_at == start)
    windows = rows.load_windows(connection, query)
    if not windows:
        raise errors.WindowUnknown(f"no window of {row['pipeline']} that starts at {model.instant_text(start)} is frozen")
    return windows[0]


def _loaded_parts(connection: sa.Connection, window: model.FrozenWindow) -> dict[int, LoadedPart]:
    """What the load has read, by partition; a window that is proven empty has no attempt."""
    attempt = schema.attempt
    is_it = (attempt.c.window_id == window.id, attempt.c.number == window.loaded_attempt)
    partitions = connection.execute(sa.select(attempt.c.partitions).where(*is_it)).scalar_one_or_none() or {}
    return {int(number): LoadedPart(read=part["read"], fingerprint=part["fingerprint"]) for number, part in partitions.items()}


def _compare_values(
    connection: sa.Connection,
    row: Mapping[Any, Any],
    statements: WindowStatements | LoadedRows | None,
    window: model.FrozenWindow,
    parts: Sequence[EpochPart],
    loaded: Mapping[int, LoadedPart],
    problems: Sequence[str],
) -> ComparedHour:
    table = arrival_table(of_ledger(row), row["columns"])
    start, pipeline = window.interval.start, row["pipeline"]
    of_hour, row_count, computed = {"hour": start}, 0, None
    if statements is not None:
        of_hour |= statements.values([start])
        row_count, computed = connection.execute(statements.row_count(), of_hour).scalar_one(), statements.of_window()
    expected = window.counts.loaded if window.counts else 0
    if expected and not row_count:
        gone = f"the rows of the window are gone from the table of {pipeline}, with an old partition"
        return ComparedHour(window=window, verdict=KEPT, problems=[gone])
    differing: Sequence[Sequence[Any]] = ()
    if table.keeps_proven or not _is_replaced(connection, row["name"], start):
        differing = connection.execute(table.differences(computed), {**of_hour, "most": DIFFERENCES_MAX}).all()
    problems = [*problems, *(text for _, text in difference_sentences(table.names, table.keys, differing))]
    deltas = None
    if row_count != expected:
        audit = f"logbus window audit --pipeline {pipeline} {model.instant_text(start)}"
        lacking = f"the table of {pipeline} has {many(row_count, 'row')} of it, and its load brought {expected:,}"
        problems.insert(0, f"{lacking}: `{audit}` says more; load it again")
    elif problems:
        deltas = "[]" if computed is None else connection.execute(table.deltas_of(computed), of_hour).scalar_one() or "[]"
    return ComparedHour(
        window=window,
        verdict=DIFFERENT if problems else PROVEN,
        parts=parts,
        loaded=loaded,
        problems=problems,
        difference_count=differing[0][0] if differing else 0,
        deltas=deltas,
    )


def _is_replaced(connection: sa.Connection, name: str, start: datetime) -> bool:
    """Whether the rows of the load have taken the place of the stream's since the hour was last read."""
    hour = schema.stream_hour
    is_it = (hour.c.stream == name, hour.c.hour == start, hour.c.replaced_by.is_not(None))
    return connection.execute(sa.select(sa.exists().where(*is_it))).scalar_one()


def _write(engine: sa.Engine, name: str, comparison: ComparedHour, now: datetime) -> StreamHourProof | None:
    """None if the hour has changed since it was compared. A difference that a newer load has made is no fault of the stream: its
    rows take the place of the stream's, and the hour is proven."""
    hour, part, window, attempt = schema.stream_hour, schema.epoch_part, comparison.window, comparison.window.loaded_attempt
    start = window.interval.start
    with engine.begin() as connection:
        connection.execute(rows.HOLD_BRIEFLY)
        row = stream_ledger.row_of(connection, name, lock=True)
        of_hour = part.c.hour == start
        if version_of(parts_of(connection, name, of_hour)) != comparison.version:
            return None
        before = connection.execute(sa.select(hour).where(hour.c.stream == name, hour.c.hour == start)).mappings().one_or_none()
        parts: Sequence[EpochPart] | None = epochs.merged(comparison.parts) if comparison.verdict == PROVEN else None
        replaced_by = None if before is None else before["replaced_by"]
        verdict, table = comparison.verdict, arrival_table(of_ledger(row), row["columns"])
        if comparison.deltas is not None or (verdict == PROVEN and not table.keeps_proven):
            connection.execute(table.delete_hours(), {"hours": [start], "since": None})
            replaced_by = attempt
        if comparison.deltas is not None:
            connection.execute(table.add(), {"deltas": comparison.deltas})
            parts = _parts_of_load(comparison)
            is_of_load = _is_redriven(connection, window) or (
                before is not None and (before["loaded_attempt"], before["loaded_count"]) != comparison.load
            )
            verdict = PROVEN if is_of_load else DIFFERENT
        if parts is not None:
            connection.execute(sa.delete(part).where(part.c.stream == name, of_hour))
            add_parts(connection, name, parts)
        values = {
            "state": verdict,
            "loaded_attempt": attempt,
            "loaded_count": comparison.load[1],
            "record_count": sum(each.read for each in comparison.parts),
            "proven_at": now,
            "replaced_by": replaced_by,
            "difference_count": comparison.difference_count,
            "differences": list(comparison.problems[:PROBLEMS_KEPT_MAX]),
        }
        statement = insert(hour).values(stream=name, hour=start, **values)
        connection.execute(statement.on_conflict_do_update(index_elements=["stream", "hour"], set_=values))
    return StreamHourProof(
        hour=start,
        verdict=verdict,
        problems=comparison.problems,
        difference_count=comparison.difference_count,
        replaced_by=replaced_by,
    )


def _parts_of_load(comparison: ComparedHour) -> list[EpochPart]:
    """The hour's rows are the load's from now on, and so are its parts."""
    _, epoch = comparison.version
    parts = []
    for expected in comparison.window.ranges:
        if expected.start_offset < expected.end_offset:
            of_load = comparison.loaded.get(expected.partition, LoadedPart(read=0, fingerprint=fingerprint.as_text(0)))
            parts.append(
                EpochPart(
                    partition=expected.partition,
                    start_offset=expected.start_offset,
                    end_offset=expected.end_offset,
                    epoch=epoch,
                    hour=comparison.window.interval.start,
                    read=of_load.read,
                    fingerprint=int(of_load.fingerprint, 16),
                )
            )
    return parts


def _is_redriven(connection: sa.Connection, window: model.FrozenWindow) -> bool:
    """Whether rows were added to the load after it: dead letters that parse by now, and did not when the stream read them."""
    redrive = schema.redrive
    is_it = (redrive.c.window_id == window.id, redrive.c.attempt == window.loaded_attempt, redrive.c.loaded_count > 0)
    return connection.execute(sa.select(sa.exists().where(*is_it))).scalar_one()
