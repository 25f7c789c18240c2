"""What every store promises, on the simulated ZooKeeper and on a real one."""

from __future__ import annotations

from random import Random

import pytest
from logbus_broker.cluster.store import (
    TRANSACTION_BYTES_MAX,
    Check,
    Committed,
    Create,
    Delete,
    Node,
    NoNode,
    Operation,
    Reason,
    Refused,
    Set,
    Unknown,
)

from tests.contract.coordination.conftest import SecuredZooKeeper
from tests.support.stores import SimulatedStores, StoreClient, Stores

SHORT_SESSION_MS = 2_000


@pytest.fixture
def client(stores: Stores) -> StoreClient:
    return stores.client()


@pytest.fixture
def watching(stores: Stores) -> StoreClient:
    return stores.client()


@pytest.fixture
def writing(stores: Stores) -> StoreClient:
    return stores.client()


def made(client: StoreClient, *paths: str) -> None:
    outcome = client.commit(*(Create(path=path) for path in paths))
    assert isinstance(outcome, Committed), outcome


def test_a_node_is_read_as_it_was_made(client: StoreClient) -> None:
    assert client.commit(Create(path="/a", data=b"one")) == Committed(versions=(0,), paths=("/a",))
    assert client.read("/a") == Node(data=b"one", version=0)
    assert client.read("/b") == NoNode()


def test_each_write_raises_the_version(client: StoreClient) -> None:
    made(client, "/a")
    assert client.commit(Set(path="/a", data=b"1", version=0)) == Committed(versions=(1,), paths=("/a",))
    assert client.commit(Set(path="/a", data=b"2", version=-1)) == Committed(versions=(2,), paths=("/a",))
    assert client.read("/a") == Node(data=b"2", version=2)


def test_a_node_that_is_made_again_begins_with_version_0(client: StoreClient) -> None:
    made(client, "/a")
    client.commit(Set(path="/a", data=b"1", version=0))
    outcome = client.commit(Delete(path="/a"), Create(path="/a", data=b"new"))
    assert outcome == Committed(versions=(-1, 0), paths=("/a", "/a"))
    assert client.read("/a") == Node(data=b"new", version=0)


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (Create(path="/a"), Reason.NODE_EXISTS),
        (Create(path="/no/child"), Reason.NO_NODE),
        (Create(path="/ephemeral/child"), Reason.OTHER),
        (Set(path="/no", data=b"", version=-1), Reason.NO_NODE),
        (Set(path="/a", data=b"", version=1), Reason.BAD_VERSION),
        (Delete(path="/no"), Reason.NO_NODE),
        (Delete(path="/a/b", version=3), Reason.BAD_VERSION),
        (Delete(path="/a"), Reason.NOT_EMPTY),
        (Check(path="/no", version=-1), Reason.NO_NODE),
        (Check(path="/a", version=1), Reason.BAD_VERSION),
    ],
    ids=repr,
)
def test_a_refused_transaction_changes_nothing_and_names_the_operation(
    client: StoreClient, operation: Operation, reason: Reason
) -> None:
    made(client, "/a", "/a/b")
    client.commit(Create(path="/ephemeral", is_ephemeral=True))
    outcome = client.commit(
        Create(path="/before"),
        Set(path="/a", data=b"changed", version=0),
        Set(path="/a", data=b"again", version=1),
        Set(path="/a", data=b"restored", version=2),
        Delete(path="/a/b"),
        Create(path="/a/b"),
        Create(path="/a/s-", is_sequential=True),
    )
    assert isinstance(outcome, Committed)
    before = client.read("/a")
    assert isinstance(before, Node)
    if isinstance(operation, Set) and operation.version == 1:
        operation = Set(path="/a", data=b"", version=before.version + 1)
    refused = client.commit(
        Create(path="/first"),
        Set(path="/a/b", data=b"second", version=0),
        Create(path="/a/s-", is_sequential=True),
        operation,
        Create(path="/last"),
    )
    assert isinstance(refused, Refused)
    assert (refused.index, refused.reason) == (3, reason)
    assert client.read("/a") == before
    assert client.read("/a/b") == Node(data=b"", version=0)
    assert client.read("/first") == client.read("/last") == NoNode()
    assert client.children("/a") == ("b", "s-0000000002")


def test_checks_that_hold_let_the_rest_happen(client: StoreClient) -> None:
    made(client, "/a")
    outcome = client.commit(Check(path="/a", version=0), Check(path="/a", version=-1), Create(path="/b"))
    assert outcome == Committed(versions=(-1, -1, 0), paths=("/a", "/a", "/b"))


