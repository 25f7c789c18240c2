"""Real signals and pipes to the real command: nothing is half done, one line says how far it got, the exit status says why."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import OffsetSpec
from logbus.formatting import many
from logbus.waiting import PATIENCE_SECONDS, wait_until

from tests.support.broker import AnyBroker
from tests.support.commands import Run
from tests.support.topics import offset_of, read_partition

PROGRAM = [sys.executable, "-m", "logbus"]


@contextmanager
def started(broker: AnyBroker, *words: str, **pipes: int) -> Iterator[subprocess.Popen[bytes]]:
    """The command as a separate process, killed at the end of the test."""
    environment = {**os.environ, "LOGBUS_BOOTSTRAP_SERVER": broker.bootstrap}
    wanted = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **pipes}
    process = subprocess.Popen([*PROGRAM, *words], env=environment, **wanted)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Its exit status and its standard error."""
    _, said = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, said.decode()


def stored(broker: AnyBroker, topic: str, count: int) -> None:
    """Waits until `count` records are stored."""
    wait_until(lambda: offset_of(broker.bootstrap, topic, 0, OffsetSpec.latest()) >= count, what="the stored records")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_producer_that_waits_for_input_ends_with_everything_stored(
    broker: AnyBroker, new_topic: str, number: signal.Signals, status: int
) -> None:
    with started(broker, "produce", new_topic) as producer:
        assert producer.stdin is not None
        producer.stdin.write(b"one\ntwo\nhalf a li")
        producer.stdin.flush()
        stored(broker, new_topic, 2)
        producer.send_signal(number)
        code, said = ended(producer)
    assert (code, said) == (status, f"interrupted: 2 records stored in topic {new_topic}\n")
    assert [message.value() for message in read_partition(broker.bootstrap, new_topic)] == [b"one", b"two"]


def test_a_producer_in_full_flight_says_exactly_how_many_are_stored(broker: AnyBroker, new_topic: str, tmp_path: Path) -> None:
    endless = tmp_path / "lines"
    endless.write_bytes(b"".join(b"%09d\n" % number for number in range(1_000_000)))
    with started(broker, "produce", new_topic, str(endless)) as producer:
        stored(broker, new_topic, 1000)
        producer.send_signal(signal.SIGINT)
        code, said = ended(producer)
    found = read_partition(broker.bootstrap, new_topic)
    assert (code, said) == (130, f"interrupted: {len(found):,} records stored in topic {new_topic}\n")
    assert [int(message.value() or b"") for message in found] == list(range(len(found)))


def test_a_follower_ends_in_order_and_its_group_goes_on_behind_the_last_line(run: Run, broker: AnyBroker, new_topic: str) -> None:
    run("produce", new_topic, stdin="a\nb\n")
    with started(broker, "consume", new_topic, "-f", "-G", f"group-of-{new_topic}") as reader:
        assert reader.stdout is not None
        assert [reader.stdout.readline(), reader.stdout.readline()] == [b"a\n", b"b\n"]
        reader.send_signal(signal.SIGINT)
        assert ended(reader) == (130, "interrupted: 2 records printed\n")
    run("produce", new_topic, stdin="c\n")
    assert run("consume", new_topic, "-G", f"group-of-{new_topic}").stdout == "c\n"


def test_a_reader_that_goes_away_is_no_error_to_tell(run: Run, broker: AnyBroker, new_topic: str) -> None:
    run("produce", new_topic, stdin="".join(f"{'x' * 100} {number}\n" for number in range(20_000)))
    with started(broker, "consume", new_topic, "-G", "leaving") as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        reader.stdout.close()
        code = reader.wait(PATIENCE_SECONDS)
        assert reader.stderr is not None
        assert (code, reader.stderr.read()) == (141, b"")
    # Records that were not written to the pipe are not committed: the group reads them again.
    again = run("consume", new_topic, "-G", "leaving").stdout.splitlines()
    assert again[-1].endswith(" 19999")
    for words in (("--help",), ("topic", "ls")):
        with started(broker, *words, stdout=closed_pipe()) as program:
            assert ended(program) == (141, "")


def test_output_that_cannot_be_written_is_one_line(broker: AnyBroker, topic: str) -> None:
    for words in (("--help",), ("topic", "ls"), ("topic", "ls", "-o", "json")):
        with open("/dev/full", "wb") as full, started(broker, *words, stdout=full.fileno()) as program:
            assert ended(program) == (1, "error: No space left on device\n")


def test_a_command_whose_output_is_closed_does_its_work(run: Run, broker: AnyBroker, topic: str) -> None:
    command = " ".join(shlex.quote(word) for word in (*PROGRAM, "topic", "create", topic, "-b", broker.bootstrap))
    assert subprocess.run(["/bin/sh", "-c", f"{command} >&- 2>&-"], check=False).returncode == 0
    assert topic in run("topic", "ls").stdout


def closed_pipe() -> int:
    """A pipe whose read end is closed."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def test_a_shipment_that_is_stopped_goes_on_where_it_was(run: Run, broker: AnyBroker, topic: str, tmp_path: Path) -> None:
    log, state = tmp_path / "access.log", tmp_path / "state.json"
    log.write_bytes(b"".join(b"2015-05-17T10:00:00Z line %07d\n" % number for number in range(200_000)))
    words = ("ship", str(log), "--topic", topic, "--partitions", "1", "--accept-times", "--state", str(state))
    run("topic", "create", topic, "--partitions", "1", "--config", "retention.ms=-1")
    with started(broker, *words) as ship:
        wait_until(lambda: state.exists() and clean(state) == [False], what="the start of the shipping")  # it has started
        ship.send_signal(signal.SIGINT)
        code, said = ended(ship)
    first = len(read_partition(broker.bootstrap, topic))
    assert code == 130
    assert said.endswith("interrupted: what was sent is acknowledged and recorded; run it again to continue\n")
    assert f"{topic} at {broker.bootstrap}: {many(first, 'line')} (" in said
    assert clean(state) == [True]
    assert f": {many(200_000 - first, 'line')} (" in run(*words).stdout
    numbers = [int((message.value() or b"").rsplit(b" ", 1)[1]) for message in read_partition(broker.bootstrap, topic)]
    assert numbers == list(range(200_000))


def clean(state: Path) -> list[bool]:
    """For each topic in the state file, whether its last run ended cleanly."""
    return [topic["clean"] for topic in json.loads(state.read_text())["topics"].values()]
