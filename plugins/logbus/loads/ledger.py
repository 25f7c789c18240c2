"""The ledger, as everybody above it sees it: pipelines, frozen windows, and the attempts at them.

How an hour is frozen, what is missing and what a load takes are decided in `logbus.windows`; this is the one place that has all
of it, on one engine, and that begins and ends attempts. Each call has its own transactions and nothing is kept in memory, so any
number of ledgers on any number of machines may work at once.

Beginning an attempt raises the window's number; from then on no older attempt can create staging tables or commit. That is the
whole fence: no process needs to be stopped, notified or waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Engine, Select, Text, cast, exists, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert as insert_if_absent

from logbus import errors, formatting, model
from logbus.kafka.topics import OffsetLog
from logbus.loads import attempts as attempt_rows
from logbus.windows import catch_up, freezing, handover, missing, registration, schema
from logbus.windows.catch_up import LoadPlan
from logbus.windows.migrations import create_ledger
from logbus.windows.missing import Gap
from logbus.windows.registration import PipelineRegistration
from logbus.windows.rows import (
    ATTEMPT_RUNNING,
    FAILED,
    HEARTBEAT_EXPIRY,
    NO_PROBLEMS,
    among,
    definition_of,
    differences,
    load_windows,
    lock_windows,
    pipeline_row,
    pipeline_rows,
    to_attempt,
    to_pipeline,
)

# A window that failed so often in a row is loaded alone, so that it cannot fail others with it; one failure is often the
# machine's fault.
FAILURES_BEFORE_ALONE = 2

NAMED_MAX = 5  # attempts named in an error
SILENCE_MINUTES = HEARTBEAT_EXPIRY // timedelta(minutes=1)

# How much of an error's text is kept; a Spark stack trace can be a megabyte.
ERROR_CHARACTERS_MAX = 4_000

# Driver errors that no retry can fix.
BEYOND_RETRY: Mapping[str, type[errors.LogbusError]] = {
    kind.__name__: kind for kind in (errors.ErrorBudgetExceeded, errors.OtherRecords, errors.LogChanged)
}


@dataclass(frozen=True, slots=True)
class Ledger:
    """Everything that is stored about pipelines, windows and attempts. The clock is passed in as `now`."""

    engine: Engine

    def register(self, pipeline: model.Pipeline, log: OffsetLog, now: datetime) -> model.Pipeline:
        """Creates the ledger and the pipeline if they do not exist. The first call decides where windows begin."""
        create_ledger(self.engine)
        return self.define(pipeline, log, now).pipeline

    def define(
        self,
        pipeline: model.Pipeline,
        log: OffsetLog,
        now: datetime,
        *,
        dag_id: str | None = None,
        remembers: bool = True,
        may_change: bool = True,
    ) -> PipelineRegistration:
        """Creates the pipeline if it does not exist; if it does, only what no record's place depends on may change.

        :param dag_id: the DAG with this definition: refused if another DAG defines the pipeline as it is registered
        :param remembers: whether the DAG works on the pipeline, so that later registrations are checked against its definition
        :param may_change: False: another definition is a `PipelineConflict`, whose message lists what would change
        """
        row_of, given = schema.pipeline, definition_of(pipeline)
        with self.engine.connect() as connection:
            is_known = connection.execute(select(exists().where(row_of.c.name == pipeline.name))).scalar_one()
        beginning = None if is_known else registration.beginning_of(pipeline, log, now)
        with self.engine.begin() as connection:
            is_new = beginning is not None and registration.make(connection, pipeline, beginning, now)
            before = definition_of(to_pipeline(pipeline_row(connection, pipeline.name, lock=True)))
            changes = differences(before, given) if given != before else []
            if given != before:
                registration.refuse_change(connection, changes, before, given, dag_id, may_change=may_change)
                changeable = {"parse": pipeline.parse, "lateness": pipeline.lateness, "settings": pipeline.options.given}
                connection.execute(update(row_of).where(row_of.c.name == pipeline.name).values(changeable))
            if dag_id is not None and remembers:
                values = {"pipeline": pipeline.name, "dag_id": dag_id, "seen_at": now, "definition": given}
                statement, keys = insert_if_absent(schema.pipeline_dag).values(values), ["pipeline", "dag_id"]
                is_other = schema.pipeline_dag.c.definition.is_distinct_from(statement.excluded.definition)  # usually it is not
                connection.execute(
                    statement.on_conflict_do_update(index_elements=keys, set_={"definition": given}, where=is_other)
                )
        return PipelineRegistration(pipeline=pipeline, is_new=is_new, changes=tuple(changes))

    def pipeline(self, name: str) -> model.Pipeline:
        """The registered pipeline with the columns it has inferred, or `PipelineUnknown`."""
        with self.engine.connect() as connection:
            return registration.with_inferred(connection, to_pipeline(pipeline_row(connection, name)))

    def registered(self, name: str) -> model.Pipeline:
        """The pipeline as it was registered, or `PipelineUnknown`."""
        with self.engine.connect() as connection:
            return to_pipeline(pipeline_row(connection, name))

    def add_inferred(self, pipeline: model.Pipeline, columns: Mapping[str, str], now: datetime) -> model.Pipeline:
        """Stores columns inferred from records; returns the pipeline with all that are known then."""
        registration.remember_columns(self.engine, pipeline, columns, now)
        return self.with_inferred(pipeline)

    def with_inferred(self, pipeline: model.Pipeline) -> model.Pipeline:
        """A pipeline, as registered now or earlier, with the columns inferred from its records."""
        with self.engine.connect() as connection:
            return registration.with_inferred(connection, pipeline)

    def pipelines(self) -> list[model.Pipeline]:
        """All registered pipelines by name."""
        with self.engine.connect() as connection:
            return [to_pipeline(row) for row in pipeline_rows(connection)]

    def freeze_or_get(self, pipeline_name: str, interval: model.Interval, log: OffsetLog, now: datetime) -> model.FrozenWindow:
        """The interval's window: frozen by the first call, the same for every later one.

        Raises `WindowNotClosed`, `WindowOverlap`, `RecordsLost` or `TopicRecreated`.
        """
        return freezing.freeze_or_get(self.engine, pipeline_name, interval, log, now)

    def hand_over(self, pipeline: model.Pipeline, windows: Sequence[model.FrozenWindow], log: OffsetLog) -> dict[str, Any]:
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
        return missing.pipeline_gaps(self.engine, pipeline_name, log, now, since, until)

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
        return catch_up.plan_load(self.engine, pipeline_name, log, now, since, until, limit=limit, only_missing=only_missing)

    def freeze_plan(
        self, plan: LoadPlan, log: OffsetLog, now: datetime, progress: Callable[[int], None] = lambda count: None
    ) -> list[model.FrozenWindow]:
        """The plan's windows, all frozen; `progress` is called with the number of windows just frozen."""
        return catch_up.freeze_plan(self.engine, plan, log, now, progress)

    def window(self, pipeline_name: str, start: datetime) -> model.FrozenWindow:
        """The frozen window that starts at `start`, or `WindowUnknown`."""
        return self.windows_at(pipeline_name, [start])[0]

    def windows_at(self, pipeline_name: str, starts: Sequence[datetime]) -> list[model.FrozenWindow]:
        """The frozen windows with these starts, in their order, or `WindowUnknown`."""
        window = schema.window
        query = select(window).where(window.c.pipeline == pipeline_name, among(window.c.starts_at, starts))
        with self.engine.connect() as connection:
            windows = {window.interval.start: window for window in load_windows(connection, query)}
            missing_starts = [model.instant_text(start) for start in starts if start not in windows]
            if missing_starts:
                pipeline_row(connection, pipeline_name)  # raises if there is none
                raise errors.WindowUnknown(f"no window of {pipeline_name} that starts at {missing_starts[0]} is frozen")
        return [windows[start] for start in starts]

    def windows(
        self, pipeline_name: str, since: datetime | None = None, until: datetime | None = None
    ) -> list[model.FrozenWindow]:
        """Frozen windows by start: those that start within [since, until], both inclusive."""
        window = schema.window
        query = select(window).where(window.c.pipeline == pipeline_name).order_by(window.c.starts_at)
        if since is not None:
            query = query.where(window.c.starts_at >= since)
        if until is not None:
            query = query.where(window.c.starts_at <= until)
        with self.engine.connect() as connection:
            windows = load_windows(connection, query)
            if not windows:
                pipeline_row(connection, pipeline_name)  # raises if there is none
            return windows

    def remarkable_windows(self, pipeline_name: str) -> list[model.FrozenWindow]:
        """By start, the windows that are not loaded, not audited, or loaded with something to report: dead letters, or other
        records than before. They are few, however many years the pipeline has."""
        row_of = schema.window
        reasons = (row_of.c.loaded_attempt.is_(None), row_of.c.audited_at.is_(None), row_of.c.other_records.is_not(None))
        remarkable = (row_of.c.pipeline == pipeline_name, or_(*reasons, row_of.c.dead_lettered_count > 0))
        with self.engine.connect() as connection:
            return load_windows(connection, select(row_of).where(*remarkable).order_by(row_of.c.starts_at))

    def unaudited(self, pipeline_name: str) -> list[model.Interval]:
        """The windows that are loaded, and that no audit has looked at since."""
        window = schema.window
        loaded = (window.c.pipeline == pipeline_name, window.c.loaded_attempt.is_not(None), window.c.audited_at.is_(None))
        nothing_found = or_(window.c.audit_problems.is_(None), cast(window.c.audit_problems, Text).in_(NO_PROBLEMS))
        query = select(window.c.starts_at, window.c.ends_at).where(*loaded, nothing_found).order_by(window.c.starts_at)
        with self.engine.connect() as connection:
            return [model.Interval(start, end) for start, end in connection.execute(query)]

    def begin_attempts(
        self,
        pipeline_name: str,
        starts: Sequence[datetime],
        run_id: str,
        try_number: int,
        now: datetime,
        task: model.TaskKey | None = None,
        pipeline: model.Pipeline | None = None,
        accept_other_records: Collection[datetime] = (),
        supersede: bool = True,
    ) -> list[model.Attempt]:
        """A new attempt for each window, in the order of `starts`, from now on the only one that may commit. All or none.

        `task`: the task whose attempts they are. `pipeline`: how they are loaded, by default as the pipeline is registered now,
        whatever is registered while they run. Windows at `accept_other_records` may be replaced with other records than they
        were loaded from (logbus.loads.commit_checks). `WindowBusy` unless `supersede`, if an attempt at one is alive.
        """
        with self.engine.begin() as connection:
            # Shared until the transaction ends: from then on a running attempt shows where rows are written.
            registered = to_pipeline(pipeline_row(connection, pipeline_name, share=True))
            definition = definition_of(registered)
            if pipeline is not None:
                before, definition = definition, definition_of(pipeline)
                if definition != before:  # the caller has registered it, and somebody has changed it since
                    registration.refuse_fixed(pipeline_name, differences(before, definition))
                    registration.refuse_elsewhere(before, definition)
            rows = lock_windows(connection, pipeline_name, starts)
            if not supersede:
                refuse_busy([*attempt_rows.at_work(connection, pipeline_name, starts, None, now).values()])
            attempts = {
                row["starts_at"]: attempt_rows.begin(
                    connection, row, definition, run_id, try_number, now, task, row["starts_at"] in accept_other_records
                )
                for row in rows
            }
        # After the commit, not in it: only now can no older attempt create a table any more, and a table that cannot be dropped
        # must not take the new attempts back.
        attempt_rows.drop_stale_tables(self.engine, [row["id"] for row in rows])
        return [attempts[start] for start in starts]

    # When a run may reuse another run's load: a backfill of many hours should not start a Spark application for each of them. A
    # run asks for a load at some instant: when it was queued, cleared or retried. A loaded attempt that began after that
    # instant, whichever run made it, is what the run asked for, provided that it was loaded with the same definition of the
    # pipeline. One that began before is not: a clear means "load it again". A window that another run is loading is left to
    # that run: beginning an attempt at it would supersede the other one.

    def begun_since(
        self, pipeline_name: str, starts: Sequence[datetime], requested_at: datetime, pipeline: model.Pipeline | None = None
    ) -> set[datetime]:
        """Those of the windows whose loaded attempt began after `requested_at`; if given a pipeline, only those loaded so."""
        window, attempt = schema.window, schema.attempt
        query = _loaded_starts(pipeline_name).where(among(window.c.starts_at, starts), attempt.c.began_at > requested_at)
        if pipeline is not None:
            query = query.where(attempt.c.definition == definition_of(pipeline))
        with self.engine.connect() as connection:
            return set(connection.execute(query).scalars())

    def loaded_by_tries(
        self, pipeline: model.Pipeline, starts: Sequence[datetime], dag_id: str, run_id: str, first_try: int
    ) -> set[datetime]:
        """Those of the windows whose loaded attempt was begun by a DAG run with this definition, in its try `first_try` or a
        later one."""
        window, attempt = schema.window, schema.attempt
        by_run = (attempt.c.dag_id == dag_id, attempt.c.run_id == run_id, attempt.c.definition == definition_of(pipeline))
        query = _loaded_starts(pipeline.name).where(among(window.c.starts_at, starts), *by_run, attempt.c.try_number >= first_try)
        with self.engine.connect() as connection:
            return set(connection.execute(query).scalars())

    def unaudited_of_run(self, pipeline_name: str, dag_id: str, run_id: str) -> set[datetime]:
        """Windows that attempts of a DAG run have loaded and that are not audited."""
        attempt = schema.attempt
        by_run = (attempt.c.dag_id == dag_id, attempt.c.run_id == run_id)
        query = _loaded_starts(pipeline_name).where(schema.window.c.audited_at.is_(None), *by_run)
        with self.engine.connect() as connection:
            return set(connection.execute(query).scalars())

    def failing(self, pipeline_name: str, starts: Sequence[datetime]) -> set[datetime]:
        """Those of the windows whose last `FAILURES_BEFORE_ALONE` attempts all failed: they are loaded alone."""
        window, attempt = schema.window, schema.attempt
        failures = (
            select(func.count())
            .where(attempt.c.window_id == window.c.id, attempt.c.number > window.c.last_attempt - FAILURES_BEFORE_ALONE)
            .where(attempt.c.state == FAILED)
            .scalar_subquery()
        )
        query = select(window.c.starts_at).where(
            window.c.pipeline == pipeline_name, among(window.c.starts_at, starts), failures == FAILURES_BEFORE_ALONE
        )
        with self.engine.connect() as connection:
            return set(connection.execute(query).scalars())

    def at_work_elsewhere(
        self, pipeline_name: str, starts: Sequence[datetime], run_id: str | None, now: datetime
    ) -> dict[datetime, str]:
        """Those of the windows on which an attempt of another run is alive, with a text that names it; attempts of earlier tries
        of `run_id` do not count. None: every run is another one."""
        with self.engine.connect() as connection:
            return attempt_rows.at_work(connection, pipeline_name, starts, run_id, now)

    def heartbeat(self, attempts: Sequence[model.Attempt], now: datetime) -> None:
        """Records that these attempts are alive, in one statement. Locked rows are skipped: an attempt that is being committed or
        superseded needs no heartbeat."""
        row_of = schema.attempt
        ours = (attempt_rows.among_attempts(attempts), row_of.c.state == ATTEMPT_RUNNING)
        running = select(row_of.c.window_id, row_of.c.number).where(*ours).with_for_update(skip_locked=True).cte("running")
        same = (row_of.c.window_id == running.c.window_id, row_of.c.number == running.c.number)
        with self.engine.begin() as connection:
            connection.execute(update(row_of).where(*same).values(heartbeat_at=now))

    def fail_attempts(
        self,
        attempts: Sequence[model.Attempt],
        error: str,
        now: datetime,
        samples: Mapping[str, Any] | None = None,
        kind: str | None = None,
    ) -> None:
        """Ends the attempts that are still running, with the reason, and drops what they staged; committed or superseded ones
        stay as they are. `samples` (JSON) describe records that caused it; `kind` is the error's class, if the driver tells."""
        values: dict[str, Any] = {
            "state": FAILED,
            "ended_at": now,
            "error": error[:ERROR_CHARACTERS_MAX],
            "error_kind": kind,
        }
        if samples is not None:
            values["error_samples"] = dict(samples)
        with self.engine.begin() as connection:
            attempt_rows.set_where_running(connection, attempts, values)
        attempt_rows.drop_stale_tables(self.engine, [attempt.window_id for attempt in attempts])

    def end_attempts_at(self, pipeline_name: str, starts: Collection[datetime], reason: str, now: datetime) -> None:
        """Ends whatever attempts run at these windows. For those that need no load: no newer attempt will supersede them."""
        if not starts:
            return
        window, row_of = schema.window, schema.attempt
        query = (
            select(row_of, window.c.starts_at, window.c.ends_at)
            .join(window, window.c.id == row_of.c.window_id)
            .where(window.c.pipeline == pipeline_name, row_of.c.state == ATTEMPT_RUNNING, among(window.c.starts_at, starts))
        )
        with self.engine.connect() as connection:
            rows = connection.execute(query).mappings().all()
        intervals = [model.Interval(row["starts_at"], row["ends_at"]) for row in rows]
        attempts = [to_attempt(row, pipeline_name, interval) for row, interval in zip(rows, intervals, strict=True)]
        self.fail_attempts(attempts, reason, now)

    def settle_attempts(self, attempts: Sequence[model.Attempt], now: datetime) -> list[attempt_rows.AttemptOutcome]:
        """The outcome of attempts whose program has ended. One that is still running is ended: even if its driver lives on
        unseen, it cannot commit, so what is returned stays true."""
        outcomes = attempt_rows.outcomes_of(self.engine, attempts, now)
        running = [outcome.attempt for outcome in outcomes if outcome.state == ATTEMPT_RUNNING]
        if not running:
            return outcomes
        self.fail_attempts(running, attempt_rows.ENDED_WITHOUT_COMMIT, now)
        return attempt_rows.outcomes_of(self.engine, attempts, now)

    def beyond_retry(self, attempts: Sequence[model.Attempt]) -> errors.LogbusError | None:
        """Why the first of the attempts failed for good, if any did: too much did not parse, or the log holds other records."""
        row_of = schema.attempt
        final = (attempt_rows.among_attempts(attempts), row_of.c.error_kind.in_(list(BEYOND_RETRY)))
        query = select(row_of.c.error_kind, row_of.c.error).where(*final).order_by(row_of.c.window_id).limit(1)
        with self.engine.connect() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else BEYOND_RETRY[row.error_kind](row.error)

    def record_audit(self, report: model.AuditReport, now: datetime) -> None:
        """Stores an audit's outcome, unless the window has been loaded again since."""
        window = schema.window
        same = (window.c.id == report.window.id, window.c.loaded_attempt == report.window.loaded_attempt)
        outcome = {"audited_at": now if report.ok else None, "audit_problems": list(report.problems)}
        with self.engine.begin() as connection:
            connection.execute(update(window).where(*same).values(outcome))
            connection.execute(handover.NOTIFY, {"name": report.window.pipeline})


def _loaded_starts(pipeline_name: str) -> Select[Any]:
    """The starts of loaded windows, joined with the attempt that is loaded."""
    window, attempt = schema.window, schema.attempt
    loaded_by = (attempt.c.window_id == window.c.id) & (attempt.c.number == window.c.loaded_attempt)
    return select(window.c.starts_at).join(attempt, loaded_by).where(window.c.pipeline == pipeline_name)


def refuse_busy(workers: Sequence[str]) -> None:
    """`WindowBusy` with the attempts (texts of `at_work_elsewhere`) that a load would take its windows away from."""
    if workers:
        named = formatting.several(workers, NAMED_MAX, separator="; ")
        raise errors.WindowBusy(
            f"another run is working on {len(workers):,} of these windows: {named}. Wait, or take over "
            "(--supersede, supersede=True): its attempts cannot commit then. Attempts without a heartbeat for "
            f"{SILENCE_MINUTES} minutes are presumed dead"
        )
