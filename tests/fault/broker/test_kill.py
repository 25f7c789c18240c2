"""kill -9 of the broker under a stock idempotent producer: what was acknowledged is stored once, in order.

The producer gets no notice: it retries through every restart, as an application's would. The seed decides when the broker dies.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from logbus.waiting import PATIENCE_SECONDS, wait_until

from tests.support.broker import LogbusBroker
from tests.support.killing import PARTITIONS, Sender, kill_under_load
from tests.support.topics import create_topic, read_topic

ROUNDS = 10  # `make soak` has a hundred


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LogbusBroker]:
    with LogbusBroker(tmp_path / "broker", settings={"log.segment.bytes": "300000"}) as running:  # so that kills hit rolls too
        yield running


def test_what_was_acknowledged_is_there_once_and_in_order_after_many_kills(broker: LogbusBroker) -> None:
    acknowledged = kill_under_load(broker, "killed", ROUNDS, seed=2011)
    assert acknowledged > ROUNDS, "there was something to lose"


def test_compressed_batches_survive_kills_as_well(broker: LogbusBroker) -> None:
    create_topic(broker.bootstrap, "packed", partitions=PARTITIONS)
    with Sender(broker.bootstrap, "packed", **{"compression.type": "zstd"}) as sender:
        for target in (500, 3_000):
            wait_until(lambda: len(sender.acknowledged) >= target, what="the next acknowledged records")  # noqa: B023
            broker.kill9()
            broker.start()
    for partition, messages in read_topic(broker.bootstrap, "packed").items():
        assert [message.value() for message in messages] == sender.sent[partition]


@pytest.mark.parametrize("damage", ["cut", "zeros", "garbage", "flipped"])
def test_a_torn_tail_is_removed_and_everything_before_it_kept(broker: LogbusBroker, damage: str) -> None:
    """The last batch as a power cut may leave it. What was stored before it stays, and the broker accepts records again."""
    create_topic(broker.bootstrap, "torn")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 0})
    for number in range(20):
        producer.produce("torn", b"%d" % number, partition=0)
        assert producer.flush(PATIENCE_SECONDS) == 0
    broker.kill9()
    expected = [b"%d" % number for number in range(_damage(broker.data / "torn-0", damage))]
    broker.start()
    assert [message.value() for message in read_topic(broker.bootstrap, "torn")[0]] == expected
    plain = Producer({"bootstrap.servers": broker.bootstrap})
    plain.produce("torn", b"after", partition=0)
    assert plain.flush(PATIENCE_SECONDS) == 0
    assert [message.value() for message in read_topic(broker.bootstrap, "torn")[0]] == [*expected, b"after"]


def _damage(directory: Path, damage: str) -> int:
    """Damage the end of the partition's last segment; returns how many of the 20 records are still intact."""
    segment = max(directory.glob("*.log"))
    content = segment.read_bytes()
    if damage in ("zeros", "garbage"):
        segment.write_bytes(content + (b"\0" if damage == "zeros" else b"\xa5\x5a\x00\x01") * 100)
        return 20
    segment.write_bytes(content[:-3] if damage == "cut" else content[:-3] + bytes([content[-3] ^ 0xFF]) + content[-2:])
    return 19
