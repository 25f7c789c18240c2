"""One process's side of the simulated ZooKeeper: a `Store`, and the faults that may hit it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from logbus_broker.cluster.store import (
    TRANSACTION_BYTES_MAX,
    Children,
    Found,
    Operation,
    Outcome,
    StoreEvents,
    Unknown,
    transaction_bytes,
)

from tests.sim.zookeeper_server import Connection, Item, Request

if TYPE_CHECKING:
    from tests.sim.zookeeper import SimZooKeeper


class SimStore:
    """One process's side: a `Store`, and the faults that may hit it."""

    def __init__(self, ensemble: SimZooKeeper, name: str, wake: Callable[[], None], session_timeout: float) -> None:
        self.name = name
        self.session_timeout = session_timeout
        self.session_id = 0
        self.client_session_id = 0  # set while connecting, before `drain` has reported it
        self.seen = 0  # how much of the log the process has seen the effects of
        self._ensemble = ensemble
        self._timeline = ensemble.timeline
        self._wake = wake
        self._events: StoreEvents | None = None
        self._connection: Connection | None = None
        self._inbox: deque[Item] = deque()
        self._asked: dict[int, tuple[float, Callable[[Any], None]]] = {}
        self._queued: list[Request] = []
        self._next_request_id = 0
        self._is_watching_deadlines = False
        self._is_cut = False
        self._is_paused = False
        self._is_gone = False
        self._wants_connection = False
        self._loss: bool | None = None
        self._closed: Callable[[], None] | None = None

    # --- Store

    def begin(self, events: StoreEvents) -> None:
        self._events = events
        self.connect_later()

    def read(self, path: str, then: Callable[[Found], None], *, watch: bool = False) -> None:
        self._ask("read", (path, watch), then)

    def children(self, path: str, then: Callable[[Children], None], *, watch: bool = False) -> None:
        self._ask("children", (path, watch), then)

    def commit(self, operations: Sequence[Operation], then: Callable[[Outcome], None]) -> None:
        assert transaction_bytes(operations) <= TRANSACTION_BYTES_MAX, "a transaction is too large for ZooKeeper"
        self._ensemble.on_sent(self.name, operations)
        self._ask("commit", (tuple(operations),), then)

    def drain(self) -> None:
        while self._inbox:
            handler, arguments = self._inbox.popleft()
            handler(*arguments)
        while self._asked:
            request_id, (deadline, then) = next(iter(self._asked.items()))
            if deadline > self._timeline.now:
                break
            del self._asked[request_id]
            then(Unknown(detail="no answer in time"))

    def next_deadline(self) -> float:
        return next(iter(self._asked.values()))[0] if self._asked else math.inf

    def close(self, then: Callable[[], None]) -> None:
        self._closed = then
        if self._connection is None:
            self._answer_all_unknown()
            self._end()
        else:
            self._connection.send(Request(-1, "close", ()))

    # --- faults

    def drop(self, *, before_all: bool = False) -> None:
        """The connection breaks; the process opens another. `before_all`: no request in flight arrives."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        connection.broken(before_all=before_all)
        self._answer_all_unknown()
        self.take((self._suspended, ()))
        if self._closed is not None:
            self._end()
        self.connect_later()

    def cut(self) -> None:
        """Nothing passes in either direction, and neither end is notified: the process notices the silence after a while."""
        self._is_cut = True
        if self._connection is not None:
            self._connection.cut()
        self.notice_silence()

    def heal(self) -> None:
        self._is_cut = False
        if self._connection is not None:
            self._connection.heal()
        elif self._wants_connection:
            self.connect_later()

    def pause(self) -> None:
        """SIGSTOP: no `wake`, no pings."""
        self._is_paused = True
        if self._connection is not None:
            self._connection.session.count_down()

    def resume(self) -> None:
        """SIGCONT: what had arrived before is processed first."""
        self._is_paused = False
        if self._connection is not None and not self._connection.is_cut:
            self._connection.session.keep()
        if self._inbox:
            self._wake()
        if self._wants_connection:
            self.connect_later()

    def kill(self) -> None:
        """kill -9: the session outlives its process until it times out."""
        self._is_gone = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.broken(before_all=False)
        self._inbox.clear()
        self._asked.clear()

    def lose_answer(self, *, is_committed: bool) -> None:
        """The connection breaks at the next transaction: after its commit, or before it arrives."""
        self._loss = is_committed

    # --- for the ensemble and connections

    def connect_later(self) -> None:
        """After the client's back-off."""
        self._timeline.after(self._ensemble.random.uniform(0.0, 0.1), self._connect)

    def established(self, connection: Connection) -> None:
        self._connection = connection
        self._wants_connection = False
        if connection.session.id != self.client_session_id:
            self._answer_all_unknown()  # these requests were made in a session that is over
        self.client_session_id = connection.session.id
        self.take((self._connected, (connection.session.id,)))
        queued, self._queued = self._queued, []
        for request in queued:
            connection.send(request)

    def notice_silence(self) -> None:
        """Give the connection up if it is still silent after some pings."""
        seconds = self.session_timeout * self._ensemble.random.uniform(0.35, 0.67)
        self._timeline.after(seconds, partial(self._give_up, self._connection))

    def take_loss(self, drawn: bool | None) -> bool | None:
        """The fate of this transaction's answer: None if nothing is lost, else whether the commit still happens."""
        loss, self._loss = self._loss, None
        return drawn if loss is None else loss

    def take(self, item: Item) -> None:
        """An item has arrived at the process."""
        if self._is_gone:
            return
        self._inbox.append(item)
        if not self._is_paused:
            self._wake()

    def answered(self, request_id: int, outcome: object) -> None:
        if request_id < 0:
            self._answer_all_unknown()
            self._end()
        elif waiting := self._asked.pop(request_id, None):
            waiting[1](outcome)

    def fired(self, path: str) -> None:
        assert self._events is not None
        self._events.changed(path)

    def _connected(self, session_id: int) -> None:
        assert self._events is not None
        self.session_id = session_id
        self._events.connected(session_id)

    def _suspended(self) -> None:
        assert self._events is not None
        self._events.suspended()

    def _ask(self, kind: str, arguments: tuple[Any, ...], then: Callable[[Any], None]) -> None:
        request = Request(self._next_request_id, kind, arguments)
        self._next_request_id += 1
        self._asked[request.id] = (self._timeline.now + self.session_timeout, then)
        if not self.client_session_id:
            self.take((self.answered, (request.id, Unknown(detail="not connected yet"))))
        elif self._connection is None:
            self._queued.append(request)
        else:
            self._connection.send(request)
        self._watch_deadlines()

    def _connect(self) -> None:
        if self._is_gone or self._connection is not None:
            return
        self._wants_connection = True
        if not self._is_cut and not self._is_paused:
            self._ensemble.connect(self)

    def _give_up(self, connection: Connection | None) -> None:
        if connection is not None and connection is self._connection and (connection.is_cut or self._ensemble.is_frozen):
            self.drop()

    def _answer_all_unknown(self) -> None:
        self._queued.clear()
        for request_id in self._asked:
            self.take((self.answered, (request_id, Unknown(detail="the connection was lost"))))

    def _end(self) -> None:
        """The session is closed: report that, and nothing after it."""
        self._connection = None
        then, self._closed = self._closed, None
        if then is not None:
            self.take((then, ()))
        self._is_gone = True

    def _watch_deadlines(self) -> None:
        if not self._is_watching_deadlines and self._asked:
            self._is_watching_deadlines = True
            self._timeline.at(self.next_deadline(), self._deadline_passed)

    def _deadline_passed(self) -> None:
        self._is_watching_deadlines = False
        if self._asked and not self._is_gone:
            if self.next_deadline() <= self._timeline.now and not self._is_paused:
                self._wake()
            self._timeline.at(max(self.next_deadline(), self._timeline.now + 0.01), self._deadline_passed)
            self._is_watching_deadlines = True
