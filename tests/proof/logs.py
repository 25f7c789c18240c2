"""The log under a story: in memory for most, or on a real broker. What the product reads from it is kept apart from what the
story does to it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.fake_log import FakeLog
from tests.support.in_process import TASKS, Tasks
from tests.support.real_log import RealLog
from tests.support.restoring import RestorableBroker


class MemoryLog(FakeLog):
    """A log that can be truncated anywhere, compacted, and held up by an open transaction."""

    def client_config(self, tasks: Tasks) -> dict[str, Any]:
        """The settings with which a driver reads."""
        return {TASKS: tasks}

    @property
    def asked(self) -> FakeLog:
        """What the product reads."""
        return self

    def back_up(self, ends: Mapping[int, int]) -> None:
        """A copy of the log is made, whose partitions end there."""

    def restored(self, topic: str, ends: Mapping[int, int], share: float) -> Mapping[int, int]:
        """An older copy replaces the log; returns where each partition then ends."""
        offsets = {number: int(share * end) for number, end in ends.items()}
        for number, offset in offsets.items():
            self.cut(topic, offset, number)
        return offsets

    def open_transaction(self, topic: str, partition: int, offset: int) -> None:
        self.topics[topic][partition].stable_end = offset

    def end_transaction(self, topic: str, partition: int) -> None:
        self.topics[topic][partition].stable_end = None
        self.append(topic, None, partition=partition)


class BrokerLog(RealLog):
    """One broker for many stories, kept apart by topic names; its directory can be copied and restored."""

    def __init__(self, directory: Path) -> None:
        self.broker = RestorableBroker(directory)
        self.broker.server.start()
        super().__init__(self.broker.server.bootstrap)
        self.ends: Mapping[int, int] = {}

    @property
    def asked(self) -> RealLog:
        return self

    def client_config(self, tasks: Tasks) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap}

    def create(self, name: str, partitions: int = 1) -> None:
        super().create(name, partitions)
        self.ends = {}

    def back_up(self, ends: Mapping[int, int]) -> None:
        self.broker.back_up()
        self.ends = dict(ends)

    def restored(self, topic: str, ends: Mapping[int, int], share: float) -> Mapping[int, int]:
        """The copy, if one has been made since the topic was."""
        if not self.ends:
            return ends
        self.broker.restore()
        if len(self.ends) < len(ends):  # as in memory, partitions that are younger than the copy are there again, and empty
            self.add_partitions(topic, len(ends))
        return {number: self.ends.get(number, 0) for number in ends}

    def close(self) -> None:
        self.broker.server.stop()


Log = MemoryLog | BrokerLog
