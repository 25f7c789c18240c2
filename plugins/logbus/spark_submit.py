"""How a load is handed to Spark, for a task of Airflow and for a command alike, and what becomes of it: Java, the application,
its arguments, its settings and its secrets; a run that begins attempts, submits, settles and judges (`LoadRun`).

Java is $JAVA_HOME/bin/java, or `java` on the PATH where that is not set. What is wrong with it is said in one sentence before
anything is started: Spark's own scripts answer with a shell's errors, line numbers included.

What anyone may see (the pipeline, the windows and their attempts) is passed on the command line; secrets (the warehouse
URL, the client configuration of the broker) are passed in the environment only: command lines show in `ps`, in Spark's
UI and in logs. The last line of the application's output that starts with `LOGBUS_RESULT ` is its result as JSON.

The attempts are taken before the application is submitted; its driver only verifies them. So a slow first driver cannot fence out
the good second one, and a driver that outlives its submitter is refused at commit.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from logbus import errors, model, waiting
from logbus.formatting import first_line

if TYPE_CHECKING:
    from logbus.loads.attempts import AttemptOutcome
    from logbus.loads.ledger import Ledger


VERSION_MIN = 17  # what Spark 4 is compiled for
INSTALL = "install one, such as Debian's openjdk-21-jre-headless, or set JAVA_HOME to one of 17 or newer"
ANSWER_SECONDS_MAX = 60.0  # a tenth of a second, unless the machine is very busy
_VERSION = re.compile(r'version "(\d+)([^"]*)"')


def program(environment: Mapping[str, str]) -> str | None:
    """Where it is, or would be."""
    home = environment.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environment.get("PATH"))


def java_version(printed: str) -> tuple[int, str] | None:
    """Out of what `java -version` prints: 21 and "21.0.4"."""
    match = _VERSION.search(printed)
    return None if match is None else (int(match[1]), match[1] + match[2])


def java_problem(path: str | None, status: int | None, printed: str, *, is_named: bool) -> str | None:
    """What keeps Spark from running by it; None where nothing does. `is_named` by JAVA_HOME."""
    if path is None:
        return f"no Java on the PATH, so Spark cannot run: {INSTALL}"
    found_version = java_version(printed)
    if status != 0 or found_version is None:
        return f"{path} does not run: {first_line(printed)}: {'unset JAVA_HOME, or ' if is_named else ''}{INSTALL}"
    if found_version[0] < VERSION_MIN:
        return f"{path} is version {found_version[1]}; Spark needs {VERSION_MIN} or newer: {INSTALL}"
    return None


def why_no_java(environment: Mapping[str, str]) -> str | None:
    """Looks, which takes a tenth of a second."""
    path, status, printed = program(environment), None, ""
    if path is not None:
        try:
            done = subprocess.run(
                [path, "-version"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=dict(environment),
                timeout=ANSWER_SECONDS_MAX,
                check=False,
                text=True,
                errors="replace",
            )
            status, printed = done.returncode, done.stderr + done.stdout
        except OSError as error:
            printed = str(error.strerror)
        except subprocess.TimeoutExpired:
            return None  # it is there; what is wrong with it, Spark finds out
    return java_problem(path, status, printed, is_named=bool(environment.get("JAVA_HOME")))


# How a load is handed to Spark, for a task of Airflow and for a command alike, and what becomes of it: the application, its
# arguments, its settings and its secrets; a run that begins attempts, submits, settles and judges (`LoadRun`).


WAREHOUSE_URL_VARIABLE = "LOGBUS_WAREHOUSE_URL"
KAFKA_CONFIG_VARIABLE = "LOGBUS_KAFKA_CONFIG"
WINDOWS_VARIABLE = "LOGBUS_WINDOWS"  # for users' own programs: logbus.windows.handover
REMOTE_VARIABLE = "SPARK_REMOTE"  # Spark's own: the server of Spark Connect, sc://HOST:PORT, maybe with a token
RESULT_PREFIX = "LOGBUS_RESULT "

# Airflow's pool for loads. It has one slot: on one machine, two drivers at once only slow each other down.
LOAD_POOL = "logbus_load"
LOAD_POOL_DESCRIPTION = "One Spark driver at a time"

LOCAL_MASTER = "local[2]"
LOCAL_DRIVER_MEMORY = "512m"  # rows never gather in the driver; Python workers hold them, outside the heap

# No speculation: a second copy of a task writes the same rows into the same staging tables for nothing.
CONF: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.speculation": "false",
    # Spark's own, and the variables below: on YARN and Kubernetes, and for executors, variables become settings, which its UI and
    # its event log show.
    "spark.redaction.regex": f"(?i)secret|password|token|access[.]?key|{WAREHOUSE_URL_VARIABLE}|{KAFKA_CONFIG_VARIABLE}",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.daemon.module": "logbus_spark.worker_daemon",
    # For either side of the socket through which results reach Python; in its default, 15 s, a machine that swaps fails the load.
    "spark.python.authenticate.socketTimeout": "600s",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto",
}


def application_path() -> Path:
    """The program that spark-submit runs."""
    spec = importlib.util.find_spec("logbus_spark")
    if spec is None or not spec.submodule_search_locations:
        raise errors.UserError("the package logbus_spark is not installed beside logbus: install the project again")
    return Path(spec.submodule_search_locations[0]) / "load_windows.py"


# What one task reads of the log at most: what Spark gives a task of files (spark.sql.files.maxPartitionBytes), seven seconds of a
# core's work, which is what a task that fails repeats.
MAX_TASK_BYTES = 128 * 1024 * 1024
# PostgreSQL accepts 100 connections by default; two thirds are left to Airflow, the ledger and readers.
WAREHOUSE_CONNECTIONS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLimits:
    """What the tasks of a load may take.

    max_task_bytes: how much of the log one task reads, by the size of some of its records. Far less is in its memory at any time.
    warehouse_connections: how many tasks append to the warehouse at once, each over one connection.
    """

    max_task_bytes: int = MAX_TASK_BYTES
    warehouse_connections: int = WAREHOUSE_CONNECTIONS

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise errors.UserError(f"{name} is a number, 1 or more, not {value!r}")


NO_OTHER_LIMITS = TaskLimits()


def application_arguments(
    pipeline_name: str, attempts: Sequence[model.Attempt], limits: TaskLimits = NO_OTHER_LIMITS
) -> list[str]:
    """`--pipeline NAME --window START=ATTEMPT ...`"""
    # No limits that are the defaults: programs of another version have those, too.
    chosen = [item for item in asdict(limits).items() if item not in asdict(NO_OTHER_LIMITS).items()]
    options = [word for name, value in chosen for word in (f"--{name.replace('_', '-')}", str(value))]
    windows = [word for attempt in attempts for word in ("--window", attempt.token)]
    return [*options, "--pipeline", pipeline_name, *windows]


def conf() -> dict[str, str]:
    """Spark settings, quiet logs included."""
    # As a URI: options are separated by spaces, which a path may have.
    logging_file = application_path().with_name("log4j2.properties").as_uri()
    java_options = f"{CONF['spark.driver.extraJavaOptions']} -Dlog4j2.configurationFile={logging_file}"
    return {**CONF, "spark.driver.extraJavaOptions": java_options}


def environment(warehouse_url: str | None, client_config: Mapping[str, Any]) -> dict[str, str]:
    """The application's environment; the URL and the configuration are secrets. Python workers run our own interpreter with
    its import path: otherwise Spark takes whatever python3 is first on PATH."""
    # Where `logbus` and `logbus_spark` are, then whatever PYTHONPATH already holds.
    roots = [str(Path(__file__).parents[1]), str(application_path().parents[1])]
    inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {
        **({WAREHOUSE_URL_VARIABLE: warehouse_url} if warehouse_url is not None else {}),
        KAFKA_CONFIG_VARIABLE: json.dumps(dict(client_config)),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys([*roots, *inherited])),
    }


def pyspark_home() -> str:
    """The directory of this interpreter's pyspark; empty if there is none."""
    spec = importlib.util.find_spec("pyspark")
    return next(iter(spec.submodule_search_locations or ()), "") if spec is not None else ""


