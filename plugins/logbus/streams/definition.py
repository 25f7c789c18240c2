"""What a stream is: an aggregate that is computed as its records arrive, every how often, and over how many of them at a time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from logbus import errors, expressions, model
from logbus.aggregates import definition as aggregates
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

ARRIVED_HOUR = "arrived_hour"  # the start of the pipeline's window in which the records arrived, whatever its length
GROUP = "_group"  # stands for the keys in the index, which does not take a long text, nor nulls as equal before PostgreSQL 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """`max_offsets_per_trigger` and `trigger` are Spark's: an epoch has at most so many offsets of all partitions together, and
    begins at most so often."""

    aggregate: aggregates.Aggregate
    max_offsets_per_trigger: int = MAX_OFFSETS_DEFAULT
    trigger: timedelta = TRIGGER_DEFAULT

    @property
    def name(self) -> str:
        return self.aggregate.name

    @property
    def pipeline(self) -> str:
        return self.aggregate.pipeline

    @property
    def table(self) -> str:
        """The view that users read."""
        return self.aggregate.table

    @property
    def by_arrival(self) -> table_names.TableName:
        """The table that epochs add to."""
        return table_names.by_arrival(self.table)

    def definition(self) -> dict[str, Any]:
        """What the ledger stores, as JSON, beside name, pipeline and table."""
        pace = {"max_offsets_per_trigger": self.max_offsets_per_trigger, "trigger_seconds": self.trigger.total_seconds()}
        return {**self.aggregate.definition(), **pace}


def of_ledger(row: Mapping[Any, Any]) -> Stream:
    """From a row of the ledger."""
    definition = row["definition"]
    return Stream(
        aggregate=aggregates.of_ledger(row),
        max_offsets_per_trigger=definition["max_offsets_per_trigger"],
        trigger=timedelta(seconds=definition["trigger_seconds"]),
    )


def define_stream(
    name: str,
    pipeline: model.Pipeline | str,
    *,
    keys: Sequence[str],
    measures: Mapping[str, expressions.Measure],
    event_time: str = aggregates.EVENT_TIME_DEFAULT,
    window: str | timedelta = WINDOW_DEFAULT,
    where: str | None = None,
    table: str | None = None,
    trigger: str | timedelta = TRIGGER_DEFAULT,
    max_offsets_per_trigger: int = MAX_OFFSETS_DEFAULT,
) -> Stream:
    """The stream of that name, whose view has the same name unless another is given. `UserError` for what no epoch could do."""
    aggregate = aggregates.define_aggregate(
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
    for column in (*aggregate.keys, *aggregate.measures):
        if column.casefold() in (ARRIVED_HOUR, GROUP):
            raise errors.UserError(f"stream {name!r}: {column!r} is a column of its own table: give yours another name")
    pace = trigger if isinstance(trigger, timedelta) else _pace(name, trigger)
    if not TRIGGER_MIN <= pace <= TRIGGER_MAX:
        raise errors.UserError(f"stream {name!r}: trigger is between 100 ms and one hour, such as '2s'; got {trigger!r}")
    if not isinstance(max_offsets_per_trigger, int) or not 1 <= max_offsets_per_trigger <= MAX_OFFSETS_MAX:
        raise errors.UserError(
            f"stream {name!r}: max_offsets_per_trigger is a number from 1 to {MAX_OFFSETS_MAX:,}; got {max_offsets_per_trigger!r}"
        )
    return Stream(aggregate=aggregate, max_offsets_per_trigger=max_offsets_per_trigger, trigger=pace)


def _pace(name: str, trigger: object) -> timedelta:
    if not isinstance(trigger, str) or (written := TRIGGER.fullmatch(trigger)) is None:
        raise errors.UserError(f"stream {name!r}: trigger is how often an epoch begins, such as '2s' or '1m'; got {trigger!r}")
    return float(written[1]) * TRIGGER_UNITS[written[2]]
