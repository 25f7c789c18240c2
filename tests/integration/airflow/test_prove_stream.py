"""The proof of a stream as a task: what it tells Airflow, and that a difference is found once and not retried away."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from airflow.sdk.execution_time.context import OutletEventAccessors
from logbus import assets
from logbus.expressions import count
from logbus.operators.stream import ProveStreamOperator
from logbus.streams import stream_ledger
from logbus.streams.definition import Stream, define_stream

from tests.support.airflow_context import run_context
from tests.support.in_process import without_spark  # noqa: F401
from tests.support.ledgers import World
from tests.support.streams import NAME, StreamWorld

pytestmark = pytest.mark.usefixtures("without_spark")


@pytest.fixture
def stream(world: World) -> StreamWorld:
    """Hours 10 and 11 are counted; 10 is loaded and audited."""
    world.fill(10, 10.5, 11, 11.2, 13)
    stream_world = StreamWorld(world)
    stream_world.define()
    stream_world.driver().run(once=True)
    for hour in (10, 11):
        world.freeze(hour)
    stream_world.load(10)
    return stream_world


def prove(stream: Stream | str = NAME) -> tuple[dict[str, Any], OutletEventAccessors]:
    events = OutletEventAccessors()
    operator = ProveStreamOperator(task_id="prove", stream=stream, outlets=assets.stream_outlets(NAME))
    return operator.execute({**run_context(), "outlet_events": events}), events  # type: ignore[typeddict-item]


def test_each_proven_hour_is_an_event_with_a_key_once(stream: StreamWorld) -> None:
    result, events = prove()
    assert result == {"proven": 1, "hours": ["2015-05-17T10:00:00Z"], "behind": []}
    assert events[assets.proven_hours_asset(NAME)].partition_keys == {"2015-05-17T10:00:00"}
    assert events[assets.stream_asset(NAME)].extra == {"stream": NAME, "hours": ["2015-05-17T10:00:00Z"]}
    with pytest.raises(AirflowSkipException, match="no hour was proven"):
        prove()
    stream.load(11)
    assert prove()[0]["hours"] == ["2015-05-17T11:00:00Z"]


def test_a_difference_fails_without_a_retry_names_hour_and_row_and_is_gone_afterwards(stream: StreamWorld) -> None:
    stream.world.execute(f"update {NAME}_by_arrival set lines = lines + 1 where window_start = '2015-05-17T10:30Z'")
    with pytest.raises(AirflowFailException, match="is not what was loaded in 1 hour: 2015-05-17T10:00:00Z: .*10:30:00Z"):
        prove()
    stream.load(11)
    assert prove()[0]["hours"] == ["2015-05-17T11:00:00Z"]
    stream.refuse_gaps()
    assert stream.view() == stream.truth()


def test_a_stream_that_is_not_defined_yet_is_defined_and_another_definition_is_refused(stream: StreamWorld) -> None:
    fresh = define_stream("fresh", "p", keys=[], measures={"count": count()})
    with pytest.raises(AirflowSkipException):
        prove(fresh)
    with stream.world.ledger.engine.connect() as connection:
        assert stream_ledger.find(connection, "fresh") == fresh
    with pytest.raises(AirflowFailException, match="is defined already"):
        prove(define_stream("fresh", "p", keys=["line"], measures={"count": count()}))
