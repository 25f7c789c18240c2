"""What a task needs of a sink.

A sink is a context manager. Everything a task writes is one piece of work: it counts when the sink was left well, and leaves
nothing that counts when it was left with an error. Spark may run a task twice, so what a task writes is known by the task
attempt; the driver takes what the winners wrote.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa

from spark_jobs.job import StagedWindow


class TaskSink(Protocol):
    """Where one task attempt puts the records of many windows, in any order."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def write_rows(self, window: StagedWindow, rows: pa.RecordBatch) -> None:
        """Rows of `schemas.row_schema(columns)`."""

    def write_dead_letters(self, window: StagedWindow, rows: pa.RecordBatch) -> None:
        """Rows of `schemas.DEAD_LETTER_SCHEMA`."""

    def files(self, window: StagedWindow) -> tuple[str, ...]:
        """What the driver has to commit for the window, once the sink was left well. Nothing where the tables are known."""
