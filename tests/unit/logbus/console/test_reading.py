"""What ends a reading; the reading itself is tested against brokers."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, Message
from logbus.console.reading import ConsoleReading, ReadFailed, Wish
from logbus.errors import AccessDenied, LogbusError, TopicMissing


class Consumer:
    """Returns one message, and looks to the reading like a group member."""

    def __init__(self, message: Message) -> None:
        self.messages = [message]

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        self.topics = topics

    def consume(self, count: int, timeout: float) -> list[Message]:
        found, self.messages = self.messages, []
        return found


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, TopicMissing, "there is no topic t any more"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessDenied, "lacks Read on topic t: .*--topic t"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, AccessDenied, "lacks Read on group g: .*--group g"),
        (KafkaError.INVALID_MSG, ReadFailed, "t-0 ended"),
    ],
)
def test_an_error_that_the_client_does_not_mend_ends_a_members_reading(code: int, kind: type[LogbusError], words: str) -> None:
    failed = Message(topic="t", partition=0, error=KafkaError(code))
    with pytest.raises(kind, match=words):
        next(ConsoleReading(Consumer(failed), Wish(topic="t"), group="g").batches())  # type: ignore[arg-type]
