"""How the lists a client returns are processed; the reading itself is tested against a broker."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, Message
from logbus.errors import AccessDenied, LogbusError, RecordsLost, ShortRead
from logbus.kafka.exact_reader import BYTES_PER_CALL, MESSAGES_PER_CALL, ascending, call_size, raise_for, split_at_errors


def message(offset: int, value: bytes = b"") -> Message:
    return Message(topic="t", partition=0, offset=offset, value=value)


def error(code: int) -> Message:
    return Message(topic="t", partition=0, error=KafkaError(code))


def test_an_error_among_messages_ends_what_came_before_it_and_what_comes_behind_is_kept() -> None:
    consumed = [message(1), message(2), error(KafkaError._PARTITION_EOF), message(3)]
    parts = [([message.offset() for message in messages], end is not None) for messages, end in split_at_errors(consumed)]
    assert parts == [([1, 2], True), ([3], False)]


def test_messages_behind_the_end_of_the_range_are_left() -> None:
    """With a hole at the end of the range, the client reads on past the end."""
    assert ascending([message(4), message(7), message(9)], 4, 8) == [4, 7]
    assert ascending([message(9)], 4, 8) == []


@pytest.mark.parametrize("offsets", [[3], [5, 5], [6, 5]])
def test_an_offset_before_its_turn_is_refused(offsets: list[int]) -> None:
    with pytest.raises(ShortRead, match="out of order"):
        ascending([message(offset) for offset in offsets], 4, 10)


def test_large_records_are_asked_for_in_small_numbers() -> None:
    assert call_size([message(0, b"x")] * 10) == MESSAGES_PER_CALL
    assert call_size([message(0, bytes(1024 * 1024))]) == BYTES_PER_CALL // (1024 * 1024 + 100)
    assert call_size([message(0, bytes(BYTES_PER_CALL))]) == 1


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (KafkaError._PARTITION_EOF, ShortRead, "the log ends before the range does"),
        (KafkaError.OFFSET_OUT_OF_RANGE, RecordsLost, "retention has deleted it"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, ShortRead, "has no topic 't'"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessDenied, "lacks Read on topic t"),
    ],
)
def test_why_a_range_is_not_read_to_its_end(code: int, kind: type[LogbusError], words: str) -> None:
    with pytest.raises(kind, match=words):
        raise_for(KafkaError(code), "t", 0, 5, 9)
    raise_for(KafkaError(code), "t", 0, 9, 9)  # already read to its end
    raise_for(KafkaError(KafkaError._TRANSPORT), "t", 0, 5, 9)  # the client retries
