from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from logbus.errors import LoadFailed, UserError
from logbus.operators.stream import StreamOnceOperator

from tests.support.airflow_context import run_context
from tests.support.fake_hooks import offline
from tests.support.ledgers import World
from tests.support.streams import StreamWorld


@pytest.fixture
def stream(world: World) -> StreamWorld:
    world.fill(10, 10.5, 11)
    return StreamWorld(world)


def once(stream: StreamWorld, submit: Any, **arguments: Any) -> StreamOnceOperator:
    """The operator, which has this done instead of a submission."""
    operator = offline(StreamOnceOperator(task_id="once", stream=stream.define(), **arguments), stream.world.ledger)
    operator._validate_connection = lambda environment: None
    operator._submit = submit
    return operator


def test_a_run_brings_the_stream_up_to_the_end_of_its_topic(stream: StreamWorld) -> None:
    submitted: list[dict[str, str]] = []

    def submit(context: Any, environment: dict[str, str]) -> None:
        submitted.append(environment)
        stream.driver().run(once=True)

    operator = once(stream, submit)
    assert operator.execute(run_context()) == {"stream": "s", "offsets": 3, "positions": {"0": 3}}
    assert operator.application.endswith("stream.py")
    assert operator.application_args == ["--stream", "s", "--once", "--run-id", "manual__1"]
    assert "broker-password" in submitted[0]["LOGBUS_KAFKA_CONFIG"]
    assert operator.execute(run_context())["offsets"] == 0


def test_a_run_whose_stream_another_one_has_taken_over_is_not_retried(stream: StreamWorld) -> None:
    def submit(context: Any, environment: dict[str, str]) -> None:
        stream.driver().run(once=True)
        raise LoadFailed("the Spark application failed")

    with pytest.raises(AirflowFailException, match="run 1 has taken over stream s"):
        once(stream, submit).execute(run_context())


def test_a_driver_that_fails_can_be_tried_again(stream: StreamWorld) -> None:
    def submit(context: Any, environment: dict[str, str]) -> None:
        raise LoadFailed("the Spark application failed")

    with pytest.raises(LoadFailed):
        once(stream, submit).execute(run_context())


def test_only_a_stream_can_be_computed() -> None:
    with pytest.raises(UserError, match="StreamOnceOperator takes a Stream, not 's'"):
        StreamOnceOperator(task_id="once", stream="s")  # type: ignore[arg-type]
