"""cron with logrotate, and a shipper that follows: each line arrives once, whatever is renamed or compressed in the meantime."""

from __future__ import annotations

import gzip
import itertools
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from logbus.shipper.ship import ship
from logbus.waiting import PATIENCE_SECONDS, wait_until

from benchmarks import processes
from tests.support.broker import AnyBroker
from tests.support.topics import create_topic, read_topic

_numbers = itertools.count(1)


@pytest.fixture
def topic(broker: AnyBroker) -> str:
    name = f"rotated-{next(_numbers)}"
    create_topic(broker.bootstrap, name, partitions=1, config={"retention.ms": "-1"})
    return name


def values(broker: AnyBroker, topic: str) -> list[str]:
    found = read_topic(broker.bootstrap, topic).values()
    return sorted((message.value() or b"").decode() for messages in found for message in messages)


class Writer:
    """A program that writes a log, and logrotate for it."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.lines: list[str] = []

    def write(self, count: int) -> None:
        with self.log.open("a") as file:
            for number in range(len(self.lines), len(self.lines) + count):
                self.lines.append(f"2015-05-17T10:{number // 60 % 60:02d}:{number % 60:02d}Z line {number:05d}")
                file.write(f"{self.lines[-1]}\n")

    def rotate(self, name: str = "access.log.1") -> Path:
        return self.log.rename(self.log.with_name(name))

    def copy_and_truncate(self) -> None:
        shutil.copy2(self.log, self.log.with_name(f"{self.log.name}.1"))
        os.truncate(self.log, 0)


def pack(path: Path, ending: str, packed: bytes) -> None:
    """As gzip and its like: the compressed file has the other's time, and then the other goes."""
    other = path.with_name(f"{path.name}.{ending}")
    other.write_bytes(packed)
    shutil.copystat(path, other)
    path.unlink()


@pytest.mark.parametrize(("ending", "compress"), [("gz", gzip.compress), ("xz", lzma.compress)])
def test_a_cron_job_that_names_the_log_alone_reports_the_rotated_files_that_it_sent_too(
    ending: str, compress: Callable[[bytes], bytes], broker: AnyBroker, topic: str, tmp_path: Path
) -> None:
    """tests/unit/logbus/shipper/test_rotation.py plays every order of rotations, without a broker."""
    writer = Writer(tmp_path / "access.log")

    def run() -> tuple[str, ...]:
        config = {"bootstrap.servers": broker.bootstrap}
        state = tmp_path / "state.json"
        return ship([writer.log], topic=topic, client_config=config, state_path=state, accept_times=True).rotated

    writer.write(400)
    assert run() == ()
    writer.write(400)
    older = writer.rotate("access.log.2")
    pack(older, ending, compress(older.read_bytes()))
    writer.write(200)  # written and rotated away between two runs
    newer = writer.rotate()
    writer.write(200)
    assert sorted(run()) == [str(newer), f"{older}.{ending}"]
    assert run() == ()
    assert values(broker, topic) == writer.lines


@contextmanager
def following(broker: AnyBroker, words: list[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "logbus", *words],
        env={**os.environ, "LOGBUS_BOOTSTRAP_SERVER": broker.bootstrap},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def follower(broker: AnyBroker, topic: str, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    state = str(tmp_path / "state.json")
    words = ["ship", "-f", str(tmp_path / "access.log"), "--topic", topic, "--state", state, "--join-lines", "--accept-times"]
    with following(broker, words) as process:
        yield process


def test_a_shipper_that_follows_sends_what_is_written_through_a_rotation_and_keeps_traces_whole(
    broker: AnyBroker, topic: str, tmp_path: Path, follower: subprocess.Popen[str]
) -> None:
    writer = Writer(tmp_path / "access.log")  # does not exist yet when the shipper starts
    writer.write(300)
    with writer.log.open("a") as file:
        file.write("\tat Main.java:7\n\tat Main.java:9\n")
    writer.lines[-1] += "\n\tat Main.java:7\n\tat Main.java:9"
    wait_until(lambda: len(values(broker, topic)) >= 299, what="the lines of three files")
    writer.write(100)
    writer.rotate()
    writer.write(100)
    wait_until(lambda: values(broker, topic) == writer.lines, what="every line")
    follower.send_signal(signal.SIGINT)
    said, _ = follower.communicate(timeout=PATIENCE_SECONDS)
    assert follower.returncode == 130, said
    assert said.endswith("stopped: what was sent is acknowledged and recorded; run it again to continue\n")


def test_a_shipper_that_follows_goes_through_truncation_and_compression(
    broker: AnyBroker, topic: str, tmp_path: Path, follower: subprocess.Popen[str]
) -> None:
    writer = Writer(tmp_path / "access.log")
    writer.write(100)
    wait_until(lambda: len(values(broker, topic)) >= 99, what="the first lines")
    writer.write(50)
    writer.copy_and_truncate()
    writer.write(50)
    wait_until(lambda: len(values(broker, topic)) >= 199, what="the lines of two files")
    writer.write(50)
    dated = writer.rotate("access.log-20150517")
    packed = gzip.compress(dated.read_bytes())
    half = dated.with_name(f"{dated.name}.gz")
    half.write_bytes(packed[: len(packed) // 2])  # gzip is still writing
    writer.write(50)
    wait_until(lambda: len(values(broker, topic)) >= 299, what="the lines of three files")
    pack(dated, "gz", packed)
    writer.write(50)
    wait_until(lambda: values(broker, topic) == writer.lines, what="every line")
    follower.send_signal(signal.SIGINT)
    said, _ = follower.communicate(timeout=PATIENCE_SECONDS)
    assert follower.returncode == 130, said


def test_a_run_that_is_stopped_while_it_looks_back_does_not_claim_that_nothing_is_left(
    broker: AnyBroker, topic: str, tmp_path: Path
) -> None:
    """The state file as a kill leaves it: the next run first looks in the topic for what was sent, which takes two seconds."""
    writer, state, lock = Writer(tmp_path / "access.log"), tmp_path / "state.json", tmp_path / "state.json.lock"
    writer.write(300)
    ship([writer.log], topic=topic, client_config={"bootstrap.servers": broker.bootstrap}, state_path=state, accept_times=True)
    left_behind = json.loads(state.read_text())
    for topic_state in left_behind["topics"].values():
        topic_state |= {"clean": False, "next_offsets": dict.fromkeys(topic_state["next_offsets"], 0)}
        for source in topic_state["sources"]:
            source |= {"position": 0, "last_line": {"position": 0, "length": 0, "digest": ""}, "timestamp_ms": None}
    state.write_text(json.dumps(left_behind))
    lock.unlink()
    writer.write(300)
    processes.pause(broker.pid)  # or it might have looked already
    try:
        with following(broker, ["ship", str(writer.log), "--topic", topic, "--state", str(state), "--accept-times"]) as process:
            wait_until(lock.exists, what="the lock")
            process.send_signal(signal.SIGTERM)
            os.kill(broker.pid, signal.SIGCONT)
            said, _ = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    assert process.returncode == 143, said
    assert "interrupted: what was sent is acknowledged and recorded; run it again to continue" in said
    assert "nothing to send" not in said