def launcher_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """For `spark_submit_binary`, unless the user has set it: the launcher's own search fails where the path has spaces."""
    return {} if inherited.get("SPARK_HOME") else {"SPARK_HOME": pyspark_home()}


def spark_submit_binary() -> str:
    """The launcher of this interpreter's pyspark."""
    errors.require("pyspark")
    return str(Path(sysconfig.get_path("scripts")) / "spark-submit")


def command(pipeline_name: str, arguments: Sequence[str], *, master: str = LOCAL_MASTER, is_remote: bool = False) -> list[str]:
    """The whole command of a load with the program's arguments: `application_arguments`, or those of a driver that stays."""
    program = [str(application_path()), *arguments]
    return submission(program, f"logbus load {pipeline_name}", master=master, is_remote=is_remote)


def submission(program: Sequence[str], name: str, *, master: str = LOCAL_MASTER, is_remote: bool = False) -> list[str]:
    """A program with its arguments, submitted; it runs by itself if its session is behind Spark Connect (`REMOTE_VARIABLE`)."""
    if is_remote:
        return [sys.executable, *program]
    settings = [word for key, value in conf().items() for word in ("--conf", f"{key}={value}")]
    options = ["--master", master, "--driver-memory", LOCAL_DRIVER_MEMORY, "--name", name]
    return [spark_submit_binary(), *options, *settings, *program]


def require_spark(remote: str | None) -> None:
    """Java, or what a session behind Spark Connect needs; called before anything is frozen or begun."""
    if remote is not None:
        for package in ("pyspark", "grpc"):
            errors.require(package)
    elif (trouble := why_no_java(os.environ)) is not None:
        raise errors.UserError(trouble)


# Java prints this at each start about a module that Spark itself requests: not news, and it looks like a fault.
OF_JAVA = "WARNING: Using incubator modules:"
STOP_SECONDS_MAX = 60.0  # on SIGTERM a JVM runs its shutdown hooks first: a second, or a minute where the machine swaps


