"""Three servers, one of which, the leader, dies or stops."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from logbus_broker.cluster.store import Committed, Create, Node, Set

from tests.support.stores import RealStores, StoreClient
from tests.support.zookeeper import RunningZooKeeper


@pytest.fixture(scope="module")
def ensemble() -> Iterator[RunningZooKeeper]:
    with RunningZooKeeper(servers=3) as running:
        yield running


@pytest.fixture
def stores(ensemble: RunningZooKeeper) -> Iterator[RealStores]:
    with RealStores(ensemble.servers[0].port, "/ensemble") as real:
        yield real
    for server in ensemble.servers:
        server.ensure_serving()


def prepared(stores: RealStores, ensemble: RunningZooKeeper, name: str) -> StoreClient:
    """A client of all servers, with a node that all clients share and one of its own."""
    client = stores.client(others=f"{ensemble.connect},")
    outcome = client.commit(Create(path=f"/{name}"), Create(path=f"/{name}-own", is_ephemeral=True))
    assert isinstance(outcome, Committed)
    return client


def still_there(stores: RealStores, client: StoreClient, name: str) -> None:
    """Writes continue, and the session has lost nothing."""
    session_id = client.store.session_id
    written: list[object] = []

    def write(outcome: object = None) -> None:
        if isinstance(outcome, Committed):
            written.append(outcome)
        else:
            client.store.commit([Set(path=f"/{name}", data=b"x", version=-1)], write)

    write()
    stores.until(lambda: bool(written))
    assert client.read(f"/{name}-own") == Node(data=b"", version=0, ephemeral_owner=session_id)
    assert client.store.session_id == session_id


def test_the_death_of_zookeepers_leader_costs_no_session(stores: RealStores, ensemble: RunningZooKeeper) -> None:
    client = prepared(stores, ensemble, "killed")
    ensemble.leader().kill()
    still_there(stores, client, "killed")


@pytest.mark.long
def test_a_stopped_leader_of_zookeeper_costs_no_session(stores: RealStores, ensemble: RunningZooKeeper) -> None:
    client = prepared(stores, ensemble, "stopped")
    ensemble.leader().pause()
    still_there(stores, client, "stopped")
