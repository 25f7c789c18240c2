"""A broker's topics with the methods of `FakeLog` that change them, so that one test runs over both."""

from __future__ import annotations

from collections.abc import Iterable

from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.waiting import PATIENCE_SECONDS

from tests.support.topics import add_partitions, admin, create_topic, delete_before, delete_topic, send


class RealLog(Topics):
    def __init__(self, bootstrap: str, **limits: float) -> None:
        super().__init__(Client({"bootstrap.servers": bootstrap}, **limits))
        self.bootstrap = bootstrap

    def create(self, name: str, partitions: int = 1) -> None:
        if name in admin(self.bootstrap).list_topics(timeout=PATIENCE_SECONDS).topics:
            delete_topic(self.bootstrap, name)
        create_topic(self.bootstrap, name, partitions=partitions, config={"retention.ms": "-1"})

    def add_partitions(self, name: str, count: int) -> None:
        add_partitions(self.bootstrap, name, count)

    def append(self, name: str, *stamps_ms: int, partition: int = 0) -> None:
        """Returns once all of them can be read."""
        self.append_values(name, [(stamp, b"value") for stamp in stamps_ms], partition)
        self.end_offsets(name, [partition], "read_uncommitted")

    def append_values(self, name: str, records: Iterable[tuple[int, bytes]], partition: int = 0) -> None:
        """Append records with these values: (timestamp, value)."""
        rows = ({"value": value, "key": b"key", "partition": partition, "timestamp": stamp} for stamp, value in records)
        send(self.bootstrap, name, rows, {"linger.ms": 0})

    def delete_records(self, name: str, before_offset: int, partition: int = 0) -> None:
        delete_before(self.bootstrap, name, partition, before_offset)
