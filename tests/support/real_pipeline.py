"""A pipeline from a real broker into a real warehouse, without Spark, and the check of what it has loaded."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.loads.audit import audit_window
from logbus.loads.engine import connect
from logbus.loads.ledger import Ledger
from logbus.loads.sinks import sink_for
from logbus.model import AuditReport, Pipeline
from logbus.parsing import parser_for
from logbus_spark.application import WindowOutcome
from sqlalchemy import Engine

from tests.support import oracle
from tests.support.broker import AnyBroker
from tests.support.in_process import driver
from tests.support.ledgers import NOW, at, hour, stamps
from tests.support.topics import add_partitions, create_topic, delete_before, delete_topic, send

_numbers = itertools.count(1)

# By default retention would delete records of 2015, and records from the future would be refused: not here.
ANY_TIME = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1), "max.message.bytes": "8000000"}


@dataclass
class RealPipeline:
    """One topic and a table of the same name. Hours are those of `tests.support.ledgers`."""

    bootstrap: str
    engine: Engine
    partitions: int = 2
    parse: str = "lines"
    settings: dict[str, Any] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    client: dict[str, Any] = field(default_factory=dict)
    name: str = field(default_factory=lambda: f"real_{next(_numbers)}")

    def __post_init__(self) -> None:
        self.create()
        self.log = Topics(Client(self.client_config))
        self.ledger = Ledger(self.engine)
        self.register()

    def register(self) -> None:
        self.ledger.register(
            Pipeline(name=self.name, topic=self.name, table=self.name, parse=self.parse, settings=self.settings), self.log, NOW
        )

    @property
    def client_config(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap, "log_level": 0, **self.client}

    def create(self, partitions: int | None = None) -> None:
        create_topic(self.bootstrap, self.name, partitions=partitions or self.partitions, config={**ANY_TIME, **self.config})

    def create_again(self) -> None:
        delete_topic(self.bootstrap, self.name)
        self.create()

    def add_partitions(self, count: int) -> None:
        add_partitions(self.bootstrap, self.name, count)

    def delete_records(self, before_offset: int, partition: int = 0) -> None:
        delete_before(self.bootstrap, self.name, partition, before_offset)

    def send(self, records: Iterable[tuple[float | int, bytes | None]], partition: int = 0) -> None:
        """Sends records, each with its hour of the day or, if that is an int below 0 or from 48 on, its timestamp in ms."""

        def stamp(when: float) -> int:
            return when if isinstance(when, int) and not 0 <= when < 48 else stamps(when)[0]

        send(
            self.bootstrap,
            self.name,
            ({"value": value, "key": b"key", "partition": partition, "timestamp": stamp(when)} for when, value in records),
            {"message.max.bytes": 8_000_000},
        )

    def freeze(self, *hours: int) -> None:
        for number in hours:
            self.ledger.freeze_or_get(self.name, hour(number), self.log, NOW)

    def load(self, *hours: int, freeze: bool = True) -> list[WindowOutcome]:
        if freeze:
            self.freeze(*hours)
        attempts = self.ledger.begin_attempts(self.name, [at(number) for number in hours], "run", 1, NOW)
        application = driver(self.ledger, self.log, self.client_config)
        return application.load(self.name, [attempt.token for attempt in attempts])

    def audit(self, number: int) -> AuditReport:
        return audit_window(self.engine, self.log, self.name, at(number), NOW, sink_for=sink_for)

    def loaded_hours(self) -> list[int]:
        windows = [window for window in self.ledger.windows(self.name) if window.loaded_attempt is not None]
        return [window.interval.start.hour for window in windows]

    def found(self) -> Sequence[oracle.LoadedRecord]:
        return oracle.found(self.engine, self.name, self.name)

    def expected(self) -> Sequence[oracle.LoadedRecord]:
        """What the loaded windows hold, as read by a stock consumer."""
        windows = [window for window in self.ledger.windows(self.name) if window.loaded_attempt is not None]
        parser = parser_for(self.parse, self.settings)
        return oracle.expected(windows, oracle.everything_at(self.bootstrap, self.name), parser)

    def hours_of(self, *offsets: int, partition: int = 0) -> list[datetime]:
        """The hours into which these records were loaded."""
        at_offset = {(found.partition, found.offset): found.window_start for found in self.found()}
        return [at_offset[partition, offset] for offset in offsets]


HOURS = (10, 11)


@pytest.fixture
def engine(warehouse_url: str) -> Iterator[Engine]:
    engine = connect(warehouse_url)
    yield engine
    engine.dispose()


@pytest.fixture
def two_hours(broker: AnyBroker, engine: Engine) -> RealPipeline:
    """Two frozen hours of six thousand records in two partitions: several tasks."""
    pipeline = RealPipeline(broker.bootstrap, engine)
    for partition in range(2):
        pipeline.send([(10 + number / 3_000, b"line %d" % number) for number in range(6_000)], partition)
    pipeline.freeze(*HOURS)
    return pipeline


def secrets(pipeline: RealPipeline) -> tuple[str, dict[str, Any]]:
    """The secrets that an application gets in its environment."""
    return pipeline.engine.url.render_as_string(hide_password=False), pipeline.client_config