def end_group(process: subprocess.Popen[Any], say: waiting.Say) -> None:
    """Ends the process and everything it started: gracefully, and by force if that takes too long."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired), waiting.announced(f"Spark (process {process.pid}) to end", say):
            process.wait(STOP_SECONDS_MAX)


def run_spark(command: Sequence[str], environment: Mapping[str, str], say: waiting.Say) -> int:
    """Runs spark-submit, passes its lines on as they arrive, returns its status. If interrupted, ends what it started first."""
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
                if not line.startswith((RESULT_PREFIX, OF_JAVA)):
                    say(line.rstrip())
        except BaseException:
            end_group(process, say)
            raise
    return process.returncode


# One Spark application that loads windows: begin, submit, settle, judge.


WINDOWS_PER_JOB_MAX = 84  # half a week of hours: one Spark job, and all that is lost if it fails; a job costs a second
WINDOWS_PER_APPLICATION_MAX = 1_000  # attempts are passed on a command line, whose length is limited
ERROR_CHARACTERS_MAX = 4_000  # of a failure's text kept in the ledger; the submitter's log has all of it

Item = TypeVar("Item")


def in_groups(items: Sequence[Item], size: int = WINDOWS_PER_APPLICATION_MAX) -> list[Sequence[Item]]:
    """The items in their order, at most `size` at a time."""
    return [items[begin : begin + size] for begin in range(0, len(items), size)]


@dataclass(kw_only=True)
class LoadRun:
    """A run that loads windows of one pipeline: a task's try, or a command. `definition`: how the windows are loaded, by default
    as the pipeline is registered."""

    ledger: Ledger
    pipeline_name: str
    run_id: str
    now: Callable[[], datetime]
    say: Callable[[str], None]
    try_number: int = 1
    task: model.TaskKey | None = None
    definition: model.Pipeline | None = None
    supersede: bool = True
    attempts: list[model.Attempt] = field(default_factory=list, init=False)  # all that it has begun
    _running: Sequence[model.Attempt] = field(default=(), init=False)

    def begin(
        self, starts: Sequence[datetime], beside: Sequence[datetime] = (), accept_other_records: Collection[datetime] = ()
    ) -> list[model.Attempt]:
        """Begins an attempt at each of the windows, for one application: the fence against every application before it."""
        attempts = self.ledger.begin_attempts(
            self.pipeline_name,
            [*starts, *beside],
            self.run_id,
            self.try_number,
            self.now(),
            self.task,
            self.definition,
            accept_other_records=accept_other_records,
            supersede=self.supersede,
        )
        self.attempts += attempts
        return attempts

    def load(
        self,
        submit: Callable[[Sequence[model.Attempt]], None],
        starts: Sequence[datetime],
        beside: Sequence[datetime] = (),
        accept_other_records: Collection[datetime] = (),
    ) -> list[AttemptOutcome]:
        """Loads the windows and those `beside`, with one application; what became of the former.

        `submit` runs the application for these attempts to its end, and raises `LoadFailed` if that reports a failure.
        """
        attempts = self.begin(starts, beside, accept_other_records)
        failure: errors.LoadFailed | None = None
        try:
            self._running = attempts
            submit(attempts)
        except errors.LoadFailed as error:
            failure = error
            self.end(str(error))
        except BaseException as error:  # Airflow's timeout and Ctrl-C are no Exceptions
            self.end(str(error) or type(error).__name__)
            raise
        finally:
            self._running = ()
        return verify(self.ledger, attempts, starts, self.now(), self.say, failure)

    def end(self, reason: str) -> None:
        """Ends the attempts of the application that runs, so that no driver commits them any more."""
        if self._running:
            self.ledger.fail_attempts(self._running, reason[-ERROR_CHARACTERS_MAX:], self.now())


def verify(
    ledger: Ledger,
    attempts: Sequence[model.Attempt],
    starts: Collection[datetime],
    now: datetime,
    say: Callable[[str], None],
    failure: errors.LoadFailed | None = None,
) -> list[AttemptOutcome]:
    """What became of the windows `starts`, once the application that these attempts were begun for is over.

    It fails if not all of them are loaded according to the ledger, whatever the application reports: a cluster manager knows only
    that a driver has ended, and some report the driver of an earlier try. With `AttemptSuperseded` if newer attempts are at work
    on all that is missing; with the driver's own error if no retry can fix that.
    """
    from logbus.loads.attempts import why_not_loaded

    outcomes = ledger.settle_attempts(attempts, now)
    own = [outcome for outcome in outcomes if outcome.attempt.interval.start in set(starts)]
    if not all(outcome.is_loaded for outcome in own):
        if final := ledger.beyond_retry([outcome.attempt for outcome in own]):
            raise final from failure
        reason = why_not_loaded(own)
        raise failure if failure and not isinstance(reason, errors.AttemptSuperseded) else reason
    if failure is not None:
        say(f"The windows are loaded, although the application failed: {failure}")
    for outcome in own:
        if outcome.is_loaded_by_newer:
            say(f"Attempt {outcome.newest} took over from ours and has loaded it: {outcome.attempt.token}")
    return own
