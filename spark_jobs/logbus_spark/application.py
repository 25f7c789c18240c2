"""The driver: windows in groups, a Spark job for each group, a commit for each window.

A group is staged by one job of a few tasks, then its windows are sealed and committed one by one. So a failure late in a
long catch-up costs one group, and what is committed stays. A window that a newer attempt has taken over is superseded;
the others continue.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import groupby
from typing import Any

from logbus import errors, model, spark_submit
from logbus.kafka.client import Client
from logbus.kafka.topics import OffsetLog
from logbus.loads import attempts as attempts_of
from logbus.loads import commit_checks, read_tally
from logbus.loads.ledger import Ledger
from logbus.loads.roles import TaskLogin, TaskLogins
from logbus.loads.sinks import Sink, sink_for
from logbus.parsing import json_format, parser_for, schema_format
from logbus.parsing.decoders import FORMATS, Decoders, SchemaBook, SchemasUnmet
from logbus.windows import log_changes
from logbus.windows.log_changes import WitnessSet, refuse_if_recreated
from logbus.windows.rows import SUPERSEDED, pipeline_of
from sqlalchemy.exc import SQLAlchemyError

from logbus_spark import records, session
from logbus_spark.load_task import load_plans
from logbus_spark.records import TASKS_PER_CORE, StagedWindow, TaskJob, TaskResult, pack


class LoadState(StrEnum):
    COMMITTED = "committed"
    SUPERSEDED = "superseded"
    FAILED = "failed"


# A superseded window is loaded by a newer attempt: nothing is wrong.
SUCCESSFUL = (LoadState.COMMITTED, LoadState.SUPERSEDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOutcome:
    """One window's outcome. `counts` if it is committed, `error` if not."""

    attempt: model.Attempt
    state: LoadState
    counts: model.WindowCounts | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReads:
    """What the winning tasks of a job reported."""

    winners: frozenset[str] = frozenset()
    by_window: Mapping[int, Mapping[int, read_tally.ReadTally]] = field(default_factory=dict)
    files: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Preparation:
    """What attempts are loaded with: the pipeline with all columns that its records have shown, a sink whose table has them, and
    the schemas of values that name theirs."""

    pipeline: model.Pipeline
    sink: Sink
    book: SchemaBook | None = None


