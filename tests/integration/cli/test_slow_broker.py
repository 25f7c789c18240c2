"""A broker that is stopped for a while, like one on a machine that swaps: every command waits for it, says so, and succeeds."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest
from logbus import waiting
from logbus.kafka import client
from logbus.shipper import shipment

from benchmarks import processes
from tests.support.broker import AnyBroker
from tests.support.commands import Run

LIMIT_SECONDS = 0.5  # for a broker that is away
SENTENCES = 2  # the second comes when the limit has passed


@contextmanager
def stopped(broker: AnyBroker, until: Event) -> Iterator[None]:
    """The kernel goes on accepting connections for it; nothing is answered until it continues."""

    def go_on() -> None:
        until.wait(waiting.PATIENCE_SECONDS)
        os.kill(broker.pid, signal.SIGCONT)

    processes.pause(broker.pid)
    continuing = Thread(target=go_on)
    continuing.start()
    try:
        yield
    finally:
        until.set()
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
    for module in (client, shipment):
        monkeypatch.setattr(module, "ANSWER_SECONDS_MAX", LIMIT_SECONDS)
    monkeypatch.setattr(waiting, "SILENCE_SECONDS_MAX", LIMIT_SECONDS)
    sentences: list[str] = []
    enough = Event()

    def counted(what: str, say: waiting.Say, over: Event) -> None:
        def say_and_count(text: str) -> None:
            say(text)
            sentences.append(text)
            if len(sentences) == SENTENCES:
                enough.set()

        announce(what, say_and_count, over)

    announce = waiting._announce
    monkeypatch.setattr(waiting, "_announce", counted)
    words = words.replace("TOPIC", new_topic).replace("LOG", str(log)).replace("STATE", str(tmp_path / "state"))
    with stopped(broker, until=enough):
        found = run(*words.split(), stdin="two\n")
    assert f"waiting for the broker at {broker.bootstrap}: " in found.stderr
