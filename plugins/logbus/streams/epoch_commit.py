"""The commit of an epoch: one transaction in which its counts and its offsets become public, or neither of them.

In order: the fence (the stream's row is held, the driver must be its newest), all that may refuse (the epoch begins where the
chain ends, no window that is frozen by now cuts it), then the deltas, the parts and the new positions. When the connection dies
nobody was told whether it took place: `stream_ledger.positions` knows, and the driver plans from there.

Freezing may decide otherwise than was foreseen. What is committed then already is repaired: all parts of the hours concerned are
read once more in one epoch, which takes the place of their parts and of their rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from logbus import errors, fingerprint, model
from logbus.formatting import several
from logbus.streams import epochs, stream_ledger
from logbus.streams.arrow_aggregation import as_json
from logbus.streams.definition import of_ledger
from logbus.streams.epochs import EpochPart, FrozenHour, Repair
from logbus.streams.kinds import arrival_table
from logbus.streams.stream_ledger import Ownership, hold_if_owner, row_of
from logbus.windows import rows, schema

if TYPE_CHECKING:
    import pyarrow as pa

EPOCHS_KEPT = 1_000  # half an hour of them at full speed: rates and lag look no further back
WINDOWS_AT_ONCE = 10  # that are looked at from the newest one back; usually the first few are enough
NAMED_MAX = 5  # hours that an error names
# Rows that one repair brings: they go through the driver's memory, where one of ten columns takes 1.7 KB.
REPAIR_ROWS_MAX = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """What a driver commits. `number` is one more than the last one's; `deltas` has one row for each group: `arrived_hour`,
    `window_start`, the keys, then the stored columns of the measures, a sum as decimals or their text; or the rows themselves."""

    number: int
    parts: Sequence[EpochPart]
    deltas: pa.Table
    newest_timestamp: datetime | None = None  # of its records

    @property
    def read(self) -> int:
        return sum(part.read for part in self.parts)


def frozen_hours(engine: sa.Engine, name: str) -> list[FrozenHour]:
    """By time, the frozen windows that have offsets from the positions on in a partition, and before them the newest one that
    has not, if there is any: where an epoch has to end, as far as it is decided. What lies after the ranges of the newest one is
    of no hour before its end."""
    with engine.connect() as connection:
        row = row_of(connection, name)
        return frozen_from(connection, row, stream_ledger.positions_in(connection, name))


def frozen_from(
    connection: sa.Connection, row: Mapping[Any, Any], offsets: Mapping[int, int], since: datetime | None = None
) -> list[FrozenHour]:
    """Those from these offsets on, or from the instant on if that is earlier. Along a chain offsets never decrease: once one lies
    behind them, all before it do."""
    window = schema.window
    query = (
        sa.select(window)
        .where(window.c.pipeline == row["pipeline"], window.c.topic_id == row["topic_id"])
        .order_by(window.c.starts_at.desc())
        .limit(WINDOWS_AT_ONCE)
    )
    hours: list[FrozenHour] = []
    while page := rows.load_windows(connection, query.offset(len(hours))):
        for frozen in page:
            hours.append(FrozenHour(interval=frozen.interval, ranges={part.partition: part for part in frozen.ranges}))
            is_behind = all(part.end_offset <= offsets.get(part.partition, 0) for part in frozen.ranges)
            if is_behind and (since is None or frozen.interval.start <= since):
                return hours[::-1]
    return hours[::-1]


def commit_epoch(engine: sa.Engine, ownership: Ownership, epoch: Epoch, now: datetime) -> Ownership:
    """Commits it; the ownership with the positions after it. `AttemptSuperseded`, `ChainBroken` or `EpochStraddles`: then nothing
    has changed. After `EpochStraddles` it has to be planned again, since a window was frozen meanwhile."""
    deltas = as_json(epoch.deltas)  # before anything is locked
    with engine.begin() as connection:
        row = hold_if_owner(connection, ownership)
        positions = epochs.positions_after(stream_ledger.positions_in(connection, ownership.stream), epoch.parts)
        refuse_another_number(connection, ownership.stream, epoch)
        refuse_misplaced(connection, row, epoch.parts)
        write_epoch(connection, row, epoch, deltas, now)
        move(connection, ownership.stream, epochs.spans_of(epoch.parts), now)
    return replace(ownership, positions=positions, epoch=epoch.number)


def refuse_another_number(connection: sa.Connection, name: str, epoch: Epoch) -> None:
    following = stream_ledger.last_epoch(connection, name) + 1
    if {epoch.number, *(part.epoch for part in epoch.parts)} != {following}:
        raise errors.ChainBroken(
            f"epoch {epoch.number} of stream {name}: the next one is number {following}, and so are its parts"
        )


def refuse_misplaced(connection: sa.Connection, row: Mapping[Any, Any], parts: Sequence[EpochPart]) -> None:
    starts = {partition: start for partition, (start, _) in epochs.spans_of(parts).items()}
    positions = {**stream_ledger.positions_in(connection, row["name"]), **starts}
    since = min((part.hour for part in parts), default=None)
    if hours := sorted(epochs.misplaced_hours(parts, frozen_from(connection, row, positions, since))):
        named = several([model.instant_text(hour) for hour in hours], NAMED_MAX)
        raise errors.EpochStraddles(f"the epoch does not keep to the windows that are frozen by now, of {named}", hours=hours)


def write_epoch(connection: sa.Connection, row: Mapping[Any, Any], epoch: Epoch, deltas: str, now: datetime) -> None:
    table = arrival_table(of_ledger(row), row["columns"])
    connection.execute(table.add(), {"deltas": deltas})
    add_parts(connection, row["name"], epoch.parts)
    row_in = schema.stream_epoch
    values = {
        "stream": row["name"],
        "number": epoch.number,
        "committed_at": now,
        "read_count": epoch.read,
        "newest_timestamp": epoch.newest_timestamp,
    }
    connection.execute(sa.insert(row_in).values(values))
    is_old = (row_in.c.stream == row["name"], row_in.c.number <= epoch.number - EPOCHS_KEPT)
    connection.execute(sa.delete(row_in).where(*is_old))


def move(connection: sa.Connection, name: str, spans: Mapping[int, tuple[int, int]], now: datetime) -> None:
    row_in = schema.stream_partition
    for partition, (_, end) in spans.items():
        is_it = (row_in.c.stream == name, row_in.c.partition == partition)
        connection.execute(sa.update(row_in).where(*is_it).values(end_offset=end))
    is_stream = schema.stream.c.name == name
    connection.execute(sa.update(schema.stream).where(is_stream).values(heartbeat_at=now, error=None))


def add_parts(connection: sa.Connection, name: str, parts: Iterable[EpochPart]) -> None:
    values = [
        {
            "stream": name,
            **{column: value for column, value in asdict(part).items() if column not in COUNTS},
            **{column: getattr(part, field) for field, column in COUNTS.items()},
            "fingerprint": fingerprint.as_text(part.fingerprint),
        }
        for part in parts
    ]
    if values:
        connection.execute(sa.insert(schema.epoch_part), values)


# The columns of a part's counts, by their names in `EpochPart`.
COUNTS = {
    "read": "read_count",
    "filtered": "filtered_count",
    "dead_lettered": "dead_lettered_count",
    "untimed": "untimed_count",
}
SAME = ("partition", "start_offset", "end_offset", "epoch", "hour")


def parts_of(connection: sa.Connection, name: str, *chosen: sa.ColumnElement[bool]) -> list[EpochPart]:
    """By partition and offset."""
    row_in = schema.epoch_part
    query = sa.select(row_in).where(row_in.c.stream == name, *chosen).order_by(row_in.c.partition, row_in.c.start_offset)
    return [to_part(row) for row in connection.execute(query).mappings()]


def to_part(row: Mapping[Any, Any]) -> EpochPart:
    counts = {name: row[column] for name, column in COUNTS.items()}
    return EpochPart(**{name: row[name] for name in SAME}, **counts, fingerprint=int(row["fingerprint"], 16))


# Repairs.


def find_repair(engine: sa.Engine, name: str) -> Repair | None:
    """What has to be read again because windows were frozen otherwise than foreseen. It can only be needed after one was."""
    with engine.connect() as connection:
        return repair_in(connection, row_of(connection, name))


def repair_in(connection: sa.Connection, row: Mapping[Any, Any]) -> Repair | None:
    part, other, hour = schema.epoch_part, schema.epoch_part.alias(), schema.stream_hour
    is_proven = sa.exists().where(hour.c.stream == other.c.stream, hour.c.hour == other.c.hour)
    is_behind_another = (
        other.c.stream == part.c.stream,
        other.c.partition == part.c.partition,
        other.c.start_offset <= part.c.start_offset,
    )
    # From the first part of each partition on that is of no proven hour; and whatever else is of the hours of a repair.
    chosen: sa.ColumnElement[bool] = sa.exists().where(*is_behind_another, sa.not_(is_proven))
    hours: frozenset[datetime] = frozenset()
    while parts := parts_of(connection, row["name"], chosen | rows.among(part.c.hour, hours)):
        starts = {partition: start for partition, (start, _) in epochs.spans_of(parts).items()}
        positions = {**stream_ledger.positions_in(connection, row["name"]), **starts}
        repair = epochs.repair_of(parts, frozen_from(connection, row, positions, min(part.hour for part in parts)))
        if repair is None or repair.hours <= hours:
            return repair
        hours |= repair.hours
    return None


def refuse_large(engine: sa.Engine, name: str, repair: Repair, rows_max: int = REPAIR_ROWS_MAX) -> None:
    """`WrongRequest` if it replaces more than `rows_max` rows: what it brings is about as much."""
    with engine.connect() as connection:
        row = row_of(connection, name)
        count, hours = arrival_table(of_ledger(row), row["columns"]).row_count(), sorted(repair.hours)
        is_large = connection.execute(count, {"hours": hours, "most": rows_max + 1}).scalar_one() > rows_max
    if is_large:
        named = [model.instant_text(hour) for hour in hours]
        raise errors.WrongRequest(
            f"windows of {several(named, NAMED_MAX)} were frozen otherwise than stream {name} foresaw, and their more than "
            f"{rows_max:,} rows are too many to replace at once: `logbus stream reset {name} --since {named[0]} --execute` "
            "forgets what arrived from then on, and the stream counts it again epoch by epoch"
        )


def replace_hours(engine: sa.Engine, ownership: Ownership, repair: Repair, epoch: Epoch, now: datetime) -> Ownership:
    """Commits an epoch that has read again exactly what the repair is of, in the place of what was committed of it."""
    deltas = as_json(epoch.deltas)
    part, hour, name = schema.epoch_part, schema.stream_hour, ownership.stream
    of_repair = rows.among(part.c.hour, repair.hours)
    with engine.begin() as connection:
        row = hold_if_owner(connection, ownership)
        refuse_another_number(connection, name, epoch)
        replaced = parts_of(connection, name, of_repair)
        # Both, since the repair was planned without a lock: a proof may have merged parts since, but not what they are of.
        epochs.refuse_another_span(repair, replaced)
        epochs.refuse_another_span(repair, epoch.parts)
        refuse_misplaced(connection, row, epoch.parts)
        connection.execute(sa.delete(part).where(part.c.stream == name, of_repair))
        table = arrival_table(of_ledger(row), row["columns"])
        connection.execute(table.delete_hours(), {"hours": list(repair.hours), "since": None})
        changed = repair.hours.union(each.hour for each in epoch.parts)
        connection.execute(sa.delete(hour).where(hour.c.stream == name, rows.among(hour.c.hour, changed)))
        write_epoch(connection, row, epoch, deltas, now)
        move(connection, name, {}, now)
    return replace(ownership, epoch=epoch.number)
