"""Two brokers that hold the replicas of `__consumer_offsets`. The test decides which one leads, and replication is a copy that
the test makes when it wants to."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from logbus_broker.api.handler import Pending
from logbus_broker.groups.committed_offsets import OFFSETS_TOPIC
from logbus_broker.log.partition import Partition
from logbus_broker.log.topic_admin import Growth, NewTopic
from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.codec import response_class
from logbus_broker.protocol.validation import split_replicated

from tests.support.engine import Harness
from tests.support.group_client import Client, commit_values, encode
from tests.support.replicas import ScriptedWatermarks

COMMIT_VERSION = 9


class Coordinator:
    """One of the two, with its client."""

    def __init__(self, directory: Path, number: int, partitions: int, **settings: Any) -> None:
        self.number = number
        self.judge = ScriptedWatermarks()
        self.broker = Harness(directory, watermarks=self.judge, group_initial_rebalance_delay_ms=0, **settings)
        self.broker.create("clicks")
        self.client = Client(self.broker)
        self._make(partitions)

    def _make(self, partitions: int) -> None:
        context = self.broker.engine.context
        context.tasks.enqueue(context.topic_changes.create([NewTopic(name=OFFSETS_TOPIC, overrides={})]), pytest.fail)
        self.broker.settle()
        if partitions > 1:
            grown = {OFFSETS_TOPIC: Growth(name=OFFSETS_TOPIC, count=partitions)}
            context.tasks.enqueue(context.topic_changes.grow(grown), pytest.fail)
            self.broker.settle()

    def partition(self, index: int = 0) -> Partition:
        held = self.broker.engine.partitions.held(OFFSETS_TOPIC, index)
        assert held is not None
        return held

    def begin_commit(self, offset: int, *, member: Any = None, group: str = "g") -> Pending:
        """Written in this turn; answered once it is replicated or refused."""
        body = encode(ApiKey.OFFSET_COMMIT, COMMIT_VERSION, commit_values(offset, group, member=member))
        answer = self.broker.dispatch(ApiKey.OFFSET_COMMIT, COMMIT_VERSION, body)
        if not isinstance(answer, Pending):
            pending = Pending()
            pending.complete(answer)
            return pending
        self.broker.settle()
        return answer

    def fetch(self, group: str = "g") -> tuple[int, int]:
        """The group's error code and committed offset."""
        row = self.client.offsets_of(group)
        return row.error_code, row.topics[0].partitions[0].committed_offset if row.topics else -1


def code_of(pending: Pending) -> int | None:
    """The error code; None while it waits."""
    if not pending.done:
        return None
    data = b"".join(part for part in pending.parts or [] if isinstance(part, bytes))
    answer = response_class(ApiKey.OFFSET_COMMIT).decode(data, version=COMMIT_VERSION)
    code: int = answer.topics[0].partitions[0].error_code
    return code


class Coordinators:
    """Both brokers. `move` changes the leader; the old one learns of it at once, unless the test prevents it."""

    def __init__(self, directory: Path, *, partitions: int = 1, **settings: Any) -> None:
        self._partitions = range(partitions)
        self._epochs = count(1)
        self.epoch = 0
        self.members = [Coordinator(directory / str(number), number, partitions, **settings) for number in range(2)]
        self.leader = self.members[0]
        self._stale: list[int] | None = None  # log end offsets of the new leader, while the old one has not learnt of it

    @property
    def other(self) -> Coordinator:
        return self.members[1 - self.leader.number]

    @property
    def is_split(self) -> bool:
        """Whether the former leader does not yet know that it no longer leads."""
        return self._stale is not None

    def begin(self) -> None:
        """The first one leads, and has loaded the groups."""
        self._lead()
        self.replicate()

    def move(self, *, old_is_told: bool = True) -> None:
        """The other leads from now on, with the log it has."""
        self.leader = self.other
        self._stale = [self.leader.partition(index).end_offset for index in self._partitions]
        if old_is_told:
            self.tell_old()
        self._lead()

    def _lead(self) -> None:
        self.epoch = next(self._epochs)
        for index in self._partitions:
            self.leader.broker.engine.partitions.lead(self.leader.partition(index), self.epoch)
        self.leader.broker.settle()

    def tell_old(self) -> None:
        """The former leader learns that it no longer leads, and truncates what the new leader does not have."""
        if self._stale is None:
            return
        ends, self._stale = self._stale, None
        old = self.other
        for index, end in zip(self._partitions, ends, strict=True):
            partition = old.partition(index)
            old.broker.engine.partitions.follow(
                partition, leader=self.leader.number, epoch=max(self.epoch, partition.leader_epoch)
            )
            if partition.end_offset > end:
                _cut(old.broker, partition, end)
        old.broker.settle()

    def replicate(self) -> None:
        """Copy all that the leader has to the other, and let the leader learn of it."""
        self.tell_old()
        for index in self._partitions:
            source, target = self.leader.partition(index), self.other.partition(index)
            for batch in list(source.log.batches_from(target.end_offset)) if target.end_offset < source.end_offset else ():
                view = memoryview(batch)
                log = target.log
                log.append_replica(view, split_replicated(view, log.end_offset, self.epoch, log.epochs.written.latest))
                self.other.broker.engine.context.high_watermark.written(target, len(batch))
            self.leader.judge.others_have(source, written=target.end_offset, flushed=target.end_offset)
            self.leader.broker.engine.context.high_watermark.moved(source, *self.leader.judge.written(source))  # type: ignore[attr-defined]
        self.leader.broker.settle()

    def close(self) -> None:
        for member in self.members:
            member.broker.close()


def _cut(broker: Harness, partition: Partition, offset: int) -> None:
    def cut() -> None:
        ticket = partition.log.begin_truncation(offset)
        ticket.run()
        partition.log.finish_truncation(ticket)

    partition.log.when_quiet(cut)
    broker.settle()
    partition.visible_offset = min(partition.visible_offset, offset)
    assert partition.end_offset == offset
