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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from logbus.shipper.ship import ShipReport, ship
from logbus.waiting import PATIENCE_SECONDS, wait_until

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


PACKERS = {"gz": gzip.compress, "xz": lzma.compress}


class Writer:
    """A program that writes a log, and logrotate for it."""

    def __init__(self, log: Path, *, appends: bool = True, ending: str = "gz") -> None:
        self.log = log
        self.lines: list[str] = []
        self.ending = ending
        self.offset = None if appends else 0  # where a program that does not append writes on, whatever was truncated

    def write(self, count: int) -> None:
        if self.offset is not None:
            self.log.touch()
        with self.log.open("a" if self.offset is None else "r+") as file:
            file.seek(self.offset or 0)
            for _ in range(count):
                number = len(self.lines)
                self.lines.append(f"2015-05-17T10:{number // 60 % 60:02d}:{number % 60:02d}Z line {number:05d}")
                file.write(f"{self.lines[-1]}\n")
            self.offset = None if self.offset is None else file.tell()

    def rotate(self, *, compress: bool = False) -> None:
        """access.log becomes .1, .1 becomes .2 (compressed, as with logrotate's delaycompress), and so on."""
        for number in (3, 2, 1):
            for ending in ("", f".{self.ending}"):
                old = self.log.with_name(f"{self.log.name}.{number}{ending}")
                if old.exists():
                    old.rename(old.with_name(f"{self.log.name}.{number + 1}{ending}"))
        second = self.log.with_name(f"{self.log.name}.2")
        if compress and second.exists():
            status = second.stat()
            packed = second.with_name(f"{second.name}.{self.ending}")
            packed.write_bytes(PACKERS[self.ending](second.read_bytes()))
            os.utime(packed, ns=(status.st_atime_ns, status.st_mtime_ns))
            second.unlink()
        self.log.rename(self.log.with_name(f"{self.log.name}.1"))

    def rotate_by_date(self) -> Path:
        """logrotate's dateext; compressing the file with gzip is a separate, later step."""
        dated = self.log.with_name(f"{self.log.name}-20150517")
        self.log.rename(dated)
        return dated

    def copy_and_truncate(self) -> None:
        shutil.copy2(self.log, self.log.with_name(f"{self.log.name}.1"))
        with self.log.open("r+b") as file:
            file.truncate()


@pytest.mark.parametrize("ending", PACKERS)
def test_a_cron_job_that_names_the_log_alone_loses_nothing_over_rotations(
    ending: str, broker: AnyBroker, topic: str, tmp_path: Path
) -> None:
    writer = Writer(tmp_path / "access.log", ending=ending)

    def run() -> ShipReport:
        config = {"bootstrap.servers": broker.bootstrap}
        return ship([writer.log], topic=topic, client_config=config, state_path=tmp_path / "state.json", accept_times=True)

    writer.write(400)
    assert run().rotated == ()
    writer.write(400)
    writer.rotate()
    writer.write(400)
    assert run().rotated == (f"{writer.log}.1",)
    writer.write(400)
    writer.rotate(compress=True)
    writer.write(200)  # written and rotated away between two runs
    writer.rotate(compress=True)
    writer.write(200)
    done = run()
    assert sorted(Path(name).name for name in done.rotated) == ["access.log.1", f"access.log.2.{ending}"]
    assert run().lines == 0
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
    dated = writer.rotate_by_date()
    packed = gzip.compress(dated.read_bytes())
    half = dated.with_name(f"{dated.name}.gz")
    half.write_bytes(packed[: len(packed) // 2])  # gzip is still writing
    writer.write(50)
    wait_until(lambda: len(values(broker, topic)) >= 299, what="the lines of three files")
    half.write_bytes(packed)
    os.utime(half, ns=(dated.stat().st_atime_ns, dated.stat().st_mtime_ns))
    dated.unlink()
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
    os.kill(broker.pid, signal.SIGSTOP)  # or it might have looked already
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