def test_operations_see_what_those_before_them_did(client: StoreClient) -> None:
    outcome = client.commit(
        Create(path="/a"),
        Create(path="/a/b"),
        Set(path="/a", data=b"x", version=0),
        Check(path="/a", version=1),
        Delete(path="/a/b", version=0),
    )
    assert outcome == Committed(versions=(0, 0, 1, -1, -1), paths=("/a", "/a/b", "/a", "/a", "/a/b"))
    assert client.children("/a") == ()


def test_sequential_names_are_in_the_order_of_commits_and_without_holes(stores: Stores) -> None:
    one, other = stores.client(), stores.client()
    made(one, "/c")
    entry = Create(path="/c/n-", is_sequential=True)
    assert one.commit(entry) == Committed(versions=(0,), paths=("/c/n-0000000000",))
    assert other.commit(entry, entry) == Committed(versions=(0, 0), paths=("/c/n-0000000001", "/c/n-0000000002"))
    assert isinstance(one.commit(entry, Delete(path="/no")), Refused)
    assert isinstance(one.commit(Delete(path="/c/n-0000000001")), Committed)
    assert other.commit(entry) == Committed(versions=(0,), paths=("/c/n-0000000003",))
    assert other.children("/c") == ("n-0000000000", "n-0000000002", "n-0000000003")


def test_children_are_sorted_names(client: StoreClient) -> None:
    made(client, "/a", "/a/z", "/a/b", "/a/b/c")
    assert client.children("/a") == ("b", "z")
    assert client.children("/a/z") == ()
    assert client.children("/no") == NoNode()


@pytest.mark.parametrize("change", [Set(path="/a", data=b"1", version=0), Delete(path="/a")], ids=repr)
def test_a_watch_on_a_node_fires_once(watching: StoreClient, writing: StoreClient, stores: Stores, change: Operation) -> None:
    made(writing, "/a")
    watching.read_when_there("/a", watch=True)
    assert isinstance(writing.commit(change), Committed)
    stores.until(lambda: bool(watching.changes()))
    writing.commit(Create(path="/a"))
    writing.commit(Set(path="/a", data=b"2", version=-1))
    stores.let_pass(0.1)
    assert set(watching.changes()) == {"/a"}
    assert len(watching.changes()) <= 2  # the read that sets the watch on a missing node may have set it twice: "look again"


def test_a_watch_on_a_node_that_is_not_there_fires_when_it_is_made(
    watching: StoreClient, writing: StoreClient, stores: Stores
) -> None:
    assert watching.read("/a", watch=True) == NoNode()
    made(writing, "/b", "/a")
    stores.until(lambda: bool(watching.changes()))
    assert watching.changes() == ["/a"]


def test_a_watch_on_children_fires_once_and_not_for_their_data(
    watching: StoreClient, writing: StoreClient, stores: Stores
) -> None:
    made(writing, "/a", "/a/b")
    stores.until(lambda: watching.children("/a", watch=True) == ("b",))
    writing.commit(Set(path="/a/b", data=b"1", version=0), Set(path="/a", data=b"1", version=0))
    stores.let_pass(0.1)
    assert watching.changes() == []
    made(writing, "/a/c")
    stores.until(lambda: bool(watching.changes()))
    made(writing, "/a/d")
    writing.commit(Delete(path="/a/d"))
    stores.let_pass(0.1)
    assert watching.changes() == ["/a"]


def test_a_watch_on_children_fires_when_one_is_deleted(watching: StoreClient, writing: StoreClient, stores: Stores) -> None:
    made(writing, "/a", "/a/b")
    stores.until(lambda: watching.children("/a", watch=True) == ("b",))
    writing.commit(Delete(path="/a/b"))
    stores.until(lambda: bool(watching.changes()))
    assert watching.changes() == ["/a"]


def test_without_a_watch_nothing_is_told(watching: StoreClient, writing: StoreClient, stores: Stores) -> None:
    made(writing, "/a")
    watching.read_when_there("/a")
    watching.children("/a")
    writing.commit(Set(path="/a", data=b"1", version=0), Create(path="/a/b"))
    stores.let_pass(0.1)
    assert watching.changes() == []


