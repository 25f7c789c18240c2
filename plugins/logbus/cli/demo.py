"""`logbus demo`: one log through broker, Airflow and Spark into PostgreSQL, one exact window an hour, with the proof printed.

    storage up -> ship the log (while Airflow starts) -> catch-up DAG: all closed hours, one Spark application, all audited
               -> hourly DAG: the busiest hour once more -> the same fingerprint, or the demo fails

Each log gets its own directory below the home, named after the log's path and first line: DAG, topic and table keep one name
(`access_log`), two logs never mix, and a second run with the same log finds what was shipped before and sends only what is new.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from logbus import errors, model, waiting
from logbus.cli import endings, local_airflow, options, output
from logbus.cli.secure_home import SecureHome
from logbus.cli.stack import MEMORABLE_PORTS, LocalStack, as_typed, project_directory, stay_up
from logbus.loads import embedded
from logbus.loads.engine import connect, libpq_uri
from logbus.loads.ledger import Ledger
from logbus.shipper.sample import last_closed_hour, write_sample
from logbus.shipper.ship import ship

PIPELINE = "access_log"
CATCH_UP_DAG = f"{PIPELINE}_catchup"
SAMPLE_LINES = 10_000
SAMPLE_HOURS = 24
SAMPLE_KEPT = timedelta(days=5)  # the page initially shows a week of hours
RUN_TIMEOUT_SECONDS = 14_400.0  # of a run of either DAG; a log of millions of lines takes minutes, on a busy machine hours
FIRST_LINE_BYTES_MAX = 4_096


@click.command("demo")
@click.option(
    "--log", type=click.Path(path_type=Path), help="A log in the combined (or common) format; without it, a sample is generated."
)
@click.option("--report", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures as JSON to this file.")
@click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".logbus"),
    show_default=True,
    help="Where everything is kept.",
)
@click.option("--secure", "is_secure", is_flag=True, help="With TLS, users and ACLs, as `logbus up --secure`.")
def command(log: Path | None, report: Path | None, home: Path, is_secure: bool) -> None:
    """Take a log through broker, Airflow and Spark into PostgreSQL, hour by hour, and prove it.

    On a terminal everything stays up until Ctrl-C. Otherwise it ends when all is done, with status 0 only if the audit of every
    hour was exact and loading one of them again gave the same.
    """
    console = Console()
    log = log or sample_log(home, options.clock())
    screen = Screen(console)
    home, project = home_of_log(home, log), project_directory()
    environment = os.environ
    security = SecureHome(home.absolute()) if is_secure else None
    with (
        endings.raising(),
        LocalStack(
            home, project=project, environment=environment, ports=MEMORABLE_PORTS, security=security, say=screen.say
        ) as stack,
    ):
        demo = Demo(stack, log, screen)
        result = demo.run()
        show(result, stack, screen)
        if report is not None:
            report.write_text(json.dumps(result.report(), indent=2) + "\n")
        if output.stdin_is_terminal() and sys.stdout.isatty():
            stay_up(stack, console)
        else:
            demo.settle()
    sys.exit(0 if result.is_exact else 1)


def show(result: DemoResult, stack: LocalStack, screen: Screen) -> None:
    """The table, the proof, the seconds and where to look."""
    psql = f"{as_typed(embedded.binary('psql'))} '{libpq_uri(stack.warehouse_url)}'"
    logbus = as_typed(Path(sys.executable).with_name("logbus"))
    broker = f"--bootstrap-server {stack.bootstrap_servers}"
    if stack.client_file is not None:
        broker = f"--client-config {as_typed(stack.client_file)}"
    servers = f"--warehouse '{stack.warehouse_url}' {broker}"
    screen.windows(result.windows)
    screen.rerun(result.rerun.before, result.rerun.after, result.rerun.identical)
    screen.seconds(result.seconds)
    screen.next_steps(
        [
            ("Airflow", f"{stack.airflow.settings.url}/dags/{PIPELINE}"),
            ("Login", f"user {local_airflow.USER}, password {stack.airflow.settings.password}"),
            ("Broker", f"{logbus} consume {PIPELINE} -c 3 {broker}"),
            ("Table", f'{psql} -c "select status, count(*) from {PIPELINE} group by 1 order by 2 desc"'),
            ("Ledger", f"{logbus} window ls --pipeline {PIPELINE} {servers}"),
        ]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """One hour, loaded twice."""

    before: model.FrozenWindow
    after: model.FrozenWindow

    @property
    def identical(self) -> bool:
        """The hour was really loaded again, by a later attempt, and the table holds the very same records."""
        was_loaded_again = (self.after.loaded_attempt or 0) > (self.before.loaded_attempt or 0)
        same = (self.before.fingerprint, self.before.counts) == (self.after.fingerprint, self.after.counts)
        return was_loaded_again and same and self.after.audited_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """What the demo has shown."""

    windows: tuple[model.FrozenWindow, ...]
    rerun: Rerun
    seconds: dict[str, float]

    @property
    def is_exact(self) -> bool:
        """Every window was audited as exact, and the rerun gave the same records."""
        return self.rerun.identical and all(window.audited_at is not None for window in self.windows)

    def report(self) -> dict[str, Any]:
        """As JSON-ready values."""
        counts = [window.counts for window in self.windows if window.counts is not None]
        return {
            "hours": len(self.windows),
            "read": sum(count.read for count in counts),
            "loaded": sum(count.loaded for count in counts),
            "dead_lettered": sum(count.dead_lettered for count in counts),
            "audited_hours": sum(window.audited_at is not None for window in self.windows),
            "rerun_identical": self.rerun.identical,
            "seconds": {step: round(seconds, 2) for step, seconds in self.seconds.items()},
        }


class Steps:
    """How long each step took, shown on the screen as it ends."""

    def __init__(self, screen: Screen, clock: Callable[[], float]) -> None:
        self.seconds: dict[str, float] = {}
        self._screen = screen
        self._clock = clock

    @contextlib.contextmanager
    def step(self, name: str, doing: str) -> Iterator[None]:
        started = self._clock()
        with self._screen.busy(doing):
            yield
        self.seconds[name] = self._clock() - started
        self._screen.done(doing, self.seconds[name])


class Demo:
    """The steps, on the given stack. For a single run."""

    def __init__(self, stack: LocalStack, log: Path, screen: Screen, clock: Callable[[], float] = time.monotonic) -> None:
        self._stack = stack
        self._log = log
        self._screen = screen
        self._clock = clock
        self._steps = Steps(screen, clock)

    def run(self) -> DemoResult:
        """Everything, from nothing running to the proof."""
        started = self._clock()
        with self._steps.step("storage", "Starting PostgreSQL and the broker"):
            self._stack.start_storage()
        self._ship_while_airflow_starts()
        with self._steps.step("catch_up", "Loading all closed hours with one Spark application, auditing each"):
            windows = self._catch_up()
        busiest = max(windows, key=lambda window: window.record_count)
        with self._steps.step("rerun", f"Loading {model.instant_text(busiest.interval.start)} again through the hourly DAG"):
            after = self._load_again(busiest)
        self._steps.seconds["total"] = self._clock() - started
        current = tuple(after if window.id == after.id else window for window in windows)
        return DemoResult(windows=current, rerun=Rerun(before=busiest, after=after), seconds=self._steps.seconds)

    def settle(self) -> None:
        """Leave nothing to run at the next start: the hourly DAG was unpaused for the rerun."""
        self._stack.airflow.api.pause(PIPELINE)

    def _ship_while_airflow_starts(self) -> None:
        with ThreadPoolExecutor(1) as background:
            started = self._clock()
            airflow = background.submit(self._stack.start_airflow)
            try:
                with self._steps.step("ship", f"Shipping {self._log} to the topic {PIPELINE}"):
                    self._ship()
                with self._steps.step("airflow", "Starting Airflow"):
                    airflow.result()
                    self._wait_for_dags()
            except BaseException:
                self._stack.stop()  # ends what the thread waits for, and thereby the thread
                raise
            self._steps.seconds["airflow"] = self._clock() - started

    def _ship(self) -> None:
        with self._screen.bytes_sent() as progress:
            shipped = ship(
                [self._log],
                topic=PIPELINE,
                client_config=self._stack.client_config,
                state_path=self._stack.home / "ship.json",
                accept_times=True,  # of a log that was copied to be tried here
                progress=progress,
                say=self._screen.say,
            )
        self._screen.say(
            f"{shipped.lines:,} lines sent" if shipped.lines else "nothing new to send: all of it was shipped before"
        )

    def _wait_for_dags(self) -> None:
        api = self._stack.airflow.api
        try:
            waiting.wait_until(
                lambda: api.has_dag(PIPELINE) and api.has_dag(CATCH_UP_DAG),
                what=f"the DAGs {PIPELINE} and {CATCH_UP_DAG} in Airflow",
                processes=[self._stack],
                remedy="to see whether Airflow can read them: airflow dags list-import-errors",
                say=self._screen.say,
            )
            for dag_id in (PIPELINE, CATCH_UP_DAG):  # of a demo that was killed
                api.give_up_active_runs(dag_id)
        except errors.LogbusError as error:
            raise errors.LogbusError("\n".join([str(error), *api.import_errors()])) from error

    def _catch_up(self) -> list[model.FrozenWindow]:
        api = self._stack.airflow.api
        api.unpause(CATCH_UP_DAG)
        run = self._finished(api.trigger(CATCH_UP_DAG))
        states = {task["task_id"]: task["state"] for task in api.task_instances(run)}
        if states["freeze"] == "skipped":
            raise errors.UserError(f"no hour of {self._log} is closed yet: an hour can be loaded a few minutes after its end")
        starts = [model.parse_instant(start) for start in api.xcom(run, "freeze", "starts")]
        return self._windows(starts)

    def _load_again(self, window: model.FrozenWindow) -> model.FrozenWindow:
        """Triggers the run before the DAG is unpaused, and as due long ago, so that it precedes the hour that has just ended."""
        api, start, end = (
            self._stack.airflow.api,
            model.instant_text(window.interval.start),
            model.instant_text(window.interval.end),
        )
        former = api.runs(PIPELINE, logical_date=start)
        if former:
            api.clear_run(PIPELINE, former[0].run_id)
            run = former[0]
        else:
            run = api.trigger(
                PIPELINE, logical_date=start, data_interval_start=start, data_interval_end=end, run_after=end, note="demo"
            )
        api.unpause(PIPELINE)
        self._finished(run)
        return self._windows([window.interval.start])[0]

    def _finished(self, run: local_airflow.ApiDagRun) -> local_airflow.ApiDagRun:
        return self._stack.airflow.api.wait(run, RUN_TIMEOUT_SECONDS)

    def _windows(self, starts: list[datetime]) -> list[model.FrozenWindow]:
        engine = connect(self._stack.warehouse_url)
        try:
            ledger = Ledger(engine)
            return ledger.windows_at(PIPELINE, starts)
        finally:
            engine.dispose()


def sample_log(home: Path, now: datetime) -> Path:
    """A made-up log of the last day, if the user named none. It stays the same for some days, so that a second demo finds what
    the first has stored; then there is a new one, because the pages begin at now and a sample of last month would not show."""
    path = home / "sample" / "access.log"
    if not path.exists() or now - datetime.fromtimestamp(path.stat().st_mtime, UTC) > SAMPLE_KEPT:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_sample(path, lines=SAMPLE_LINES, hours=SAMPLE_HOURS, end=last_closed_hour(now))
    return path


def home_of_log(home: Path, log: Path) -> Path:
    """The directory of this log's stack: by the log's path and first line, so that a growing log keeps its directory."""
    try:
        with log.open("rb") as lines:
            first_line = lines.readline(FIRST_LINE_BYTES_MAX)
    except OSError as error:
        raise errors.UserError(f"cannot read the log {log}: {error.strerror}") from error
    if not first_line:
        raise errors.UserError(f"the log {log} is empty: give another one, or none for a sample")
    identity = hashlib.sha256(b"\0".join([bytes(log.absolute()), first_line])).hexdigest()[:8]
    stem = re.sub(r"[^a-zA-Z0-9_-]+", "_", log.stem)[:32]
    return home / f"{stem}-{identity}"


class Screen:
    """Writes to one rich console."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str) -> None:
        self._console.print(f"  {escape(output.safe(text))}", highlight=False, soft_wrap=True)

    @contextlib.contextmanager
    def busy(self, doing: str) -> Iterator[None]:
        with self._console.status(escape(output.safe(doing))) if self._console.is_terminal else contextlib.nullcontext():
            yield

    def done(self, what: str, seconds: float) -> None:
        done = f"[green]done[/green] {escape(output.safe(what))} [dim]{seconds:.1f} s[/dim]"
        self._console.print(done, highlight=False, soft_wrap=True)

    @contextlib.contextmanager
    def bytes_sent(self) -> Iterator[Callable[[int, int, int], None]]:
        """A progress bar, as a function of bytes done, bytes in all and lines sent."""
        columns = (BarColumn(), TransferSpeedColumn(), TextColumn("{task.fields[lines]:,} lines"))
        with Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal) as progress:
            task = progress.add_task("ship", total=None, lines=0)
            yield lambda done, total, lines: progress.update(task, completed=done, total=total, lines=lines)

    def windows(self, windows: Sequence[model.FrozenWindow]) -> None:
        """The table of hours with its sums."""
        table = Table(show_footer=True)
        total = [counts_of(window) for window in windows]
        audited = sum(window.audited_at is not None for window in windows)
        table.add_column("hour (UTC)", f"{len(windows)} hours")
        table.add_column("read", f"{sum(count.read for count in total):,}", justify="right")
        table.add_column("loaded", f"{sum(count.loaded for count in total):,}", justify="right")
        table.add_column("dead letters", f"{sum(count.dead_lettered for count in total):,}", justify="right")
        table.add_column("audited", f"{audited} exact")
        for window, count in zip(windows, total, strict=True):
            verdict = "exact" if window.audited_at is not None else "[red]not exact[/red]"
            hour = f"{window.interval.start:%Y-%m-%d %H:%M}"
            table.add_row(hour, f"{count.read:,}", f"{count.loaded:,}", f"{count.dead_lettered:,}", verdict)
        self._console.print(table)

    def rerun(self, before: model.FrozenWindow, after: model.FrozenWindow, identical: bool) -> None:
        """The proof: one hour's fingerprint, before and after it was loaded again."""
        self._console.print(
            f"The hour of {before.interval.start:%Y-%m-%d %H:%M} was loaded again through the hourly DAG:", highlight=False
        )
        for name, window in (("before", before), ("after ", after)):
            self.say(
                f"{name}  attempt {window.loaded_attempt}  {counts_of(window).read:,} records  fingerprint {window.fingerprint}"
            )
        verdict = "[green]identical[/green]: the same records, none twice" if identical else "[red]NOT identical[/red]"
        self._console.print(f"  {verdict}", highlight=False, soft_wrap=True)

    def seconds(self, seconds: Mapping[str, float]) -> None:
        steps = ", ".join(f"{step} {value:.1f}" for step, value in seconds.items())
        self._console.print(f"Seconds: {steps}", highlight=False, soft_wrap=True)

    def next_steps(self, lines: Sequence[tuple[str, str]]) -> None:
        for name, text in lines:
            self._console.print(f"[bold]{name}[/bold]  {escape(output.safe(text))}", highlight=False, soft_wrap=True)


def counts_of(window: model.FrozenWindow) -> model.WindowCounts:
    return window.counts or model.WindowCounts()
