"""Replay, managed retention and a run that is given up, on what the demo loaded, in the Airflow that it left running."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from logbus.cli.local_airflow import AirflowApi, ApiDagRun
from logbus.kafka.client import Client
from logbus.kafka.groups import Groups
from logbus.kafka.topics import Topics
from logbus.loads.embedded import SUPERUSER
from logbus.loads.ledger import Ledger
from logbus.model import FrozenWindow, instant_text
from logbus.status.retention_plan import RetentionPolicy
from logbus.status.retention_run import RetentionStore
from logbus.waiting import PATIENCE_SECONDS, wait_until
from sqlalchemy import Engine, create_engine, make_url, text

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


def test_a_run_is_given_up_although_it_deadlocks_with_the_scheduler(second: SecondDemo) -> None:
    """The scheduler locks a run before its tasks, and the api-server the tasks before the run. A scheduler that is held up in
    between is played here, with a longer patience than the api-server's, so that it is the api-server's change which is undone."""
    api = second.stack.airflow.api
    queued = api.trigger("access_log_replay")  # the DAG is paused: nothing else touches the run
    server = create_engine(make_url(second.stack.warehouse_url).set(username=SUPERUSER, database="airflow"))
    observer = server.execution_options(isolation_level="AUTOCOMMIT")

    def count(query: str) -> int:
        with observer.connect() as connection:
            return int(connection.execute(text(query)).scalar_one())

    waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like 'UPDATE dag_run%'"
    deadlocks = "select deadlocks from pg_stat_database where datname = 'airflow'"
    before = count(deadlocks)
    with observer.connect() as connection:  # PostgreSQL looks for a deadlock once in a wait: not before both wait
        connection.execute(text("alter system set deadlock_timeout = '10s'"))
        connection.execute(text("select pg_reload_conf()"))
    with ThreadPoolExecutor(max_workers=1) as pool, server.connect() as scheduler:
        scheduler.execute(text("set local deadlock_timeout = '10min'"))
        scheduler.execute(text("select from dag_run where run_id = :run for update"), {"run": queued.run_id})
        given_up = pool.submit(api.give_up_active_runs, queued.dag_id)
        wait_until(lambda: count(waits), what="the api-server's wait for the run")
        scheduler.execute(text("update task_instance set updated_at = now() where run_id = :run"), {"run": queued.run_id})
        scheduler.commit()
        given_up.result(PATIENCE_SECONDS)
    wait_until(lambda: count(deadlocks) > before, what="the count of deadlocks")
    with observer.connect() as connection:
        connection.execute(text("alter system reset deadlock_timeout"))
        connection.execute(text("select pg_reload_conf()"))
    server.dispose()
    assert api.run(queued.dag_id, queued.run_id).state == "failed"
