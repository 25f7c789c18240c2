"""ZooKeeper in memory and in virtual time: an ensemble, its sessions, and one `SimStore` for each process that uses it.

The ensemble has several servers. Transactions are decided on the leader's tree, in order of arrival, and recorded in one log;
each server applies the log to its own tree a moment later. A process is connected to any one of them, so what it reads may be
older than what another process has just been shown; its own writes it always sees. ZooKeeper promises that, and no more.

A connection delivers in order, both ways. When it breaks, some of the requests in flight still arrive and no answer does: these
are the unknown outcomes. The session of a silent process expires after between two thirds and all of its timeout, as if its last
ping had been sent at some moment before.

Faults are methods: of the ensemble (`stop`, `elect`, `freeze`, `expire`, `restore`, `answer_loss`) and of a store (`drop`, `cut`, `pause`,
`kill`, `lose_answer`). One random generator decides everything that is left open; no iteration
order differs from run to run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from logbus_broker.cluster import metadata_log, znodes
from logbus_broker.cluster.metadata_image import PartitionState
from logbus_broker.cluster.store import Committed, Node, NoNode, Operation, Unknown

from tests.sim.world import Timeline
from tests.sim.znode_tree import Change, Kind
from tests.sim.zookeeper_server import Connection, Request, Server, Session
from tests.sim.zookeeper_store import SimStore

FIRST_SESSION_ID = 0x1000_0000_0000_0001

Observer = Callable[[str, Sequence[Operation], Committed], None]


class SimZooKeeper:
    """The ensemble. `observers` get each transaction at the moment of its commit: process, operations, outcome."""

    def __init__(
        self,
        timeline: Timeline,
        random: Random,
        *,
        servers: int = 3,
        travel_seconds: float = 0.0005,
        lag_seconds: float = 0.002,
    ) -> None:
        self.timeline = timeline
        self.random = random
        self.observers: list[Observer] = []
        self.on_sent: Callable[[str, Sequence[Operation]], None] = lambda name, operations: None  # a process has sent these
        self.answer_loss = 0.0  # the share of all transactions whose connection breaks before they arrive or before their answer
        self.is_serving = True
        self.is_frozen = False
        self.log: list[list[Change]] = []
        self.sessions: dict[int, Session] = {}
        self._travel_seconds = travel_seconds
        self._lag_seconds = lag_seconds
        self._servers = [Server(self) for _ in range(servers)]
        self._leader = self._servers[0]
        self._stores: list[SimStore] = []
        self._waiting: dict[SimStore, None] = {}  # for a connection
        self._held: deque[tuple[Connection, Request]] = deque()  # at servers that are stopped with SIGSTOP
        self._next_session_id = FIRST_SESSION_ID
        self._restored = 0

    def client(self, name: str, wake: Callable[[], None], session_timeout_ms: int = 6_000) -> SimStore:
        """The store of one process; `wake` is called whenever it should `drain`."""
        store = SimStore(self, name, wake, session_timeout_ms / 1000)
        self.add(store)
        return store

    def add(self, store: SimStore) -> None:
        """Add a store that was made elsewhere."""
        self._stores.append(store)

    def read(self, path: str) -> Node | NoNode:
        """The committed state, for checks."""
        return self._leader.tree.read(path)

    def node(self, path: str) -> Node:
        """One that exists."""
        node = self.read(path)
        assert isinstance(node, Node), path
        return node

    def names(self, path: str) -> tuple[str, ...]:
        """Those below a node that exists."""
        names = self._leader.tree.children(path)
        assert not isinstance(names, NoNode), path
        return names

    def state(self, topic: str, index: int = 0) -> PartitionState:
        """Of a partition."""
        node = self.node(znodes.state_path(topic, index))
        return znodes.decode_state(node.data, node.version)

    def log_positions(self) -> list[int]:
        """Of the entries of the metadata log."""
        return metadata_log.entry_positions(self.names(znodes.CHANGES))

    @property
    def nodes(self) -> Sequence[str]:
        """Every path."""
        return list(self._leader.tree.nodes)

    # --- faults

    def stop(self) -> None:
        """The whole ensemble is killed: connections break, sessions survive and do not age."""
        self.is_serving = False
        for session in self.sessions.values():
            session.keep()
        for store in self._stores:
            store.drop()

    def start(self) -> None:
        """The ensemble is back. Each session again has its whole timeout in which to reconnect."""
        self.is_serving = True
        self._welcome_all()

    def restore(self, log: Sequence[list[Change]]) -> None:
        """The ensemble, which is stopped, has the state after these transactions, whatever its clients have seen. Ephemeral nodes
        of sessions that have ended are gone, as they are once their timeout is over."""
        self.log[:] = log
        self._restored += 1
        for server in self._servers:
            server.begin_anew(self._restored)
        for store in self._stores:
            store.seen = 0
        owned = [path for path, node in self._leader.tree.nodes.items() if node.owner and node.owner not in self.sessions]
        for path in owned:
            self._leader.tree.apply(Change(Kind.DELETED, path))
        self._append([Change(Kind.DELETED, path) for path in owned])

    def elect(self, seconds: float) -> None:
        """The ensemble's leader is killed: nothing is served for this long, then another server leads. No session is lost."""
        self.stop()
        self._leader = self.random.choice(self._servers)
        self._leader.catch_up(len(self.log))
        self.timeline.after(seconds, self.start)

    def freeze(self) -> None:
        """All servers are stopped with SIGSTOP: connections stay open and no request is answered."""
        self.is_frozen = True
        for store in self._stores:
            store.notice_silence()

    def thaw(self) -> None:
        """They continue, first with what has waited in their sockets, however late it is."""
        self.is_frozen = False
        while self._held:
            self.receive(*self._held.popleft())
        self._welcome_all()

    def expire(self, session_id: int) -> None:
        """The session ends: its ephemeral nodes are deleted in one transaction, and its connection is closed."""
        session = self.sessions.pop(session_id, None)
        if session is None:
            return
        tree = self._leader.tree
        owned = [path for path, node in tree.nodes.items() if node.owner == session_id]
        for path in owned:
            tree.apply(Change(Kind.DELETED, path))
        self._append([Change(Kind.DELETED, path) for path in owned])
        session.keep()
        if session.connection is not None:
            session.connection.closed_by_server()

    # --- for the stores

    def delay(self) -> float:
        """How long a message takes to arrive."""
        return self._travel_seconds * (0.5 + self.random.random())

    def connect(self, store: SimStore) -> None:
        """A process tries to connect; it may have to wait for the ensemble."""
        if not self.is_serving or self.is_frozen:
            self._waiting[store] = None
            return
        session = self.sessions.get(store.client_session_id)
        if session is None:
            session = Session(self, self._next_session_id, store.session_timeout)
            self._next_session_id += 1
            self.sessions[session.id] = session
        server = self.random.choice(self._servers)
        server.catch_up(store.seen)  # a server behind what the client has seen refuses it
        session.connection = Connection(self, store, session, server)
        session.keep()
        store.established(session.connection)

    def receive(self, connection: Connection, request: Request) -> None:
        """A request has arrived."""
        session = connection.session
        if self.is_frozen:
            self._held.append((connection, request))
        elif self.is_serving and session.id in self.sessions and session.connection in (connection, None):
            getattr(self, f"_handle_{request.kind}")(connection, request.id, *request.arguments)

    def _handle_read(self, connection: Connection, request_id: int, path: str, watch: bool) -> None:
        server = connection.server
        if watch:
            server.data_watches.setdefault(path, {})[connection] = None
        connection.answer(request_id, server.tree.read(path))

    def _handle_children(self, connection: Connection, request_id: int, path: str, watch: bool) -> None:
        server = connection.server
        names = server.tree.children(path)
        if watch and not isinstance(names, NoNode):
            server.child_watches.setdefault(path, {})[connection] = None
        connection.answer(request_id, names)

    def _handle_commit(self, connection: Connection, request_id: int, operations: Sequence[Operation]) -> None:
        loss = connection.store.take_loss(self.random.choice((True, False)) if self.random.random() < self.answer_loss else None)
        if loss is False:
            connection.store.drop(before_all=True)
            return
        outcome, changes = self._leader.tree.transact(operations, connection.session.id)
        if isinstance(outcome, Committed):
            self._append(changes)
            connection.server.catch_up(len(self.log))
            for observer in self.observers:
                observer(connection.store.name, operations, outcome)
        if loss is True:
            connection.store.drop()
        else:
            connection.answer(request_id, outcome)

    def _handle_close(self, connection: Connection, request_id: int) -> None:
        connection.answer(request_id, Unknown(detail="closed"))
        connection.session.connection = None
        self.expire(connection.session.id)

    def _append(self, changes: list[Change]) -> None:
        self.log.append(changes)
        self._leader.is_ahead(changes)
        length = len(self.log)
        for server in self._servers:
            if server is not self._leader:
                self.timeline.after(self._lag_seconds * self.random.random(), partial(server.catch_up, length))

    def _welcome_all(self) -> None:
        for session in self.sessions.values():
            if session.connection is None:
                session.count_down()
        waiting, self._waiting = self._waiting, {}
        for store in waiting:
            store.connect_later()
