"""What a stream is: an aggregate that is computed as its records arrive, or their rows, every how often, and over how many of
them at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from logbus import errors, expressions, model
from logbus.streams import aggregate_definition
from logbus.windows import table_names

WINDOW_DEFAULT = "1m"
# At rest an epoch costs about a second; more often than this, epochs cost more than they read.
TRIGGER_MIN = timedelta(milliseconds=100)
TRIGGER_MAX = timedelta(hours=1)  # from here on the load itself is as quick
TRIGGER_DEFAULT = timedelta(seconds=2)
TRIGGER = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m)")
TRIGGER_UNITS = {"ms": timedelta(milliseconds=1), "s": timedelta(seconds=1), "m": timedelta(minutes=1)}

# Of all partitions together, as Spark's own option: seconds of work for one machine, and what a repeated epoch costs.
MAX_OFFSETS_DEFAULT = 200_000
MAX_OFFSETS_MAX = 10_000_000  # what tasks return goes through the driver's memory
MAX_ROWS_DEFAULT = 50_000  # of rows all of that: at 4 KB a row still no more than 200 MB

ARRIVED_HOUR = "arrived_hour"  # the start of the pipeline's window in which the records arrived, whatever its length
GROUP = "_group"  # stands for the keys in the index, which does not take a long text, nor nulls as equal before PostgreSQL 15


# What a row of a stream of rows has in front of the chosen columns: what it is told apart by, and the record's own time.
ORIGIN = ("_partition", "_offset", "_timestamp")
ROWS = "rows"  # the kind, in the ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRows:
    """Chosen columns of the pipeline's rows. `indexed`: those of them by which rows are looked for before they are loaded."""

    name: str
    pipeline: str
    table: str
    columns: tuple[str, ...]
    indexed: tuple[str, ...] = ()

    def definition(self) -> dict[str, Any]:
        """What the ledger stores, as JSON, beside name, pipeline and table."""
        return {"kind": ROWS, "columns": list(self.columns), "indexed": list(self.indexed)}

    def words(self) -> str:
        """For people, on one line."""
        return f"rows with {', '.join(self.columns)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """A table of the warehouse, such as which team has which host: `on` is a key of the stream and a unique column of the table,
    whose `columns` take the key's place in the view."""

    table: str
    on: str
    columns: tuple[str, ...]

    @property
    def target(self) -> table_names.TableName:
        return table_names.parse_table(self.table)

    def definition(self) -> dict[str, Any]:
        return {"table": self.table, "on": self.on, "columns": list(self.columns)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """`max_offsets_per_trigger` and `trigger` are Spark's: an epoch has at most so many offsets of all partitions together, and
    begins at most so often. `lookup`: of an aggregate."""

    content: aggregate_definition.Aggregate | LiveRows
    lookup: Lookup | None = None
    max_offsets_per_trigger: int = MAX_OFFSETS_DEFAULT
    trigger: timedelta = TRIGGER_DEFAULT

    @property
    def name(self) -> str:
        return self.content.name

    @property
    def pipeline(self) -> str:
        return self.content.pipeline

    @property
    def table(self) -> str:
        """The view that users read."""
        return self.content.table

    @property
    def view(self) -> table_names.TableName:
        return table_names.parse_table(self.table)

    @property
    def by_arrival(self) -> table_names.TableName:
        """The table that epochs add to."""
        return table_names.by_arrival(self.table)

    def definition(self) -> dict[str, Any]:
        """What the ledger stores, as JSON, beside name, pipeline and table."""
        pace = {"max_offsets_per_trigger": self.max_offsets_per_trigger, "trigger_seconds": self.trigger.total_seconds()}
        looked_up = {} if self.lookup is None else {"lookup": self.lookup.definition()}
        return {**self.content.definition(), **looked_up, **pace}

    def words(self) -> str:
        """For people, on one line."""
        lookup = self.lookup
        return self.content.words() + (f", with {', '.join(lookup.columns)} of {lookup.table} for {lookup.on}" if lookup else "")


def of_ledger(row: Mapping[Any, Any]) -> Stream:
    """From a row of the ledger."""
    definition = row["definition"]
    lookup = definition.get("lookup")
    return Stream(
        content=live_rows_of_ledger(row) if definition.get("kind") == ROWS else aggregate_definition.of_ledger(row),
        lookup=lookup and Lookup(table=lookup["table"], on=lookup["on"], columns=tuple(lookup["columns"])),
        max_offsets_per_trigger=definition["max_offsets_per_trigger"],
        trigger=timedelta(seconds=definition["trigger_seconds"]),
    )


def live_rows_of_ledger(row: Mapping[Any, Any]) -> LiveRows:
    columns, indexed = (tuple(row["definition"][name]) for name in ("columns", "indexed"))
    return LiveRows(name=row["name"], pipeline=row["pipeline"], table=row["table_name"], columns=columns, indexed=indexed)


def define_stream(
    name: str,
    pipeline: model.Pipeline | str,
    *,
    keys: Sequence[str],
    measures: Mapping[str, expressions.Measure],
    event_time: str = aggregate_definition.EVENT_TIME_DEFAULT,
    window: str | timedelta = WINDOW_DEFAULT,
    where: str | None = None,
    lookup: Lookup | None = None,
    table: str | None = None,
    trigger: str | timedelta = TRIGGER_DEFAULT,
    max_offsets_per_trigger: int = MAX_OFFSETS_DEFAULT,
) -> Stream:
    """The stream of that name, whose view has the same name unless another is given. `UserError` for what no epoch could do."""
    aggregate = aggregate_definition.define_aggregate(
        name,
        pipeline,
        keys=keys,
        measures=measures,
        event_time=event_time,
        window=window,
        where=where,
        table=table,
        kind="stream",
    )
    _refuse_own_columns(name, (*aggregate.keys, *aggregate.measures), (ARRIVED_HOUR, GROUP))
    if lookup is not None:
        _check_lookup(aggregate, lookup)
    return _stream(aggregate, lookup, trigger, max_offsets_per_trigger)


def define_live_rows(
    name: str,
    pipeline: model.Pipeline | str,
    *,
    columns: Sequence[str],
    indexed: Sequence[str] = (),
    table: str | None = None,
    trigger: str | timedelta = TRIGGER_DEFAULT,
    max_offsets_per_trigger: int = MAX_ROWS_DEFAULT,
) -> Stream:
    """The stream of the pipeline's rows with these columns, in a view of the same name unless another is given."""

    def wrong(message: str) -> errors.UserError:
        return errors.UserError(f"stream {name!r}: {message}")

    its_table = aggregate_definition.table_for(name, pipeline, table, "stream", wrong)
    if isinstance(columns, str) or not columns or not all(isinstance(column, str) for column in columns):
        raise wrong(f"columns is a list of columns of the pipeline's table; got {columns!r}")
    if twice := sorted({column for column in columns if [*columns].count(column) > 1}):
        raise wrong(f"columns names {', '.join(map(repr, twice))} twice")
    if others := sorted({*indexed} - {*columns, *ORIGIN}):
        raise wrong(f"indexed names {', '.join(map(repr, others))}, which columns does not have")
    _refuse_own_columns(name, columns, (ARRIVED_HOUR, *ORIGIN))
    rows = LiveRows(
        name=name,
        pipeline=pipeline if isinstance(pipeline, str) else pipeline.name,
        table=its_table,
        columns=tuple(columns),
        indexed=tuple(indexed),
    )
    return _stream(rows, None, trigger, max_offsets_per_trigger)


def _refuse_own_columns(name: str, columns: Iterable[str], own: Sequence[str]) -> None:
    for column in columns:
        if column.casefold() in own:
            raise errors.UserError(f"stream {name!r}: {column!r} is a column of its own table: give yours another name")


def _check_lookup(aggregate: aggregate_definition.Aggregate, lookup: Lookup) -> None:
    wrong = f"stream {aggregate.name!r}: lookup="
    table_names.check_target(lookup.table)
    if lookup.on not in aggregate.keys:
        raise errors.UserError(f"{wrong}: on={lookup.on!r} is none of the keys: {', '.join(aggregate.keys) or 'there are none'}")
    if isinstance(lookup.columns, str) or not lookup.columns:
        raise errors.UserError(f"{wrong}: columns is a list of columns of {lookup.table}; got {lookup.columns!r}")
    own = {aggregate_definition.WINDOW_START, *aggregate.keys, *aggregate.measures} - {lookup.on}
    if twice := sorted(own.intersection(lookup.columns)):
        raise errors.UserError(f"{wrong}: the view has a column {twice[0]!r} already: give yours another name")


def _stream(
    content: aggregate_definition.Aggregate | LiveRows,
    lookup: Lookup | None,
    trigger: str | timedelta,
    max_offsets_per_trigger: int,
) -> Stream:
    name = content.name
    pace = trigger if isinstance(trigger, timedelta) else _pace(name, trigger)
    if not TRIGGER_MIN <= pace <= TRIGGER_MAX:
        raise errors.UserError(f"stream {name!r}: trigger is between 100 ms and one hour, such as '2s'; got {trigger!r}")
    if not isinstance(max_offsets_per_trigger, int) or not 1 <= max_offsets_per_trigger <= MAX_OFFSETS_MAX:
        raise errors.UserError(
            f"stream {name!r}: max_offsets_per_trigger is a number from 1 to {MAX_OFFSETS_MAX:,}; got {max_offsets_per_trigger!r}"
        )
    return Stream(content=content, lookup=lookup, max_offsets_per_trigger=max_offsets_per_trigger, trigger=pace)


def _pace(name: str, trigger: object) -> timedelta:
    if not isinstance(trigger, str) or (written := TRIGGER.fullmatch(trigger)) is None:
        raise errors.UserError(f"stream {name!r}: trigger is how often an epoch begins, such as '2s' or '1m'; got {trigger!r}")
    return float(written[1]) * TRIGGER_UNITS[written[2]]
