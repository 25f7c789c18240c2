"""This broker as a member of its cluster: its store, its registration, its metadata image, and callers waiting for something in
it.

A broker writes to ZooKeeper and learns the outcome from the metadata log, as all others do. So a handler that has changed
something for a client waits until the image shows it (`when_seen`), and is called at the end of that turn: by then all other
parts of the broker have acted on it too, and this broker's next answers reflect the new state.

Handlers find it in their context; a single broker has none. Everything is called on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf

from logbus_broker import errors, logs
from logbus_broker.clock import Clock
from logbus_broker.cluster import metadata_image, metadata_watcher, registration
from logbus_broker.cluster.store import Store, StoreEvents

_TICK_SECONDS = 1.0  # how often unanswered requests are repeated

IsSo = Callable[[metadata_image.MetadataImage], bool]
Then = Callable[[errors.BrokerError | None], None]


@dataclass(slots=True, eq=False)
class _Wait:
    """A caller waiting for something in the image; its callback runs once."""

    is_so: IsSo
    then: Then
    deadline: float
    timeout_ms: int


class ClusterMember(StoreEvents):
    """See the module docstring. `node` is what this broker publishes about itself; the cluster's ids, `on_fenced` and `answers`
    are those of `Registration`."""

    def __init__(
        self,
        store: Store,
        node: metadata_image.BrokerNode,
        *,
        cluster_id: str,
        new_cluster_id: str,
        clock: Clock,
        session_timeout_ms: int,
        on_fenced: Callable[[errors.BrokerError], None],
        answers: registration.Answers,
    ) -> None:
        self.store = store
        self.broker_id = node.broker_id
        self.registration = registration.Registration(
            store,
            node,
            cluster_id=cluster_id,
            new_cluster_id=new_cluster_id,
            clock=clock,
            session_timeout_ms=session_timeout_ms,
            on_fenced=on_fenced,
            answers=answers,
        )
        self.watcher = metadata_watcher.MetadataWatcher(store)
        self.watcher.listen(self._changed)
        self.away_since: float | None = clock.monotonic()  # since when there is no connection to ZooKeeper
        # What this broker does as the controller: elect the preferred leaders of partitions, or, unclean, any live replica. Set
        # by the code that does the controller's work.
        self.elect: Callable[[Iterable[tuple[str, int]], bool], None] = lambda partitions, is_unclean: None
        self._clock = clock
        self._waits: dict[_Wait, None] = {}
        self._tick_at = inf
        self._has_news = False

    @property
    def image(self) -> metadata_image.MetadataImage:
        """What the brokers agree on, as far as this one has learnt it."""
        return self.watcher.image

    def begin(self, listeners: Sequence[StoreEvents] = ()) -> None:
        """Connect. `listeners` get the store's events after registration and image."""
        self._tick_at = self._clock.monotonic() + _TICK_SECONDS
        self.store.begin(EventFan([self, self.registration, self.watcher, *listeners]))

    def when_seen(self, is_so: IsSo, then: Then, timeout_ms: int) -> None:
        """Call `then(None)` once `is_so(image)`, at once if it already is; `then(RequestTimedOut)` after `timeout_ms`."""
        if is_so(self.image):
            then(None)
        else:
            deadline = self._clock.monotonic() + max(timeout_ms, 0) / 1000
            self._waits[_Wait(is_so, then, deadline, timeout_ms)] = None

    # Events of the store

    def connected(self, session_id: int) -> None:
        self.away_since = None

    def suspended(self) -> None:
        self.away_since = self._clock.monotonic()

    # The loop

    @property
    def due(self) -> float:
        """When `work` or the store's `drain` has something to do even if nothing arrives."""
        due = min(self._tick_at, self.store.next_deadline())
        if not self._waits:
            return due
        return -inf if self._has_news else min(due, *[wait.deadline for wait in self._waits])

    def work(self, now: float) -> None:
        """At the end of a turn: call back the waiters whose condition the image now meets, or whose time is over."""
        if now >= self._tick_at:
            self._tick_at = now + _TICK_SECONDS
            self.registration.tick()
            self.watcher.tick()
        has_news, self._has_news = self._has_news, False
        for wait in list(self._waits):
            if has_news and wait.is_so(self.image):
                self._tell(wait, None)
            elif wait.deadline <= now:
                self._tell(
                    wait, errors.RequestTimedOut(f"timed out after {wait.timeout_ms} ms; the change may still take effect")
                )

    def _changed(self, image: metadata_image.MetadataImage, _: metadata_image.MetadataDelta) -> None:
        self._has_news = True
        self.registration.seen(image)

    def _tell(self, wait: _Wait, error: errors.BrokerError | None) -> None:
        del self._waits[wait]
        try:
            wait.then(error)
        except Exception:
            logs.log_bug("a callback after a metadata change failed")


class EventFan(StoreEvents):
    """Passes events to each listener, in order: registration comes before reading, so that a read shows the registration."""

    def __init__(self, listeners: Sequence[StoreEvents]) -> None:
        self._listeners = tuple(listeners)

    def connected(self, session_id: int) -> None:
        for listener in self._listeners:
            listener.connected(session_id)

    def suspended(self) -> None:
        for listener in self._listeners:
            listener.suspended()

    def changed(self, path: str) -> None:
        for listener in self._listeners:
            listener.changed(path)
