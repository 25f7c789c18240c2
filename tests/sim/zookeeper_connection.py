"""Messages between a process and a server of the simulated ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.sim.zookeeper_server import Server, Session

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
