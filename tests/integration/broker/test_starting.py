"""Starting where the broker cannot, and stopping: each refusal is one line that says what to do, and nothing is touched."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from logbus.waiting import PATIENCE_SECONDS
from logbus_broker.errors import StartupError
from logbus_broker.network.acceptor import bind
from logbus_broker.setting_parsers import Listener

from benchmarks.processes import free_port
from tests.support.broker import LogbusBroker
from tests.support.scraping import metrics_settings
from tests.support.topics import create_topic, offset_of, read_partition


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[LogbusBroker]:
    with LogbusBroker(tmp_path / "broker") as running:
        yield running


def refusal(broker: LogbusBroker) -> str:
    """The message of a broker that cannot start."""
    done = subprocess.run(broker.command(), capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode != 0, "it started"
    assert "Traceback" not in done.stderr, done.stderr
    return [line for line in done.stderr.splitlines() if line.startswith("error: ")][-1]


def contents(directory: Path) -> dict[str, bytes]:
    """Every file except the lock, which names the last process that tried."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file() and path.name != ".lock"}


def test_a_port_in_use_is_named(ours: LogbusBroker, tmp_path: Path) -> None:
    said = refusal(LogbusBroker(tmp_path / "second", settings={"listeners": f"PLAINTEXT://127.0.0.1:{ours.port}"}))
    assert str(ours.port) in said
    assert "in use" in said


def test_a_data_directory_in_use_is_named(ours: LogbusBroker, tmp_path: Path) -> None:
    said = refusal(LogbusBroker(tmp_path / "second", settings={"log.dirs": str(ours.data)}))
    assert str(ours.data) in said
    assert str(ours.pid) in said


def test_a_data_directory_of_another_broker_is_refused_untouched(ours: LogbusBroker, tmp_path: Path) -> None:
    ours.stop()
    before = contents(ours.data)
    said = refusal(LogbusBroker(tmp_path / "second", settings={"log.dirs": str(ours.data), "broker.id": "7"}))
    assert str(ours.data) in said
    assert "7" in said
    assert contents(ours.data) == before


@pytest.mark.parametrize(
    ("name", "value"),
    [("logbus.partition.max", "1"), ("num.partitions", "many"), ("listeners", "SSL://127.0.0.1:9093"), ("log.dirs", "/proc/x")],
)
def test_a_setting_that_cannot_be_used_is_named(tmp_path: Path, name: str, value: str) -> None:
    said = refusal(LogbusBroker(tmp_path / "broker", settings={name: value}))
    assert name in said or value in said


def test_everything_is_there_after_an_orderly_stop(ours: LogbusBroker) -> None:
    create_topic(ours.bootstrap, "kept", partitions=2)
    producer = Producer({"bootstrap.servers": ours.bootstrap})
    for number in range(1000):
        producer.produce("kept", b"%d" % number, partition=0)
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert ours.stop() == 0
    ours.start()
    assert [message.value() for message in read_partition(ours.bootstrap, "kept")] == [b"%d" % number for number in range(1000)]
    assert read_partition(ours.bootstrap, "kept", 1) == []


def test_an_index_that_is_missing_or_wrong_is_made_again(ours: LogbusBroker) -> None:
    from confluent_kafka.admin import OffsetSpec

    create_topic(ours.bootstrap, "indexed")
    producer = Producer({"bootstrap.servers": ours.bootstrap, "linger.ms": 0, "batch.size": 1000})
    for number in range(2000):
        producer.produce("indexed", b"x" * 50, partition=0, timestamp=1_000_000 + number)
    assert producer.flush(PATIENCE_SECONDS) == 0
    ours.stop()
    directory = ours.data / "indexed-0"
    for damaged in (*directory.glob("*.index"), *directory.glob("*.timeindex")):
        damaged.write_bytes(b"\x7f" * 64)
    ours.start()
    assert offset_of(ours.bootstrap, "indexed", 0, OffsetSpec.for_timestamp(1_001_234)) == 1234
    assert read_partition(ours.bootstrap, "indexed", offset=1500)[0].offset() == 1500


def test_a_broker_that_everybody_can_reach_starts_only_with_the_words(tmp_path: Path) -> None:
    open_to_all = LogbusBroker(tmp_path / "open", settings=metrics_settings())
    open_to_all.settings["listeners"] = f"PLAINTEXT://0.0.0.0:{open_to_all.port}"
    open_to_all.settings["advertised.listeners"] = f"PLAINTEXT://{open_to_all.bootstrap}"
    said = refusal(open_to_all)
    assert f"set listeners=PLAINTEXT://127.0.0.1:{open_to_all.port}" in said
    assert not open_to_all.data.exists(), "nothing was made"
    open_to_all.settings |= {"logbus.allow.unauthenticated": "true"}
    with open_to_all:
        create_topic(open_to_all.bootstrap, "reachable")
    assert open_to_all.log_path.read_text().count("no authentication") == 1, "metrics are on loopback"


def test_a_port_stays_a_brokers_own_while_it_is_down(ours: LogbusBroker) -> None:
    ours.kill9()
    with socket.socket() as somebody, pytest.raises(OSError, match="in use"):
        somebody.bind(("127.0.0.1", ours.port))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", ours.port))
    ours.start()
    create_topic(ours.bootstrap, "after")


def test_every_listener_serves(tmp_path: Path) -> None:
    broker = LogbusBroker(tmp_path / "broker")
    other = free_port()
    broker.settings["listeners"] = f"PLAINTEXT://127.0.0.1:{broker.port},INTERNAL://[::1]:{broker.port},ALL://:{other}"
    broker.settings["advertised.listeners"] = (
        f"PLAINTEXT://127.0.0.1:{broker.port},INTERNAL://[::1]:{broker.port},ALL://localhost:{other}"
    )
    broker.settings["listener.security.protocol.map"] = "INTERNAL:PLAINTEXT,ALL:PLAINTEXT"
    broker.settings["logbus.allow.unauthenticated"] = "true"
    with broker:
        for number, port in enumerate((broker.port, broker.port, other, other)):
            create_topic(f"{'[::1]' if number % 2 else '127.0.0.1'}:{port}", f"through-{number}")
        with socket.create_connection(("127.0.0.1", other)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1")
            assert not stranger.recv(1)
    assert "peer=127.0.0.1:" in broker.log_path.read_text(), "not ::ffff:127.0.0.1"
    assert f"INTERNAL://[::1]:{broker.port}" in broker.log_path.read_text()


def test_a_name_that_has_an_ipv6_address_alone_can_be_listened_on() -> None:
    row = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0))
    with bind(Listener(host="six.example", port=0), resolve=lambda *_, **__: [row]) as sock:
        assert sock.getsockname()[0] == "::1"
    with pytest.raises(StartupError, match="cannot listen on A://no.such.invalid:0: .*; name an address of this machine"):
        bind(Listener(host="no.such.invalid", port=0, name="A"))
