"""Hosts that do not answer, and missing chroots."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl
from logbus.waiting import wait_until
from logbus_broker.clock import SystemClock
from logbus_broker.cluster.store import Committed, Create, StoreEvents, Unknown
from logbus_broker.cluster.zookeeper import ZooKeeperStore

from tests.support.stores import RealStores
from tests.support.zookeeper import RunningServer


@pytest.fixture
def black_hole() -> Iterator[str]:
    """An address that neither accepts nor refuses a connection: the kernel drops what does not fit in a full accept queue."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        address = listening.getsockname()
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        try:
            socket.create_connection(address, timeout=0.3).close()
        except TimeoutError:
            yield f"127.0.0.1:{address[1]}"
        else:
            pytest.skip("this kernel takes connections beyond the queue")


def test_a_host_that_does_not_answer_costs_half_a_second_and_no_session(stores: RealStores, black_hole: str) -> None:
    began = time.monotonic()
    client = stores.client(session_timeout_ms=120_000, others=f"{black_hole}," * 3)
    assert time.monotonic() - began < 40.0, "less than kazoo would wait for one of them"
    session_id = client.store.session_id
    for expected in (2, 3):
        stores.drop(client)
        stores.until(lambda expected=expected: len(client.sessions()) == expected)  # type: ignore[misc]
    assert client.sessions() == [session_id] * 3


def test_beginning_does_not_wait_for_hosts_that_cannot_be_found_or_reached(black_hole: str) -> None:
    store = ZooKeeperStore(f"no.such.host.invalid:2181,{black_hole}", 4_000, lambda: None, clock=SystemClock())
    began = time.monotonic()
    store.begin(Deaf())
    found: list[object] = []
    store.read("/a", found.append)
    store.drain()
    assert time.monotonic() - began < 10.0  # kazoo's own start waits for 15 s
    assert isinstance(found[0], Unknown)
    store.close(lambda: None)


class Sessions(StoreEvents):
    """The ids of those that there were."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def connected(self, session_id: int) -> None:
        self.ids.append(session_id)


def test_a_loop_that_is_held_up_loses_its_session_and_gets_another(server: RunningServer) -> None:
    """kazoo's thread would keep it alive for ever, while nobody is answered and nobody takes over."""
    store = ZooKeeperStore(f"127.0.0.1:{server.port}/held", 2_000, lambda: None, clock=SystemClock(), silence_seconds_max=0.5)
    events, committed = Sessions(), list[object]()

    def has(expected: list[object] | list[int], count: int) -> bool:
        store.drain()
        return len(expected) >= count

    store.begin(events)
    wait_until(lambda: has(events.ids, 1), what="a session")
    store.commit([Create(path="/mine", is_ephemeral=True)], committed.append)
    wait_until(lambda: has(committed, 1), what="the node of the session")
    assert isinstance(committed[0], Committed)
    truth = KazooClient(f"127.0.0.1:{server.port}")
    truth.start()
    wait_until(lambda: truth.exists("/held/mine") is None, what="the end of the session")
    wait_until(lambda: has(events.ids, 2), what="the session after it")
    assert len(set(events.ids)) == 2
    truth.stop()
    truth.close()
    store.close(lambda: None)


class Deaf(StoreEvents):
    """Fails on any event."""

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(name)


def test_a_chroot_is_made_and_its_paths_are_not_seen(server: RunningServer) -> None:
    with RealStores(server.port, "/a/chroot/that/is/deep") as stores:
        client = stores.client()
        outcome = client.commit(Create(path="/x"), Create(path="/x/n-", is_sequential=True))
        assert outcome == Committed(versions=(0, 0), paths=("/x", "/x/n-0000000000"))
        assert client.children("/", watch=True) == ("x",)
        client.commit(Create(path="/y"))
        assert client.changes() == ["/"]
    with RealStores(server.port, "/a/chroot/that") as above:
        assert above.client().children("/") == ("is",)


@pytest.fixture
def closed_chroot(server: RunningServer) -> Iterator[str]:
    """A world-readable node with a world-writable one below it."""
    kazoo = KazooClient(f"127.0.0.1:{server.port}")
    kazoo.start()
    kazoo.ensure_path("/closed/open")
    kazoo.set_acls("/closed", [make_acl("world", "anyone", read=True, admin=True)])
    yield "/closed"
    kazoo.set_acls("/closed", [make_acl("world", "anyone", all=True)])
    kazoo.delete("/closed", recursive=True)
    kazoo.stop()
    kazoo.close()


def test_a_chroot_that_is_there_needs_no_right_to_make_it(server: RunningServer, closed_chroot: str) -> None:
    with RealStores(server.port, f"{closed_chroot}/open") as stores:
        assert isinstance(stores.client().commit(Create(path="/x")), Committed)


def test_a_chroot_that_cannot_be_made_is_told(
    server: RunningServer, closed_chroot: str, caplog: pytest.LogCaptureFixture
) -> None:
    with RealStores(server.port, f"{closed_chroot}/missing") as stores:
        client = stores.client(is_connected=False)
        stores.until(lambda: "create it with ZooKeeper" in caplog.text)
        assert client.events == []
        assert isinstance(client.commit(Create(path="/x")), Unknown)
