from __future__ import annotations

import pytest
from logbus.model import Pipeline
from logbus.sensors.window_event import WindowEventTrigger


def test_it_is_rebuilt_from_what_it_is_stored_as_and_siblings_share_one_look() -> None:
    made = WindowEventTrigger(pipeline="p", stage="closed", warehouse_conn_id="w", poll_seconds=1.5)
    path, arguments = made.serialize()
    assert path == f"{WindowEventTrigger.__module__}.{WindowEventTrigger.__qualname__}"
    assert WindowEventTrigger(**arguments).serialize() == (path, arguments)
    assert made.watcher == "p/closed"
    assert made.shared_stream_key() == WindowEventTrigger(**{**arguments, "poll_seconds": 9.0}).shared_stream_key()


def test_a_pipeline_is_watched_by_its_name() -> None:
    made = WindowEventTrigger(pipeline=Pipeline(name="p", topic="t", table="t", parse="json"))
    assert made.serialize() == WindowEventTrigger(pipeline="p").serialize()


def test_a_stage_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="finished"):
        WindowEventTrigger(pipeline="p", stage="finished")