@dataclass(kw_only=True)
class Application:
    """One run of the program. `report` is called with each window's outcome as soon as it is known."""

    ledger: Ledger
    log: OffsetLog
    client: Client
    now: Callable[[], datetime]
    report: Callable[[WindowOutcome], None]
    limits: spark_submit.TaskLimits = spark_submit.TaskLimits()
    logins: TaskLogins = field(init=False, repr=False)  # what the tasks get of the driver's own

    def load(self, pipeline_name: str, tokens: Sequence[str]) -> list[WindowOutcome]:
        """Loads the windows whose attempts the tokens name, oldest first, each as the pipeline was when its attempt began."""
        with self.ledger.engine.connect() as connection:
            attempts = attempts_of.find(connection, pipeline_name, tokens)
        self.logins = TaskLogins(self.ledger.engine, self.client)
        self.logins.void_left_over(pipeline_name)
        outcomes: list[WindowOutcome] = []
        # For all attempts of this run, including those in the last group: an attempt that waits for its turn is alive, and its
        # window must not be given to another run.
        with attempts_of.heartbeats(lambda: self.ledger.heartbeat(attempts, self.now())):
            # A pipeline may have been changed between two attempts. Each is loaded with the definition it began with, or a
            # parser would be applied to windows for which it was not requested.
            for definition, alike in groupby(attempts, key=lambda attempt: attempt.definition):
                for outcome in self.load_alike(pipeline_of(definition), list(alike)):
                    self.report(outcome)
                    outcomes.append(outcome)
        return outcomes

    def load_alike(self, defined: model.Pipeline, attempts: Sequence[model.Attempt]) -> Iterator[WindowOutcome]:
        try:
            prepared = self.prepare(defined, attempts)
        except Exception as error:  # a catalog or a file system has errors of its own
            yield from [self.failed(attempt, error) for attempt in attempts]
            return
        for group in spark_submit.in_groups(attempts, spark_submit.WINDOWS_PER_JOB_MAX):
            yield from self.load_group(prepared, group)

    def prepare(self, defined: model.Pipeline, attempts: Sequence[model.Attempt]) -> Preparation:
        """The pipeline with its inferred columns, and its sink with a table that has them all."""
        if defined.parse in FORMATS:
            windows = self.ledger.windows_at(defined.name, [attempt.interval.start for attempt in attempts])
            book = commit_checks.schema_book(self.ledger.engine, defined.name, [window.id for window in windows])
            return self.meet(defined, book, records.sampled_prefixes(self.client.config, defined, records.ranges_of(windows)))
        if not defined.options.infer:
            return self.with_target(defined)
        windows = self.ledger.windows_at(defined.name, [attempt.interval.start for attempt in attempts])
        pipeline = self.infer(defined, records.ranges_of(windows))
        return self.with_target(pipeline)

    def with_target(self, pipeline: model.Pipeline, book: SchemaBook | None = None) -> Preparation:
        parser = parser_for(pipeline.parse, pipeline.settings, book)
        sink = sink_for(pipeline, self.ledger.engine)
        # The table is created, or gets its new columns, before any task runs: if it were missing, a hundred tasks would fail a
        # hundred times.
        sink.ensure_target(parser.columns)
        return Preparation(pipeline=pipeline, sink=sink, book=book)

    def meet(self, defined: model.Pipeline, book: SchemaBook, prefixes: Collection[bytes]) -> Preparation:
        """The same with the columns of these schemas, too. Only the driver asks the registry, and only for what is not frozen."""
        with commit_checks.asking_registry(book, defined, self.client.config):
            book.meet(prefixes)
        pipeline = self.ledger.with_inferred(defined)
        columns = schema_format.schema_columns(Decoders(format=FORMATS[defined.parse], book=book), pipeline.options.columns)
        return self.with_target(self.ledger.add_inferred(pipeline, columns, self.now()), book)

    def infer(self, defined: model.Pipeline, ranges: Iterable[model.OffsetRange]) -> model.Pipeline:
        """The pipeline with the columns that records have shown, some of these ranges included. If they cannot be read now, the
        load will report it."""
        pipeline = self.ledger.with_inferred(defined)
        try:
            columns = json_format.inferred_columns(records.sampled_values(self.client.config, pipeline, ranges))
        except errors.LogbusError:
            return pipeline
        return self.ledger.add_inferred(pipeline, columns, self.now())

    def load_group(self, prepared: Preparation, group: Sequence[model.Attempt]) -> Iterator[WindowOutcome]:
        """Stages the group's windows with one Spark job and commits them; whatever fails is recorded on its attempts."""
        pipeline, sink = prepared.pipeline, prepared.sink
        # Staging tables are named by attempt number, so what a former driver of this window still writes goes to other tables
        # and is never sealed.
        current, superseded = sink.create_staging(group)
        current.sort(key=lambda attempt: attempt.interval)
        for attempt in superseded:
            yield WindowOutcome(attempt=attempt, state=LoadState.SUPERSEDED, error="a newer attempt has begun")
        readable = current
        # The witnesses are checked before the job, and the topic's id after it (`read`): so the tasks have read from a log that
        # was the frozen one before and is the same topic afterwards. A task detects changes in between itself: it compares the
        # witnesses among the records that it reads.
        try:
            frozen = self.ledger.windows_at(pipeline.name, [attempt.interval.start for attempt in current])
            windows = {window.id: window for window in frozen}
            called = log_changes.witnesses_of(self.ledger.engine, frozen)
            unreadable = log_changes.unreadable(pipeline, self.log, frozen, called)
            readable = [attempt for attempt in current if attempt.window_id not in unreadable]
            for attempt in current:
                if attempt.window_id in unreadable:
                    yield self.failed(attempt, unreadable[attempt.window_id])
            reads = self.read(prepared, readable, windows, called)
        except SchemasUnmet as unmet:
            yield from self.load_group_again(prepared, readable, unmet)
            return
        except (errors.LogbusError, SQLAlchemyError) as error:
            yield from self.group_failed(prepared, readable, error)
            return
        for attempt in readable:
            yield self.finish(prepared, windows[attempt.window_id], attempt, reads)

    def load_group_again(
        self, prepared: Preparation, attempts: Sequence[model.Attempt], unmet: SchemasUnmet
    ) -> Iterator[WindowOutcome]:
        """Tasks have met schemas that are not among the values sampled before. The job is repeated with their columns: where a
        field lies must not depend on the sample. Each repetition knows more schemas, or knows of some that nobody has them."""
        assert prepared.book is not None, "only values that name a schema have one that is unmet"
        try:
            again = self.meet(prepared.pipeline, prepared.book, unmet.prefixes)
        except Exception as error:  # a catalog or a file system has errors of its own
            yield from [self.failed(attempt, error) for attempt in attempts]
            return
        prepared.pipeline, prepared.sink = again.pipeline, again.sink  # for the groups that follow, too
        yield from self.load_group(prepared, attempts)

    def group_failed(self, prepared: Preparation, attempts: Sequence[model.Attempt], error: Exception) -> Iterator[WindowOutcome]:
        """A job fails as a whole. If it failed because a newer attempt dropped the tables of some windows, the others are loaded
        without those."""
        overtaken: list[model.Attempt] = []
        with suppress(SQLAlchemyError):
            overtaken = [attempt for attempt in attempts if self.is_superseded(attempt)]
        others = [attempt for attempt in attempts if attempt not in overtaken] if overtaken else []
        yield from [self.failed(attempt, error) for attempt in (overtaken or attempts)]
        if others:
            yield from self.load_group(prepared, others)

    def is_superseded(self, attempt: model.Attempt) -> bool:
        return attempts_of.state_of(self.ledger.engine, attempt) == SUPERSEDED

    def read(
        self,
        prepared: Preparation,
        attempts: Sequence[model.Attempt],
        windows: Mapping[int, model.FrozenWindow],
        called: WitnessSet,
    ) -> TaskReads:
        """One Spark job over the attempts' windows. Windows without records need none."""
        to_read = [windows[attempt.window_id] for attempt in attempts]
        if not any(window.record_count for window in to_read):
            return TaskReads()
        with self.logins.for_job(attempts, to_read) as login:
            results = self.run_tasks(prepared, attempts, to_read, called, login)
        if unmet := frozenset[bytes]().union(*(result.unmet for result in results)):
            raise SchemasUnmet(unmet)
        # Afterwards too, not only before: a topic deleted and created again during the job has new records at the same offsets.
        topic = prepared.pipeline.topic
        refuse_if_recreated(topic, to_read[0].topic_id, self.log.topic(topic).topic_id)
        return to_reads(results)

    def run_tasks(
        self,
        prepared: Preparation,
        attempts: Sequence[model.Attempt],
        windows: Sequence[model.FrozenWindow],
        called: WitnessSet,
        login: TaskLogin,
    ) -> list[TaskResult]:
        pipeline, sink = prepared.pipeline, prepared.sink
        job = TaskJob(
            pipeline=pipeline.name,
            topic=pipeline.topic,
            parse=pipeline.parse,
            settings=pipeline.settings,
            windows={
                attempt.window_id: StagedWindow(
                    window_id=attempt.window_id,
                    attempt=attempt.number,
                    start_ms=model.milliseconds(attempt.interval.start),
                    end_ms=model.milliseconds(attempt.interval.end),
                    staging_table=attempt.staging_table,
                    dead_letter_table=attempt.dead_letter_table,
                    witnesses=called.inside.get(attempt.window_id, {}),
                )
                for attempt in attempts
            },
            grid=pipeline.grid,
            sink=sink.name,
            sink_options=sink.task_options(login.warehouse_url),
            book=prepared.book,
        )
        try:
            return run_job(pipeline, windows, job, login.client_config, self.limits)
        except errors.LogbusError:
            raise
        except Exception as error:  # Spark raises many kinds: a worker's, the JVM's, Py4J's
            raise errors.LoadFailed(f"the Spark job failed: {cause(error)}") from error

    def finish(
        self, prepared: Preparation, window: model.FrozenWindow, attempt: model.Attempt, reads: TaskReads
    ) -> WindowOutcome:
        """Seals and commits one window."""
        pipeline, sink = prepared.pipeline, prepared.sink
        tallies, files = reads.by_window.get(window.id, {}), reads.files.get(window.id, ())
        try:
            # Sealing closes the tables to every writer, keeps only the winners' rows and counts them. Nothing can be added after
            # that, so what was counted is what the commit makes public.
            staged = sink.seal(attempt, reads.winners, files)
            load = commit_checks.SealedWindow(
                pipeline=pipeline,
                window=window,
                attempt=attempt,
                staged=staged,
                reads=tallies,
                files=files,
                schemas=prepared.book.schemas if prepared.book is not None else {},
            )
            counts = sink.commit(load, self.now())
        except errors.AttemptSuperseded as error:
            return WindowOutcome(attempt=attempt, state=LoadState.SUPERSEDED, error=str(error))
        except (errors.LogbusError, SQLAlchemyError) as error:
            return self.failed(attempt, error)
        return WindowOutcome(attempt=attempt, state=LoadState.COMMITTED, counts=counts)

    def failed(self, attempt: model.Attempt, error: Exception) -> WindowOutcome:
        """Ends the attempt with the reason. If it fails because a newer attempt dropped its tables, it is superseded, not failed.
        If the ledger cannot be reached, the attempt is left to the next one, which supersedes it."""
        is_superseded = False
        with suppress(SQLAlchemyError):
            self.ledger.fail_attempts([attempt], str(error), self.now(), commit_checks.samples_of(error), type(error).__name__)
            # Checked after the failure is written: a newer attempt may have begun in between, and that better explains what went
            # wrong.
            is_superseded = self.is_superseded(attempt)
        return WindowOutcome(attempt=attempt, state=LoadState.SUPERSEDED if is_superseded else LoadState.FAILED, error=str(error))


