"""The parts that need no ZooKeeper, such as the retry delays. The rest is in the contract suite."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kazoo.retry import ForceRetryError
from logbus_broker.cluster.store import Unknown
from logbus_broker.cluster.zookeeper import ZooKeeperStore, _retry_for_ever

from tests.support.manual_clock import ManualClock


@pytest.mark.parametrize("session_timeout", [2.0, 6.0, 40.0])
def test_however_long_the_outage_the_next_try_is_neither_far_nor_at_once(session_timeout: float) -> None:
    slept: list[float] = []
    retry = _retry_for_ever(session_timeout)
    retry.sleep_func = slept.append

    def connect() -> None:
        if len(slept) < 2_000:
            raise ForceRetryError

    retry(connect)
    usual = session_timeout / 20
    assert all(0.05 <= seconds <= 1.4 * usual for seconds in slept)
    assert all(0.5 * usual <= seconds for seconds in slept[20:])


def test_a_turn_handles_what_it_has_time_for_and_asks_for_another() -> None:
    clock, wakes, handled = ManualClock(), [], []
    store = ZooKeeperStore("127.0.0.1:1", 4_000, lambda: wakes.append(len(handled)), clock=clock)

    def handle(outcome: object) -> None:
        clock.advance_ms(2)
        handled.append(outcome)

    for _ in range(5):
        store.read("/a", handle)
    turns = 0
    while len(handled) < 5:
        store.drain()
        turns += 1
    assert turns == 3
    assert wakes == [0, 2, 4]
    assert all(isinstance(outcome, Unknown) for outcome in handled)


def test_a_handler_that_fails_is_told_and_the_others_are_called(defects: list[str]) -> None:
    store = ZooKeeperStore("127.0.0.1:1", 4_000, lambda: None, clock=ManualClock())
    handled: list[object] = []
    store.read("/a", lambda _: 1 / 0)  # type: ignore[arg-type, return-value]
    store.read("/b", handled.append)
    store.drain()
    assert len(handled) == 1
    assert "ZeroDivisionError" in defects[0]
    defects.clear()


def test_a_store_that_never_began_is_closed() -> None:
    woken = threading.Event()
    store = ZooKeeperStore("127.0.0.1:1", 4_000, woken.set, clock=ManualClock())
    closed: list[bool] = []
    store.close(lambda: closed.append(True))
    assert woken.wait(10)
    store.drain()
    assert closed == [True]


ALONE = """
import sys
from logbus_broker.properties import build_config
from logbus_broker.node import LogBroker

LogBroker(build_config({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": sys.argv[1]}))
rooms = ("controller", "membership", "metadata_watcher", "registration", "store", "znodes", "zookeeper")
of_clusters = ("kazoo", "logbus_broker.cluster_engine", "logbus_broker.replication", *[f"logbus_broker.cluster.{room}" for room in rooms])
of_security = ("ssl", "_ssl", "cryptography", "jwt", "logbus_broker.network.tls", "logbus_broker.network.gate")
print([name for name in sys.modules if name.startswith((*of_clusters, *of_security))])
"""


def test_a_broker_alone_loads_nothing_of_clusters_and_security(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", ALONE, str(tmp_path)], check=True, capture_output=True, text=True)
    assert ran.stdout == "[]\n"
