"""What only the simulated ZooKeeper can be made to do: a whole ensemble that stops, elects and lags on demand."""

from __future__ import annotations

from random import Random

import pytest
from logbus_broker.cluster.store import Check, Committed, Create, Node, NoNode, Refused, Set, Unknown

from tests.sim.world import Timeline
from tests.sim.zookeeper import SimZooKeeper
from tests.sim.zookeeper_store import SimStore
from tests.support.stores import SimulatedStores, StoreClient


@pytest.fixture(params=range(5))
def stores(request: pytest.FixtureRequest) -> SimulatedStores:
    return SimulatedStores(seed=request.param)


def sim(client: StoreClient) -> SimStore:
    assert isinstance(client.store, SimStore)
    return client.store


@pytest.fixture
def client(stores: SimulatedStores) -> StoreClient:
    """With a node of its own."""
    client = stores.client()
    assert isinstance(client.commit(Create(path="/a"), Create(path="/e", is_ephemeral=True)), Committed)
    return client


def test_an_election_of_the_ensemble_costs_time_and_no_session(client: StoreClient, stores: SimulatedStores) -> None:
    stores.zookeeper.elect(2.0)
    began = stores.timeline.now
    stores.until(lambda: len(client.sessions()) == 2)
    assert stores.timeline.now - began >= 2.0
    assert client.sessions()[0] == client.sessions()[1]
    assert isinstance(client.commit(Check(path="/e", version=0), Set(path="/a", data=b"", version=0)), Committed)


def test_sessions_do_not_end_while_the_ensemble_is_away_and_end_after_it_is_back(
    client: StoreClient, stores: SimulatedStores
) -> None:
    alive = stores.client()
    alive.commit(Create(path="/alive", is_ephemeral=True))
    stores.zookeeper.stop()
    sim(client).kill()
    stores.let_pass(60.0)
    assert stores.zookeeper.read("/e") != NoNode()
    stores.zookeeper.start()
    stores.let_pass(10.0)
    assert stores.zookeeper.read("/e") == NoNode()
    assert stores.zookeeper.read("/alive") != NoNode()


def test_a_frozen_ensemble_does_late_what_was_given_up(client: StoreClient, stores: SimulatedStores) -> None:
    stores.zookeeper.freeze()
    outcomes = client.ask([Set(path="/a", data=b"late", version=0)])
    stores.let_pass(10.0)
    assert isinstance(outcomes[0], Unknown)
    assert stores.zookeeper.read("/a") == Node(data=b"", version=0)
    stores.zookeeper.thaw()
    stores.until(lambda: stores.zookeeper.read("/a") == Node(data=b"late", version=1))
    assert len(outcomes) == 1


def test_a_paused_process_hears_nothing_and_then_first_what_had_arrived(client: StoreClient, stores: SimulatedStores) -> None:
    other = stores.client()
    first = client.store.session_id
    client.read_when_there("/a", watch=True)
    sim(client).pause()
    other.commit(Set(path="/a", data=b"1", version=0))
    stores.let_pass(20.0)
    assert client.events == [("connected", first)]
    assert stores.zookeeper.read("/e") == NoNode()
    sim(client).resume()
    stores.until(lambda: len(client.sessions()) == 2)
    assert client.events[:3] == [("connected", first), ("changed", "/a"), ("suspended",)]
    assert client.store.session_id != first


def test_a_short_pause_costs_nothing(client: StoreClient, stores: SimulatedStores) -> None:
    sim(client).pause()
    stores.let_pass(2.0)
    sim(client).resume()
    stores.let_pass(20.0)
    assert len(client.events) == 1
    assert client.read("/e") == Node(data=b"", version=0, ephemeral_owner=client.store.session_id)


def test_a_short_cut_loses_nothing(client: StoreClient, stores: SimulatedStores) -> None:
    stores.cut(client)
    outcomes = client.ask([Set(path="/a", data=b"1", version=0)])
    stores.let_pass(0.5)
    assert outcomes == []
    stores.heal(client)
    stores.until(lambda: bool(outcomes))
    assert isinstance(outcomes[0], Committed)
    stores.let_pass(20.0)
    assert len(client.events) == 1


