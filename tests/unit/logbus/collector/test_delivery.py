"""Lines sent to an unreachable broker, by the real client."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError
from logbus.collector.delivery import open_delivery, settle
from logbus.errors import DeliveryFailed
from logbus.kafka.producing import Delivery

NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 200, "log_level": 0}


@pytest.fixture
def delivery() -> Delivery:
    return open_delivery("t", NOWHERE, queued_lines_max=2)


def test_what_is_not_acknowledged_in_time_ends_the_run_with_the_cause_and_leaves_nothing_queued(delivery: Delivery) -> None:
    delivery.send(b"one", b"host", timestamp=1, headers=[])
    with pytest.raises(
        DeliveryFailed, match=r"^topic t: the broker at 127\.0\.0\.1:1 did not answer for too long.* is not sent twice$"
    ):
        settle(delivery)
    assert delivery._producer.flush(0) == 0


def test_a_full_queue_waits_and_a_failure_ends_the_wait(delivery: Delivery) -> None:
    for _ in range(4):  # twice what the queue holds
        delivery.send(b"line", b"host", timestamp=1, headers=[])
    assert delivery.failure is not None
    with pytest.raises(DeliveryFailed):
        settle(delivery)


def test_a_login_that_is_refused_is_the_cause_and_not_the_time_that_it_took(delivery: Delivery) -> None:
    delivery.failure = KafkaError(KafkaError._MSG_TIMED_OUT)
    delivery.client.settings(())["error_cb"](KafkaError(KafkaError._AUTHENTICATION, "no such user"))
    with pytest.raises(DeliveryFailed, match="refuses the login: no such user"):
        settle(delivery)
