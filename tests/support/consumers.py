"""Stock consumers in groups: several in one thread, polled in turn, so that rebalances make progress while a test watches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition
from logbus.errors import NotInTime
from logbus.waiting import wait_until

from tests.support.topics import send

GROUP_SETTINGS = {  # broker settings for tests of groups: consumers can be declared dead within a second
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
}


class GroupMember:
    """One consumer and what it has seen: records, assignments, errors."""

    def __init__(self, bootstrap: str, topics: Sequence[str], *, group: str, **settings: Any) -> None:
        self.records: Counter[tuple[str, int, bytes]] = Counter()
        self.errors: list[KafkaError] = []
        self.assignments = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 60_000,
                "heartbeat.interval.ms": 100,
                "fetch.wait.max.ms": 50,
                "topic.metadata.refresh.interval.ms": 500,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        self._consumer.subscribe(list(topics), on_assign=self._note_assignment)

    def _note_assignment(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.assignments += 1

    @property
    def assignment(self) -> set[tuple[str, int]]:
        return {(part.topic, part.partition) for part in self._consumer.assignment()}

    def poll(self, seconds: float = 0.02) -> None:
        message = self._consumer.poll(seconds)
        if message is None:
            return
        error = message.error()
        if error is not None:
            self.errors.append(error)
        else:
            self.records[message.topic() or "", message.partition() or 0, message.value() or b""] += 1

    def commit(self) -> None:
        self._consumer.commit(asynchronous=False)

    def close(self) -> None:
        self._consumer.close()


def poll_until(condition: Callable[[], bool], *members: GroupMember) -> None:
    """Poll the members in turn until the condition holds."""

    def holds() -> bool:
        if condition():
            return True
        for member in members:
            member.poll()
        return False

    try:
        wait_until(holds, what="the group", poll_seconds=0)
    except NotInTime as late:
        raise AssertionError(f"{late}: {[(member.assignment, member.errors) for member in members]}") from None


def shared_out(everything: set[tuple[str, int]], *members: GroupMember) -> bool:
    """Whether each partition is assigned to exactly one member, and each member has a partition."""
    owned = [one for member in members for one in member.assignment]
    return sorted(owned) == sorted(everything) and all(member.assignment for member in members)


def produce_numbers(bootstrap: str, topic: str, partitions: int, count: int) -> set[tuple[str, int, bytes]]:
    """Send `count` records to each partition; return what a consumer should see."""
    sent = {(topic, partition, b"%d" % number) for partition in range(partitions) for number in range(count)}
    send(bootstrap, topic, ({"value": value, "partition": partition} for _, partition, value in sorted(sent)))
    return sent
