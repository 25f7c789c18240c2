"""Processes that are stopped or killed while they have a session."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator

import pytest

from broker.coordination.store import Committed, Create, Delete, Node, NoNode
from tests.support.store_process import StoreProcess
from tests.support.stores import RealStores
from tests.support.zookeeper import RunningServer

TIMEOUT_MS = 6_000
_numbers = itertools.count(1)


@pytest.fixture
def chroot() -> str:
    return f"/processes/{next(_numbers)}"


@pytest.fixture
def stores(server: RunningServer, chroot: str) -> Iterator[RealStores]:
    with RealStores(server.port, chroot) as real:
        yield real


@pytest.fixture
def process(server: RunningServer, chroot: str, stores: RealStores) -> Iterator[StoreProcess]:
    with StoreProcess(f"127.0.0.1:{server.port}{chroot}", TIMEOUT_MS) as process:
        stores.until(lambda: len(process.lines) == 2)
        yield process


def session_of(line: str) -> int:
    return int(line.split()[1])


def test_a_process_that_was_stopped_believes_in_its_old_session_until_it_has_handled_what_arrived(
    stores: RealStores, process: StoreProcess
) -> None:
    other = stores.client()
    first = session_of(process.lines[0])
    assert other.read("/process", watch=True) == Node(data=b"", version=0, ephemeral_owner=first)
    process.signal(signal.SIGSTOP)
    stores.until(lambda: other.changes() == ["/process"])
    assert other.read("/process") == NoNode()
    process.signal(signal.SIGCONT)
    stores.until(lambda: process.lines[-1].startswith("made") and len(process.lines) > 2)
    second = session_of(process.lines[-1])
    assert second != first
    assert process.lines[2:] == [f"late {first}", "suspended", f"connected {second}", f"made {second}"]
    assert other.read("/process") == Node(data=b"", version=0, ephemeral_owner=second)


def test_a_successor_replaces_the_node_of_a_killed_process_at_once_and_keeps_it(
    stores: RealStores, process: StoreProcess
) -> None:
    successor = stores.client()
    dead = session_of(process.lines[0])
    process.signal(signal.SIGKILL)
    assert successor.read("/process") == Node(data=b"", version=0, ephemeral_owner=dead)
    outcome = successor.commit(Delete(path="/process", version=0), Create(path="/process", is_ephemeral=True))
    assert isinstance(outcome, Committed)
    stores.let_pass(2 * TIMEOUT_MS / 1000)
    assert successor.read("/process") == Node(data=b"", version=0, ephemeral_owner=successor.store.session_id)
