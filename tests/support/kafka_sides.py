"""What contract suites of the pipeline's side of Kafka run on: the fakes in memory, our broker and Apache Kafka.

In a conftest.py: `from tests.support.kafka_sides import side, topic  # noqa: F401`, and the fixtures of the two brokers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import pytest
from logbus.kafka.client import Client
from logbus.kafka.groups import GroupOffsets, Groups
from logbus.kafka.reassignments import Reassigning, Reassignments
from logbus.kafka.topic_list import LogBatches, TopicBatches
from logbus.kafka.topics import Topics
from logbus.waiting import PATIENCE_SECONDS

from tests.support.consumers import GroupMember, poll_until, produce_numbers
from tests.support.fake_batches import FakeBatches
from tests.support.fake_groups import FakeGroups
from tests.support.fake_log import FakeLog
from tests.support.fake_reassignments import FakeReassignments
from tests.support.topics import create_topic

PARTITIONS = (0, 1)
RECORDS = 10
_numbers = itertools.count(1)


@dataclass
class Side:
    """`fill` creates a topic of two partitions with ten records each; `member` is one of a group for a while."""

    log: FakeLog | Topics
    batches: LogBatches
    groups: GroupOffsets
    reassignments: Reassigning
    fill: Callable[[str], None]
    member: Callable[[str, str], AbstractContextManager[None]]


def fake_side() -> Side:
    log, groups, reassignments = FakeLog(), FakeGroups(), FakeReassignments({0: None})

    def fill(topic: str) -> None:
        for partition in PARTITIONS:
            reassignments.add((topic, partition), [0])
        log.fill(topic, *[range(1, RECORDS + 1)] * len(PARTITIONS))

    @contextmanager
    def member(group: str, topic: str) -> Iterator[None]:
        groups.members[group] = ("the-member",)
        yield
        del groups.members[group]

    return Side(log, FakeBatches(log), groups, reassignments, fill, member)


def real_side(bootstrap: str) -> Side:
    config = {"bootstrap.servers": bootstrap, "group.id": "not for the admin client"}
    client = Client(config, timeout_seconds=PATIENCE_SECONDS, first_answer_seconds_max=PATIENCE_SECONDS)

    def fill(topic: str) -> None:
        create_topic(bootstrap, topic, partitions=len(PARTITIONS))
        produce_numbers(bootstrap, topic, len(PARTITIONS), RECORDS)

    @contextmanager
    def member(group: str, topic: str) -> Iterator[None]:
        consumer = GroupMember(bootstrap, [topic], group=group, client_id="the-member", enable_auto_commit=False)
        poll_until(lambda: bool(consumer.assignment), consumer)
        yield
        consumer.close()

    return Side(Topics(client), TopicBatches(client), Groups(client), Reassignments(client), fill, member)


@pytest.fixture(params=["fake", "logbus", "kafka"])
def side(request: pytest.FixtureRequest) -> Side:
    if request.param == "fake":
        return fake_side()
    name = "broker" if request.param == "logbus" else "apache_kafka"
    return real_side(request.getfixturevalue(name).bootstrap)


@pytest.fixture
def topic(side: Side) -> str:
    name = f"sides-{next(_numbers)}"
    side.fill(name)
    return name
