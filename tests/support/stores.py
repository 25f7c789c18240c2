"""Stores under test and all their callbacks, on the simulated ZooKeeper and on a real one, with the same faults.

The simulated one is driven by its timeline; the real one runs in real time, and each store connects through its own `Link`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from random import Random
from typing import Any

from logbus.waiting import PATIENCE_SECONDS, wait_until
from logbus_broker.clock import SystemClock
from logbus_broker.cluster.store import Children, Found, NoNode, Operation, Outcome, Store
from logbus_broker.cluster.zookeeper import OPEN, Access, ZooKeeperStore

from tests.sim.world import Timeline
from tests.sim.zookeeper import SimZooKeeper
from tests.support.link import Link

SESSION_TIMEOUT_MS = 20_000  # no session expires because a machine is busy; a test of the expiry asks for less
LOSS_SECONDS = 0.3  # how long a real transaction is held before its connection breaks: enough to be committed


class StoreClient:
    """A store that has begun. `events` are its callbacks: ("connected", session id), ("suspended",), ("changed", path)."""

    def __init__(self, stores: Stores, store: Store) -> None:
        self.store = store
        self.events: list[tuple[Any, ...]] = []
        self._stores = stores

    def connected(self, session_id: int) -> None:
        self.events.append(("connected", session_id))

    def suspended(self) -> None:
        self.events.append(("suspended",))

    def changed(self, path: str) -> None:
        self.events.append(("changed", path))

    def commit(self, *operations: Operation) -> Outcome:
        return self._answer(self.ask(operations))  # type: ignore[no-any-return]

    def read(self, path: str, *, watch: bool = False) -> Found:
        return self._answer(self.asked(lambda then: self.store.read(path, then, watch=watch)))  # type: ignore[no-any-return]

    def read_when_there(self, path: str, *, watch: bool = False) -> Found:
        """The server asked may lag, and a watch on a node that does not exist yet would fire on its creation."""
        self._stores.until(lambda: self.read(path) != NoNode())
        return self.read(path, watch=watch)

    def children(self, path: str, *, watch: bool = False) -> Children:
        return self._answer(self.asked(lambda then: self.store.children(path, then, watch=watch)))  # type: ignore[no-any-return]

    def close(self) -> None:
        closed: list[bool] = []
        self.store.close(lambda: closed.append(True))
        self._stores.until(lambda: bool(closed))

    def ask(self, operations: Sequence[Operation]) -> list[Outcome]:
        """Returns the list to which the outcome will be appended."""
        return self.asked(lambda then: self.store.commit(operations, then))

    def asked(self, ask: Callable[[Callable[[Any], None]], None]) -> list[Any]:
        outcomes: list[Any] = []
        ask(outcomes.append)
        return outcomes

    def changes(self) -> list[str]:
        """The paths of the watches that have fired."""
        return [event[1] for event in self.events if event[0] == "changed"]

    def sessions(self) -> list[int]:
        return [event[1] for event in self.events if event[0] == "connected"]

    def _answer(self, outcomes: list[Any]) -> Any:
        self._stores.until(lambda: bool(outcomes))
        return outcomes[0]


class SimulatedStores:
    """On SimZooKeeper."""

    def __init__(self, seed: int) -> None:
        self.timeline = Timeline()
        self.zookeeper = SimZooKeeper(self.timeline, Random(seed))

    def client(self, *, session_timeout_ms: int = 4_000, is_connected: bool = True) -> StoreClient:
        """One more store."""
        store = self.zookeeper.client("client", lambda: self.timeline.at(self.timeline.now, store.drain), session_timeout_ms)
        client = StoreClient(self, store)
        store.begin(client)
        if is_connected:
            self.until(lambda: bool(client.sessions()))
        return client

    def until(self, condition: Callable[[], bool]) -> None:
        """Let things happen until this holds."""
        self.timeline.run_until(condition, PATIENCE_SECONDS)

    def let_pass(self, seconds: float) -> None:
        """Let everything happen that would within `seconds`."""
        self.timeline.run(seconds)

    def drop(self, client: StoreClient) -> None:
        """Its connection breaks."""
        client.store.drop()  # type: ignore[attr-defined]

    def cut(self, client: StoreClient) -> None:
        """Nothing passes on its connection, and no new one can be made."""
        client.store.cut()  # type: ignore[attr-defined]

    def heal(self, client: StoreClient) -> None:
        """The end of a cut."""
        client.store.heal()  # type: ignore[attr-defined]

    def lose_answer(self, client: StoreClient, *, is_committed: bool) -> None:
        """Its next transaction is not answered: the connection breaks after its commit, or before."""
        client.store.lose_answer(is_committed=is_committed)  # type: ignore[attr-defined]


class RealStores:
    """On a ZooKeeper at `port`, in a chroot; a context manager that closes the stores it has opened."""

    def __init__(self, port: int, chroot: str, access: Access = OPEN) -> None:
        self._port = port
        self.chroot = chroot
        self.access = access
        self._woken = threading.Event()
        self._clients: list[StoreClient] = []
        self._links: dict[StoreClient, Link] = {}
        self._stack = ExitStack()

    def __enter__(self) -> RealStores:
        return self

    def __exit__(self, *error: object) -> None:
        closed: list[StoreClient] = []
        for client in self._clients:
            self._links[client].let_go()
            client.store.close(lambda client=client: closed.append(client))  # type: ignore[misc]
        self.until(lambda: all(client in closed for client in self._clients))
        self._stack.close()

    def client(self, *, session_timeout_ms: int = SESSION_TIMEOUT_MS, is_connected: bool = True, others: str = "") -> StoreClient:
        """`others` are further hosts, for `zookeeper.connect`."""
        link = self._stack.enter_context(Link(self._port))
        connect = f"{others}127.0.0.1:{link.port}{self.chroot}"
        store = ZooKeeperStore(connect, session_timeout_ms, self._woken.set, clock=SystemClock(), access=self.access)
        client = StoreClient(self, store)
        self._clients.append(client)
        self._links[client] = link
        client.store.begin(client)
        if is_connected:
            self.until(lambda: bool(client.sessions()))
        return client

    def link(self, client: StoreClient) -> Link:
        return self._links[client]

    def until(self, condition: Callable[[], bool]) -> None:
        """Let things happen until this holds."""
        wait_until(lambda: self._drained(condition), what="what the stores lead to", poll_seconds=0)

    def let_pass(self, seconds: float) -> None:
        """Let everything happen that would within `seconds`."""
        deadline = time.monotonic() + seconds
        while not self._drained(lambda: time.monotonic() >= deadline):
            pass

    def _drained(self, condition: Callable[[], bool]) -> bool:
        """Whether it holds after draining every client once; waits briefly for events if not."""
        self._woken.clear()
        for client in self._clients:
            client.store.drain()
        if condition():
            return True
        self._woken.wait(0.02)
        return False

    def drop(self, client: StoreClient) -> None:
        """Its connection breaks."""
        self._links[client].reset()

    def cut(self, client: StoreClient) -> None:
        """Nothing passes on its connection, and no new one can be made."""
        self._links[client].hold()

    def heal(self, client: StoreClient) -> None:
        """The end of a cut."""
        self._links[client].let_go()

    def lose_answer(self, client: StoreClient, *, is_committed: bool) -> None:
        """Its next transaction is not answered: the connection breaks after its commit, or before."""
        link = self._links[client]
        link.hold(to_target=not is_committed, to_client=is_committed)

        def break_it() -> None:
            link.reset()
            link.let_go()

        threading.Timer(LOSS_SECONDS, break_it).start()


Stores = SimulatedStores | RealStores
