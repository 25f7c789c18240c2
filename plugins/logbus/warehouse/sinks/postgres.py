"""PostgreSQL: a table partitioned by hour that the load makes, or a plain one of the user's own.

Rows, dead letters and ledger lie in one database, so one transaction commits them all (see warehouse/commit.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Engine

from logbus.warehouse import commit, staging, target
from logbus.warehouse.engine import libpq_uri
from logbus.warehouse.leaves import merge_closed_days
from logbus.warehouse.names import parse_table
from logbus.warehouse.sinks.base import Upkeep
from logbus.windows import attempts as attempts_of
from logbus.windows import schema, tally
from logbus.windows.model import Attempt, FrozenWindow, PartitionTally, Pipeline, WindowCounts, utc
from logbus.windows.places import SCHEMA


class PostgresSink:
    """A pipeline's table in the warehouse's own PostgreSQL."""

    name = "postgres"

    def __init__(self, pipeline: Pipeline, engine: Engine) -> None:
        self.pipeline = pipeline
        self.engine = engine
        self.target = parse_table(pipeline.table)

    def task_options(self) -> Mapping[str, Any]:
        return {"uri": libpq_uri(self.engine.url.render_as_string(hide_password=False))}

    def ensure_target(self, columns: Mapping[str, str]) -> None:
        target.ensure_target(self.engine, self.target, columns)

    def create_staging(self, attempts: Sequence[Attempt]) -> tuple[list[Attempt], list[Attempt]]:
        return staging.create_staging(self.engine, attempts, self.target)

    def seal(self, attempt: Attempt, winners: Collection[int], files: Sequence[str]) -> tally.Counted:
        return staging.seal(self.engine, attempt, winners)

    def commit(self, load: commit.SealedWindow, now: datetime) -> WindowCounts:
        return commit.commit_window(self.engine, load, now)

    def recount(self, window: FrozenWindow) -> Mapping[int, PartitionTally]:
        rows = tally.target_rows(self.target.sql, "_window_start = :start and _topic = :topic")
        dead = tally.dead_letters(f"{SCHEMA}.{schema.dead_letter.name}", "window_id = :window_id")
        parameters = {"start": utc(window.interval.start), "topic": self.pipeline.topic, "window_id": window.id}
        with self.engine.connect() as connection:
            return tally.count(connection, rows, dead, parameters).tallies

    def maintain(self, upkeep: Upkeep) -> list[str]:
        """Merges the hourly leaves of closed days; a table of the user's own is left alone."""
        merged, left = merge_closed_days(self.engine, self.target, upkeep.now - upkeep.keep_hourly, upkeep.sleep)
        return [
            *(f"{day:%Y-%m-%d}: hourly leaves of {self.target} merged into one" for day in merged),
            *(f"{day:%Y-%m-%d}: left for the next run, readers or loads hold its hours" for day in left),
        ]

    def discard(self, attempt: Attempt) -> None:
        attempts_of.drop_leftovers(self.engine, [attempt.window_id])
