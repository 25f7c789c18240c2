"""Other shippers, configured as docs/shippers.md shows, under which the broker is killed: every line is in the topic."""

from __future__ import annotations

import os
import re
import socket
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path

import pytest
from confluent_kafka import Message
from logbus.parsing import parser_for
from logbus.waiting import wait_until

from benchmarks import processes
from benchmarks.peers.logbus import LogbusBroker
from tests.support import pages, programs, topics

BLOCKS = {block.file_name("shipper"): block.text for block in pages.blocks(pages.PROJECT / "docs" / "shippers.md")}
DIRECTORIES = re.compile(r"/var/(?:log|spool/[\w-]+)")
COLLECTOR_BUILD_SECONDS_MAX = 3_600
NUMBER = re.compile(rb"line (\d+)")


def rsyslog(configuration: Path) -> list[str]:
    program = programs.program_or_skip("rsyslogd")
    return [program, "-n", "-iNONE", "-M", unpacked("usr/lib/*/rsyslog"), "-f", str(configuration)]


def syslog_ng(configuration: Path) -> list[str]:
    program = programs.program_or_skip("syslog-ng")
    own_files = [f"--{name}={configuration.with_suffix('.' + name)}" for name in ("persist-file", "control", "pidfile")]
    return [program, "-F", "--stderr", f"--module-path={unpacked('usr/lib/syslog-ng/*.*')}", *own_files, "-f", str(configuration)]


def collector(configuration: Path) -> list[str]:
    """Built where `go` keeps what it built: minutes at first, a second later."""
    program, source = configuration.with_name("otelcol"), pages.PROJECT / "tests" / "support" / "collector"
    build = [programs.program_or_skip("go"), "build", "-o", str(program), "."]
    built = processes.run(build, cwd=source, seconds_max=COLLECTOR_BUILD_SECONDS_MAX)
    assert built.returncode == 0, built.stderr
    without_port = configuration.with_name("without-port.yaml")
    without_port.write_text("service: {telemetry: {metrics: {level: none}}}")  # else it listens on 8888
    return [str(program), f"--config={configuration}", f"--config={without_port}"]


def unpacked(pattern: str) -> str:
    return str(next(programs.UNPACKED.glob(pattern), ""))


COMMANDS = {
    "rsyslog.conf": rsyslog,
    "rsyslog-network.conf": rsyslog,
    "syslog-ng.conf": syslog_ng,
    "collector.yaml": collector,
}
COLLECTOR = pytest.param("collector.yaml", marks=pytest.mark.long)  # it is compiled: hundreds of packages


class Shipper:
    """One of them as a process, with the log that it reads and the topic `app` that it writes."""

    def __init__(self, name: str, directory: Path, broker: LogbusBroker) -> None:
        self.name = name
        self._broker = broker
        self._directory = directory
        self._output = directory / "shipper.out"
        self._log = directory / "var" / "log" / "app.log"
        self.lines = 0
        for used in DIRECTORIES.findall(BLOCKS[name]):
            Path(f"{directory}{used}").mkdir(parents=True, exist_ok=True)
        configuration = directory / name
        self.port = processes.free_port()
        places = {"127.0.0.1:9092": broker.bootstrap, "/var/": f"{directory}/var/", 'port="514"': f'port="{self.port}"'}
        configuration.write_text(reduce(lambda text, place: text.replace(*place), places.items(), BLOCKS[name]))
        self._command = COMMANDS[name](configuration)
        topics.create_topic(broker.bootstrap, "app", partitions=3)

    def start(self) -> None:
        libraries = [unpacked(pattern) for pattern in ("usr/lib/*-linux-*", "lib/*-linux-*", "usr/lib/syslog-ng")]
        environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(libraries)}
        self._process = processes.start(self._command, log_path=self._output, env=environment, cwd=self._directory)

    def wait_until_listening(self) -> None:
        processes.wait_until_listening(self.port, self._process, log_path=self._output)

    def kill9(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        return processes.stop(self._process)

    def write(self, count: int) -> None:
        with self._log.open("a") as log:
            log.writelines(f"line {number:06d}\n" for number in range(self.lines, self.lines + count))
        self.lines += count

    def messages(self) -> list[Message]:
        return [message for partition in topics.read_topic(self._broker.bootstrap, "app").values() for message in partition]

    def stored(self) -> Counter[int]:
        """How often each line is in the topic."""
        numbers = [NUMBER.search(message.value() or b"") for message in self.messages()]
        return Counter(int(number[1]) for number in numbers if number is not None)

    def wait_until_stored(self, count: int) -> None:
        def are_stored() -> bool:
            assert self._process.poll() is None, processes.tail(self._output)
            return len(self.stored()) >= count

        wait_until(are_stored, what=f"{count} lines in the topic")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LogbusBroker]:
    with LogbusBroker(tmp_path / "broker") as running:
        yield running


@pytest.fixture
def shipper(request: pytest.FixtureRequest, broker: LogbusBroker, tmp_path: Path) -> Iterator[Shipper]:
    """Not started; whatever still runs of it after the test is killed."""
    prepared = Shipper(request.param, tmp_path, broker)
    yield prepared
    prepared.kill9()


@pytest.mark.parametrize("shipper", ["rsyslog.conf", "syslog-ng.conf", COLLECTOR], indirect=True)
def test_a_killed_broker_costs_no_line(shipper: Shipper, broker: LogbusBroker) -> None:
    shipper.write(1_000)
    shipper.start()
    shipper.wait_until_stored(1)
    shipper.write(2_000)
    broker.kill9()
    shipper.write(1_000)
    broker.start()
    shipper.write(1_000)
    shipper.wait_until_stored(5_000)
    assert shipper.stop() == 0
    if shipper.name != "collector.yaml":  # which sends a batch again that was sent in part
        assert set(shipper.stored().values()) == {1}


@pytest.mark.parametrize("shipper", ["rsyslog.conf", COLLECTOR], indirect=True)
def test_a_shipper_killed_with_its_broker_sends_every_line_at_least_once(shipper: Shipper, broker: LogbusBroker) -> None:
    shipper.write(1_000)
    shipper.start()
    shipper.wait_until_stored(1)
    broker.kill9()
    shipper.write(1_000)
    shipper.kill9()
    shipper.write(500)
    broker.start()
    shipper.start()
    shipper.wait_until_stored(2_500)
    assert len(shipper.stored()) == 2_500, "none that was not written"


@pytest.mark.parametrize("shipper", ["rsyslog-network.conf"], indirect=True)
def test_a_message_from_the_network_keeps_its_own_time_and_host(shipper: Shipper) -> None:
    shipper.start()
    shipper.wait_until_listening()
    with socket.create_connection(("127.0.0.1", shipper.port)) as sending:
        sending.sendall(b"<165>1 2015-05-17T12:05:03.123456+02:00 web1 app 7 - - line 1\n")
        shipper.wait_until_stored(1)
    (message,) = shipper.messages()
    syslog = parser_for("syslog", {})
    row = dict(zip(syslog.columns, syslog.parse(message.value() or b""), strict=True))
    assert (message.key(), message.timestamp()[1]) == (b"web1", datetime(2015, 5, 17, 10, 5, 3, tzinfo=UTC).timestamp() * 1_000)
    assert (row["host"], row["program"], row["message"]) == ("web1", "app", "line 1")
