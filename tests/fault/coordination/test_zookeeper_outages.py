"""ZooKeeper is down, silent, or talks nonsense: how a store handles it."""

from __future__ import annotations

import threading
import time

import pytest
from kazoo.client import KazooClient
from logbus.waiting import PATIENCE_SECONDS
from logbus_broker.cluster import store
from logbus_broker.cluster.store import Committed, Create, Node, NoNode, Reason, Refused, Set, Unknown

from tests.support.stores import RealStores, StoreClient
from tests.support.zookeeper import RunningServer, RunningZooKeeper

TIMEOUT_MS = 6_000


@pytest.fixture
def client(stores: RealStores) -> StoreClient:
    return stores.client(session_timeout_ms=TIMEOUT_MS)


def test_one_that_is_cut_off_is_told_nothing_of_the_end_of_its_session(stores: RealStores) -> None:
    cut_off, other = stores.client(session_timeout_ms=TIMEOUT_MS), stores.client()
    session_id = cut_off.store.session_id
    cut_off.commit(Create(path="/e", is_ephemeral=True))
    other.read_when_there("/e", watch=True)
    stores.cut(cut_off)
    stores.until(lambda: bool(other.changes()))
    stores.let_pass(1.0)
    assert cut_off.events == [("connected", session_id), ("suspended",)]
    assert cut_off.store.session_id == session_id
    stores.heal(cut_off)
    stores.until(lambda: len(cut_off.sessions()) == 2)
    assert cut_off.sessions()[1] != session_id
    assert cut_off.read("/e") == NoNode()


def test_a_session_survives_an_outage_of_the_server_that_is_longer_than_its_timeout(
    stores: RealStores, client: StoreClient, server: RunningServer
) -> None:
    session_id = client.store.session_id
    client.commit(Create(path="/e", is_ephemeral=True))
    attempts = stores.link(client).attempts
    server.kill()
    stores.let_pass(2 * TIMEOUT_MS / 1000)
    server.start()
    stores.until(lambda: len(client.sessions()) == 2)
    assert client.sessions() == [session_id, session_id]
    assert client.read("/e") == Node(data=b"", version=0, ephemeral_owner=session_id)
    assert stores.link(client).attempts - attempts > 10


def test_what_is_asked_in_an_outage_may_happen_long_after_it_was_given_up(
    stores: RealStores, client: StoreClient, server: RunningServer
) -> None:
    client.commit(Create(path="/a"))
    suspensions = client.events.count(("suspended",))
    server.kill()
    stores.until(lambda: client.events.count(("suspended",)) > suspensions)
    sessions = client.sessions()
    late = Set(path="/a", data=b"late", version=0)
    outcomes = client.ask([late])
    stores.until(lambda: bool(outcomes))
    assert isinstance(outcomes[0], Unknown)
    server.start()
    stores.until(lambda: len(client.sessions()) > len(sessions))
    is_same_session = client.sessions()[-1] == sessions[-1]  # a busy machine may have lost it, and all that it asked, meanwhile
    assert client.read("/a") == (Node(data=b"late", version=1) if is_same_session else Node(data=b"", version=0))
    repeated = client.commit(late)
    assert isinstance(repeated, Refused) == is_same_session
    assert not isinstance(repeated, Refused) or repeated.reason is Reason.BAD_VERSION
    assert len(outcomes) == 1


def test_a_server_that_is_stopped_for_less_than_the_timeout_costs_no_session(stores: RealStores, server: RunningServer) -> None:
    client = stores.client(session_timeout_ms=2 * TIMEOUT_MS)
    session_id = client.store.session_id
    server.pause()
    outcomes = client.ask([Create(path="/a")])
    stores.let_pass(0.5 * TIMEOUT_MS / 1000)
    assert Committed(versions=(0,), paths=("/a",)) not in outcomes
    server.resume()
    stores.until(lambda: client.read("/a") == Node(data=b"", version=0))
    assert isinstance(outcomes[0], Committed | Unknown)  # unknown if the silence was noticed before the answer
    assert client.store.session_id == session_id


def test_an_answer_that_takes_long_to_handle_does_not_cost_the_session(stores: RealStores, client: StoreClient) -> None:
    client.commit(Create(path="/e", is_ephemeral=True))
    slow: list[object] = []

    def handle(found: object) -> None:
        time.sleep(2 * TIMEOUT_MS / 1000)
        slow.append(found)

    client.store.read("/e", handle)
    stores.until(lambda: bool(slow))
    assert client.read("/e") == Node(data=b"", version=0, ephemeral_owner=client.store.session_id)
    assert len(client.events) == 1


def test_what_kazoo_does_not_expect_costs_the_session_and_nothing_more(stores: RealStores, client: StoreClient) -> None:
    first = client.store.session_id
    stores.link(client).send_to_clients(b"\xff" * 64)
    stores.until(lambda: len(client.sessions()) == 2)
    assert client.events == [("connected", first), ("suspended",), ("connected", client.store.session_id)]
    assert isinstance(client.commit(Create(path="/a")), Committed)


def test_a_transaction_above_zookeepers_own_limit_breaks_the_connection(
    stores: RealStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = stores.client()
    monkeypatch.setattr(store, "TRANSACTION_BYTES_MAX", 1 << 22)
    assert isinstance(client.commit(Create(path="/a", data=bytes(1 << 21))), Unknown)
    stores.until(lambda: len(client.sessions()) == 2)
    assert client.read("/a") == NoNode()


def test_closing_beside_a_dead_server_holds_nobody_up(
    stores: RealStores, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = stores.client()
    server.kill()
    kazoos_stop, has_returned = KazooClient.stop, threading.Event()
    waited: list[bool] = []

    def stop_afterwards(kazoo: KazooClient) -> None:
        waited.append(has_returned.wait(PATIENCE_SECONDS / 2))
        kazoos_stop(kazoo)

    monkeypatch.setattr(KazooClient, "stop", stop_afterwards)
    closed: list[bool] = []
    client.store.close(lambda: closed.append(True))
    has_returned.set()
    stores.until(lambda: bool(closed))
    assert waited == [True], "whoever closes does not wait for kazoo"


def test_a_server_that_has_lost_all_its_data_is_not_taken_for_the_old_one(caplog: pytest.LogCaptureFixture) -> None:
    with RunningZooKeeper() as wiped:
        (server,) = wiped.servers
        with RealStores(server.port, "/cluster") as stores:
            client = stores.client(session_timeout_ms=TIMEOUT_MS)
            for number in range(3):
                client.commit(Create(path=f"/{number}"))
            server.kill()
            server.wipe()
            server.start()
            server.wait_until_serving()
            found = client.asked(lambda then: client.store.read("/0", then))
            stores.until(lambda: bool(found))
            assert isinstance(found[0], Unknown)
            assert len(client.sessions()) == 1
            stores.until(lambda: "or it has lost data that this broker has seen" in caplog.text)
