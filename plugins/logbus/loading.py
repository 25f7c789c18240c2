"""The whole pipeline in one call, without Airflow: freeze the closed hours, begin attempts, run Spark, audit.

It uses the same functions in the same order as the operators, which divide them among Airflow tasks. What does not depend on each
other is done at the same time: Spark starts while windows are frozen, and windows are audited while others are loaded.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy.exc import DBAPIError

from logbus import errors, model, spark_submit, waiting
from logbus.formatting import many
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.loads import audit, engine
from logbus.loads.ledger import Ledger, refuse_busy
from logbus.loads.sinks import each_sink_once
from logbus.resident_driver import ResidentDriver
from logbus.windows.catch_up import LoadPlan, progress_to
from logbus.windows.migrations import create_ledger

DRIVER_IDLE_SECONDS = 60.0  # a driver that nobody ends, since its command was killed; a longer freeze costs another start
LOOK_SECONDS = 0.2  # between two looks at what is loaded by now


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to load: a registered pipeline, between two instants or from its first record to its last."""

    pipeline: str
    since: datetime | None = None
    until: datetime | None = None
    limit: int | None = None
    only_missing: bool = False
    master: str = spark_submit.LOCAL_MASTER
    remote: str | None = None  # a server of Spark Connect, instead of a master
    max_task_bytes: int = spark_submit.MAX_TASK_BYTES
    warehouse_connections: int = spark_submit.WAREHOUSE_CONNECTIONS
    run_id: str = "command line"
    supersede: bool = False  # takes over windows that another run is working on
    accept_other_records: bool = False  # a loaded window may be replaced with other records than it was loaded from


