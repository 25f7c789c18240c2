"""Sinks: where a pipeline's rows become public. `sink_for(pipeline, engine)` returns the one its settings name.

This is the driver's side: targets, sealing, committing, counting again. What a Spark task does with its rows is in
`logbus_spark.sinks`. Each sink is a separate module that is imported only when a pipeline uses it, so no pipeline pays for
another sink's libraries.

A load calls `ensure_target`, `create_staging`, (the tasks write), `seal`, `commit`. Whatever dies in between, the target holds
what it held before, or all of the new load: never a part of a window, never two loads of one. The fence is the ledger's: only
the newest attempt of a window may stage, seal or commit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pkgutil import resolve_name
from typing import Any, Protocol, cast

from sqlalchemy import URL, Engine

from logbus import errors, model
from logbus.loads import commit_checks, tally


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceOptions:
    """How to `maintain`. `keep_hourly`: hours younger than this keep their own partition (PostgreSQL). `keep_replaced`: files
    that never became public, or are no longer, are kept this long, for readers that have begun and attempts that still run."""

    now: datetime
    sleep: Callable[[float], None]
    keep_hourly: timedelta = timedelta(days=35)
    keep_replaced: timedelta = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicTable:
    """The target as others know it: by OpenLineage's namespace and name, and by the URI of an asset of Airflow's. `columns`: name
    to type. Nothing in it is secret."""

    namespace: str
    name: str
    uri: str
    columns: Mapping[str, str]


class Sink(Protocol):
    """One pipeline's sink."""

    name: str

    def task_options(self, warehouse_url: URL) -> Mapping[str, Any]:
        """What the tasks need to write: passed to the sink of the same name in `logbus_spark.sinks`. May hold secrets, such as
        this URL of the attempts' own tables."""

    def ensure_target(self, columns: Mapping[str, str]) -> None:
        """Creates the target, or adds what it lacks. `columns` are the parser's, name to PostgreSQL type.

        Raises `UserError` if a column exists with another type, or the target is the user's own and lacks columns.
        """

    def has_target(self) -> bool:
        """Whether the target exists."""

    def public_table(self) -> PublicTable | None:
        """What others call the target, and its columns; None before the first load."""

    def create_staging(self, attempts: Sequence[model.Attempt]) -> tuple[list[model.Attempt], list[model.Attempt]]:
        """Makes room for what the attempts' tasks write; returns those that may continue and those that are superseded."""

    def seal(self, attempt: model.Attempt, winners: Collection[str], files: Sequence[str]) -> tally.Counted:
        """Closes what the attempt staged to every writer, keeps only what the winning task attempts wrote, and counts it.

        `winners` are their transactions, `files` those that they reported. Raises `AttemptSuperseded`.
        """

    def commit(self, load: commit_checks.SealedWindow, now: datetime) -> model.WindowCounts:
        """Makes the window public: rows, dead letters and ledger.

        Raises `AttemptSuperseded`, `EquationMismatch` (both: nothing became public) or `LoadFailed`.
        """

    def recount(self, window: model.FrozenWindow) -> Mapping[int, model.PartitionTally]:
        """Counts the window's public rows and dead letters again, by partition, for the audit."""

    def rows_of(self, window: model.FrozenWindow, partition: int, offset: int) -> Sequence[Mapping[str, Any]]:
        """The public rows of one record, column by column: one if it is loaded. `ROWS_OF_RECORD_MAX` at most."""

    def compare_values(self, window: model.FrozenWindow) -> tally.ValuesReport:
        """Takes the checksums of the window's public rows and dead letters again and compares them with those of its load."""

    def maintain(self, options: MaintenanceOptions) -> list[str]:
        """Regular maintenance, possible at any time, during loads and reads. Returns what it did, line by line."""

    def discard(self, attempt: model.Attempt) -> None:
        """Removes what was staged by an attempt that will never commit. What is public is never touched."""


# One is right; more than this need not be shown to see that it is wrong.
ROWS_OF_RECORD_MAX = 5

MakeSink = Callable[[model.Pipeline, Engine], Sink]

SINKS: Mapping[str, str] = {
    "postgres": "logbus.loads.sinks.postgres:PostgresSink",
    "iceberg": "logbus.loads.sinks.iceberg:IcebergSink",
}


def sink_for(pipeline: model.Pipeline, engine: Engine) -> Sink:
    """The pipeline's sink. `engine` is the PostgreSQL that holds the ledger and the dead letters, whatever the sink."""
    name = pipeline.options.sink
    if name not in SINKS:
        raise errors.UserError(f"pipeline {pipeline.name} loads into sink {name!r}, which is none of {', '.join(SINKS)}")
    try:
        make = cast(MakeSink, resolve_name(SINKS[name]))
    except ModuleNotFoundError as error:
        raise errors.ExtraMissing.of(error) or error from None
    return make(pipeline, engine)


def each_sink_once() -> Callable[[model.Pipeline, Engine], Sink]:
    """`sink_for` for work on many windows: a pipeline's sink, with all it opens, is created only once."""
    sinks: dict[str, Sink] = {}

    def get(pipeline: model.Pipeline, engine: Engine) -> Sink:
        if pipeline.name not in sinks:
            sinks[pipeline.name] = sink_for(pipeline, engine)
        return sinks[pipeline.name]

    return get


__all__ = ["ROWS_OF_RECORD_MAX", "SINKS", "MaintenanceOptions", "PublicTable", "Sink", "each_sink_once", "sink_for"]
