"""PostgreSQL: a table partitioned by hour that the load creates, or the user's own plain table.

Rows, dead letters and ledger are in one database, so one transaction commits them all (see loads/commit.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Engine

from logbus.loads import attempts as attempts_of
from logbus.loads import checksum, commit, maintenance, public_rows, staging, tally, target
from logbus.loads.engine import copy_uri
from logbus.loads.sinks import MaintenanceOptions
from logbus.model import Attempt, FrozenWindow, PartitionTally, Pipeline, WindowCounts
from logbus.windows.table_names import parse_table


class PostgresSink:
    """A pipeline's table in the warehouse's own PostgreSQL."""

    name = "postgres"

    def __init__(self, pipeline: Pipeline, engine: Engine) -> None:
        self.pipeline = pipeline
        self.engine = engine
        self.target = parse_table(pipeline.table)
        self.filled: Mapping[str, str] | None = None  # the parser's columns, once the target has them

    def task_options(self) -> Mapping[str, Any]:
        return {"uri": copy_uri(self.engine)}

    def ensure_target(self, columns: Mapping[str, str]) -> None:
        target.ensure_target(self.engine, self.target, columns)
        self.filled = columns

    def has_target(self) -> bool:
        with self.engine.connect() as connection:
            return target.relation_exists(connection, self.target)

    def create_staging(self, attempts: Sequence[Attempt]) -> tuple[list[Attempt], list[Attempt]]:
        return staging.create_staging(self.engine, attempts, self.target)

    def seal(self, attempt: Attempt, winners: Collection[int], files: Sequence[str]) -> tally.Counted:
        return staging.seal(self.engine, attempt, winners, self.filled)

    def commit(self, load: commit.SealedWindow, now: datetime) -> WindowCounts:
        return commit.commit_window(self.engine, load, now)

    def recount(self, window: FrozenWindow) -> Mapping[int, PartitionTally]:
        with self.engine.connect() as connection:
            return public_rows.count_window(connection, self.pipeline, window)

    def compare_values(self, window: FrozenWindow) -> checksum.ValuesReport:
        with self.engine.connect() as connection:
            return checksum.join(
                public_rows.compare_table(connection, self.pipeline, window), public_rows.compare_dead_letters(connection, window)
            )

    def maintain(self, options: MaintenanceOptions) -> list[str]:
        """Merges the hourly leaves of closed days; a user's own table is left alone."""
        merged, left = maintenance.merge_closed_days(self.engine, self.target, options.now - options.keep_hourly, options.sleep)
        return [
            *(f"{day:%Y-%m-%d}: hourly leaves of {self.target} merged into one" for day in merged),
            *(f"{day:%Y-%m-%d}: {why}" for day, why in left.items()),
        ]

    def discard(self, attempt: Attempt) -> None:
        attempts_of.drop_stale_tables(self.engine, [attempt.window_id])