# Called with the plan before anything is frozen; raises to stop the load.
Confirm = Callable[[LoadPlan], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """Where to load from and to."""

    warehouse_url: str
    client_config: Mapping[str, Any]
    now: Callable[[], datetime]
    say: waiting.Say

    def load(self, load: Load, confirm: Confirm = lambda plan: None) -> list[model.AuditReport]:
        """Loads and audits; returns the audits, oldest window first. Raises if Spark fails; failed audits are in the reports."""
        spark_submit.require_spark(load.remote)
        ledger, log = Ledger(engine.connect(self.warehouse_url)), Topics(Client.for_command(self.client_config))
        create_ledger(ledger.engine)
        plan = ledger.plan_load(
            load.pipeline, log, self.now(), load.since, load.until, limit=load.limit, only_missing=load.only_missing
        )
        confirm(plan)
        with self.driver(load) as driver:
            if plan.to_load > plan.empty:
                driver.start()
            return self.load_plan(driver, ledger, log, load, plan)

    def load_plan(
        self, driver: ResidentDriver, ledger: Ledger, log: Topics, load: Load, plan: LoadPlan
    ) -> list[model.AuditReport]:
        windows = self.freeze(ledger, log, plan)
        empty = [window for window in windows if not window.needs_load]
        starts = starts_of(window for window in windows if window.needs_load)
        if load.supersede:
            ledger.end_attempts_at(load.pipeline, starts_of(empty), f"run {load.run_id} found the window empty", self.now())
        else:
            refuse_busy(list(ledger.at_work_elsewhere(load.pipeline, starts, None, self.now()).values()))
        reports = [proven_empty(window) for window in empty]
        if reports:
            self.say(f"without any record, by their boundaries: {many(len(reports), 'window')}")
        try:
            reports += self.load_and_audit(driver, ledger, log, load, starts)
        except errors.LoadFailed:  # an hour that does not parse must not block the audits of those that do
            self.audit_unaudited(ledger, log, load)
            raise
        reports += self.audit_unaudited(ledger, log, load)
        if not reports:
            self.say(next_to_load(plan.pipeline, load, self.now()))
        return sorted(reports, key=lambda report: report.window.interval)

    def reload(self, load: Load, starts: Sequence[datetime]) -> list[model.AuditReport]:
        """Loads frozen windows again, whatever their state, and audits them."""
        spark_submit.require_spark(load.remote)
        ledger, log = Ledger(engine.connect(self.warehouse_url)), Topics(Client.for_command(self.client_config))
        with self.driver(load) as driver:
            return self.load_and_audit(driver, ledger, log, load, starts)

    @contextmanager
    def driver(self, load: Load) -> Iterator[ResidentDriver]:
        """One driver for all groups of windows. It starts with the first of them, unless it is started before, and ends here."""
        environment = {
            **spark_submit.launcher_environment(os.environ),
            **spark_submit.environment(self.warehouse_url, self.client_config),
        }
        if load.remote is not None:
            environment[spark_submit.REMOTE_VARIABLE] = load.remote
        is_remote = load.remote is not None
        with tempfile.TemporaryDirectory(prefix="logbus-") as directory:
            driver = ResidentDriver(
                command=lambda arguments: spark_submit.command(load.pipeline, arguments, master=load.master, is_remote=is_remote),
                environment=environment,
                idle_seconds=DRIVER_IDLE_SECONDS,
                directory=Path(directory),
            )
            try:
                yield driver
            finally:
                driver.end(self.say)

    def audit_unaudited(self, ledger: Ledger, log: Topics, load: Load) -> list[model.AuditReport]:
        """Audits the span's windows that an interrupted load has left loaded and not audited."""
        left = {window.start for window in ledger.unaudited(load.pipeline) if window.ends_between(load.since, load.until)}
        if not left:
            return []
        self.say(f"loaded before and not audited: {many(len(left), 'window')}, audited now")
        sinks = each_sink_once()
        return [audit.audit_window(ledger.engine, log, load.pipeline, start, self.now(), sinks) for start in sorted(left)]

    def load_and_audit(
        self, driver: ResidentDriver, ledger: Ledger, log: Topics, load: Load, starts: Sequence[datetime]
    ) -> list[model.AuditReport]:
        """Group by group, so that what one has loaded is audited even if a later one fails."""
        run = spark_submit.LoadRun(
            ledger=ledger,
            pipeline_name=load.pipeline,
            run_id=load.run_id,
            now=self.now,
            say=self.say,
            supersede=load.supersede,
        )
        audits = Audits(ledger=ledger, log=log, pipeline_name=load.pipeline, now=self.now)
        loaded = 0
        try:
            for group in spark_submit.in_groups(starts):
                accepted = group if load.accept_other_records else ()
                with audits.beside(run):
                    run.load(lambda attempts: self.submit(driver, load, attempts), group, accept_other_records=accepted)
                loaded += len(group)
                audits.complete(group)
                if loaded < len(starts):
                    self.say(f"{loaded} of {len(starts)} windows are loaded")
        except KeyboardInterrupt:
            loaded = sum(standing.is_loaded for standing in ledger.settle_attempts(run.attempts, self.now()))
            self.say(how_far(load.pipeline, loaded, len(audits.reports), len(starts)))
            raise
        return sorted(audits.reports.values(), key=lambda report: report.window.interval)

    def freeze(self, ledger: Ledger, log: Topics, plan: LoadPlan) -> list[model.FrozenWindow]:
        windows = ledger.freeze_plan(plan, log, self.now(), progress_to(self.say, plan.count))
        self.say(f"{many(len(windows), 'closed window')}, {many(sum(window.record_count for window in windows), 'record')}")
        return windows

    def submit(self, driver: ResidentDriver, load: Load, attempts: Sequence[model.Attempt]) -> None:
        """Has the driver load them; what it prints is passed to `say`."""
        limits = spark_submit.TaskLimits(max_task_bytes=load.max_task_bytes, warehouse_connections=load.warehouse_connections)
        driver.load(spark_submit.application_arguments(load.pipeline, attempts, limits), self.say)


@dataclass(kw_only=True)
class Audits:
    """The audits of windows that a run has loaded, and their reports."""

    ledger: Ledger
    log: Topics
    pipeline_name: str
    now: Callable[[], datetime]
    reports: dict[datetime, model.AuditReport] = field(default_factory=dict, init=False)
    _sinks: audit.SinkFor = field(default_factory=each_sink_once, init=False)

    def complete(self, starts: Iterable[datetime]) -> None:
        """Audits those of the windows that are not audited yet."""
        for start in starts:
            if start not in self.reports:
                self.reports[start] = self._audit(start)

    @contextmanager
    def beside(self, run: spark_submit.LoadRun) -> Iterator[None]:
        """While the run loads on, what it has loaded is audited: either waits for the database most of the time."""
        is_over = threading.Event()
        thread = threading.Thread(target=self._follow, args=(run, is_over))
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _follow(self, run: spark_submit.LoadRun, is_over: threading.Event) -> None:
        with suppress(errors.LogbusError, DBAPIError):  # then `complete` meets it again, or it has passed
            while not is_over.wait(LOOK_SECONDS):
                own = {attempt.interval.start: attempt.number for attempt in run.attempts}
                for interval in self.ledger.unaudited(self.pipeline_name):
                    if is_over.is_set():
                        return
                    if interval.start in own:
                        report = self._audit(interval.start)
                        if report.window.loaded_attempt == own[interval.start]:  # and not what it is about to replace
                            self.reports[interval.start] = report

    def _audit(self, start: datetime) -> model.AuditReport:
        return audit.audit_window(self.ledger.engine, self.log, self.pipeline_name, start, self.now(), self._sinks)


def proven_empty(window: model.FrozenWindow) -> model.AuditReport:
    """What is reported of a window that its boundaries prove empty."""
    return model.AuditReport(window=window, expected={part.partition: 0 for part in window.ranges}, counted={})


def starts_of(windows: Iterable[model.FrozenWindow]) -> list[datetime]:
    return [window.interval.start for window in windows]


def next_to_load(pipeline: model.Pipeline, load: Load, now: datetime) -> str:
    """For a load that found nothing to do: when the next window of the span closes."""
    start = pipeline.closed_until(now)
    if load.since is not None:
        start = max(start, pipeline.grid.ceiling(load.since))
    end = pipeline.grid.after(start)
    if load.until is not None and end > load.until:
        return f"every window before {model.instant_text(load.until)} is loaded already, or holds nothing that could be"
    closes = model.instant_text(end + pipeline.lateness)
    if start > now:
        return f"{model.instant_text(start)} is in the future: its window can be loaded from {closes} on"
    return f"the window of {model.instant_text(start)} is open until {closes}: load it then"


def how_far(pipeline_name: str, loaded: int, audited: int, count: int) -> str:
    """What an interrupted load has done, and the command that continues it."""
    unaudited = f", {loaded - audited:,} of them not audited" if loaded > audited else ""
    return (
        f"{loaded:,} of {many(count, 'window')} {'is' if loaded == 1 else 'are'} loaded for good{unaudited}: "
        f"`logbus load --pipeline {pipeline_name} --only-missing` loads and audits the rest"
    )
