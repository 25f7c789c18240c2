"""Where a reading begins and what ends it; the reading itself is tested against brokers."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition
from logbus.errors import AccessDenied, LogbusError, TopicMissing, UserError
from logbus.kafka.console_consumer import (
    ConsoleConsumer,
    OffsetBounds,
    PositionKind,
    PositionSpan,
    ReadFailed,
    ReadRequest,
    RecordFilter,
    chosen_partitions,
    offset_bounds,
    parse_span,
)

from tests.support.fake_log import FakeLog

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("words", "span"),
    [
        ((), PositionSpan()),
        *(((word,), PositionSpan(kind=PositionKind.BEGINNING)) for word in ("beginning", "earliest")),
        *(((word,), PositionSpan(kind=PositionKind.END)) for word in ("end", "latest")),
        (("stored",), PositionSpan(kind=PositionKind.STORED)),
        (("12",), PositionSpan(kind=PositionKind.OFFSET, number=12)),
        (("-3",), PositionSpan(kind=PositionKind.BEFORE_END, number=3)),
        (("s@3600000",), PositionSpan(kind=PositionKind.SINCE, number=HOUR_MS)),
        (
            ("s@1970-01-01T01:00:00Z", "e@1970-01-01T02:00:00Z"),
            PositionSpan(kind=PositionKind.SINCE, number=HOUR_MS, until_ms=2 * HOUR_MS),
        ),
        (("e@5",), PositionSpan(until_ms=5)),
    ],
)
def test_a_position_is_spelled_as_kcat_spells_it(words: tuple[str, ...], span: PositionSpan) -> None:
    assert parse_span(words) == span


@pytest.mark.parametrize("words", [("somewhere",), ("1", "2"), ("s@noon",), ("s@",), ("1.5",)])
def test_what_is_not_a_position_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"not a position|second start|not a time"):
        parse_span(words)


@pytest.fixture
def log() -> FakeLog:
    """Topic t: partition 0 holds offsets 2 to 9 stamped at hours 2 to 9, partition 1 is empty."""
    log = FakeLog.of("t", range(0, 10 * HOUR_MS, HOUR_MS), [])
    log.delete_records("t", before_offset=2)
    return log


@pytest.mark.parametrize(
    ("words", "bounds"),
    [
        *((("beginning",), (2, 10)), (("end",), (10, 10)), (("stored",), (6, 10))),
        *((("5",), (5, 10)), (("0",), (2, 10)), (("99",), (10, 10)), (("-3",), (7, 10)), (("-99",), (2, 10))),
        *((("s@14400000",), (4, 10)), (("s@14400001",), (5, 10)), (("s@99999999999",), (10, 10))),
        *((("e@14400000",), (2, 4)), (("e@99999999999",), (2, 10)), (("s@14400000", "e@21600000"), (4, 6))),
    ],
)
def test_a_place_becomes_offsets_inside_the_log(log: FakeLog, words: tuple[str, ...], bounds: tuple[int, int]) -> None:
    read = offset_bounds(log, "t", [0, 1], parse_span(words), "read_committed", {0: 6})
    assert [(part.start_offset, part.end_offset) for part in (read[0], read[1])] == [bounds, (0, 0)]


def test_partitions_are_those_named_or_all() -> None:
    assert chosen_partitions("t", (0, 1, 2), ()) == [0, 1, 2]
    assert chosen_partitions("t", (0, 1, 2), (2, 0, 2)) == [0, 2]
    with pytest.raises(UserError, match="topic t has no partition 7: it has 0 to 2"):
        chosen_partitions("t", (0, 1, 2), (7,))


class Consumer:
    """Returns one message, and looks to the reading like a group member."""

    def __init__(self, message: Message) -> None:
        self.messages = [message]

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.counts: list[int] = []

    def pause(self, partitions: list[TopicPartition]) -> None:
        pass

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        self.topics = topics

    def consume(self, count: int, timeout: float) -> list[Message]:
        found, self.messages = self.messages, []
        self.counts = [*getattr(self, "counts", ()), count]
        return found


def test_the_client_is_asked_for_no_more_than_there_can_be() -> None:
    """It would wait for the rest."""
    client, bounds = (
        Consumer(RECORD),
        {0: OffsetBounds(start_offset=5, end_offset=8), 1: OffsetBounds(start_offset=4, end_offset=4)},
    )
    reading = ConsoleConsumer(client, ReadRequest(topic="t"), bounds)  # type: ignore[arg-type]
    assert [list(batch) for batch in reading.batches()] == [[RECORD]]
    assert client.counts == [3]


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, TopicMissing, "topic t no longer exists"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessDenied, "lacks Read on topic t: .*--topic t"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, AccessDenied, "lacks Read on group g: .*--group g"),
        (KafkaError.INVALID_MSG, ReadFailed, "t-0 ended"),
    ],
)
def test_an_error_that_the_client_does_not_mend_ends_a_members_reading(code: int, kind: type[LogbusError], words: str) -> None:
    failed = Message(topic="t", partition=0, error=KafkaError(code))
    with pytest.raises(kind, match=words):
        next(ConsoleConsumer(Consumer(failed), ReadRequest(topic="t"), group="g").batches())  # type: ignore[arg-type]


RECORD = Message("t", 0, 7, b"host", b'{"status": 500}', headers=[("trace", b"x1"), ("trace", b"x2"), ("gone", None)])
NULL = Message("t", 0, 8)


@pytest.mark.parametrize(
    ("text", "key", "headers", "takes"),
    [
        *((None, None, (), (True, True)), ("", None, (), (True, True)), ("500", None, (), (True, False))),
        *(("501", None, (), (False, False)), (None, "host", (), (True, False)), (None, "hos", (), (False, False))),
        *((None, None, ("trace",), (True, False)), (None, None, ("trace=x2",), (True, False))),
        *((None, None, ("trace=x",), (False, False)), (None, None, ("gone",), (True, False)), (None, None, ("gone=",), (False, False))),
        *((None, None, ("trace=x1", "gone"), (True, False)), ("500", "web2", (), (False, False))),
    ],
)  # fmt: skip
def test_a_filter_takes_records_for_which_all_of_it_holds(
    text: str | None, key: str | None, headers: tuple[str, ...], takes: tuple[bool, bool]
) -> None:
    chosen = RecordFilter.of(text, key, headers)
    assert (chosen.takes(RECORD), chosen.takes(NULL)) == takes
