"""A real Spark driver that stays, and real loads by it: of several pipelines, given up in the middle, and after that."""

from __future__ import annotations

import contextlib
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from logbus import spark_submit
from logbus.errors import LoadFailed
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.loads.embedded import EmbeddedPostgres
from logbus.loads.engine import connect
from logbus.loads.ledger import Ledger
from logbus.model import Attempt, Interval, Pipeline, milliseconds
from logbus.resident_driver import ResidentDriver
from logbus.waiting import wait_until
from sqlalchemy import Engine, text

from tests.support.broker import AnyBroker, client_settings
from tests.support.topics import create_topic, send

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
HOURS = [Interval.hour(datetime(2026, 11, 27, hour, tzinfo=UTC)) for hour in (8, 9)]
PIPELINES = ("visits", "visits_again")


class Place:
    """A topic of two hours, two pipelines that read it, and their driver."""

    def __init__(self, broker: AnyBroker, url: str, directory: Path) -> None:
        self.engine: Engine = connect(url)
        self.ledger = Ledger(self.engine)
        config: dict[str, Any] = client_settings(broker)
        log = Topics(Client(config))
        create_topic(broker.bootstrap, "visits", partitions=2, config={"retention.ms": "-1"})
        stamps = [hour.start + timedelta(minutes=minute) for hour in HOURS for minute in range(60)]
        send(
            broker.bootstrap,
            "visits",
            ({"value": b'{"n": %d}' % n, "timestamp": milliseconds(stamp), "partition": n % 2} for n, stamp in enumerate(stamps)),
        )
        for name in PIPELINES:
            self.ledger.register(
                Pipeline(name=name, topic="visits", table=name, parse="json", settings={"columns": {"n": "integer"}}), log, NOW
            )
            for hour in HOURS:
                self.ledger.freeze_or_get(name, hour, log, NOW)
        self.environment = {**spark_submit.launcher_environment({}), **spark_submit.environment(url, config)}
        self.directory = directory

    def driver(self) -> ResidentDriver:
        return ResidentDriver(
            command=lambda words: spark_submit.submission([str(spark_submit.application_path()), *words], "logbus loads"),
            environment=self.environment,
            idle_seconds=600,
            directory=self.directory,
        )

    def begin(self, name: str, hour: Interval) -> list[Attempt]:
        return self.ledger.begin_attempts(name, [hour.start], "run", 1, NOW)

    def load(self, driver: ResidentDriver, name: str, attempts: Sequence[Attempt]) -> None:
        assert driver.load(spark_submit.application_arguments(name, attempts), print)

    def rows(self, name: str) -> int:
        with self.engine.connect() as connection:
            return int(connection.execute(text(f"select count(*) from {name}")).scalar_one())

    def waits_for_a_lock(self) -> bool:
        query = text("select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()")
        with self.engine.connect() as connection:  # within one transaction the server always gives the same answer
            return bool(connection.execute(query).scalar_one())

    def process(self) -> psutil.Process:
        """The driver's own, by its socket."""
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(str(self.driver().path))
            credentials = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return psutil.Process(struct.unpack("3i", credentials)[0])


@pytest.fixture
def place(broker: AnyBroker, postgres_server: EmbeddedPostgres) -> Iterator[Place]:
    with tempfile.TemporaryDirectory() as directory:
        here = Place(broker, postgres_server.create_database("resident"), Path(directory))
        yield here
        with contextlib.suppress(OSError, psutil.NoSuchProcess):  # the last load of the test has ended it
            here.process().kill()
        here.engine.dispose()


def test_one_spark_loads_several_pipelines_and_is_replaced_after_a_load_that_was_given_up(place: Place) -> None:
    first, second = PIPELINES
    for name in PIPELINES:
        place.load(place.driver(), name, place.begin(name, HOURS[0]))
    before = place.process()
    assert [place.rows(name) for name in PIPELINES] == [60, 60]

    attempts, given_up, errors = place.begin(first, HOURS[1]), place.driver(), list[str]()

    def load() -> None:
        with pytest.raises(LoadFailed) as failure:
            place.load(given_up, first, attempts)
        errors.append(str(failure.value))

    with place.engine.begin() as connection:  # holds the window, so that the load stands at its commit
        window = {"id": attempts[0].window_id}
        connection.execute(text("select from logbus.window where id = :id for update"), window)
        loading = threading.Thread(target=load)
        loading.start()
        wait_until(place.waits_for_a_lock, what="the load at its commit")
        given_up.abandon()
        loading.join()
    assert "ended in the middle of the load" in errors[0]
    before.wait(60)
    assert place.rows(first) == 60

    place.load(place.driver(), first, place.begin(first, HOURS[1]))
    assert place.process().pid != before.pid
    assert place.rows(first) == 120
    with pytest.raises(LoadFailed, match="pipeline visits_again has no attempt"):
        place.load(place.driver(), second, attempts)
