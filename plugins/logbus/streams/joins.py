"""A join of two pipelines, seconds behind what arrives: two streams of rows and a view over their views.

Nothing is kept of rows that wait for their other half, and none is given up: the halves meet in the warehouse, as soon as the
second one is there, be it an hour or a month later. What the view shows of loaded hours is a join of the loaded rows; that each
stream is equal to its loads is proven side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ProgrammingError

from logbus import errors, model, pipeline_definition
from logbus.loads import target
from logbus.streams.aggregate_definition import EVENT_TIME_DEFAULT
from logbus.streams.definition import (
    ARRIVED_HOUR,
    MAX_ROWS_DEFAULT,
    ORIGIN,
    TRIGGER_DEFAULT,
    Stream,
    define_live_rows,
    of_ledger,
)
from logbus.windows import schema, sql_errors
from logbus.windows.table_names import TableName, check_target, parse_table, quoted, target_named_after

KINDS = {"inner": "join", "left": "left join"}
SIDES = ("left", "right")
SECOND = timedelta(seconds=1)
OWN_COLUMNS = ("left_time", "right_time", "left_arrived_hour", "right_arrived_hour", "is_late")


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """`on`: pairs of columns that are equal, left and right. `columns`: of each side, name in the view to the side's own.
    `within`: how far apart the times of two rows may be at most that belong together."""

    name: str
    table: str
    left: Stream
    right: Stream
    on: tuple[tuple[str, str], ...]
    within: timedelta
    kind: str
    event_times: tuple[str, str]
    columns: tuple[Mapping[str, str], Mapping[str, str]]

    @property
    def view(self) -> TableName:
        return parse_table(self.table)

    @property
    def sides(self) -> tuple[Stream, Stream]:
        return self.left, self.right

    def definition(self) -> dict[str, Any]:
        """What the ledger stores, as JSON, beside its name, its table and its streams."""
        return {
            "on": [list(pair) for pair in self.on],
            "within_seconds": self.within.total_seconds(),
            "kind": self.kind,
            "event_times": list(self.event_times),
            # Lists: PostgreSQL's JSON sorts the names of an object.
            "columns": [[list(pair) for pair in side.items()] for side in self.columns],
        }

    def words(self) -> str:
        """For people, on one line."""
        keys = ", ".join(left if left == right else f"{left} = {right}" for left, right in self.on)
        return f"{self.left.pipeline} {KINDS[self.kind]} {self.right.pipeline} on {keys}, within {self.within}"

    def create_view(self) -> sa.TextClause:
        selected = [f'"left".{quoted(column)}' for column, _ in self.on]
        for side, columns in zip(SIDES, self.columns, strict=True):
            selected += [f'"{side}".{quoted(column)} as {quoted(name)}' for name, column in columns.items()]
        left_time, right_time = (f'"{side}".{quoted(time)}' for side, time in zip(SIDES, self.event_times, strict=True))
        left_hour, right_hour = (f'"{side}".{ARRIVED_HOUR}' for side in SIDES)
        own = (left_time, right_time, left_hour, right_hour, f"{left_hour} <> {right_hour}")
        selected += [f"{expression} as {name}" for expression, name in zip(own, OWN_COLUMNS, strict=True)]
        span = f"interval '{self.within / SECOND} seconds'"
        conditions = [f'"right".{quoted(right)} = "left".{quoted(left)}' for left, right in self.on]
        conditions.append(f"{right_time} between {left_time} - {span} and {left_time} + {span}")
        return sa.text(
            f'create view {self.view.sql} as select {", ".join(selected)} from {self.left.view.sql} as "left" '
            f'{KINDS[self.kind]} {self.right.view.sql} as "right" on {" and ".join(conditions)}'
        )


Columns = Sequence[str] | Mapping[str, str]


def define_join(
    name: str,
    *,
    left: model.Pipeline | str,
    right: model.Pipeline | str,
    on: str | Mapping[str, str],
    within: str | timedelta = "1h",
    kind: str = "inner",
    left_columns: Columns = (),
    right_columns: Columns = (),
    event_time: str | tuple[str, str] = EVENT_TIME_DEFAULT,
    table: str | None = None,
    trigger: str | timedelta = TRIGGER_DEFAULT,
    max_offsets_per_trigger: int = MAX_ROWS_DEFAULT,
) -> Join:
    """The join of that name, and its two streams, NAME_left and NAME_right. `UserError` for what no view could be."""

    def wrong(message: str) -> errors.UserError:
        return errors.UserError(f"join {name!r}: {message}")

    if kind not in KINDS:
        raise wrong(f"kind is 'inner', or 'left', which keeps rows of the left side that have no other half; got {kind!r}")
    pairs = tuple(on.items()) if isinstance(on, Mapping) else ((on, on),)
    if not pairs or not all(isinstance(column, str) for pair in pairs for column in pair):
        raise wrong(f"on is a column of both sides, or a mapping of the left one's to the right one's; got {on!r}")
    try:
        span = pipeline_definition.length_of(name, within)
    except errors.UserError:
        span = timedelta()
    if span <= timedelta():
        raise wrong(f"within is how far apart the times of two rows may be, such as '15m', '1h' or '1d'; got {within!r}")
    event_times = (event_time, event_time) if isinstance(event_time, str) else event_time
    columns = tuple(
        dict(side) if isinstance(side, Mapping) else {column: column for column in side} for side in (left_columns, right_columns)
    )
    names = [*(column for column, _ in pairs), *columns[0], *columns[1], *OWN_COLUMNS]
    if twice := sorted({column for column in names if [*map(str.casefold, names)].count(column.casefold()) > 1}):
        raise wrong(
            f"its view would have the column {twice[0]!r} twice: rename yours, as in right_columns={{'paid_at': 'at'}} for the "
            "column paid_at of the view"
        )
    chosen = table or target_named_after(name)
    check_target(chosen)
    streams = []
    for side, pipeline, keys, event_time_of, columns_of in zip(
        SIDES, (left, right), zip(*pairs, strict=True), event_times, columns, strict=True
    ):
        read = dict.fromkeys((*keys, event_time_of, *columns_of.values()))
        streams.append(
            define_live_rows(
                f"{name}_{side}",
                pipeline,
                columns=[column for column in read if column not in ORIGIN],
                indexed=keys,
                table=f"{chosen}_{side}",
                trigger=trigger,
                max_offsets_per_trigger=max_offsets_per_trigger,
            )
        )
    return Join(
        name=name,
        table=chosen,
        left=streams[0],
        right=streams[1],
        on=pairs,
        within=span,
        kind=kind,
        event_times=(event_times[0], event_times[1]),
        columns=(columns[0], columns[1]),
    )


def join_of_ledger(row: Mapping[Any, Any], left: Stream, right: Stream) -> Join:
    """From a row of the ledger."""
    definition = row["definition"]
    left_columns, right_columns = (dict(side) for side in definition["columns"])
    return Join(
        name=row["name"],
        table=row["table_name"],
        left=left,
        right=right,
        on=tuple((first, second) for first, second in definition["on"]),
        within=timedelta(seconds=definition["within_seconds"]),
        kind=definition["kind"],
        event_times=(definition["event_times"][0], definition["event_times"][1]),
        columns=(left_columns, right_columns),
    )


def joins_in(connection: sa.Connection, *chosen: sa.ColumnElement[bool]) -> list[Join]:
    """By name."""
    join, stream = schema.stream_join, schema.stream
    rows = connection.execute(sa.select(join).where(*chosen).order_by(join.c.name)).mappings().all()
    names = [row[side] for row in rows for side in ("left_stream", "right_stream")]
    query = sa.select(stream).where(stream.c.name.in_(names))
    streams = {row["name"]: of_ledger(row) for row in connection.execute(query).mappings()}
    return [join_of_ledger(row, streams[row["left_stream"]], streams[row["right_stream"]]) for row in rows]


def joins_of(connection: sa.Connection, stream: str) -> list[Join]:
    """Those of which it is a side."""
    join = schema.stream_join
    return joins_in(connection, (join.c.left_stream == stream) | (join.c.right_stream == stream))


def sides_of(connection: sa.Connection, name: str) -> list[str]:
    """The streams of a join; none if there is no join of that name."""
    return [side.name for join in joins_in(connection, schema.stream_join.c.name == name) for side in join.sides]


def unknown_stream(connection: sa.Connection, name: str) -> errors.StreamUnknown:
    if sides := sides_of(connection, name):
        return errors.StreamUnknown(f"{name} is a join of the streams {' and '.join(sides)}: name one of these")
    return errors.StreamUnknown(f"there is no stream {name!r}; `logbus stream ls` lists them")


def ensure_views(connection: sa.Connection, stream: str) -> None:
    """Makes the views of joins whose second side has its tables by now. `WrongRequest` if the sides cannot be joined so."""
    for join in joins_of(connection, stream):
        has_sides = all(target.relation_exists(connection, side.view) for side in join.sides)
        if not has_sides or target.relation_exists(connection, join.view):
            continue
        try:
            connection.execute(join.create_view())
        except ProgrammingError as error:
            raise errors.WrongRequest(f"{join.words()}: {sql_errors.reason_of(error)}") from error
