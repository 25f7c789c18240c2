"""Compaction in a running broker: real clients write, the broker is killed midway, the newest value of every key survives."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from logbus.waiting import PATIENCE_SECONDS, wait_until

from tests.support.broker import LogbusBroker
from tests.support.topics import create_topic, read_partition

KEYS = 500
SETTINGS = {"log.cleaner.backoff.ms": "50", "log.cleaner.min.cleanable.ratio": "0.01"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LogbusBroker]:
    with LogbusBroker(tmp_path / "broker", settings=SETTINGS) as running:
        create_topic(running.bootstrap, "latest", config={"cleanup.policy": "compact", "segment.bytes": "200000"})
        yield running


def write(broker: LogbusBroker, *, rounds: range) -> None:
    """Writes every key once per round, compressed and acknowledged."""
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "compression.type": "lz4", "linger.ms": 5}
    )
    for number in rounds:
        for key in range(KEYS):
            producer.produce("latest", key=b"key-%d" % key, value=b"%d " % number + b"x" * (key % 300), partition=0)
        assert producer.flush(PATIENCE_SECONDS) == 0


def cleaned_offset(broker: LogbusBroker) -> int:
    try:
        return int((broker.data / "cleaner-offset-checkpoint").read_text().split()[-1])
    except FileNotFoundError:
        return 0


def newest(broker: LogbusBroker) -> tuple[dict[bytes, int], list[int]]:
    """The round of each key's last value, and all offsets in the order a consumer receives them."""
    messages = read_partition(broker.bootstrap, "latest", 0)
    values = {message.key(): int(message.value().split()[0]) for message in messages}
    return values, [message.offset() for message in messages]


def verify(broker: LogbusBroker) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "logbus_broker", "verify", str(broker.data)],
        cwd=broker.cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_newest_value_of_every_key_survives_compaction_kills_and_restarts(broker: LogbusBroker) -> None:
    last = 0
    for kill in (False, True):
        write(broker, rounds=range(last, last + 40))
        last += 40
        before = cleaned_offset(broker)
        if kill:
            broker.kill9()
            broker.start()
        wait_until(lambda before=before: cleaned_offset(broker) > before, what="the compaction")
        values, offsets = newest(broker)
        assert values == {b"key-%d" % key: last - 1 for key in range(KEYS)}
        assert offsets == sorted(set(offsets))
        assert len(offsets) < last * KEYS
        assert "no faults" in verify(broker)
    broker.restart()
    assert newest(broker)[0] == {b"key-%d" % key: last - 1 for key in range(KEYS)}
