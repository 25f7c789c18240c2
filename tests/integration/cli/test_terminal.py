"""What users see on a terminal: tables that fit it, records that cannot alter it, a progress bar while they wait."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from logbus.waiting import PATIENCE_SECONDS, wait_until

from tests.support.broker import AnyBroker
from tests.support.commands import Run


def on_terminal(broker: AnyBroker, *words: str, columns: int = 100, is_error: bool = False) -> str:
    """What the command writes to a terminal of `columns` columns, as its standard output or only as its standard error."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    environment |= {"LOGBUS_BOOTSTRAP_SERVER": broker.bootstrap, "TERM": "xterm"}
    outputs = {"stdout": subprocess.DEVNULL, "stderr": theirs} if is_error else {"stdout": theirs, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(
        [sys.executable, "-m", "logbus", *words], env=environment, stdin=subprocess.DEVNULL, **outputs
    ) as process:
        os.close(theirs)
        written = b"".join(iter(lambda: read(ours), b""))
        assert process.wait(PATIENCE_SECONDS) == 0
    os.close(ours)
    return written.decode()


def read(terminal: int) -> bytes:
    """Empty once the other side has closed it."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def test_a_table_fits_the_terminal_and_a_narrow_one_gets_lines(broker: AnyBroker, new_topic: str) -> None:
    wide = on_terminal(broker, "topic", "ls")
    assert all(name in wide for name in ("topic", "partitions", "replicas", new_topic))
    narrow = on_terminal(broker, "topic", "ls", columns=30)
    assert f"topic: {new_topic}" in narrow.replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert max(map(len, narrow.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines())) <= 30


def test_a_record_cannot_change_the_terminal(run: Run, broker: AnyBroker, new_topic: str) -> None:
    run("produce", new_topic, stdin=b"\x1b]0;owned\x07red\n")
    assert on_terminal(broker, "consume", new_topic) == "\\x1b]0;owned\\x07red\r\n"
    assert run("consume", new_topic).stdout_bytes == b"\x1b]0;owned\x07red\n"


# What a peer can choose, and what it would do: the title set, colours, a line of its own, and the same in one character (C1).
OWNED = "\x1b]0;owned\x07\x9b31mred\nrow"
OUR_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
COMMANDING = re.compile(r"[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f]")


@pytest.fixture
def owned_group(broker: AnyBroker, new_topic: str) -> Iterator[str]:
    """A group whose name is `OWNED`, as is its member's, which has committed with such a text."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(new_topic, OWNED, key=OWNED, headers={OWNED: OWNED})
    assert producer.flush(PATIENCE_SECONDS) == 0
    names = {"group.id": OWNED, "client.id": OWNED}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, **names, "auto.offset.reset": "earliest"})
    consumer.subscribe([new_topic])
    wait_until(lambda: consumer.poll(1.0) is not None, what="a record")
    consumer.commit(offsets=[TopicPartition(new_topic, 0, 1, OWNED)], asynchronous=False)
    yield new_topic
    consumer.close()


def test_nothing_that_a_peer_has_named_commands_the_terminal_of_any_command(broker: AnyBroker, owned_group: str) -> None:
    by_offset = ("consume", owned_group, "-o", "beginning", "-e")
    for words in (
        ("group", "ls"),
        ("group", "describe", OWNED, "--members"),
        ("group", "offsets", OWNED, "-o", "json"),
        (*by_offset, "-o", "json"),
        (*by_offset, "-o", "table"),
        (*by_offset, "--format", "%k %h %s\\n"),
    ):
        said = OUR_COLOURS.sub("", on_terminal(broker, *words, columns=200))
        assert "owned" in said, words
        assert COMMANDING.findall(said) == [], words


def test_a_bar_moves_while_files_are_sent_and_is_gone_behind(broker: AnyBroker, new_topic: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"line\n" * 50_000)
    said = on_terminal(broker, "produce", new_topic, str(tmp_path / "lines"), is_error=True)
    assert "━" in said
    assert said.endswith(f"{new_topic}: 50,000 records stored\r\n")