def run_job(
    pipeline: model.Pipeline,
    windows: Sequence[model.FrozenWindow],
    job: TaskJob,
    client_config: Mapping[str, Any],
    limits: spark_submit.TaskLimits,
) -> list[TaskResult]:
    """The results of the task attempts that won; a task that fails for good raises one of Spark's own errors."""
    # Only if there is something to read: an hour without records needs no Spark, and its commit is the same.
    spark = session.started()
    cores = min(session.parallelism(spark), limits.warehouse_connections)
    record_bytes = records.mean_bytes(client_config, pipeline.isolation_level, records.ranges_of(windows))
    plans = pack(windows, TASKS_PER_CORE * cores, record_bytes, limits.max_task_bytes)
    work = load_plans(pipeline, job, client_config)
    return session.run_plans(spark, plans, work, at_once=limits.warehouse_connections)


def to_reads(results: Sequence[TaskResult]) -> TaskReads:
    """The results of the winning tasks, by window. Several of them may have read one partition of a window."""
    # Only winners are in `results`: Spark may have run a task twice (speculation, a lost executor), and what the loser wrote
    # has the number of another transaction, so it is neither sealed nor counted.
    by_window: dict[int, dict[int, read_tally.ReadTally]] = {}
    files: dict[int, tuple[str, ...]] = {}
    for result in results:
        parts = by_window.setdefault(result.window_id, {})
        before = parts.get(result.partition)
        parts[result.partition] = result.tally if before is None else before + result.tally
        files[result.window_id] = files.get(result.window_id, ()) + result.files
    winners = frozenset(result.transaction for result in results if result.transaction is not None)
    return TaskReads(winners=winners, by_window=by_window, files=files)


