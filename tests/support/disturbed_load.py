"""The load's program, stopped or disturbed where a test wants it. spark-submit runs this file, not `spark_jobs/logbus_spark/load_windows.py`.

    LOGBUS_TEST_FOLDER   where it creates `reached` and waits for `go`
    LOGBUS_TEST_STOP     beginnings of statements, separated by `|`, awaited one after another; it stops after the last
    LOGBUS_TEST_TASKS    `kill` or `fail`: what happens to each task's first attempt after it has committed what it staged

The product has no hooks for this: the driver's database connections and the tasks' function are wrapped from outside.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from logbus import spark_submit
from logbus.model import Attempt
from logbus.waiting import wait_until

from tests.support.cutting import Cut

FOLDER, STOP, TASKS = "LOGBUS_TEST_FOLDER", "LOGBUS_TEST_STOP", "LOGBUS_TEST_TASKS"


def start(
    pipeline_name: str,
    attempts: Sequence[Attempt],
    secrets: tuple[str, Mapping[str, Any]],
    folder: Path,
    *,
    master: str = spark_submit.LOCAL_MASTER,
    remote: str | None = None,
    limits: spark_submit.TaskLimits = spark_submit.NO_OTHER_LIMITS,
    stop: str = "",
    tasks: str = "",
) -> subprocess.Popen[bytes]:
    """spark-submit with this program, in its own process group; with `remote`, the program alone. `secrets` are the warehouse's URL and the
    client settings."""
    arguments = spark_submit.application_arguments(pipeline_name, attempts, limits)
    submitted = spark_submit.command(pipeline_name, arguments, master=master, is_remote=remote is not None)
    command = [__file__ if word == str(spark_submit.application_path()) else word for word in submitted]
    server = {spark_submit.REMOTE_VARIABLE: remote} if remote is not None else {}
    disturbances = {FOLDER: str(folder), STOP: stop, TASKS: tasks}
    environment = {**os.environ, **spark_submit.environment(*secrets), **server, **disturbances}
    environment["PYTHONPATH"] += os.pathsep + str(Path(__file__).parents[2])
    return subprocess.Popen(
        command, env=environment, start_new_session=True, stdout=(folder / "output").open("wb"), stderr=subprocess.STDOUT
    )


def wait_for(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until the program has stopped where it should."""

    def has_reached() -> bool:
        assert process.poll() is None, f"it ended too early: {(folder / 'output').read_text()[-2000:]}"
        return (folder / "reached").exists()

    wait_until(has_reached, what="the load's stop")


class Stop(Cut):
    """Waits for the named points in order and stops after the last."""

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        super().__init__(act=lambda connection: None)
        self.names, self.folder = list(names), folder

    def point(self, what: str, connection: Any) -> bool:
        if self.names and " ".join(what.split()).startswith(self.names[0]):
            self.names.pop(0)
            if not self.names:
                wait_for_go(self.folder)
        return False


def wait_for_go(folder: Path) -> None:
    (folder / "reached").touch()
    wait_until((folder / "go").exists, what="the go")


def disturbed(run: Callable[[Iterator[Any]], Iterator[Any]], folder: str, how: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The tasks' function; the first attempt at each partition fails once all its work is done."""

    def run_and_end(plans: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        results = list(run(plans))
        task = TaskContext.get()
        assert task is not None
        mark = Path(folder) / f"task-{task.partitionId()}"
        if not mark.exists():
            mark.touch()
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("failed after its commit")
        return iter(results)

    return run_and_end


def main() -> int:
    from logbus.loads.engine import connect
    from logbus_spark import application, load_windows

    folder, stop, tasks = Path(os.environ[FOLDER]), os.environ[STOP], os.environ[TASKS]
    if stop:
        load_windows.connect = lambda url: Stop(stop.split("|"), folder).on(connect(url))
    if tasks:
        undisturbed = application.load_plans
        application.load_plans = lambda *arguments: disturbed(undisturbed(*arguments), str(folder), tasks)
    return load_windows.main(sys.argv[1:], os.environ)


if __name__ == "__main__":
    sys.exit(main())