def test_a_read_may_be_older_than_what_another_process_was_told_but_never_than_an_own_write() -> None:
    stale = 0
    for seed in range(50):
        stores = SimulatedStores(seed)
        writing, reading = stores.client(), stores.client()
        writing.commit(Create(path="/a"))
        stale += reading.read("/a") == NoNode()
        assert writing.read("/a") != NoNode()
        reading.commit(Set(path="/a", data=b"1", version=0))
        assert reading.read("/a") == Node(data=b"1", version=1)
    assert 0 < stale < 50


@pytest.mark.parametrize("seed", range(20))
def test_a_broken_connection_delivers_the_first_of_what_was_under_way_and_nothing_after_a_gap(seed: int) -> None:
    stores = SimulatedStores(seed)
    client = stores.client()
    client.commit(Create(path="/c"))
    asked = [client.ask([Create(path="/c/n-", data=str(number).encode(), is_sequential=True)]) for number in range(10)]
    stores.let_pass(0.0006)
    stores.drop(client)
    stores.until(lambda: all(asked))
    names = stores.zookeeper.names("/c")
    stored = [stores.zookeeper.node(f"/c/{name}").data for name in names]
    assert stored == [str(number).encode() for number in range(len(names))]
    answered = [outcomes[0] for outcomes in asked]
    assert all(isinstance(outcome, Committed) for outcome in answered[: sum(isinstance(o, Committed) for o in answered)])


def test_lost_answers_are_drawn_and_observers_see_every_commit() -> None:
    stores = SimulatedStores(seed=3)
    committed: list[tuple[str, ...]] = []
    stores.zookeeper.observers.append(lambda name, operations, outcome: committed.append(outcome.paths))
    stores.zookeeper.answer_loss = 0.3
    client = stores.client()
    answers = [client.commit(Create(path=f"/{number}")) for number in range(200)]
    lost = [number for number, answer in enumerate(answers) if isinstance(answer, Unknown)]
    happened = [number for number in lost if stores.zookeeper.read(f"/{number}") != NoNode()]
    assert 30 < len(lost) < 90
    assert 0 < len(happened) < len(lost)
    assert not any(isinstance(answer, Refused) for answer in answers)
    assert committed == [(f"/{number}",) for number in range(200) if number not in lost or number in happened]


def history(seed: int) -> list[object]:
    """What two processes see during a minute of faults."""
    timeline, random = Timeline(), Random(seed)
    zookeeper = SimZooKeeper(timeline, random)
    zookeeper.answer_loss = 0.05
    seen: list[object] = []

    class Process:
        def __init__(self, name: str) -> None:
            self.name = name
            self.store = zookeeper.client(name, lambda: timeline.at(timeline.now, self.store.drain))
            self.store.begin(self)

        def connected(self, session_id: int) -> None:
            seen.append((self.name, "connected", session_id))
            self.write(None)

        def suspended(self) -> None:
            seen.append((self.name, "suspended"))

        def changed(self, path: str) -> None:
            seen.append((self.name, path))

        def write(self, outcome: object) -> None:
            seen.append((self.name, timeline.now, outcome))
            if not isinstance(outcome, Unknown):
                timeline.after(random.random(), self.again)

        def again(self) -> None:
            self.store.children("/", lambda names: seen.append(names), watch=True)
            self.store.commit([Create(path="/n-", is_sequential=True, is_ephemeral=random.random() < 0.5)], self.write)

    processes = [Process("one"), Process("two")]
    for second in range(60):
        timeline.run(1.0)
        victim = random.choice(processes).store
        fault = random.choice(
            (victim.drop, victim.cut, victim.heal, victim.pause, victim.resume, zookeeper.freeze, zookeeper.thaw)
        )
        seen.append((second, fault.__name__))
        fault()
    return seen


def test_equal_seeds_give_equal_histories() -> None:
    assert history(1) == history(1)
    assert history(1) != history(2)