def test_of_a_change_one_hears_before_one_reads_it(watching: StoreClient, writing: StoreClient) -> None:
    made(writing, "/a")
    watching.read_when_there("/a", watch=True)
    said: list[object] = []
    watching.changed = lambda path: said.append("changed")  # type: ignore[method-assign]
    writing.commit(Set(path="/a", data=b"1", version=0))
    while Node(data=b"1", version=1) not in said:
        said.append(watching.read("/a"))
    assert said.index("changed") < said.index(Node(data=b"1", version=1))


def test_the_news_of_an_own_change_come_before_its_answer(client: StoreClient) -> None:
    made(client, "/a")
    client.children("/a", watch=True)
    made(client, "/a/b")
    assert client.changes() == ["/a"]


def test_answers_come_in_the_order_of_the_questions_and_never_from_inside_the_call(client: StoreClient, stores: Stores) -> None:
    said: list[object] = []
    client.store.commit([Create(path="/a", data=b"0")], said.append)
    client.store.read("/a", said.append)
    client.store.commit([Set(path="/a", data=b"1", version=0)], said.append)
    client.store.commit([Set(path="/a", data=b"2", version=0)], said.append)
    client.store.read("/a", said.append, watch=True)
    client.store.children("/", said.append)
    assert said == []
    stores.until(lambda: len(said) == 6)
    assert said[:3] == [
        Committed(versions=(0,), paths=("/a",)),
        Node(data=b"0", version=0),
        Committed(versions=(1,), paths=("/a",)),
    ]
    assert isinstance(said[3], Refused)
    assert said[4:] == [Node(data=b"1", version=1), ("a",)]


def test_an_ephemeral_node_names_its_session_and_goes_with_it(stores: Stores) -> None:
    owner, other = stores.client(), stores.client()
    owner.commit(Create(path="/e", data=b"mine", is_ephemeral=True))
    other.read_when_there("/e", watch=True)
    assert other.read("/e") == Node(data=b"mine", version=0, ephemeral_owner=owner.store.session_id)
    owner.close()
    stores.until(lambda: other.changes() == ["/e"])
    assert other.read("/e") == NoNode()


def test_anothers_ephemeral_is_replaced_by_ones_own_in_one_transaction(stores: Stores) -> None:
    dead, successor = stores.client(), stores.client()
    dead.commit(Create(path="/e", is_ephemeral=True))
    successor.read_when_there("/e")
    assert isinstance(successor.commit(Delete(path="/e", version=0), Create(path="/e", is_ephemeral=True)), Committed)
    dead.close()
    stores.let_pass(0.1)
    assert successor.read("/e") == Node(data=b"", version=0, ephemeral_owner=successor.store.session_id)


def test_a_session_survives_the_loss_of_its_connection_but_watches_do_not(stores: Stores) -> None:
    client, writing = stores.client(), stores.client()
    client.commit(Create(path="/e", is_ephemeral=True), Create(path="/a"))
    client.read("/a", watch=True)
    client.children("/a", watch=True)
    session_id = client.store.session_id
    stores.drop(client)
    stores.until(lambda: len(client.sessions()) == 2)
    assert client.events == [("connected", session_id), ("suspended",), ("connected", session_id)]
    assert client.read("/e") == Node(data=b"", version=0, ephemeral_owner=session_id)
    writing.commit(Set(path="/a", data=b"1", version=0), Create(path="/a/b"))
    stores.let_pass(0.1)
    assert client.changes() == []


@pytest.mark.parametrize("is_committed", [True, False])
def test_an_answer_that_is_lost_is_unknown_whether_it_was_committed_or_not(
    client: StoreClient, stores: Stores, is_committed: bool
) -> None:
    stores.lose_answer(client, is_committed=is_committed)
    assert isinstance(client.commit(Create(path="/a")), Unknown)
    stores.until(lambda: len(client.sessions()) == 2)
    assert (client.read("/a") != NoNode()) == is_committed


def test_what_is_asked_while_there_is_no_connection_waits_for_one(client: StoreClient, stores: Stores) -> None:
    stores.drop(client)
    stores.until(lambda: ("suspended",) in client.events)
    assert isinstance(client.commit(Create(path="/a")), Committed)


def test_what_is_asked_in_a_long_outage_is_unknown_after_the_session_timeout(stores: Stores) -> None:
    client = stores.client(session_timeout_ms=SHORT_SESSION_MS)
    stores.cut(client)
    outcomes = client.ask([Create(path="/a")])
    found = client.asked(lambda then: client.store.read("/a", then))
    deadline = client.store.next_deadline()
    stores.until(lambda: bool(outcomes) and bool(found))
    assert isinstance(outcomes[0], Unknown)
    assert isinstance(found[0], Unknown)
    assert deadline < client.store.next_deadline()
    stores.heal(client)
    stores.until(lambda: len(client.sessions()) == 2)


