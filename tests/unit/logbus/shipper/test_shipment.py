"""Numbers of records, and what ends a delivery."""

from __future__ import annotations

import subprocess
import sys

import pytest
from confluent_kafka import KafkaError
from logbus.errors import DeliveryFailed
from logbus.kafka.producing import Delivery
from logbus.shipper.shipment import KEYS_REMEMBERED, Numbering, murmur2, open_delivery, partition_of, settle


@pytest.mark.parametrize(
    ("data", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_the_java_client(data: bytes, hashed: int) -> None:
    """The examples from Apache Kafka's own test, as signed integers."""
    assert murmur2(data) == hashed % 2**32


def test_each_partition_has_numbers_of_its_own_from_1_on() -> None:
    numbers, keys = Numbering(3, "run"), [b"web-%d" % number for number in range(30)]
    found: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    for key in keys:
        partition, (name, content) = numbers.next(key)
        assert (name, partition) == ("logbus-sent", partition_of(key, 3))
        found[partition].append(content)
    for part, contents in found.items():
        assert contents == [b"run-%d:%d" % (part, number) for number in range(1, len(contents) + 1)]
    assert all(found.values())


def test_a_key_keeps_its_partition_though_it_is_forgotten() -> None:
    numbers = Numbering(5, "run")
    first = [numbers.next(key)[0] for key in (b"a", b"b", b"c")]
    for number in range(KEYS_REMEMBERED):
        numbers.next(b"%d" % number)
    assert [numbers.next(key)[0] for key in (b"a", b"b", b"c")] == first


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
    with pytest.raises(DeliveryFailed, match="failed: no such user"):
        settle(delivery)


def test_shipping_does_not_import_arrow_which_would_double_its_start() -> None:
    imports = "import sys, logbus.shipper.ship; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", imports], check=False).returncode == 0
