"""Replay and managed retention as DAGs, on what the demo loaded, in the Airflow that it left running."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from logbus.cli.local_airflow import AirflowApi, ApiDagRun
from logbus.kafka.client import Client
from logbus.kafka.groups import Groups
from logbus.kafka.topics import Topics
from logbus.loads.ledger import Ledger
from logbus.model import FrozenWindow, instant_text
from logbus.status.retention_plan import RetentionPolicy
from logbus.status.retention_run import RetentionStore
from logbus.waiting import PATIENCE_SECONDS
from sqlalchemy import Engine

from tests.support.demos import SecondDemo

NAME = "access_log"


@pytest.fixture
def hours(engine: Engine) -> list[FrozenWindow]:
    """The demo's hours that hold records, all loaded and audited."""
    return [window for window in Ledger(engine).windows(NAME) if window.record_count]


def run(api: AirflowApi, dag_id: str, **conf: Any) -> ApiDagRun:
    api.unpause(dag_id)
    ended = api.wait(api.trigger(dag_id, conf=conf), PATIENCE_SECONDS)
    api.pause(dag_id)
    assert ended.state == "success", api.story(ended)
    return ended


def test_hours_are_replayed_on_demand_and_what_is_loaded_shows_in_a_group(
    second: SecondDemo, engine: Engine, hours: list[FrozenWindow]
) -> None:
    first, after = hours[0], hours[2]
    span = {"since": instant_text(first.interval.start), "until": instant_text(after.interval.start)}
    run(second.stack.airflow.api, "access_log_replay", **span)
    again = [window for window in Ledger(engine).windows(NAME) if window.record_count]
    assert [(new.fingerprint, new.counts) for new in again] == [(old.fingerprint, old.counts) for old in hours]
    attempts = [(new.loaded_attempt or 0) - (old.loaded_attempt or 0) for new, old in zip(again, hours, strict=True)]
    assert attempts == [1, 1] + [0] * (len(hours) - 2)
    assert again[0].audited_at is not None
    committed = Groups(Client(second.stack.client_config)).committed(f"logbus-{NAME}")
    assert committed == {(NAME, part.partition): part.end_offset for part in hours[1].ranges}


def test_the_retention_dag_deletes_what_is_old_and_loaded(second: SecondDemo, engine: Engine, hours: list[FrozenWindow]) -> None:
    """Its schedule may run it in parallel with this test: either run does the same."""
    admin, store, kept = Topics(Client(second.stack.client_config)), RetentionStore(engine), hours[1]
    age = datetime.now(UTC) - kept.interval.start
    store.set_policy(RetentionPolicy(topic=NAME, retain=age - timedelta(minutes=30)), datetime.now(UTC))
    run(second.stack.airflow.api, "logbus_retention")
    expected = {part.partition: part.start_offset for part in kept.ranges}
    assert admin.start_offsets(NAME, expected) == expected
    assert {one["state"] for one in store.deletions(99)} == {"deleted"}
    store.remove_policy(NAME)
