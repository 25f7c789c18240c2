"""One suite over the fake groups, our broker and Apache Kafka: what is assumed about consumer groups holds for both brokers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import pytest
from logbus.errors import GroupActive
from logbus.kafka.client import Client
from logbus.kafka.groups import GroupOffsets, Groups
from logbus.kafka.topics import OffsetLog, Topics
from logbus.status import group_offsets
from logbus.status.group_offsets import TopicChoice
from logbus.waiting import PATIENCE_SECONDS

from tests.support.broker import AnyBroker, any_broker
from tests.support.consumers import GROUP_SETTINGS, GroupMember, poll_until, produce_numbers
from tests.support.fake_groups import FakeGroups
from tests.support.fake_log import FakeLog
from tests.support.topics import create_topic

_numbers = itertools.count(1)
RECORDS = 10


@dataclass
class Subject:
    """Groups under test, the log they read, and a way to be a member of one for a while."""

    groups: GroupOffsets
    log: OffsetLog
    fill: Callable[[str, int], None]
    member: Callable[[str, str], AbstractContextManager[None]]


def fake_subject() -> Subject:
    groups, log = FakeGroups(), FakeLog()

    def fill(topic: str, partitions: int) -> None:
        log.create(topic, partitions)
        for partition in range(partitions):
            log.append(topic, *range(1, RECORDS + 1), partition=partition)

    @contextmanager
    def member(group: str, topic: str) -> Iterator[None]:
        groups.members[group] = ("the-member",)
        yield
        del groups.members[group]

    return Subject(groups=groups, log=log, fill=fill, member=member)


def real_subject(bootstrap: str) -> Subject:
    config = {"bootstrap.servers": bootstrap, "group.id": "not for the admin client"}
    client = Client(config, timeout_seconds=PATIENCE_SECONDS, first_answer_seconds_max=PATIENCE_SECONDS)

    def fill(topic: str, partitions: int) -> None:
        create_topic(bootstrap, topic, partitions=partitions)
        produce_numbers(bootstrap, topic, partitions, RECORDS)

    @contextmanager
    def member(group: str, topic: str) -> Iterator[None]:
        one = GroupMember(bootstrap, [topic], group=group, client_id="the-member", enable_auto_commit=False)
        poll_until(lambda: bool(one.assignment), one)
        yield
        one.close()

    return Subject(groups=Groups(client), log=Topics(client), fill=fill, member=member)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyBroker]:
    with any_broker(tmp_path_factory.mktemp("broker"), GROUP_SETTINGS) as running:
        yield running


@pytest.fixture(params=["fake", "logbus", "kafka"])
def subject(request: pytest.FixtureRequest) -> Subject:
    if request.param == "fake":
        return fake_subject()
    name = "broker" if request.param == "logbus" else "apache_kafka"
    return real_subject(request.getfixturevalue(name).bootstrap)


@pytest.fixture
def topic(subject: Subject) -> str:
    name = f"groups-{next(_numbers)}"
    subject.fill(name, 2)
    return name


@pytest.fixture
def group() -> str:
    return f"group-{next(_numbers)}"


def test_a_group_nobody_knows_is_inactive_and_has_committed_nothing(subject: Subject, group: str) -> None:
    subject.groups.validate_inactive(group)
    assert subject.groups.committed(group) == {}


def test_what_is_committed_is_found_again_and_the_rest_stays(subject: Subject, topic: str, group: str) -> None:
    subject.groups.commit(group, {(topic, 0): 3, (topic, 1): 4}, "a note")
    subject.groups.commit(group, {(topic, 1): 2})
    assert subject.groups.committed(group) == {(topic, 0): 3, (topic, 1): 2}
    subject.groups.validate_inactive(group)


def test_a_group_with_members_says_who_they_are_and_takes_no_offsets(subject: Subject, topic: str, group: str) -> None:
    subject.groups.commit(group, {(topic, 0): 3})
    with subject.member(group, topic):
        with pytest.raises(GroupActive, match="has members"):
            subject.groups.commit(group, {(topic, 0): 9})
        with pytest.raises(GroupActive, match="the-member"):
            group_offsets.plan(subject.groups, subject.log, group, [TopicChoice(topic=topic)], group_offsets.earliest)
    assert subject.groups.committed(group)[topic, 0] == 3


def test_a_seek_is_planned_then_done(subject: Subject, topic: str, group: str) -> None:
    choices = [TopicChoice(topic=topic, partitions=(1,))]
    moves = group_offsets.plan(subject.groups, subject.log, group, choices, group_offsets.offset(RECORDS + 5))
    assert [(move.current, move.target, move.new) for move in moves] == [(None, RECORDS + 5, RECORDS)]
    assert subject.groups.committed(group) == {}
    group_offsets.execute(subject.groups, moves)
    assert subject.groups.committed(group) == {(topic, 1): RECORDS}
