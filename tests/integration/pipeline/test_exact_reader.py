"""Exactly [start, end), or an error that names what is missing, against a real broker."""

from __future__ import annotations

import itertools

import pytest
from logbus.errors import BrokerUnavailable, RecordsLost, ShortRead
from logbus.kafka.exact_reader import exact_consumer, read_range, read_with

from tests.support.broker import AnyBroker, client_settings
from tests.support.topics import create_topic, send

_numbers = itertools.count(1)


@pytest.fixture
def topic(broker: AnyBroker) -> str:
    """A hundred records in partition 0."""
    name = f"exact-{next(_numbers)}"
    create_topic(broker.bootstrap, name)
    send(broker.bootstrap, name, [{"value": f"value {number}"} for number in range(100)])
    return name


def config(broker: AnyBroker) -> dict[str, str]:
    return client_settings(broker)


@pytest.mark.parametrize(("start", "end"), [(0, 100), (0, 1), (99, 100), (37, 61), (5, 5), (9, 3)])
def test_exactly_the_range_is_read_in_order(broker: AnyBroker, topic: str, start: int, end: int) -> None:
    messages = list(read_range(config(broker), topic, 0, start, end))
    assert [message.offset() for message in messages] == list(range(start, end))
    assert all(message.value() == f"value {message.offset()}".encode() for message in messages)


def test_one_consumer_reads_many_ranges_one_after_another(broker: AnyBroker, topic: str) -> None:
    with exact_consumer(config(broker)) as consumer:
        counts = [len(list(read_with(consumer, topic, 0, start, start + 7))) for start in (90, 0, 50, 0)]
    assert counts == [7, 7, 7, 7]


def test_a_range_behind_the_end_of_the_log_comes_short_and_names_the_missing_part(broker: AnyBroker, topic: str) -> None:
    with pytest.raises(ShortRead, match=rf"{topic}-0 \[100, 120\) is missing"):
        list(read_range(config(broker), topic, 0, 90, 120))


def test_a_range_that_begins_where_nothing_is_any_more_is_lost_and_not_reset(broker: AnyBroker, topic: str) -> None:
    with pytest.raises(RecordsLost, match=rf"{topic}-0 \[500, 510\)"):
        list(read_range(config(broker), topic, 0, 500, 510))


def test_a_topic_that_is_not_there_is_an_error(broker: AnyBroker) -> None:
    with pytest.raises((ShortRead, BrokerUnavailable)), exact_consumer(config(broker)) as consumer:
        list(read_with(consumer, "never-made", 0, 0, 10, stall_seconds_max=3.0))


def test_a_silent_broker_is_given_up_after_the_limit() -> None:
    with (
        exact_consumer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}) as consumer,
        pytest.raises(BrokerUnavailable, match=r"received nothing from t-0 for 0\.5 s"),
    ):
        list(read_with(consumer, "t", 0, 0, 10, stall_seconds_max=0.5))
