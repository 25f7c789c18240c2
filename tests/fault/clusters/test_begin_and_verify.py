"""A load that another operator submits: begun by one task, verified by another, from the ledger and nothing else.

Operators, ledger and table are real; what would be submitted is the load's own code in this process, over a log in memory.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, DownstreamTasksSkipped, TaskDeferred
from logbus.hooks.broker import BrokerHook
from logbus.hooks.warehouse import WarehouseHook
from logbus.model import Pipeline, instant_text
from logbus.operators.load_steps import BeginLoadOperator, LoadOverTrigger, VerifyLoadOperator
from logbus.windows import schema
from logbus.windows.rows import HEARTBEAT_EXPIRY
from logbus_spark.application import LoadState
from sqlalchemy import update

from tests.support.airflow_context import run_context
from tests.support.in_process import driver
from tests.support.ledgers import NOW, World, at, stamps

pytestmark = pytest.mark.usefixtures("without_spark")

HOUR = 10
PIPELINE = Pipeline(name="p", topic="t", table="t", parse="lines", settings={"max_error_rate": 0.5})
TABLE = Asset("t")
Begun = dict[str, Any]


@dataclass
class Chain:
    """`begin >> submit >> verify` of one DAG run over hour 10, across tries and clears."""

    world: World
    asked_at: datetime = NOW - timedelta(minutes=1)
    now: datetime = NOW
    states: dict[str, str] = field(default_factory=dict)  # of its tasks, in Airflow
    pushed: dict[str, Any] = field(default_factory=dict)
    events: dict[Asset, Any] = field(default_factory=lambda: {TABLE: type("Event", (), {})()})

    def begin(self, **arguments: Any) -> Begun:
        """Every try has a new operator, as in a new process."""
        context = self.context(waiting=arguments.pop("waiting", ()))
        with DAG("access_log"):
            operator = BeginLoadOperator(task_id="begin", pipeline=PIPELINE, now=lambda: self.now, **arguments)
            verify = VerifyLoadOperator(task_id="verify", pipeline=PIPELINE, begun=operator.output)
            operator >> EmptyOperator(task_id="submit") >> verify
        return dict(operator.execute(context))  # type: ignore[arg-type]

    def submitted(self, begun: Begun) -> list[LoadState]:
        """The program's work with the arguments that the chain passes on; what became of each window."""
        option, pipeline, *tokens = begun["arguments"]
        assert (option, set(tokens[::2])) == ("--pipeline", {"--window"})
        return [outcome.state for outcome in driver(self.world.ledger, self.world.log).load(pipeline, tokens[1::2])]

    def verify(self, begun: Begun | None, **arguments: Any) -> Any:
        with DAG("access_log"):
            operator = VerifyLoadOperator(
                task_id="verify",
                pipeline=PIPELINE,
                begun=begun,  # type: ignore[arg-type]
                outlets=[TABLE],
                deferrable=True,
                now=lambda: self.now,
                **arguments,
            )
            [EmptyOperator(task_id="begin"), EmptyOperator(task_id="submit")] >> operator
        return operator.execute(self.context())  # type: ignore[arg-type]

    def context(self, waiting: Sequence[datetime] = ()) -> dict[str, Any]:
        context = run_context(at(HOUR), at(HOUR + 1), asked_at=self.asked_at, waiting=waiting)
        of_others = context["ti"].get_task_states

        def get_task_states(run_ids: Sequence[str] = (), **question: Any) -> Any:
            return dict.fromkeys(run_ids, self.states) if run_ids else of_others(**question)

        context["ti"].get_task_states = get_task_states
        context["ti"].xcom_push = lambda key, value: self.pushed.update({key: value})
        return {**context, "outlet_events": self.events}

    def states_in_ledger(self) -> list[str]:
        return [state for (state,) in self.world.rows("select state from logbus.attempt order by window_id, number")]


@pytest.fixture
def chain(world: World, warehouse_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Chain]:
    """Hours 10 to 12, of five records each, are frozen, and hour 13, which holds none."""
    monkeypatch.setattr(WarehouseHook, "ledger", lambda hook: world.ledger)
    monkeypatch.setattr(WarehouseHook, "url", warehouse_url)
    monkeypatch.setattr(BrokerHook, "log_offsets", lambda hook: world.log)
    world.ledger.register(PIPELINE, world.log, NOW)
    for number in range(HOUR, HOUR + 3):
        world.log.append("t", *stamps(*(number + minute / 60 for minute in range(5))))
    for number in range(HOUR, HOUR + 4):
        world.freeze(number)
    return Chain(world)


def test_a_load_that_another_operator_submits_is_reported_as_one_of_our_own(chain: Chain) -> None:
    begun = chain.begin()
    assert begun["arguments"] == ["--pipeline", "p", "--window", "2015-05-17T10:00:00Z=1"]
    assert json.loads(json.dumps(begun)) == begun
    assert chain.submitted(begun) == [LoadState.COMMITTED]
    result = chain.verify(begun)
    assert (result["read"], result["loaded"], result["adopted"], result["filled"]) == (5, 4, False, [])
    assert result["windows"] == chain.events[TABLE].extra["windows"] != []


