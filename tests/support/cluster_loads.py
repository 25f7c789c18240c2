"""A load as the task of a DAG run, across tries and clears, on a cluster of tests.support.resource_managers.

Operator, Spark provider, ledger and table are real; a driver runs the load's code in this process, from a log in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from logbus.hooks.broker import BrokerHook
from logbus.hooks.warehouse import WarehouseHook
from logbus.model import Attempt, Pipeline
from logbus.operators.load_window import LoadWindowOperator
from logbus_spark.application import SUCCESSFUL, WindowOutcome

from tests.support.airflow_context import run_context
from tests.support.in_process import driver
from tests.support.ledgers import NOW, World, at, stamps
from tests.support.resource_managers import (
    IN_CLIENT_MODE,
    OPERATOR_ARGUMENTS,
    PROGRAMS,
    Cluster,
    Manager,
    TaskStateStore,
    Work,
    running,
)

HOUR = 10
PIPELINE = Pipeline(name="p", topic="t", table="t", parse="lines", settings={"max_error_rate": 0.5})


def tokens(arguments: Sequence[str]) -> list[str]:
    return [word for before, word in zip(arguments, arguments[1:], strict=False) if before == "--window"]


def nothing(arguments: Sequence[str]) -> int:
    """A driver that succeeds without loading anything."""
    return 0


@dataclass
class Task:
    """The task `load` of one DAG run over hour 10, with its cluster, across tries and clears."""

    world: World
    cluster: Cluster
    store: TaskStateStore = field(default_factory=TaskStateStore)
    asked_at: datetime = NOW - timedelta(minutes=1)
    try_number: int = 0
    operator: LoadWindowOperator | None = None

    def run(self, work: Work | None = None, *, waiting: Sequence[datetime] = (), **arguments: Any) -> dict[str, Any]:
        """One try, with a new operator, as in a new process."""
        self.try_number += 1
        self.cluster.work = work or self.load
        self.operator = LoadWindowOperator(
            task_id="load",
            pipeline=PIPELINE,
            credentials_in_environment=self.cluster.manager in IN_CLIENT_MODE,
            now=lambda: NOW,
            status_poll_interval=0,
            **OPERATOR_ARGUMENTS.get(self.cluster.manager, {}),
            **arguments,
        )
        context = run_context(at(HOUR), at(HOUR + 1), self.try_number, asked_at=self.asked_at, waiting=waiting)
        context["task_state_store"] = self.store
        return self.operator.execute(context)  # type: ignore[arg-type]

    def clear(self) -> None:
        """The user clears the task; Airflow keeps the task's state."""
        self.asked_at = NOW + timedelta(minutes=1)

    def load(self, arguments: Sequence[str]) -> int:
        """A driver's work; returns the exit status that the load's program would have."""
        return int(not all(outcome.state in SUCCESSFUL for outcome in self.outcomes(arguments)))

    def outcomes(self, arguments: Sequence[str]) -> list[WindowOutcome]:
        return driver(self.world.ledger, self.world.log).load("p", tokens(arguments))

    def begin_elsewhere(self) -> Attempt:
        (attempt,) = self.world.begin(HOUR, run_id="another")
        return attempt

    @property
    def loaded_by(self) -> int | None:
        """The number of the attempt whose rows the hour has."""
        return self.world.ledger.window("p", at(HOUR)).loaded_attempt

    def states(self) -> list[str]:
        """The states of the hour's attempts, oldest first."""
        window = self.world.ledger.window("p", at(HOUR))
        rows = self.world.rows(f"select state from logbus.attempt where window_id = {window.id} order by number")
        return [state for (state,) in rows]

    def rows(self) -> int:
        return int(self.world.one("select count(*) from t"))


StartTask = Callable[..., Task]  # takes the manager, and the programs to stand in for


@pytest.fixture
def start_task(world: World, warehouse_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartTask]:
    """Starts a cluster; hours 10 to 13, of five records each, are frozen."""
    monkeypatch.setattr(WarehouseHook, "ledger", lambda hook: world.ledger)
    monkeypatch.setattr(WarehouseHook, "url", warehouse_url)
    monkeypatch.setattr(BrokerHook, "log_offsets", lambda hook: world.log)
    monkeypatch.setattr(BrokerHook, "client_config", lambda hook: {"bootstrap.servers": "b:1"})
    world.ledger.register(PIPELINE, world.log, NOW)
    for number in range(HOUR, HOUR + 4):
        world.log.append("t", *stamps(*(number + minute / 60 for minute in range(5))))
        world.freeze(number)
    with ExitStack() as clusters:

        def start(manager: Manager, programs: Sequence[str] = PROGRAMS) -> Task:
            cluster = Cluster(manager=manager, work=nothing)
            return Task(world=world, cluster=clusters.enter_context(running(cluster, tmp_path, monkeypatch, programs)))

        yield start