OWN_ERROR = re.compile(r"^logbus\.errors\.\w+: (.+)$", re.MULTILINE)


def cause(error: Exception) -> str:
    """Our own error from the traceback of a worker; otherwise the traceback's last line that names an error."""
    text = str(error)
    own = OWN_ERROR.findall(text)
    if own:
        return str(own[-1])
    if lacking := re.search(r"No module named '(logbus\w*)", text):
        return f"no module {lacking[1]} where Spark runs its tasks: install logbus there, in the version that submits the load"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next(
        (line for line in reversed(lines) if re.match(r"[\w.]+(Error|Exception)\b", line)), lines[0] if lines else repr(error)
    )


def outcome_line(outcome: WindowOutcome, *, is_brief: bool = False) -> str:
    """`2015-05-17T10:00:00Z committed read=118 loaded=118 dead_lettered=0`. `is_brief`: only the reason's first sentence."""
    counts = outcome.counts
    detail = (
        f"read={counts.read} loaded={counts.loaded} dead_lettered={counts.dead_lettered} late={counts.late}"
        if counts
        else (outcome.error or "").partition(". ")[0]
        if is_brief
        else outcome.error
    )
    return f"{model.instant_text(outcome.attempt.interval.start)} {outcome.state} {detail}"


def telling(say: Callable[[str], None]) -> Callable[[WindowOutcome], None]:
    """Reports each outcome. One wrong setting fails every hour alike: errors with the same advice are printed in full once."""
    known_advice: set[str] = set()

    def tell(outcome: WindowOutcome) -> None:
        advice = (outcome.error or "").rpartition(". ")[2]
        say(outcome_line(outcome, is_brief=advice in known_advice))
        known_advice.add(advice)

    return tell


def result(outcomes: Sequence[WindowOutcome]) -> dict[str, Any]:
    """Everything as JSON-ready values: totals, and the windows one by one."""
    states = {str(state): sum(outcome.state is state for outcome in outcomes) for state in LoadState}
    return {
        **states,
        "windows": [
            {
                "start": model.instant_text(outcome.attempt.interval.start),
                "attempt": outcome.attempt.number,
                "state": str(outcome.state),
                "counts": outcome.counts and asdict(outcome.counts),
                "error": outcome.error,
            }
            for outcome in outcomes
        ],
    }