def test_a_session_that_is_over_is_followed_by_a_new_one_without_its_nodes(stores: Stores) -> None:
    client, other = stores.client(session_timeout_ms=SHORT_SESSION_MS), stores.client()
    client.commit(Create(path="/e", is_ephemeral=True), Create(path="/a"))
    client.read("/a", watch=True)
    first = client.store.session_id
    other.read_when_there("/e", watch=True)
    stores.cut(client)
    stores.until(lambda: other.changes() == ["/e"])
    stores.heal(client)
    stores.until(lambda: len(client.sessions()) > 1 and client.store.session_id != first)
    assert client.read("/e") == NoNode()
    assert client.store.session_id == client.sessions()[-1]
    other.commit(Set(path="/a", data=b"1", version=0))
    stores.let_pass(0.1)
    assert client.changes() == []


def test_before_the_first_connection_every_answer_is_unknown(stores: Stores) -> None:
    client = stores.client(is_connected=False)
    outcomes = client.ask([Create(path="/a")])
    found = client.asked(lambda then: client.store.read("/a", then, watch=True))
    assert client.store.session_id == 0
    stores.until(lambda: bool(outcomes) and bool(found) and bool(client.sessions()))
    assert isinstance(outcomes[0], Unknown)
    assert isinstance(found[0], Unknown)
    assert client.read("/a") == NoNode()


def test_a_transaction_above_the_limit_is_not_sent(client: StoreClient) -> None:
    with pytest.raises(AssertionError, match="too large"):
        client.store.commit([Create(path="/a", data=bytes(TRANSACTION_BYTES_MAX))], lambda _: None)
    assert client.read("/a") == NoNode()


def test_a_transaction_at_the_limit_is_committed(client: StoreClient) -> None:
    paths = [f"/node-{number:04}" for number in range(1_000)]
    data = bytes(TRANSACTION_BYTES_MAX // 1_000 - len(paths[0]))
    outcome = client.commit(*(Create(path=path, data=data) for path in paths))
    assert isinstance(outcome, Committed)
    assert outcome.paths == tuple(paths)


def test_what_is_open_when_the_store_is_closed_gets_an_answer(client: StoreClient, stores: Stores) -> None:
    stores.cut(client)
    outcomes = client.ask([Create(path="/a")])
    closed: list[bool] = []
    client.store.close(lambda: closed.append(bool(outcomes)))
    stores.drop(client)
    stores.until(lambda: bool(closed))
    stores.until(lambda: bool(outcomes))
    assert isinstance(outcomes[0], Unknown)


def test_the_simulated_one_decides_every_transaction_as_the_real_one(zookeeper: SecuredZooKeeper) -> None:
    random = Random(7)
    simulated = SimulatedStores(seed=7).client()
    with zookeeper.stores() as real_world:
        real = real_world.client()
        for client in (simulated, real):
            made(client, *PLACES)
        for _ in range(600):
            operations = [random_operation(random) for _ in range(random.randint(1, 4))]
            outcomes = [outline(client.commit(*operations)) for client in (simulated, real)]
            assert outcomes[0] == outcomes[1], operations
        for path in (*PLACES, *(f"{place}/{name}" for place in PLACES for name in "abc")):
            assert simulated.children(path) == real.children(path)
            assert content(simulated, path) == content(real, path)


PLACES = ("/p", "/p/q", "/r")


def random_operation(random: Random) -> Operation:
    path = f"{random.choice(PLACES)}/{random.choice('abc')}"
    version = random.choice((-1, 0, 0, 1, 2))
    match random.randrange(6):
        case 0 | 1:
            return Create(path=path, data=random.randbytes(3), is_ephemeral=random.random() < 0.2)
        case 2:
            return Create(path=path, is_sequential=True)
        case 3:
            return Set(path=path, data=random.randbytes(3), version=version)
        case 4:
            return Delete(path=path, version=version)
        case _:
            return Check(path=path, version=version)


def outline(outcome: object) -> object:
    return (outcome.index, outcome.reason) if isinstance(outcome, Refused) else outcome


def content(client: StoreClient, path: str) -> object:
    found = client.read(path)
    return (found.data, found.version, bool(found.ephemeral_owner)) if isinstance(found, Node) else found
