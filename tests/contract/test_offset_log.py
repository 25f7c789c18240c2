"""One suite over the fake log and a real broker's client: what the ledger's tests assume about a log holds for a real one."""

from __future__ import annotations

import itertools

import pytest
from logbus.errors import BrokerUnavailable, TopicMissing
from logbus.kafka.client import Client
from logbus.kafka.topics import OffsetAndTimestamp, Topics

from tests.support.broker import broker  # noqa: F401
from tests.support.fake_log import FakeLog
from tests.support.real_log import RealLog

_numbers = itertools.count(1)

START_MS = 1_431_856_800_000


Log = FakeLog | RealLog


@pytest.fixture(params=["fake", "real"])
def log(request: pytest.FixtureRequest) -> Log:
    return FakeLog() if request.param == "fake" else RealLog(request.getfixturevalue("broker").bootstrap)


@pytest.fixture
def topic(log: Log) -> str:
    name = f"contract-{next(_numbers)}"
    log.create(name, 2)
    return name


def impatient(log: Log) -> Log:
    """What has no leader may be about to get one, which is waited for: here for a second."""
    return RealLog(log.bootstrap, timeout_seconds=1.0) if isinstance(log, RealLog) else log


def place(record: OffsetAndTimestamp) -> tuple[int, int]:
    return record.offset, record.timestamp_ms


def test_many_instants_are_asked_about_together(log: Log, topic: str) -> None:
    log.append(topic, START_MS, START_MS + 10)
    log.append(topic, START_MS + 5, partition=1)
    instants = [START_MS + 20, START_MS + 1, *(START_MS - number for number in range(250))]
    answers = log.first_at_or_after_each(topic, [0, 1], instants)
    assert set(answers) == set(instants)
    assert answers[START_MS + 20] == {}
    places = {part: place(record) for part, record in answers[START_MS + 1].items()}
    assert places == {0: (1, START_MS + 10), 1: (0, START_MS + 5)}
    assert answers[START_MS - 249] == log.first_at_or_after(topic, [0, 1], START_MS - 249)


def test_a_topic_has_an_id_and_partitions(log: Log, topic: str) -> None:
    facts = log.topic(topic)
    assert facts.partitions == (0, 1)
    assert facts.topic_id
    assert log.topic(topic) == facts


def test_a_topic_made_again_has_another_id(log: Log, topic: str) -> None:
    before = log.topic(topic).topic_id
    log.create(topic, 2)
    assert log.topic(topic).topic_id != before


def test_a_topic_that_does_not_exist_is_missing(log: Log) -> None:
    with pytest.raises(TopicMissing, match="no topic 'nowhere'"):
        log.topic("nowhere")


def test_of_the_offsets_of_a_topic_that_does_not_exist_a_client_says_that_nobody_answers(log: Log) -> None:
    """So a caller asks for the topic before its offsets."""
    log = impatient(log)
    with pytest.raises(BrokerUnavailable):
        log.start_offsets("nowhere", [0])


def test_offsets_begin_at_zero_and_end_behind_the_last_record(log: Log, topic: str) -> None:
    log.append(topic, START_MS, START_MS + 1, START_MS + 2, partition=1)
    assert log.start_offsets(topic, [0, 1]) == {0: 0, 1: 0}
    assert log.end_offsets(topic, [0, 1], "read_committed") == {0: 0, 1: 3}


@pytest.mark.parametrize(("at", "expected"), [(0, (0, 1000)), (1000, (0, 1000)), (1001, (1, 5000)), (5000, (1, 5000))])
def test_the_first_record_at_or_after_an_instant_is_found_exactly(
    log: Log, topic: str, at: int, expected: tuple[int, int]
) -> None:
    log.append(topic, START_MS + 1000)
    log.append(topic, START_MS + 5000, START_MS + 2000)
    answer = log.first_at_or_after(topic, [0], START_MS + at)
    assert place(answer[0]) == (expected[0], START_MS + expected[1])


