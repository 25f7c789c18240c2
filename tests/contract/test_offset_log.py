"""One suite over the fake log and a real broker's client: what the ledger's tests assume about a log holds for a real one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from logbus.errors import BrokerUnavailable, TopicMissing
from logbus.kafka.client import Client
from logbus.kafka.topics import OffsetAndTimestamp, OffsetLog, Topics

from tests.support.broker import broker  # noqa: F401
from tests.support.fake_log import FakeLog
from tests.support.topics import create_topic, delete_before, delete_topic, send

_numbers = itertools.count(1)

START_MS = 1_431_856_800_000


@dataclass
class Subject:
    """A log under test: its queries, and the ways to change what they return."""

    log: OffsetLog
    create: Callable[[str, int], None]
    delete: Callable[[str], None]
    append: Callable[[str, int, Sequence[int]], None]
    delete_before: Callable[[str, int, int], None]


def fake_subject() -> Subject:
    log = FakeLog()
    return Subject(
        log=log,
        create=log.create,
        delete=lambda name: None,
        append=lambda name, partition, stamps: log.append(name, *stamps, partition=partition),
        delete_before=lambda name, partition, offset: log.delete_records(name, offset, partition),
    )


def real_subject(bootstrap: str) -> Subject:
    log = Topics(Client({"bootstrap.servers": bootstrap}))

    def append(name: str, partition: int, stamps: Sequence[int]) -> None:
        send(bootstrap, name, [{"value": b"value", "partition": partition, "timestamp": stamp} for stamp in stamps])
        log.end_offsets(name, [partition], "read_uncommitted")  # answered once all of it can be read

    return Subject(
        log=log,
        create=lambda name, partitions: create_topic(bootstrap, name, partitions=partitions, config={"retention.ms": "-1"}),
        delete=lambda name: delete_topic(bootstrap, name),
        append=append,
        delete_before=lambda name, partition, offset: delete_before(bootstrap, name, partition, offset),
    )


@pytest.fixture(params=["fake", "real"])
def subject(request: pytest.FixtureRequest) -> Subject:
    return fake_subject() if request.param == "fake" else real_subject(request.getfixturevalue("broker").bootstrap)


@pytest.fixture
def topic(subject: Subject) -> str:
    name = f"contract-{next(_numbers)}"
    subject.create(name, 2)
    return name


def found(record: OffsetAndTimestamp) -> tuple[int, int]:
    return record.offset, record.timestamp_ms


def test_many_instants_are_asked_about_together(subject: Subject, topic: str) -> None:
    subject.append(topic, 0, [START_MS, START_MS + 10])
    subject.append(topic, 1, [START_MS + 5])
    asked = [START_MS + 20, START_MS + 1, *(START_MS - number for number in range(250))]
    answers = subject.log.first_at_or_after_each(topic, [0, 1], asked)
    assert set(answers) == set(asked)
    assert answers[START_MS + 20] == {}
    places = {part: found(record) for part, record in answers[START_MS + 1].items()}
    assert places == {0: (1, START_MS + 10), 1: (0, START_MS + 5)}
    assert answers[START_MS - 249] == subject.log.first_at_or_after(topic, [0, 1], START_MS - 249)


def test_a_topic_has_an_id_and_partitions(subject: Subject, topic: str) -> None:
    facts = subject.log.topic(topic)
    assert facts.partitions == (0, 1)
    assert facts.topic_id
    assert subject.log.topic(topic) == facts


def test_a_topic_made_again_has_another_id(subject: Subject, topic: str) -> None:
    before = subject.log.topic(topic).topic_id
    subject.delete(topic)
    subject.create(topic, 2)
    assert subject.log.topic(topic).topic_id != before


def test_a_topic_that_does_not_exist_is_missing(subject: Subject) -> None:
    with pytest.raises(TopicMissing, match="no topic 'nowhere'"):
        subject.log.topic("nowhere")


def test_of_the_offsets_of_a_topic_that_does_not_exist_a_client_says_that_nobody_answers(subject: Subject) -> None:
    """So a caller asks for the topic before its offsets."""
    with pytest.raises(BrokerUnavailable):
        subject.log.start_offsets("nowhere", [0])


def test_offsets_begin_at_zero_and_end_behind_the_last_record(subject: Subject, topic: str) -> None:
    subject.append(topic, 1, [START_MS, START_MS + 1, START_MS + 2])
    assert subject.log.start_offsets(topic, [0, 1]) == {0: 0, 1: 0}
    assert subject.log.end_offsets(topic, [0, 1], "read_committed") == {0: 0, 1: 3}


@pytest.mark.parametrize(("at", "expected"), [(0, (0, 1000)), (1000, (0, 1000)), (1001, (1, 5000)), (5000, (1, 5000))])
def test_the_first_record_at_or_after_an_instant_is_found_exactly(
    subject: Subject, topic: str, at: int, expected: tuple[int, int]
) -> None:
    subject.append(topic, 0, [START_MS + 1000])
    subject.append(topic, 0, [START_MS + 5000, START_MS + 2000])
    answer = subject.log.first_at_or_after(topic, [0], START_MS + at)
    assert found(answer[0]) == (expected[0], START_MS + expected[1])


def test_the_first_record_inside_a_batch_is_found_exactly(subject: Subject, topic: str) -> None:
    stamps = [START_MS + number * 10 for number in range(1000)]
    subject.append(topic, 0, stamps)
    for number in (0, 1, 499, 999):
        assert found(subject.log.first_at_or_after(topic, [0], stamps[number] - 9)[0]) == (number, stamps[number])


def test_a_partition_without_such_a_record_is_not_in_the_answer(subject: Subject, topic: str) -> None:
    subject.append(topic, 0, [START_MS])
    assert set(subject.log.first_at_or_after(topic, [0, 1], START_MS)) == {0}
    assert subject.log.first_at_or_after(topic, [0, 1], START_MS + 1) == {}


def test_a_range_is_read_with_its_timestamps(subject: Subject, topic: str) -> None:
    subject.append(topic, 0, [START_MS + number for number in range(10)])
    assert [found(record) for record in subject.log.records(topic, 0, 3, 6)] == [(n, START_MS + n) for n in (3, 4, 5)]
    assert list(subject.log.records(topic, 0, 3, 3)) == []


def test_no_partitions_no_answer(subject: Subject, topic: str) -> None:
    assert subject.log.start_offsets(topic, []) == {}


def test_a_partition_that_does_not_exist_is_an_error_and_no_answer(subject: Subject, topic: str) -> None:
    asked = (
        lambda partitions: subject.log.start_offsets(topic, partitions),
        lambda partitions: subject.log.end_offsets(topic, partitions, "read_committed"),
        lambda partitions: subject.log.first_at_or_after(topic, partitions, START_MS),
    )
    for ask in asked:
        with pytest.raises(BrokerUnavailable):
            ask([2])
        with pytest.raises(TopicMissing):
            ask([1, 2])


def test_a_broker_that_is_not_there_is_named_within_the_time_limit() -> None:
    log = Topics(Client({"bootstrap.servers": "127.0.0.1:1"}, timeout_seconds=1.0))
    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1 .*Check that it runs"):
        log.topic("t")


def test_the_last_record_of_a_range_is_told_with_its_place_and_stamp(subject: Subject, topic: str) -> None:
    for partition in (0, 1):
        subject.append(topic, partition, [START_MS + number for number in range(10)])
    found = subject.log.last_records(topic, {0: (6, 7), 1: (2, 5)})
    assert {part: (one.offset, one.timestamp_ms) for part, one in found.items()} == {0: (6, START_MS + 6), 1: (4, START_MS + 4)}


def test_the_last_record_of_a_range_that_reaches_to_the_logs_end_or_beyond_is_told(subject: Subject, topic: str) -> None:
    subject.append(topic, 0, [START_MS, START_MS + 1])
    assert [subject.log.last_records(topic, {0: (0, end)})[0].offset for end in (1, 2, 9)] == [0, 1, 1]


def test_a_record_is_known_again_and_another_one_is_not_taken_for_it(subject: Subject, topic: str) -> None:
    for partition in (0, 1):
        subject.append(topic, partition, [START_MS, START_MS])
    first, again = (subject.log.last_records(topic, {0: (0, 1), 1: (0, 1)}) for _ in range(2))
    assert first == again
    second = subject.log.last_records(topic, {0: (1, 2)})
    assert len({first[0].hash, first[1].hash, second[0].hash}) == 3


def test_a_range_without_a_record_or_outside_of_the_log_has_no_last_record(subject: Subject, topic: str) -> None:
    subject.append(topic, 0, [START_MS, START_MS + 1, START_MS + 2])
    assert subject.log.last_records(topic, {0: (3, 4), 1: (0, 1)}) == {}
    assert subject.log.last_records(topic, {0: (7, 8), 1: (0, 0)}) == {}
    subject.delete_before(topic, 0, 2)
    assert subject.log.last_records(topic, {0: (1, 2)}) == {}
    assert subject.log.last_records(topic, {0: (2, 3)})[0].offset == 2
    assert subject.log.last_records(topic, {}) == {}
