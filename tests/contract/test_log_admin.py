"""One suite over the fake log, our broker and Apache Kafka: both brokers carry out managed retention's orders alike."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from logbus.errors import TopicMissing, UserError
from logbus.kafka.client import Client
from logbus.kafka.topics import LogAdmin, Topics
from logbus.waiting import wait_until

from tests.support.consumers import produce_numbers
from tests.support.fake_log import FakeLog
from tests.support.topics import create_topic

_numbers = itertools.count(1)
RECORDS = 10


@dataclass
class Subject:
    """A log under test, and a way to create and fill a topic of two partitions."""

    log: LogAdmin
    fill: Callable[[str], None]


def fake_subject() -> Subject:
    log = FakeLog()

    def fill(topic: str) -> None:
        log.create(topic, 2)
        for partition in (0, 1):
            log.append(topic, *range(1, RECORDS + 1), partition=partition)

    return Subject(log=log, fill=fill)


def real_subject(bootstrap: str) -> Subject:
    def fill(topic: str) -> None:
        create_topic(bootstrap, topic, partitions=2)
        produce_numbers(bootstrap, topic, 2, RECORDS)

    return Subject(log=Topics(Client({"bootstrap.servers": bootstrap})), fill=fill)


@pytest.fixture(params=["fake", "logbus", "kafka"])
def subject(request: pytest.FixtureRequest) -> Subject:
    if request.param == "fake":
        return fake_subject()
    name = "broker" if request.param == "logbus" else "apache_kafka"
    return real_subject(request.getfixturevalue(name).bootstrap)


@pytest.fixture
def topic(subject: Subject) -> str:
    name = f"admin-{next(_numbers)}"
    subject.fill(name)
    return name


def test_records_before_an_offset_are_deleted_and_those_from_it_on_stay(subject: Subject, topic: str) -> None:
    assert subject.log.delete_before(topic, {0: 4, 1: RECORDS}) == {0: 4, 1: RECORDS}
    assert subject.log.start_offsets(topic, [0, 1]) == {0: 4, 1: RECORDS}
    assert subject.log.end_offsets(topic, [0, 1], "read_uncommitted") == {0: RECORDS, 1: RECORDS}


def test_deleting_again_changes_nothing(subject: Subject, topic: str) -> None:
    subject.log.delete_before(topic, {0: 4})
    assert subject.log.delete_before(topic, {0: 2}) == {0: 4}
    assert subject.log.start_offsets(topic, [0, 1]) == {0: 4, 1: 0}


def test_nothing_is_deleted_behind_the_end(subject: Subject, topic: str) -> None:
    with pytest.raises(UserError, match="ends before the offset"):
        subject.log.delete_before(topic, {0: RECORDS + 1})
    assert subject.log.start_offsets(topic, [0]) == {0: 0}


def test_no_partitions_no_order(subject: Subject, topic: str) -> None:
    assert subject.log.delete_before(topic, {}) == {}


def test_settings_are_read_as_they_are_in_force_and_changed_one_by_one(subject: Subject, topic: str) -> None:
    names = ["retention.ms", "retention.bytes", "cleanup.policy", "no.such.setting"]
    before = {"retention.ms": "604800000", "retention.bytes": "-1", "cleanup.policy": "delete"}
    assert subject.log.settings(topic, names) == before
    subject.log.change_settings(topic, {"retention.ms": "-1"})
    changed = {**before, "retention.ms": "-1"}
    # Apache Kafka's controller answers once a change is stored; its brokers learn of it a moment later.
    wait_until(lambda: subject.log.settings(topic, names) == changed, what="the settings as they were changed")


def test_a_topic_that_is_not_there_is_missing(subject: Subject) -> None:
    with pytest.raises(TopicMissing):
        subject.log.delete_before("nowhere", {0: 1})
    with pytest.raises(TopicMissing):
        subject.log.settings("nowhere", ["retention.ms"])