def test_the_first_record_inside_a_batch_is_found_exactly(log: Log, topic: str) -> None:
    stamps = [START_MS + number * 10 for number in range(1000)]
    log.append(topic, *stamps)
    for number in (0, 1, 499, 999):
        assert place(log.first_at_or_after(topic, [0], stamps[number] - 9)[0]) == (number, stamps[number])


def test_a_partition_without_such_a_record_is_not_in_the_answer(log: Log, topic: str) -> None:
    log.append(topic, START_MS)
    assert set(log.first_at_or_after(topic, [0, 1], START_MS)) == {0}
    assert log.first_at_or_after(topic, [0, 1], START_MS + 1) == {}


def test_a_range_is_read_with_its_timestamps(log: Log, topic: str) -> None:
    log.append(topic, *range(START_MS, START_MS + 10), partition=0)
    assert [place(record) for record in log.records(topic, 0, 3, 6)] == [(n, START_MS + n) for n in (3, 4, 5)]
    assert list(log.records(topic, 0, 3, 3)) == []


def test_no_partitions_no_answer(log: Log, topic: str) -> None:
    assert log.start_offsets(topic, []) == {}


def test_a_partition_that_does_not_exist_is_an_error_and_no_answer(log: Log, topic: str) -> None:
    log = impatient(log)
    questions = (
        lambda partitions: log.start_offsets(topic, partitions),
        lambda partitions: log.end_offsets(topic, partitions, "read_committed"),
        lambda partitions: log.first_at_or_after(topic, partitions, START_MS),
    )
    for ask in questions:
        with pytest.raises(BrokerUnavailable):
            ask([2])
        with pytest.raises(TopicMissing):
            ask([1, 2])


def test_a_broker_that_is_not_there_is_named_within_the_time_limit() -> None:
    log = Topics(Client({"bootstrap.servers": "127.0.0.1:1"}, timeout_seconds=1.0))
    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1 .*Check that it runs"):
        log.topic("t")


def test_the_last_record_of_a_range_is_told_with_its_place_and_stamp(log: Log, topic: str) -> None:
    for partition in (0, 1):
        log.append(topic, *range(START_MS, START_MS + 10), partition=partition)
    witnesses = log.last_records(topic, {0: (6, 7), 1: (2, 5)})
    assert {part: (one.offset, one.timestamp_ms) for part, one in witnesses.items()} == {
        0: (6, START_MS + 6),
        1: (4, START_MS + 4),
    }


def test_the_last_record_of_a_range_that_reaches_to_the_logs_end_or_beyond_is_told(log: Log, topic: str) -> None:
    log.append(topic, START_MS, START_MS + 1)
    assert [log.last_records(topic, {0: (0, end)})[0].offset for end in (1, 2, 9)] == [0, 1, 1]


def test_a_record_is_known_again_and_another_one_is_not_taken_for_it(log: Log, topic: str) -> None:
    for partition in (0, 1):
        log.append(topic, START_MS, START_MS, partition=partition)
    first, again = (log.last_records(topic, {0: (0, 1), 1: (0, 1)}) for _ in range(2))
    assert first == again
    second = log.last_records(topic, {0: (1, 2)})
    assert len({first[0].hash, first[1].hash, second[0].hash}) == 3


def test_a_range_without_a_record_or_outside_of_the_log_has_no_last_record(log: Log, topic: str) -> None:
    log.append(topic, START_MS, START_MS + 1, START_MS + 2)
    assert log.last_records(topic, {0: (3, 4), 1: (0, 1)}) == {}
    assert log.last_records(topic, {0: (7, 8), 1: (0, 0)}) == {}
    log.delete_records(topic, 2)
    assert log.last_records(topic, {0: (1, 2)}) == {}
    assert log.last_records(topic, {0: (2, 3)})[0].offset == 2
    assert log.last_records(topic, {}) == {}
