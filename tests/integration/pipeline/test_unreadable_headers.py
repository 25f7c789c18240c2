"""Header names that are not UTF-8, as kcat sends them: such a record ends no process, whichever part of the product reads it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from confluent_kafka import Message
from logbus.fingerprint import UNREADABLE_HEADERS, headers_of, headers_of_all, record_hash
from logbus.kafka.console_format import compiled, envelope
from logbus.kafka.exact_reader import exact_consumer, read_lists
from logbus.kafka.topics import to_witness
from logbus.loads.history import read_partition
from logbus.model import OffsetRange
from logbus.shipper.shipment import _source_and_position
from logbus.waiting import PATIENCE_SECONDS
from logbus.web.topic_records import record_json
from logbus_spark.records import PlanSlice, Run, headers_json, of_messages

from tests.support.broker import AnyBroker, client_settings
from tests.support.programs import program_or_skip
from tests.support.topics import create_topic

# What each round of records has for headers: none, a good one, and one name that is Latin-1, behind a good one.
HEADERS: Sequence[Sequence[bytes]] = ((), (b"lang=en",), (b"lang=fr", b"caf\xe9=1"))
READ: Sequence[Sequence[tuple[str, bytes | None]]] = ((), (("lang", b"en"),), UNREADABLE_HEADERS)
ROUNDS = 300  # the interpreter's quick calls are used only in code that has run for a while
TOPIC = "unreadable-headers"
COUNT = len(HEADERS) * ROUNDS


@pytest.fixture(scope="module")
def topic(broker: AnyBroker) -> str:
    kcat = program_or_skip("kcat")
    create_topic(broker.bootstrap, TOPIC)
    for headers in HEADERS:
        options = [word for header in headers for word in (b"-H", header)]
        sent = [kcat, "-b", broker.bootstrap, "-P", "-t", TOPIC, "-p", "0", *options]
        subprocess.run(sent, input=b"value\n" * ROUNDS, check=True, timeout=PATIENCE_SECONDS)
    return TOPIC


@contextmanager
def messages_of(broker: AnyBroker, topic: str) -> Iterator[list[Message]]:
    """All records, read anew: a client remembers the headers that a message was asked for."""
    with exact_consumer(client_settings(broker)) as consumer:
        yield [one for messages, _ in read_lists(consumer, topic, 0, 0, COUNT) for one in messages]


def expected(offset: int) -> Sequence[tuple[str, bytes | None]]:
    return READ[offset // ROUNDS]


def test_many_are_read_at_once_and_each_again(broker: AnyBroker, topic: str) -> None:
    with messages_of(broker, topic) as messages:
        found = headers_of_all(messages)
        assert [tuple(one or ()) for one in found] == [tuple(expected(offset)) for offset in range(COUNT)]
        assert [tuple(headers_of(one)) for one in messages] == [tuple(expected(offset)) for offset in range(COUNT)]


def test_a_load_has_a_row_for_each_and_its_fingerprint_is_the_same_again(broker: AnyBroker, topic: str) -> None:
    with messages_of(broker, topic) as messages:
        whole = PlanSlice(window_id=1, partition=0, start_offset=0, end_offset=COUNT)
        run = Run(partition=0, start_offset=0, end_offset=COUNT, slices=(whole,))
        [records] = of_messages(messages, range(COUNT), run)
        assert records.headers is not None
        assert headers_json(records.headers[COUNT - 1]) == json.dumps([["\ufffd", None]])
    part = OffsetRange(topic=topic, partition=0, start_offset=0, end_offset=COUNT)
    prints = set()
    for _ in range(2):
        with messages_of(broker, topic) as messages:
            prints.add(read_partition(part, 0, lambda _, found=messages: iter(found)).fingerprint)  # type: ignore[misc]
    assert len(prints) == 1


def test_a_boundary_may_lie_behind_one(broker: AnyBroker, topic: str) -> None:
    with messages_of(broker, topic) as messages:
        last = messages[-1]
        hashed = record_hash(0, last.offset(), last.timestamp()[1], None, b"value", UNREADABLE_HEADERS)
        assert to_witness(0, last).hash % 2**64 == hashed


def test_console_and_pages_show_that_they_cannot_be_read(broker: AnyBroker, topic: str) -> None:
    render = compiled("%h %h")
    with messages_of(broker, topic) as messages:
        assert [render(one) for one in (messages[0], messages[ROUNDS], messages[-1])] == [
            b" ",
            b"lang=en lang=en",
            "\ufffd=NULL \ufffd=NULL".encode(),
        ]
        assert {len(render(one)) for one in messages} == {1, 15, 17}
        assert json.loads(envelope(messages[-1]))["headers"] == ["\ufffd", None]
        assert record_json(messages[-1])["headers"] == [["\ufffd", None]]


def test_the_shipper_takes_it_for_a_record_that_it_did_not_send(broker: AnyBroker, topic: str) -> None:
    with messages_of(broker, topic) as messages:
        assert {_source_and_position(one) for one in messages} == {("", 0)}
