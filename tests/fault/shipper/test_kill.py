"""kill -9 of the shipper in the middle of a run, and of the broker under it: every line ends up in the topic once."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka.admin import OffsetSpec
from logbus.loads.read_tally import Numbers, count_sent
from logbus.shipper.ship import ShipReport, ship
from logbus.shipper.shipment import TopicClient
from logbus.waiting import PATIENCE_SECONDS, wait_until

from benchmarks import processes
from tests.support.broker import AnyBroker, LogbusBroker, any_broker
from tests.support.topics import create_topic, offset_of, read_partition

KILLS = 4
LINES_EACH_ROUND = 30_000
CHECKPOINT_LINES = 4_000
# It dies after a line of our choice, with what it has handed to its client still in flight: killing it from outside would come
# too late for a quick run.
PROGRAM = """
import itertools, json, os, signal, sys
from logbus.shipper.ship import ship
ask, lines = json.loads(sys.argv[1]), itertools.count(1)

def stop():
    if next(lines) == ask["last_line"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return False

ship(
    ask["files"], topic="shipped", client_config=ask["client"], state_path=ask["state"], checkpoint_lines=ask["checkpoint"], stop=stop,
    accept_times=True,
)
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[AnyBroker]:
    with any_broker(tmp_path / "broker") as running:
        yield running


def append_lines(log: Path, first: int, count: int, *, is_cut: bool = False) -> None:
    """`is_cut`: every second line in two pieces, with the next line between them, as a container runtime writes them."""
    with log.open("a") as file, log.with_suffix(".whole").open("a") as whole:
        for number in range(first, first + count, 2):
            before, after = f"line {number:08d} ", f"of {log.name}\n"
            time, second = f"2015-05-17T10:00:00.{number:08d}Z", f"2015-05-17T10:00:00.{number + 1:08d}Z stderr F {before}{after}"
            lines = [f"{time} stdout F {before}{after}", second]
            whole.writelines(lines)
            file.writelines([f"{time} stdout P {before}\n", second, f"{time} stdout F {after}"] if is_cut else lines)


def start_shipping(broker: AnyBroker, files: list[Path], state: Path, last_line: int = -1) -> subprocess.Popen[bytes]:
    ask = {
        "files": [str(file) for file in files],
        "client": {"bootstrap.servers": broker.bootstrap},
        "state": str(state),
        "checkpoint": CHECKPOINT_LINES,
        "last_line": last_line,
    }
    return processes.start([sys.executable, "-c", PROGRAM, json.dumps(ask)], log_path=state.with_suffix(".out"))


def finish_shipping(broker: AnyBroker, files: list[Path], state: Path) -> ShipReport:
    config = {"bootstrap.servers": broker.bootstrap}
    return ship(files, topic="shipped", client_config=config, state_path=state, accept_times=True)


def stored(broker: AnyBroker) -> int:
    return sum(offset_of(broker.bootstrap, "shipped", partition, OffsetSpec.latest()) for partition in range(2))


def assert_each_line_once_and_in_order(broker: AnyBroker, files: list[Path]) -> None:
    """Nor is a number missing or twice, as an audit of producers' counts finds it: a killed run's numbers end where it was killed,
    with no gap before that."""
    sent: dict[str, Numbers] = {}
    lines: list[bytes] = []
    for partition in range(2):
        messages = read_partition(broker.bootstrap, "shipped", partition)
        values = [message.value() or b"" for message in messages]
        for file in files:
            of_file = [value for value in values if value.endswith(file.name.encode())]
            assert of_file == sorted(of_file)
        lines += values
        count_sent(sent, [message.headers() or [] for message in messages])
    assert sorted(lines) == sorted(b"".join(file.with_suffix(".whole").read_bytes() for file in files).splitlines())
    assert sent
    assert {stream: numbers for stream, numbers in sent.items() if numbers.runs != [(1, numbers.count)]} == {}


def test_a_shipper_killed_again_and_again_sends_every_line_once(broker: AnyBroker, tmp_path: Path) -> None:
    """The first file grows by whole lines, the second by pieces of lines."""
    chance = random.Random(2011)
    files, state = [tmp_path / "one.log", tmp_path / "two.log"], tmp_path / "state.json"
    create_topic(broker.bootstrap, "shipped", partitions=2)
    cut_short = 0
    for number in range(KILLS):
        for file in files:
            append_lines(file, number * LINES_EACH_ROUND, LINES_EACH_ROUND, is_cut=file is files[1])
        shipping = start_shipping(broker, files, state, last_line=chance.randint(1, LINES_EACH_ROUND))
        assert shipping.wait(PATIENCE_SECONDS) == -signal.SIGKILL, processes.tail(state.with_suffix(".out"))
        cut_short += stored(broker) < 2 * (number + 1) * LINES_EACH_ROUND
    assert cut_short == KILLS, "each run was killed in the middle"
    finish_shipping(broker, files, state)
    assert_each_line_once_and_in_order(broker, files)
    assert finish_shipping(broker, files, state).lines == 0


def test_a_broker_killed_under_the_shipper_costs_nothing(broker: AnyBroker, tmp_path: Path) -> None:
    files, state = [tmp_path / "one.log"], tmp_path / "state.json"
    create_topic(broker.bootstrap, "shipped", partitions=2)
    append_lines(files[0], 0, 200_000)
    shipping = start_shipping(broker, files, state)
    wait_until(lambda: stored(broker) > 0, what="the first stored record")
    kill_and_start(broker)
    assert shipping.wait(PATIENCE_SECONDS) == 0, processes.tail(state.with_suffix(".out"))
    assert_each_line_once_and_in_order(broker, files)


def test_a_broker_that_was_there_is_waited_for(broker: AnyBroker) -> None:
    if not isinstance(broker, LogbusBroker):
        pytest.skip("the peer is not killed by its own tests")
    create_topic(broker.bootstrap, "shipped", partitions=2)
    client = TopicClient("shipped", {"bootstrap.servers": broker.bootstrap})
    before = client.end_offsets()
    broker.kill9()
    with ThreadPoolExecutor(1) as asking:
        asked = asking.submit(client.end_offsets)
        broker.start()
        assert asked.result(PATIENCE_SECONDS) == before


def kill_and_start(broker: AnyBroker) -> None:
    if not hasattr(broker, "kill9"):
        pytest.skip("the peer is not killed by its own tests")
    broker.kill9()
    broker.start()
