"""The servers' side of the simulated ZooKeeper: each server's state, the sessions, and the connections to processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.sim.znode_tree import Change, Kind, ZnodeTree, parent_of

if TYPE_CHECKING:
    from tests.sim.zookeeper import SimZooKeeper
    from tests.sim.zookeeper_store import SimStore

Item = tuple[Callable[..., None], tuple[Any, ...]]  # what `drain` will call


@dataclass(frozen=True, slots=True)
class Request:
    """A request on its way to a server."""

    id: int
    kind: str
    arguments: tuple[Any, ...]


class Connection:
    """Both directions between a process and a server. A cut holds messages in transit until it is over or one end gives up."""

    def __init__(self, ensemble: SimZooKeeper, store: SimStore, session: Session, server: Server) -> None:
        self.store = store
        self.session = session
        self.server = server
        self.is_open = True
        self.is_cut = False
        self.is_closed_by_server = False
        self._ensemble = ensemble
        self._under_way = 0
        self._arriving: int | None = None  # of a broken connection: how many requests still arrive
        self._sent_at = 0.0
        self._answered_at = 0.0
        self._held_requests: list[Request] = []
        self._held_items: list[Item] = []

    def send(self, request: Request) -> None:
        timeline = self._ensemble.timeline
        self._sent_at = max(self._sent_at, timeline.now + self._ensemble.delay())
        self._under_way += 1
        timeline.at(self._sent_at, partial(self._arrive, request))

    def answer(self, request_id: int, outcome: object) -> None:
        self._travel((self.store.answered, (request_id, outcome)))

    def notify(self, path: str) -> None:
        self._travel((self.store.fired, (path,)))

    def cut(self) -> None:
        self.is_cut = True
        self.session.count_down()

    def heal(self) -> None:
        self.is_cut = False
        if self.is_closed_by_server:
            self.store.drop()
            return
        self.session.keep()
        requests, self._held_requests = self._held_requests, []
        items, self._held_items = self._held_items, []
        for request in requests:
            self._ensemble.receive(self, request)
        for item in items:
            self._deliver(item)

    def closed_by_server(self) -> None:
        self.is_closed_by_server = True
        if not self.is_cut:
            self._ensemble.timeline.after(self._ensemble.delay(), self._lost)

    def broken(self, *, before_all: bool) -> None:
        """The client's end is gone; some of the messages in flight still arrive, none of them through a cut."""
        self.is_open = False
        self._arriving = 0 if self.is_cut or before_all else self._ensemble.random.randint(0, self._under_way)
        self._held_requests.clear()
        self._held_items.clear()
        if self.session.connection is self:
            self.session.connection = None
            self.session.count_down()

    def _lost(self) -> None:
        if self.is_open:
            self.store.drop()

    def _travel(self, item: Item) -> None:
        timeline = self._ensemble.timeline
        self._answered_at = max(self._answered_at, timeline.now + self._ensemble.delay())
        timeline.at(self._answered_at, partial(self._deliver, item))

    def _arrive(self, request: Request) -> None:
        self._under_way -= 1
        if self._arriving is not None:
            self._arriving -= 1
            if self._arriving < 0:
                return
        if self.is_cut:
            self._held_requests.append(request)
        else:
            self._ensemble.receive(self, request)

    def _deliver(self, item: Item) -> None:
        if self.is_cut:
            self._held_items.append(item)
        elif self.is_open:
            self.store.seen = max(self.store.seen, self.server.applied)
            self.store.take(item)


class Server:
    """One server of the ensemble: its tree, how much of the log that covers, and the watches set on it."""

    def __init__(self, ensemble: SimZooKeeper) -> None:
        self.tree = ZnodeTree()
        self.applied = 0
        self.data_watches: dict[str, dict[Connection, None]] = {}
        self.child_watches: dict[str, dict[Connection, None]] = {}
        self._log = ensemble.log

    def begin_anew(self, restored: int) -> None:
        """Its tree is made of the log as that is now."""
        self.tree = ZnodeTree()
        self.tree.restored = restored
        self.applied = 0
        self.data_watches.clear()
        self.child_watches.clear()
        self.catch_up(len(self._log))

    def catch_up(self, length: int) -> None:
        """Apply the log up to there, or as far as it goes now: it may have been replaced by an older one."""
        while self.applied < min(length, len(self._log)):
            changes = self._log[self.applied]
            for change in changes:
                self.tree.apply(change)
            self.is_ahead(changes)

    def is_ahead(self, changes: list[Change]) -> None:
        """The tree has the next entry of the log: fire the watches on what it changed."""
        self.applied += 1
        for change in changes:
            path = change.path
            fired = list(self.data_watches.pop(path, ()))
            if change.kind is Kind.DELETED:
                fired += self.child_watches.pop(path, ())
            for connection in fired:
                connection.notify(path)
            if change.kind is not Kind.SET:
                parent = parent_of(path)
                for connection in self.child_watches.pop(parent, ()):
                    connection.notify(parent)


class Session:
    """Lives while its process sends pings, and for a while after."""

    def __init__(self, ensemble: SimZooKeeper, session_id: int, timeout: float) -> None:
        self.id = session_id
        self.timeout = timeout
        self.connection: Connection | None = None
        self._ensemble = ensemble
        self._countdown = 0

    def keep(self) -> None:
        self._countdown += 1

    def count_down(self) -> None:
        """Nothing is heard from its process from now on."""
        self._countdown += 1
        seconds = self.timeout * self._ensemble.random.uniform(0.67, 1.0)
        self._ensemble.timeline.after(seconds, partial(self._end, self._countdown))

    def _end(self, countdown: int) -> None:
        if countdown == self._countdown and self._ensemble.is_serving and not self._ensemble.is_frozen:
            self._ensemble.expire(self.id)
