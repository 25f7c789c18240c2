"""One suite over the fake, our broker and Apache Kafka: batched queries about many topics get the same answers as single ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from logbus.errors import TopicMissing
from logbus.kafka.client import Client
from logbus.kafka.topic_list import Kind, LogBatches, Question, TopicBatches, TopicDescription
from logbus.kafka.topics import SettingsLog, Topics

from tests.support.consumers import produce_numbers
from tests.support.fake_batches import FakeBatches
from tests.support.fake_log import FakeLog
from tests.support.topics import create_topic

_numbers = itertools.count(1)
RECORDS = 10
PARTITIONS = (0, 1)


@dataclass
class Subject:
    """Batched queries under test, single ones on the same log, and a way to create and fill a topic of two partitions."""

    batches: LogBatches
    single: SettingsLog
    fill: Callable[[str], None]


def fake_subject() -> Subject:
    log = FakeLog()

    def fill(topic: str) -> None:
        log.create(topic, 2)
        for partition in PARTITIONS:
            log.append(topic, *range(1, RECORDS + 1), partition=partition)

    return Subject(batches=FakeBatches(log), single=log, fill=fill)


def real_subject(bootstrap: str) -> Subject:
    def fill(topic: str) -> None:
        create_topic(bootstrap, topic, partitions=2)
        produce_numbers(bootstrap, topic, 2, RECORDS)

    config = {"bootstrap.servers": bootstrap}
    return Subject(batches=TopicBatches(Client(config)), single=Topics(Client(config)), fill=fill)


@pytest.fixture(params=["fake", "logbus", "kafka"])
def subject(request: pytest.FixtureRequest) -> Subject:
    if request.param == "fake":
        return fake_subject()
    name = "broker" if request.param == "logbus" else "apache_kafka"
    return real_subject(request.getfixturevalue(name).bootstrap)


@pytest.fixture
def topics(subject: Subject) -> list[str]:
    names = [f"batch-{next(_numbers)}" for _ in range(3)]
    for name in names:
        subject.fill(name)
    return names


def test_every_question_is_answered_as_if_it_were_the_only_one(subject: Subject, topics: list[str]) -> None:
    single, asked = (
        subject.single,
        [
            Question(*words)
            for name in topics
            for words in (
                *((Kind.START, name), (Kind.SETTINGS, name), (Kind.AT, name, 0), (Kind.AT, name, 2**40)),
                *((Kind.END, name, "read_committed"), (Kind.END, name, "read_uncommitted")),
            )
        ],
    )
    found = subject.batches.answers(asked, dict.fromkeys(topics, PARTITIONS))
    for name in topics:
        assert found[Question(Kind.START, name)] == single.start_offsets(name, PARTITIONS)
        for level in ("read_committed", "read_uncommitted"):
            assert found[Question(Kind.END, name, level)] == single.end_offsets(name, PARTITIONS, level)
            assert sum(found[Question(Kind.END, name, level)].values()) == 2 * RECORDS
        for instant in (0, 2**40):
            assert found[Question(Kind.AT, name, instant)] == single.first_at_or_after(name, PARTITIONS, instant)
        keys = ("retention.ms", "retention.bytes")
        assert {key: found[Question(Kind.SETTINGS, name)][key] for key in keys} == single.settings(name, keys)


def test_topics_are_described_together_and_a_missing_one_harms_nobody(subject: Subject, topics: list[str]) -> None:
    found = subject.batches.topics([*topics, "nowhere"])
    assert isinstance(found.pop("nowhere"), TopicMissing)
    for name in topics:
        places = found[name]
        assert isinstance(places, TopicDescription)
        assert places.facts == subject.single.topic(name)
        assert all(place.leader is not None and place.leader in place.replicas for place in places.partitions)


def test_a_topic_that_is_gone_is_the_error_of_its_own_questions(subject: Subject, topics: list[str]) -> None:
    questions = [Question(Kind.END, name, "read_committed") for name in (topics[0], "nowhere")]
    found = subject.batches.answers(questions, {topics[0]: PARTITIONS, "nowhere": (0,)})
    assert isinstance(found[questions[1]], TopicMissing)
    assert set(found[questions[0]]) == set(PARTITIONS)


def test_all_topics_but_the_brokers_own_are_listed(subject: Subject, topics: list[str]) -> None:
    listed = subject.batches.topic_names()
    assert set(topics) <= set(listed)
    assert not [name for name in listed if name.startswith("__")]
