"""The ledger: the single entry point to pipelines, frozen windows and attempts.

Each method calls a function of one module (freezing, catch_up, attempts) on this ledger's engine, in its own
transactions; nothing is kept in memory, so any number of ledgers on any number of machines may work at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, or_, select, update

from logbus.errors import LogbusError, WindowUnknown
from logbus.kafka.topics import OffsetLog
from logbus.ledger import (
    accepted_losses,
    adoption,
    attempts,
    catch_up,
    freezing,
    handover,
    inferred_columns,
    missing,
    rebasing,
    registration,
    schema,
    standing,
    trouble,
)
from logbus.ledger.catch_up import LoadPlan
from logbus.ledger.definition import Definition
from logbus.ledger.missing import Gap
from logbus.ledger.rebasing import Rebase
from logbus.ledger.registration import PipelineRegistration
from logbus.ledger.rows import load_windows, pipeline_row, pipeline_rows, to_pipeline
from logbus.ledger.standing import Standing
from logbus.model import Attempt, AuditReport, FrozenWindow, Interval, Pipeline, TaskKey, instant_text, utc


class Ledger:
    """What was decided and what was done. The clock is passed in as `now`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def register(self, pipeline: Pipeline, log: OffsetLog, now: datetime) -> Pipeline:
        """Creates the ledger and the pipeline if they do not exist. The first call decides where windows begin."""
        return self.define(pipeline, log, now).pipeline

    def define(
        self,
        pipeline: Pipeline,
        log: OffsetLog,
        now: datetime,
        *,
        dag_id: str | None = None,
        remembers: bool = True,
        may_change: bool = True,
    ) -> PipelineRegistration:
        """Like `register`, but returns what changed; for a DAG, or a caller that must not change it (`registration.register`)."""
        return registration.register(
            self.engine, pipeline, log, utc(now), dag_id=dag_id, remembers=remembers, may_change=may_change
        )

    def rebase(self, pipeline_name: str, log: OffsetLog, now: datetime, *, other_cluster: bool = False) -> Rebase | None:
        """After the topic was recreated or its log replaced: the windows continue with the log that exists now. None if nothing
        has changed."""
        return rebasing.rebase(self.engine, pipeline_name, log, utc(now), other_cluster=other_cluster)

    def accept_loss(
        self, pipeline_name: str, interval: Interval, log: OffsetLog, now: datetime, *, by: str, reason: str
    ) -> FrozenWindow:
        """The interval's window, whose records are gone or may be: it may now be loaded, and what remains of it audited."""
        return accepted_losses.accept(self.engine, pipeline_name, interval, log, utc(now), by=by, reason=reason)

    def pipeline(self, name: str) -> Pipeline:
        """The registered pipeline with the columns it has inferred, or `PipelineUnknown`."""
        with self.engine.connect() as connection:
            return inferred_columns.with_inferred(connection, to_pipeline(pipeline_row(connection, name)))

    def registered(self, name: str) -> Pipeline:
        """The pipeline as it was registered, or `PipelineUnknown`."""
        with self.engine.connect() as connection:
            return to_pipeline(pipeline_row(connection, name))

    def add_inferred(self, pipeline: Pipeline, columns: Mapping[str, str], now: datetime) -> Pipeline:
        """Stores columns inferred from records; returns the pipeline with all that are known then."""
        inferred_columns.remember(self.engine, pipeline, columns, utc(now))
        return self.with_inferred(pipeline)

    def with_inferred(self, pipeline: Pipeline) -> Pipeline:
        """A pipeline, as registered now or earlier, with the columns inferred from its records."""
        with self.engine.connect() as connection:
            return inferred_columns.with_inferred(connection, pipeline)

    def pipelines(self) -> list[Pipeline]:
        """All registered pipelines by name."""
        with self.engine.connect() as connection:
            return [to_pipeline(row) for row in pipeline_rows(connection)]

    def freeze_or_get(self, pipeline_name: str, interval: Interval, log: OffsetLog, now: datetime) -> FrozenWindow:
        """The interval's window: frozen by the first call, the same for every later one.

        Raises `WindowNotClosed`, `WindowOverlap`, `RecordsLost` or `TopicRecreated`.
        """
        return freezing.freeze_or_get(self.engine, pipeline_name, interval, log, utc(now))

    def hand_over(self, pipeline: Pipeline, windows: Sequence[FrozenWindow], log: OffsetLog) -> dict[str, Any]:
        """Windows for a program of the user's own. Raises `TopicRecreated` or `LogChanged` if they were frozen on another log."""
        return handover.hand_over_from(self.engine, pipeline, windows, log)

    def gaps(
        self,
        pipeline_name: str,
        log: OffsetLog | None,
        now: datetime,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> tuple[Gap, ...]:
        """What is missing from the pipeline, by time; without a log only what the ledger itself shows."""
        return missing.pipeline_gaps(self.engine, pipeline_name, log, utc(now), since, until)

    def plan_load(
        self,
        pipeline_name: str,
        log: OffsetLog,
        now: datetime,
        since: datetime | None = None,
        until: datetime | None = None,
        *,
        limit: int | None = None,
        only_missing: bool = False,
    ) -> LoadPlan:
        """What a load would take; nothing is frozen."""
        return catch_up.plan_load(self.engine, pipeline_name, log, utc(now), since, until, limit=limit, only_missing=only_missing)

    def freeze_plan(
        self, plan: LoadPlan, log: OffsetLog, now: datetime, tell: Callable[[int], None] = lambda count: None
    ) -> list[FrozenWindow]:
        """The plan's windows, all frozen; `tell` is called with the number of windows just frozen."""
        return catch_up.freeze_plan(self.engine, plan, log, utc(now), tell)

    def window(self, pipeline_name: str, start: datetime) -> FrozenWindow:
        """The frozen window that starts at `start`, or `WindowUnknown`."""
        found = self.windows(pipeline_name, since=start, until=start)
        if not found:
            raise WindowUnknown(f"no window of {pipeline_name} that starts at {instant_text(start)} is frozen")
        return found[0]

    def windows(self, pipeline_name: str, since: datetime | None = None, until: datetime | None = None) -> list[FrozenWindow]:
        """Frozen windows by start: those that start within [since, until], both inclusive."""
        window = schema.window
        query = select(window).where(window.c.pipeline == pipeline_name).order_by(window.c.starts_at)
        if since is not None:
            query = query.where(window.c.starts_at >= since)
        if until is not None:
            query = query.where(window.c.starts_at <= until)
        with self.engine.connect() as connection:
            pipeline_row(connection, pipeline_name)
            return load_windows(connection, query)

    def remarkable_windows(self, pipeline_name: str) -> list[FrozenWindow]:
        """By start, the windows that are not loaded, not audited, or loaded with something to report: dead letters, or other
        records than before. They are few, however many years the pipeline has."""
        row_of = schema.window
        what = (row_of.c.loaded_attempt.is_(None), row_of.c.audited_at.is_(None), row_of.c.other_records.is_not(None))
        mine = (row_of.c.pipeline == pipeline_name, or_(*what, row_of.c.dead_lettered_count > 0))
        with self.engine.connect() as connection:
            return load_windows(connection, select(row_of).where(*mine).order_by(row_of.c.starts_at))

    def unaudited(self, pipeline_name: str) -> list[Interval]:
        """The windows that are loaded, and that no audit has looked at since."""
        with self.engine.connect() as connection:
            return trouble.unaudited(connection, pipeline_name)

    def begin_attempts(
        self,
        pipeline_name: str,
        starts: Sequence[datetime],
        run_id: str,
        try_number: int,
        now: datetime,
        task: TaskKey | None = None,
        pipeline: Pipeline | None = None,
        accept_other_records: Collection[datetime] = (),
        supersede: bool = True,
    ) -> list[Attempt]:
        """A new attempt for each window, from now on the only one that may commit. `task`: the task whose attempt it is.
        `pipeline`: how it is loaded, by default as the pipeline is registered now. Windows at `accept_other_records` may be
        replaced with other records than they were loaded from. `WindowBusy` unless `supersede`, if an attempt at one is alive."""

        def check(connection: Connection) -> None:
            if not supersede:
                adoption.refuse_busy(list(adoption.at_work(connection, pipeline_name, windows, None, utc(now)).values()))

        accepted = {utc(start) for start in accept_other_records}
        windows = [utc(start) for start in starts]
        return attempts.begin(self.engine, pipeline_name, windows, run_id, try_number, utc(now), task, pipeline, accepted, check)

    def begun_since(
        self, pipeline_name: str, starts: Sequence[datetime], asked_at: datetime, definition: Definition | None = None
    ) -> set[datetime]:
        """Those of the windows whose loaded attempt began after `asked_at`; with a definition, only those loaded with it."""
        return adoption.begun_since(self.engine, pipeline_name, starts, asked_at, definition)

    def unaudited_of_run(self, pipeline_name: str, dag_id: str, run_id: str) -> set[datetime]:
        """Windows that attempts of a DAG run have loaded and that are not audited."""
        return adoption.unaudited_of_run(self.engine, pipeline_name, dag_id, run_id)

    def failing(self, pipeline_name: str, starts: Sequence[datetime]) -> set[datetime]:
        """Those of the windows that have failed so often that they are loaded alone."""
        return adoption.failing(self.engine, pipeline_name, starts)

    def at_work_elsewhere(
        self, pipeline_name: str, starts: Sequence[datetime], run_id: str | None, now: datetime
    ) -> dict[datetime, str]:
        """Those of the windows on which an attempt of another run is alive, with a text that names it."""
        return adoption.at_work_elsewhere(self.engine, pipeline_name, starts, run_id, utc(now))

    def heartbeat(self, running: Sequence[Attempt], now: datetime) -> None:
        """Records that these attempts are alive."""
        attempts.heartbeat(self.engine, running, utc(now))

    def fail_attempts(
        self,
        failed: Sequence[Attempt],
        error: str,
        now: datetime,
        samples: Mapping[str, Any] | None = None,
        kind: str | None = None,
    ) -> None:
        """Ends the attempts still running, with the reason (and samples of the records), and drops what they staged."""
        attempts.fail(self.engine, failed, error, utc(now), samples, kind)

    def settle_attempts(self, over: Sequence[Attempt], now: datetime) -> list[Standing]:
        """The state of attempts whose program has ended. Those still running are ended: no driver can commit them later."""
        return standing.settle(self.engine, over, utc(now))

    def beyond_retry(self, failed: Sequence[Attempt]) -> LogbusError | None:
        """The error of the first attempt that failed in a way that no retry can fix."""
        return attempts.beyond_retry(self.engine, failed)

    def record_audit(self, report: AuditReport, now: datetime) -> None:
        """Stores an audit's outcome, unless the window has been loaded again since."""
        window = schema.window
        same = (window.c.id == report.window.id, window.c.loaded_attempt == report.window.loaded_attempt)
        outcome = {"audited_at": utc(now) if report.ok else None, "audit_problems": list(report.problems)}
        with self.engine.begin() as connection:
            connection.execute(update(window).where(*same).values(outcome))
