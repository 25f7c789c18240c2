"""The log under a story: in memory for most, or on a real broker. What the product reads from it is kept apart from what the
story does to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from logbus.kafka.client import Client
from logbus.kafka.topics import OffsetLog, Topics
from logbus.waiting import PATIENCE_SECONDS

from tests.proof.truth import Record
from tests.support.fake_log import FakeLog
from tests.support.in_process import TASKS, Tasks
from tests.support.restoring import RestorableBroker
from tests.support.topics import add_partitions, admin, create_topic, delete_before, delete_topic, send


class Log(Protocol):
    """What happens to the topics of stories. `asked` is what the product reads."""

    asked: OffsetLog

    def client_config(self, tasks: Tasks) -> dict[str, Any]:
        """The settings with which a driver reads."""

    def create(self, topic: str, partitions: int) -> None:
        """Creates the topic, or recreates it."""

    def widen(self, topic: str, partitions: int) -> None: ...

    def append(self, topic: str, partition: int, records: Sequence[Record]) -> None: ...

    def delete(self, topic: str, partition: int, offset: int) -> None:
        """Retention, up to the offset."""

    def back_up(self, ends: Mapping[int, int]) -> None:
        """Makes a copy of the log, whose partitions end there."""

    def restored(self, topic: str, ends: Mapping[int, int], share: float) -> Mapping[int, int]:
        """An older copy replaces the log; returns where each partition then ends."""

    def close(self) -> None: ...


class MemoryLog:
    """A log that can be truncated anywhere, compacted, and held up by an open transaction."""

    def __init__(self) -> None:
        self.asked: Any = FakeLog()

    def client_config(self, tasks: Tasks) -> dict[str, Any]:
        return {TASKS: tasks}

    def create(self, topic: str, partitions: int) -> None:
        self.asked.create(topic, partitions)

    def widen(self, topic: str, partitions: int) -> None:
        self.asked.add_partitions(topic, partitions)

    def append(self, topic: str, partition: int, records: Sequence[Record]) -> None:
        self.asked.append_values(topic, records, partition)

    def delete(self, topic: str, partition: int, offset: int) -> None:
        self.asked.delete_records(topic, offset, partition)

    def back_up(self, ends: Mapping[int, int]) -> None:
        pass

    def restored(self, topic: str, ends: Mapping[int, int], share: float) -> Mapping[int, int]:
        offsets = {number: int(share * end) for number, end in ends.items()}
        for number, offset in offsets.items():
            self.cut(topic, number, offset)
        return offsets

    def cut(self, topic: str, partition: int, offset: int) -> None:
        self.asked.cut(topic, offset, partition)

    def compact(self, topic: str, partition: int, offsets: Iterable[int]) -> None:
        self.asked.compact(topic, *offsets, partition=partition)

    def open_transaction(self, topic: str, partition: int, offset: int) -> None:
        self.asked.topics[topic][partition].stable_end = offset

    def end_transaction(self, topic: str, partition: int) -> None:
        self.asked.topics[topic][partition].stable_end = None
        self.asked.append(topic, None, partition=partition)

    def close(self) -> None:
        pass


class BrokerLog:
    """One broker for many stories, kept apart by topic names; its directory can be copied and restored."""

    def __init__(self, directory: Path) -> None:
        self.broker = RestorableBroker(directory)
        self.broker.server.start()
        self.bootstrap = self.broker.server.bootstrap
        self.asked = Topics(Client({"bootstrap.servers": self.bootstrap}))
        self.ends: Mapping[int, int] = {}

    def client_config(self, tasks: Tasks) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap}

    def create(self, topic: str, partitions: int) -> None:
        if topic in admin(self.bootstrap).list_topics(timeout=PATIENCE_SECONDS).topics:
            delete_topic(self.bootstrap, topic)
        create_topic(self.bootstrap, topic, partitions=partitions, config={"retention.ms": "-1"})
        self.ends = {}

    def widen(self, topic: str, partitions: int) -> None:
        add_partitions(self.bootstrap, topic, partitions)

    def append(self, topic: str, partition: int, records: Sequence[Record]) -> None:
        sent = ({"value": one.value, "key": b"key", "partition": partition, "timestamp": one.stamp_ms} for one in records)
        send(self.bootstrap, topic, sent, {"linger.ms": 0})

    def delete(self, topic: str, partition: int, offset: int) -> None:
        delete_before(self.bootstrap, topic, partition, offset)

    def back_up(self, ends: Mapping[int, int]) -> None:
        self.broker.back_up()
        self.ends = dict(ends)

    def restored(self, topic: str, ends: Mapping[int, int], share: float) -> Mapping[int, int]:
        """The copy, if one has been made since the topic was."""
        if not self.ends:
            return ends
        self.broker.restore()
        return {number: self.ends.get(number, 0) for number in ends}

    def close(self) -> None:
        self.broker.server.stop()
