"""What one load passes on its way from a task to the commit: files, functions, and returns to a file it has been in before.

    python -m scripts.trace_load             # the three figures: to the commit, and to the end of the task
    python -m scripts.trace_load --calls     # every call, in order

The task's `execute`, the driver and its Spark tasks run in this process, on a real PostgreSQL and a log in memory; the window is
frozen before. Only calls of named functions of plugins/logbus and spark_jobs count. A return is a call into another file than the
call before was, one that the load has been in already: where a reader turns back to a page.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

PROJECT = Path(__file__).parents[1]
sys.path[:0] = [str(PROJECT), str(PROJECT / "plugins"), str(PROJECT / "spark_jobs")]

from logbus.hooks.warehouse import WarehouseHook  # noqa: E402
from logbus.kafka.client import Client  # noqa: E402
from logbus.loads import commit  # noqa: E402
from logbus.loads.embedded import EmbeddedPostgres  # noqa: E402
from logbus.model import Pipeline  # noqa: E402
from logbus.operators.load_window import LoadWindowOperator  # noqa: E402
from logbus_spark.application import Application  # noqa: E402

from tests.support.airflow_context import run_context  # noqa: E402
from tests.support.fake_hooks import FakeBroker  # noqa: E402
from tests.support.in_process import TASKS, Tasks, replace_spark  # noqa: E402
from tests.support.ledgers import NOW, World, opened  # noqa: E402

ROOTS = tuple(str(PROJECT / name) + "/" for name in ("plugins/logbus", "spark_jobs"))
Function = tuple[str, str]  # file and qualified name


class Story:
    """The calls of the product's functions, in order."""

    def __init__(self) -> None:
        self.calls: list[Function] = []
        self.to_commit: list[Function] = []

    def tell(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and (function := function_of(frame)) is not None:
            self.calls.append(function)
        elif event == "return" and frame.f_code is commit.commit_in.__code__:
            self.to_commit = self.calls[:]


def figures(calls: Sequence[Function]) -> str:
    seen, returns, current = set[str](), 0, ""
    for file, _ in calls:
        returns += file != current and file in seen
        seen.add(file)
        current = file
    return f"{len(seen)} files, {len(set(calls))} functions, {returns} returns to a file already seen"


def function_of(frame: FrameType) -> Function | None:
    code = frame.f_code
    is_function = code.co_flags & inspect.CO_OPTIMIZED  # the body of a class is code, too, which an import runs
    if not is_function or not code.co_filename.startswith(ROOTS) or code.co_name.startswith("<"):
        return None
    return code.co_filename.removeprefix(f"{PROJECT}/"), code.co_qualname


class Warehouse(WarehouseHook):
    """The hook, without Airflow's connections."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._engine = world.ledger.engine
        self._url = world.url

    @property
    def url(self) -> str:
        return self._url


def operator_in(world: World) -> LoadWindowOperator:
    pipeline = Pipeline(name="p", topic="t", table="t", parse="lines")
    operator = LoadWindowOperator(task_id="load", pipeline=pipeline, fill_gaps=True, now=lambda: NOW)
    operator.warehouse, operator.broker = Warehouse(world), FakeBroker(world.log)

    def submit(context: Any, environment: Any) -> None:
        application = Application(
            ledger=world.ledger,
            log=world.log,
            client=Client({TASKS: Tasks(log=world.log)}),
            now=lambda: NOW,
            report=lambda outcome: None,
        )
        arguments = operator.application_args
        application.load(arguments[1], arguments[3::2])

    operator._submit = submit  # type: ignore[method-assign]
    operator._validate_connection = lambda environment: None  # type: ignore[method-assign]
    return operator


def traced(act: Callable[[], object]) -> Story:
    story = Story()
    sys.setprofile(story.tell)
    try:
        act()
    finally:
        sys.setprofile(None)
    return story


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", action="store_true", help="also print every call")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="logbus-trace-", ignore_cleanup_errors=True) as directory,
        EmbeddedPostgres(Path(directory) / "pg") as server,
        pytest.MonkeyPatch.context() as patch,
        opened(server.create_database("trace")) as world,
        suppress(BrokenPipeError),
    ):
        replace_spark(patch)
        world.fill(10, 10.5, 11, 12, freeze=[10])
        operator, context = operator_in(world), run_context()
        story = traced(lambda: operator.execute(context))
        if arguments.calls:
            for file, name in story.calls:
                print(f"{file}:{name}")
        print("to the commit:         ", figures(story.to_commit))
        print("to the end of the task:", figures(story.calls))
    return 0


if __name__ == "__main__":
    sys.exit(main())