def test_a_retry_of_begin_fences_the_application_before_it_and_a_clear_loads_the_same_offsets(chain: Chain) -> None:
    first, second = chain.begin(), chain.begin()
    assert chain.submitted(first) == [LoadState.SUPERSEDED]
    assert chain.submitted(second) == [LoadState.COMMITTED]
    before = chain.verify(second)
    assert chain.verify(first) == {**before, "adopted": True}  # a newer attempt has loaded it
    chain.asked_at = NOW + timedelta(minutes=1)
    chain.submitted(third := chain.begin())
    after = chain.verify(third)
    same = ("ranges", "counts", "fingerprint")
    assert [after["windows"][0][name] for name in same] == [before["windows"][0][name] for name in same]
    assert chain.states_in_ledger() == ["superseded", "committed", "committed"]


def test_a_load_that_failed_fails_with_its_drivers_error(chain: Chain) -> None:
    begun = chain.begin()
    chain.world.log.delete_records("t", 3)
    assert chain.submitted(begun) == [LoadState.FAILED]
    with pytest.raises(AirflowFailException, match=r"attempt 1 is failed \(retention has deleted t-0 \[0, 3\)"):
        chain.verify(begun)


def test_a_run_that_took_the_hour_over_is_named_and_nothing_is_taken_back(chain: Chain) -> None:
    begun = chain.begin()
    chain.world.begin(HOUR, run_id="another")
    with pytest.raises(AirflowFailException, match="attempt 2 of run another took over from attempt 1 and is at work on it"):
        chain.verify(begun)
    assert chain.states_in_ledger() == ["superseded", "running"]


def test_after_a_submission_that_failed_nothing_is_waited_for_and_its_driver_can_commit_no_more(chain: Chain) -> None:
    begun = chain.begin()
    chain.states = {"begin": "success", "submit": "failed"}
    with pytest.raises(AirflowFailException, match="the submission failed: task submit"):
        chain.verify(begun)
    assert chain.submitted(begun) == [LoadState.SUPERSEDED]


def test_a_submission_that_is_reported_as_failed_after_the_commit_has_loaded_the_hour(chain: Chain) -> None:
    chain.submitted(begun := chain.begin())
    chain.states = {"begin": "success", "submit": "failed"}
    assert chain.verify(begun)["read"] == 5


STARTUP = timedelta(hours=1)


@pytest.mark.parametrize(
    ("heartbeat", "later", "is_over"),
    [
        (None, timedelta(), False),
        (None, STARTUP - timedelta(seconds=1), False),  # in the queue of a cluster
        (None, STARTUP, True),
        (timedelta(minutes=58), STARTUP, False),
        (timedelta(seconds=20), timedelta(seconds=20) + HEARTBEAT_EXPIRY, True),
    ],
)
def test_an_application_is_waited_for_as_long_as_it_may_commit(
    chain: Chain, heartbeat: timedelta | None, later: timedelta, is_over: bool
) -> None:
    begun = chain.begin()
    if heartbeat is not None:
        with chain.world.ledger.engine.begin() as connection:
            connection.execute(update(schema.attempt).values(heartbeat_at=NOW + heartbeat))
    chain.now = NOW + later
    with pytest.raises(AirflowFailException if is_over else TaskDeferred) as raised:
        chain.verify(begun)
    if is_over:
        assert "no driver reported within 3600 s" in str(raised.value)
        assert chain.submitted(begun) == [LoadState.SUPERSEDED]
        return
    assert isinstance(raised.value, TaskDeferred)
    trigger = raised.value.trigger
    assert isinstance(trigger, LoadOverTrigger)
    path, arguments = trigger.serialize()
    assert path == f"{LoadOverTrigger.__module__}.{LoadOverTrigger.__qualname__}"
    again = LoadOverTrigger(**arguments, now=lambda: chain.now)
    assert not asyncio.run(again.fires(WarehouseHook()))
    chain.submitted(begun)
    assert asyncio.run(again.fires(WarehouseHook()))
    assert chain.verify(begun)["read"] == 5


def test_the_hours_of_other_runs_are_loaded_by_the_first_and_skip_their_own_submission(chain: Chain) -> None:
    begun = chain.begin(waiting=[at(HOUR + 1), at(HOUR + 2)])
    assert chain.submitted(begun) == [LoadState.COMMITTED] * 3
    assert chain.verify(begun)["starts"] == [instant_text(at(HOUR))]
    with pytest.raises(DownstreamTasksSkipped) as raised:
        chain.begin()
    assert raised.value.tasks == ["submit"]
    assert chain.verify(chain.pushed["return_value"])["adopted"] is True


def test_an_hour_without_a_record_needs_no_submission(chain: Chain) -> None:
    with pytest.raises(DownstreamTasksSkipped):
        chain.begin(windows=[instant_text(at(HOUR + 3))])
    assert chain.verify(chain.pushed["return_value"])["read"] == 0
    assert chain.states_in_ledger() == []


def test_what_begins_nothing_is_skipped_or_fails_as_the_task_before_did(chain: Chain) -> None:
    chain.states = {"begin": "skipped", "submit": "skipped"}
    with pytest.raises(AirflowSkipException):
        chain.verify(None)
    chain.states = {"begin": "failed", "submit": "upstream_failed"}
    with pytest.raises(AirflowFailException, match="no load was begun: task begin"):
        chain.verify(None)
