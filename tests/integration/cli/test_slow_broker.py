"""A broker that is stopped for a while, like one on a machine that swaps: every command waits for it, says so, and succeeds."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import pytest
from logbus import waiting
from logbus.kafka import client
from logbus.shipper import topic_client

from tests.support.broker import AnyBroker
from tests.support.commands import Run

LIMIT_SECONDS = 0.5  # for a broker that is away
STOPPED_SECONDS = 1.5


@contextmanager
def stopped(broker: AnyBroker) -> Iterator[None]:
    """The kernel goes on accepting connections for it; nothing is answered until it continues."""
    os.kill(broker.pid, signal.SIGSTOP)
    continuing = Timer(STOPPED_SECONDS, os.kill, (broker.pid, signal.SIGCONT))
    continuing.start()
    try:
        yield
    finally:
        continuing.join()


@pytest.mark.parametrize(
    "words",
    [
        *("topic ls", "topic create TOPIC-2", "group ls", "cluster", "produce TOPIC", "consume TOPIC"),
        *("ship LOG --topic TOPIC --state STATE", "lag --pipeline p", "window ls --pipeline p", "retention plan"),
    ],
)
def test_a_broker_that_answers_late_ends_no_command(
    run: Run, broker: AnyBroker, new_topic: str, warehouse_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setenv("LOGBUS_WAREHOUSE_URL", warehouse_url)
    log = tmp_path / "access.log"
    log.write_text("2026-11-24T10:00:00Z started\n")
    run("produce", new_topic, stdin="one\n")
    run("pipeline", "register", "p", "--topic", new_topic, "--table", "t", "--parse", "lines")
    for module in (client, topic_client):
        monkeypatch.setattr(module, "ANSWER_SECONDS_MAX", LIMIT_SECONDS)
    monkeypatch.setattr(waiting, "SILENCE_SECONDS_MAX", LIMIT_SECONDS)
    words = words.replace("TOPIC", new_topic).replace("LOG", str(log)).replace("STATE", str(tmp_path / "state"))
    with stopped(broker):
        found = run(*words.split(), stdin="two\n")
    assert f"waiting for the broker at {broker.bootstrap}: " in found.stderr
