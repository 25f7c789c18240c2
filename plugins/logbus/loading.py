"""The whole pipeline from one call, without Airflow: freeze the closed hours, take attempts, run Spark, audit.

It uses the same pieces in the same order as the operators do; the operators put Airflow's tasks between them.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from logbus import spark_submit
from logbus.errors import LoadFailed
from logbus.warehouse.engine import connect
from logbus.warehouse.sinks import each_sink_once
from logbus.windows.audit import audit_window
from logbus.windows.ledger import Ledger
from logbus.windows.log_offsets import LogOffsets
from logbus.windows.migrations import create_ledger
from logbus.windows.model import Attempt, AuditReport, FrozenWindow

Say = Callable[[str], None]
STOP_SECONDS_MAX = 10.0  # a JVM that is asked to end runs its shutdown hooks first


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to load: a registered pipeline, between two instants or from its first record to its last."""

    pipeline: str
    since: datetime | None = None
    until: datetime | None = None
    limit: int | None = None
    only_missing: bool = False
    master: str = spark_submit.LOCAL_MASTER
    run_id: str = "command line"
    accept_other_records: bool = False  # a window that is loaded may be replaced by other records than it was loaded from


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """Where to load from and to."""

    warehouse_url: str
    client_config: Mapping[str, Any]
    now: Callable[[], datetime]
    say: Say

    def load(self, load: Load) -> list[AuditReport]:
        """Loads and audits; returns the audits, oldest window first. Raises when Spark fails; audits are in the reports."""
        ledger, log = Ledger(connect(self.warehouse_url)), LogOffsets(self.client_config)
        create_ledger(ledger.engine)
        windows = self.freeze(ledger, log, load)
        pending = [window for window in windows if not (load.only_missing and window.loaded_attempt)]
        self.submit_all(ledger, load, [window.interval.start for window in pending])
        return self.audit(ledger, log, load, [window.interval.start for window in windows])

    def reload(self, load: Load, starts: Sequence[datetime]) -> list[AuditReport]:
        """Loads frozen windows again, whatever became of them before, and audits them."""
        ledger, log = Ledger(connect(self.warehouse_url)), LogOffsets(self.client_config)
        self.submit_all(ledger, load, starts)
        return self.audit(ledger, log, load, starts)

    def submit_all(self, ledger: Ledger, load: Load, starts: Sequence[datetime]) -> None:
        if starts:
            accepted = starts if load.accept_other_records else ()
            attempts = ledger.begin_attempts(load.pipeline, starts, load.run_id, 1, self.now(), accept_other_records=accepted)
            self.submit(ledger, load, attempts)

    def audit(self, ledger: Ledger, log: LogOffsets, load: Load, starts: Sequence[datetime]) -> list[AuditReport]:
        sinks = each_sink_once()
        return [audit_window(ledger.engine, log, load.pipeline, start, self.now(), sinks) for start in starts]

    def freeze(self, ledger: Ledger, log: LogOffsets, load: Load) -> list[FrozenWindow]:
        intervals = ledger.closed_intervals(load.pipeline, log, self.now(), load.since, load.until, load.limit)
        windows = [ledger.freeze_or_get(load.pipeline, interval, log, self.now()) for interval in intervals]
        self.say(f"{len(windows)} closed windows, {sum(window.record_count for window in windows)} records")
        return windows

    def submit(self, ledger: Ledger, load: Load, attempts: Sequence[Attempt]) -> None:
        """Runs the application to its end; its output goes to `say`."""
        try:
            result = run_spark(
                spark_submit.command(load.pipeline, attempts, master=load.master),
                spark_submit.environment(self.warehouse_url, self.client_config),
                self.say,
            )
        except KeyboardInterrupt:
            ledger.fail_attempts(attempts, "interrupted", self.now())
            raise
        if result.returncode != 0:
            ledger.fail_attempts(attempts, f"spark-submit ended with {result.returncode}", self.now())
            raise ledger.beyond_retry(attempts) or LoadFailed(
                f"the Spark application ended with code {result.returncode}; its output above says why"
            )


def end_group(process: subprocess.Popen[str]) -> None:
    """Ends the process and everything it started: in order, and by force where that takes too long."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS_MAX)


def run_spark(command: Sequence[str], environment: Mapping[str, str], say: Say) -> subprocess.CompletedProcess[str]:
    """Runs spark-submit and passes its lines on as they come. Interrupted, it ends what it started before it raises."""
    lines = []
    with subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # a Ctrl-C is ours to pass on: to the shell, the JVM and its workers together
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line)
                if not line.startswith(spark_submit.RESULT_PREFIX):
                    say(line.rstrip())
        except BaseException:
            end_group(process)
            raise
    return subprocess.CompletedProcess(command, process.returncode, "".join(lines))
