"""The whole pipeline with real processes: our broker, PostgreSQL, spark-submit. One module, few submissions: each takes seconds.

A module fixture runs the story once, in order: a load is killed midway, the retry loads the same windows, a
reload loads them again. The tests check what each step left.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from logbus import spark_submit
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.loading import Load, Loader
from logbus.loads.embedded import EmbeddedPostgres
from logbus.loads.engine import connect
from logbus.loads.ledger import Ledger
from logbus.model import AuditReport, FrozenWindow, Pipeline, milliseconds
from logbus.status import replay
from logbus.status.replay import Span
from logbus.waiting import PATIENCE_SECONDS, wait_until
from sqlalchemy import Engine, text

from tests.support.broker import AnyBroker, client_settings
from tests.support.ledgers import intervals_of
from tests.support.topics import create_topic, send

TOPIC, PARTITIONS, HOURS = "access", 3, 6
START = datetime(2015, 5, 17, 10, tzinfo=UTC)
RECORDS_PER_HOUR = 400
QUIET_HOUR = 3

# The broker rejects a timestamp of 2099 by default; some topics have that check switched off.
TOPIC_SETTINGS = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}


def now() -> datetime:
    return datetime.now(UTC)


def line(number: int, at: datetime) -> bytes:
    return (
        f'10.0.0.{number % 250} - - [{at:%d/%b/%Y:%H:%M:%S} +0000] "GET /page/{number} HTTP/1.1" 200 {number} "-" "test"'.encode()
    )


def fill(bootstrap: str) -> int:
    """Six hours, one of them quiet, a few records that do not parse, one stamped 2099. Returns the number of records."""
    create_topic(bootstrap, TOPIC, partitions=PARTITIONS, config=TOPIC_SETTINGS)
    records: list[tuple[bytes, datetime, int]] = []
    for hour in (hour for hour in range(HOURS) if hour != QUIET_HOUR):
        for number in range(RECORDS_PER_HOUR):
            at = START + timedelta(hours=hour, seconds=number * 9)
            records.append((line(number, at), at, number % PARTITIONS))
        records.append((b"not a log line", START + timedelta(hours=hour, minutes=59, seconds=59), hour % PARTITIONS))
    records.append((line(0, START), datetime(2099, 1, 1, tzinfo=UTC), 0))
    send(
        bootstrap,
        TOPIC,
        ({"value": value, "key": b"k", "timestamp": milliseconds(at), "partition": part} for value, at, part in records),
        {"enable.idempotence": True},
    )
    return len(records)


@dataclass(frozen=True)
class Story:
    """What each step left."""

    engine: Engine
    sent: int
    frozen: list[FrozenWindow]
    rows_after_kill: int
    windows_after_kill: list[FrozenWindow]
    first: list[AuditReport]
    second: list[AuditReport]
    output: list[str]


@pytest.fixture(scope="module")
def story(broker: AnyBroker, postgres_server: EmbeddedPostgres) -> Iterator[Story]:
    url = postgres_server.create_database("spark_load")
    client_config = client_settings(broker)
    engine, log = connect(url), Topics(Client(client_config))
    sent, ledger, output = fill(broker.bootstrap), Ledger(engine), []
    ledger.register(Pipeline(name="access", topic=TOPIC, table="access_log", parse="combined"), log, now())
    intervals = intervals_of(ledger.plan_load("access", log, now()))
    frozen = [ledger.freeze_or_get("access", interval, log, now()) for interval in intervals]
    kill_in_the_middle(engine, ledger, frozen, url, client_config)
    rows_after_kill, windows_after_kill = count_rows(engine), ledger.windows("access")
    loader = Loader(warehouse_url=url, client_config=client_config, now=now, say=output.append)
    first = loader.load(Load(pipeline="access", supersede=True))  # the killed run's last heartbeat is recent
    again = replay.plan(ledger, log, "access", Span(since=frozen[0].interval.start), now())
    second = loader.reload(Load(pipeline="access"), again.starts())
    yield Story(engine, sent, frozen, rows_after_kill, windows_after_kill, first, second, output)
    engine.dispose()


def kill_in_the_middle(
    engine: Engine, ledger: Ledger, windows: list[FrozenWindow], url: str, client_config: dict[str, Any]
) -> None:
    """SIGKILLs the driver and its JVM during the first commit: everything is staged, nothing is public.

    A lock on the window's row, taken once the tasks have staged, holds the driver at that point.
    """
    starts = [window.interval.start for window in windows if window.needs_load]
    attempts = ledger.begin_attempts("access", starts, "killed", 1, now())
    environment = {**os.environ, **spark_submit.environment(url, client_config)}
    command = spark_submit.command("access", spark_submit.application_arguments("access", attempts))
    driver = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        staging = f"logbus_staging.{attempts[0].staging_table}"
        wait_until(lambda: runs(driver) and exists(engine, staging), what="the staging table")
        with engine.begin() as connection:
            connection.execute(text("select from logbus.window where id = :id for update"), {"id": attempts[0].window_id})
            wait_until(lambda: runs(driver) and waits_for_lock(engine), what="the driver that waits for the lock")
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait(PATIENCE_SECONDS)
        wait_until(lambda: not waits_for_lock(engine), what="the end of the driver's session")
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait(PATIENCE_SECONDS)


def runs(driver: subprocess.Popen[bytes]) -> bool:
    assert driver.poll() is None, "the driver ended too early"
    return True


def exists(engine: Engine, table: str) -> bool:
    return scalar(engine, f"select to_regclass('{table}') is not null")


def waits_for_lock(engine: Engine) -> bool:
    waiting = "select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    return scalar(engine, f"select exists ({waiting})")


def count_rows(engine: Engine) -> int:
    return scalar(engine, "select count(*) from access_log")


def scalar(engine: Engine, query: str) -> Any:
    with engine.connect() as connection:
        return connection.execute(text(query)).scalar_one()


def with_records(reports: list[AuditReport]) -> list[FrozenWindow]:
    return [report.window for report in reports if report.window.record_count]


def test_a_killed_driver_leaves_the_table_as_it_was(story: Story) -> None:
    assert story.rows_after_kill == 0
    assert [window.loaded_attempt for window in story.windows_after_kill if window.needs_load] == [None] * (HOURS - 1)


def test_the_retry_loads_the_same_windows(story: Story) -> None:
    loaded = with_records(story.first)
    assert [window.ranges for window in loaded] == [window.ranges for window in story.frozen if window.record_count]
    assert [window.loaded_attempt for window in loaded] == [2] * (HOURS - 1)


def test_every_hour_is_audited_exactly(story: Story) -> None:
    assert {report.problems for report in story.first} == {()}


def test_every_record_is_loaded_or_dead_lettered(story: Story) -> None:
    counts = [report.window.counts for report in story.first]
    assert sum(count.read for count in counts if count) == story.sent
    assert sum(count.loaded for count in counts if count) == story.sent - (HOURS - 1)
    assert sum(count.dead_lettered for count in counts if count) == HOURS - 1


def test_a_quiet_hour_is_loaded_by_its_boundaries(story: Story) -> None:
    assert not story.windows_after_kill[QUIET_HOUR].needs_load


def test_a_stamp_of_2099_is_loaded_once_and_counted_as_early(story: Story) -> None:
    assert sum(report.window.counts.early for report in story.first if report.window.counts) == 1


def test_a_window_loaded_twice_has_the_same_fingerprint_and_no_row_twice(story: Story) -> None:
    first, second = with_records(story.first), with_records(story.second)
    assert [window.fingerprint for window in second] == [window.fingerprint for window in first]
    assert [window.loaded_attempt for window in second] == [3] * (HOURS - 1)
    rows = scalar(story.engine, "select count(*) from access_log")
    assert rows == scalar(story.engine, "select count(distinct (_topic, _partition, _offset)) from access_log")
    assert rows == story.sent - (HOURS - 1)


def test_parsed_columns_are_those_of_the_line(story: Story) -> None:
    with story.engine.connect() as connection:
        columns = "host, method, path, status, bytes, referer, agent"
        query = f"select {columns} from access_log where path = '/page/7' order by time limit 1"
        assert tuple(connection.execute(text(query)).one()) == ("10.0.0.7", "GET", "/page/7", 200, 7, None, "test")


def test_nothing_is_left_in_staging(story: Story) -> None:
    assert scalar(story.engine, "select count(*) from pg_tables where schemaname = 'logbus_staging'") == 0


def test_the_output_says_what_became_of_each_window_and_no_secret(story: Story) -> None:
    committed = [text for text in story.output if " committed read=" in text]
    assert len(committed) >= 2 * (HOURS - 1)
    assert not any("postgresql" in text for text in story.output)
