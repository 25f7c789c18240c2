"""The sensor beside a continuous stream, on a real ledger: what it waits for, in the task and in the triggerer."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred
from logbus.errors import BrokerUnavailable
from logbus.hooks.warehouse import WarehouseHook
from logbus.model import utc_now
from logbus.sensors.stream_healthy import StreamHealthySensor, StreamHealthyTrigger
from logbus.streams import stream_ledger
from logbus.streams.stream_ledger import Ownership

from tests.support.airflow_context import run_context
from tests.support.fake_hooks import FakeBroker
from tests.support.ledgers import World, stamps
from tests.support.streams import NAME, StreamWorld


@pytest.fixture
def stream(world: World, monkeypatch: pytest.MonkeyPatch) -> StreamWorld:
    """It has counted nothing yet, and the topic is empty."""
    monkeypatch.setattr(StreamHealthyTrigger, "broker_hook", staticmethod(lambda conn_id: FakeBroker(world.log, None)))
    world.register()
    stream_world = StreamWorld(world)
    stream_world.define()
    return stream_world


def begun(stream: StreamWorld) -> Ownership:
    return stream_ledger.begin(stream.world.ledger.engine, NAME, "run", utc_now())


def sensor(**arguments: Any) -> StreamHealthySensor:
    return StreamHealthySensor(task_id="healthy", stream=NAME, **{"deferrable": True, **arguments})


def deferred() -> StreamHealthyTrigger:
    with pytest.raises(TaskDeferred) as raised:
        sensor().execute(run_context())  # type: ignore[arg-type]
    assert isinstance(raised.value.trigger, StreamHealthyTrigger)
    return raised.value.trigger


def fires(trigger: StreamHealthyTrigger) -> bool:
    return asyncio.run(trigger.fires(WarehouseHook(trigger.warehouse_conn_id)))


def test_a_driver_that_is_at_work_and_has_counted_all_passes_at_once(stream: StreamWorld) -> None:
    begun(stream)
    passed = sensor().execute(run_context())  # type: ignore[arg-type]
    assert (passed["name"], passed["state"], passed["lag_records"], passed["lag_seconds"]) == (NAME, "running", 0, 0.0)


def test_one_that_nobody_runs_or_that_has_ended_is_waited_for_until_somebody_does(stream: StreamWorld) -> None:
    trigger = deferred()
    assert not fires(trigger)
    owner = begun(stream)
    assert fires(trigger)
    stream_ledger.end(stream.world.ledger.engine, owner, utc_now(), "the topic was recreated")
    assert not fires(trigger)


def test_what_is_not_counted_is_waited_for(stream: StreamWorld) -> None:
    begun(stream)
    stream.world.log.append("t", *stamps(10.5))
    trigger = deferred()
    assert not fires(trigger)
    stream.world.execute("update logbus.stream_partition set end_offset = 1")
    assert fires(trigger)


def test_a_broker_that_does_not_answer_is_no_good_news(stream: StreamWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(conn_id: str) -> FakeBroker:
        raise BrokerUnavailable("the broker did not answer")

    begun(stream)
    trigger = sensor().trigger_for(run_context())  # type: ignore[arg-type]
    assert fires(trigger)
    monkeypatch.setattr(StreamHealthyTrigger, "broker_hook", staticmethod(away))
    assert not fires(trigger)


def test_a_trigger_survives_the_way_to_the_triggerer() -> None:
    arguments = {"stream": NAME, "lag_seconds": 60.0, "warehouse_conn_id": "w", "kafka_conn_id": "k", "poll_seconds": 1.0}
    path, written = StreamHealthyTrigger(**arguments).serialize()
    assert path.rpartition(".")[2] == "StreamHealthyTrigger"
    assert json.loads(json.dumps(written)) == arguments
    assert sensor(lag=timedelta(minutes=1)).trigger_for(run_context()).lag_seconds == 60  # type: ignore[arg-type]
