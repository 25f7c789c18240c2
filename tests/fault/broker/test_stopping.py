"""SIGTERM under load: what was acknowledged is flushed, the stop is clean and quick, and the next start recovers nothing."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from logbus.waiting import wait_until
from logbus_broker.protocol.api import ApiKey

from tests.support.batches import plain_batch
from tests.support.broker import LogbusBroker
from tests.support.killing import PARTITIONS, Sender
from tests.support.raw_client import Closed, RawClient
from tests.support.topics import create_topic, read_topic
from tests.support.wire import Wanted, fetch_body, produce_answer, produce_body


@pytest.mark.parametrize(
    ("waits", "in_kernel"),
    [("false", "true"), ("true", "true"), ("true", "false")],
    ids=["not waiting", "for the kernel", "for threads"],
)
def test_a_stop_under_load_keeps_all_that_was_acknowledged_and_the_next_start_recovers_nothing(
    tmp_path: Path, waits: str, in_kernel: str
) -> None:
    settings = {"log.segment.bytes": "300000", "logbus.acks.all.waits.for.flush": waits, "logbus.flush.in.kernel": in_kernel}
    with LogbusBroker(tmp_path / "broker", settings=settings) as broker:
        create_topic(broker.bootstrap, "stopped", partitions=PARTITIONS)
        with Sender(broker.bootstrap, "stopped") as sender, RawClient(broker.bootstrap) as reader:
            reader.send_request(
                ApiKey.FETCH,
                12,
                bytes(fetch_body(Wanted(topic="stopped", offset=0), wait_ms=60_000, bytes_min=1 << 30)),
                flexible=True,
            )
            for _ in range(3):
                target = len(sender.acknowledged) + 1_000
                wait_until(lambda: len(sender.acknowledged) >= target, what="the next acknowledged records")  # noqa: B023
                assert broker.stop() == 0, "SIGTERM is an orderly end, within the grace of processes.stop"
                broker.start()
        stored = read_topic(broker.bootstrap, "stopped")
    assert not sender.failures
    for partition, messages in stored.items():
        assert [message.value() for message in messages] == sender.sent[partition]
    log = broker.log_path.read_text()
    assert "torn" not in log
    assert log.count("stopped") >= 4
    assert "the next start will recover" not in log


def test_a_client_that_never_reads_cannot_hold_up_the_stop(tmp_path: Path) -> None:
    with LogbusBroker(tmp_path / "broker") as broker:
        create_topic(broker.bootstrap, "wide", partitions=500)
        body = struct.pack(">ih4sb", 1, 4, b"wide", 0)
        with RawClient(broker.bootstrap) as deaf, RawClient(broker.bootstrap) as honest:
            for _ in range(200):
                deaf.send_request(ApiKey.METADATA, 4, body, flexible=False)
            produce = bytes(produce_body({("wide", 0): bytes(plain_batch(3))}))
            assert produce_answer(honest.request(ApiKey.PRODUCE, 9, produce, flexible=True))["wide", 0].error_code == 0
            assert broker.stop() == 0
            with pytest.raises((Closed, OSError)):
                honest.request(ApiKey.PRODUCE, 9, produce, flexible=True)


@pytest.fixture(params=[signal.SIG_DFL, signal.SIG_IGN], ids=["from a terminal", "under nohup"])
def is_ignored(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether programs that are started now ignore SIGHUP from the beginning."""
    former = signal.signal(signal.SIGHUP, request.param)
    yield request.param == signal.SIG_IGN
    signal.signal(signal.SIGHUP, former)


def test_a_closed_terminal_is_a_clean_stop_except_under_nohup(tmp_path: Path, is_ignored: bool) -> None:
    with LogbusBroker(tmp_path / "broker") as broker:
        create_topic(broker.bootstrap, "before")
        os.kill(broker.pid, signal.SIGHUP)
        if is_ignored:
            create_topic(broker.bootstrap, "after")
        else:
            wait_until(lambda: not broker.alive, what="the end of the broker")
        assert broker.stop() == 0
        assert (broker.data / ".kafka_cleanshutdown").exists()
