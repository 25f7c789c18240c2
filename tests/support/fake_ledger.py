"""A ledger that records its calls, for tests of operators; the real ledger's decisions are tested with the real one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

from logbus.errors import ErrorBudgetExceeded, LoadFailed
from logbus.loads.attempts import AttemptOutcome
from logbus.model import Attempt, FrozenWindow, Interval, OffsetRange, Pipeline, TaskKey, WindowCounts, WindowState
from logbus.windows.catch_up import LoadPlan
from logbus.windows.handover import hand_over
from logbus.windows.missing import Gap, Missing
from logbus.windows.registration import PipelineRegistration

from tests.support.ledgers import intervals_of


def window(start: datetime, *, records: int = 10, attempt: int | None = None, **changes: Any) -> FrozenWindow:
    """A window of one partition that holds `records` records; loaded if `attempt` is given."""
    loaded = attempt is not None
    fields: dict[str, Any] = {
        "id": int(start.timestamp()),
        "pipeline": "access_log",
        "topic": "access_log",
        "interval": Interval(start, start + timedelta(hours=1)),
        "topic_id": "t",
        "ranges": (OffsetRange(topic="access_log", partition=0, start_offset=5, end_offset=5 + records),),
        "state": WindowState.LOADED if loaded else WindowState.FROZEN,
        "loaded_attempt": attempt,
        "counts": WindowCounts(read=records, loaded=records - 1, dead_lettered=1) if loaded else None,
        "fingerprint": f"{records:016x}" if loaded else None,
    }
    return FrozenWindow(**{**fields, **changes})


def attempt_at(start: datetime, number: int = 1, pipeline: str = "p") -> Attempt:
    return Attempt(
        window_id=int(start.timestamp()),
        pipeline=pipeline,
        interval=Interval.hour(start),
        number=number,
        staging_table=f"s{number}",
        dead_letter_table=f"d{number}",
        key=f"k{number}",
        definition={},
    )


class FakeEngine:
    """Accepts and ignores statements, which are locks that a test does not contend for."""

    @contextmanager
    def begin(self) -> Iterator[Any]:
        yield SimpleNamespace(execute=lambda *statement: None)


class FakeLedger:
    """Freezes any window, and reports the last attempt begun as loaded, unless `loads` is False. For a window in `refused`,
    freezing and beginning raise the error given there."""

    engine: Any = FakeEngine()

    def __init__(self, closed: Sequence[Interval] = ()) -> None:
        self.closed = list(closed)
        self.registered: list[Pipeline] = []
        self.frozen: list[Interval] = []
        self.begun: list[tuple[list[datetime], str, int]] = []
        self.begun_as: list[Pipeline | None] = []
        self.dags: list[tuple[str, str]] = []
        self.tasks: list[TaskKey | None] = []
        self.too_much: list[str] = []
        self.accepted: list[datetime] = []
        self.failed: list[tuple[list[Attempt], str]] = []
        self.loaded_at: dict[datetime, datetime] = {}
        self.failing_hours: set[datetime] = set()
        self.taken: set[datetime] = set()
        self.unaudited: set[datetime] = set()
        self.refused: dict[datetime, Exception] = {}
        self.loads = True

    def register(self, pipeline: Pipeline, log: object, now: datetime) -> Pipeline:
        self.registered.append(pipeline)
        return pipeline

    def define(
        self, pipeline: Pipeline, log: object, now: datetime, *, dag_id: str | None = None, remembers: bool = True
    ) -> PipelineRegistration:
        if dag_id is not None and remembers:
            self.dags.append((pipeline.name, dag_id))
        return PipelineRegistration(pipeline=self.register(pipeline, log, now), is_new=True)

    def pipeline(self, name: str) -> Pipeline:
        return next(found for found in reversed(self.registered) if found.name == name)

    def freeze_or_get(self, pipeline_name: str, interval: Interval, log: object, now: datetime) -> FrozenWindow:
        self._refuse(interval.start)
        self.frozen.append(interval)
        return window(interval.start)

    def hand_over(self, pipeline: Pipeline, windows: Sequence[FrozenWindow], log: object) -> dict[str, Any]:
        return hand_over(pipeline, windows)

    def _refuse(self, *starts: datetime) -> None:
        for start in starts:
            if start in self.refused:
                raise self.refused[start]

    def gaps(
        self, pipeline_name: str, log: object, now: datetime, since: datetime | None = None, until: datetime | None = None
    ) -> tuple[Gap, ...]:
        inside = [part for part in self.closed if until is None or part.end <= until]
        return tuple(Gap(interval=part, missing=Missing.NOT_FROZEN) for part in inside)

    def plan_load(
        self, pipeline_name: str, log: object, now: datetime, since: datetime | None = None, until: datetime | None = None
    ) -> LoadPlan:
        inside = [part for part in self.closed if since is None or part.start >= since]
        inside = [part for part in inside if until is None or part.end <= until]
        steps = (Gap(interval=part, missing=Missing.NOT_FROZEN) for part in inside)
        return LoadPlan(pipeline=self.pipeline(pipeline_name), steps=tuple(steps))

    def freeze_plan(self, plan: LoadPlan, log: object, now: datetime, tell: object = None) -> list[FrozenWindow]:
        return [self.freeze_or_get(plan.pipeline.name, interval, log, now) for interval in intervals_of(plan)]

    def begin_attempts(
        self,
        pipeline_name: str,
        starts: Sequence[datetime],
        run_id: str,
        try_number: int,
        now: datetime,
        task: TaskKey | None = None,
        pipeline: Pipeline | None = None,
        accept_other_records: Sequence[datetime] = (),
        supersede: bool = True,
    ) -> list[Attempt]:
        self._refuse(*starts)
        self.accepted += accept_other_records
        self.begun.append((list(starts), run_id, try_number))
        self.begun_as.append(pipeline)
        self.tasks.append(task)
        return [attempt_at(start, len(self.begun), pipeline_name) for start in starts]

    def begun_since(
        self, pipeline_name: str, starts: Sequence[datetime], asked_at: datetime, definition: object = None
    ) -> set[datetime]:
        return {start for start in starts if start in self.loaded_at and self.loaded_at[start] > asked_at}

    def unaudited_of_run(self, pipeline_name: str, dag_id: str, run_id: str) -> set[datetime]:
        return self.unaudited

    def failing(self, pipeline_name: str, starts: Sequence[datetime]) -> set[datetime]:
        return self.failing_hours & set(starts)

    def at_work_elsewhere(
        self, pipeline_name: str, starts: Sequence[datetime], run_id: str | None, now: datetime
    ) -> dict[datetime, str]:
        return {start: "attempt 1 by another run" for start in starts if start in self.taken}

    def fail_attempts(self, attempts: Sequence[Attempt], error: str, now: datetime) -> None:
        self.failed.append((list(attempts), error))

    def end_attempts_at(self, pipeline_name: str, starts: Sequence[datetime], reason: str, now: datetime) -> None:
        """None is running."""

    def settle_attempts(self, over: Sequence[Attempt], now: datetime) -> list[AttemptOutcome]:
        return [
            AttemptOutcome(
                attempt=attempt,
                state="running",
                began_at=now,
                heartbeat_at=now,
                loaded_attempt=self.window(attempt.pipeline, attempt.interval.start).loaded_attempt,
                newest=attempt.number,
                newest_state="running",
                newest_run_id="manual__1",
                newest_is_alive=True,
            )
            for attempt in over
        ]

    def beyond_retry(self, attempts: Sequence[Attempt]) -> LoadFailed | None:
        return ErrorBudgetExceeded(self.too_much[0]) if self.too_much else None

    def windows_at(self, pipeline_name: str, starts: Sequence[datetime]) -> list[FrozenWindow]:
        return [self.window(pipeline_name, start) for start in starts]

    def window(self, pipeline_name: str, start: datetime) -> FrozenWindow:
        return window(start, attempt=len(self.begun) if self.loads else None)
