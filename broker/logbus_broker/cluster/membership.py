"""This broker as a member of its cluster: its store, its registration, its metadata image, and callers waiting for something in
it; and the others, as this one sees them: where each listens, which of them are gone, and which may be.

    registered    ZooKeeper has a session of it: it is in the image
    suspected     its port refuses connections (`FailureDetector`); its session may live on for seconds
    gone          its port refuses, or its session has ended: logged once, by whichever sign comes first, until it answers again

A broker writes to ZooKeeper and learns the outcome from the metadata log, as all others do. So a handler that has changed
something for a client waits until the image shows it (`when_seen`), and is called at the end of that turn: by then all other
parts of the broker have acted on it too, and this broker's next answers reflect the new state.

Handlers find it in their context; a single broker has none. Everything is called on the loop's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from logbus_broker import errors, logs
from logbus_broker.clock import Clock
from logbus_broker.cluster import metadata_image, metadata_watcher, registration
from logbus_broker.cluster.metadata_image import Endpoint, MetadataImage
from logbus_broker.cluster.store import Store, StoreEvents

logger = logging.getLogger("broker.cluster")

SUSPECT_SECONDS = 5.0


class FailureDetector:
    """Suspects brokers whose port refuses connections: their process is gone, though their session may live on for seconds.

    That is reason enough for an election, which is safe at any time, and for nothing else. One answer clears a broker, as does a
    newer process with its id. A port that refuses now and then, behind a proxy for instance, must not move leadership back and
    forth: a process that was cleared is not suspected again within SUSPECT_SECONDS of the last time; a newer one may die at any
    time. Pure: time is passed in. `ids` are the current suspects."""

    def __init__(self) -> None:
        self.ids: dict[int, None] = {}
        self._suspected_at: dict[int, float] = {}
        self._incarnations: Mapping[int, int] = {}

    def refused(self, broker: int, now: float) -> None:
        """Its port refused a connection. Called again for each attempt."""
        if broker not in self.ids and now - self._suspected_at.get(broker, -SUSPECT_SECONDS) >= SUSPECT_SECONDS:
            self._suspected_at[broker] = now
            self.ids[broker] = None

    def reached(self, broker: int) -> None:
        """It has answered."""
        self.ids.pop(broker, None)

    def learn(self, image: MetadataImage) -> None:
        """A broker that has registered since is a different process from the one whose port refused."""
        now = {broker: node.incarnation for broker, node in image.brokers.items()}
        for broker, incarnation in now.items():
            if incarnation > self._incarnations.get(broker, -1):
                self.ids.pop(broker, None)
                self._suspected_at.pop(broker, None)
        self._incarnations = {**self._incarnations, **now}


class OtherBrokers:
    """`know` is told the endpoints of all of them whenever one has another, or is another process."""

    def __init__(self, broker_id: int, listener: str, know: Callable[[Mapping[int, Endpoint]], None]) -> None:
        self._broker_id = broker_id
        self._listener = listener
        self._know = know
        self._failure_detector = FailureDetector()
        self._endpoints: dict[int, Endpoint] = {}
        self._processes: dict[int, int] = {}  # incarnations, by broker id
        self._gone: dict[int, None] = {}  # those whose end was logged
        self._stopping: frozenset[int] = frozenset()  # those that were being stopped when they were last seen

    @property
    def suspects(self) -> Collection[int]:
        return self._failure_detector.ids

    def reached(self, broker: int) -> None:
        """A connection is open and the broker has answered on it."""
        if broker in self._gone:
            del self._gone[broker]
            logger.info("broker %d is back", broker)
        self._failure_detector.reached(broker)

    def refused(self, broker: int, image: MetadataImage, now: float) -> None:
        """Nothing listens at the broker's address."""
        self._failure_detector.refused(broker, now)
        if broker in self._failure_detector.ids:
            self._tell_gone(broker, image, "its port refuses connections")

    def learn(self, image: MetadataImage) -> None:
        for broker in self._processes:
            if broker not in image.brokers:
                self._tell_gone(broker, image, "its session with ZooKeeper has ended")
        # What says that a broker is being stopped may vanish before the broker does.
        self._stopping = (self._stopping | image.leaving) & image.brokers.keys()
        self._failure_detector.learn(image)
        self._learn_endpoints(image)

    def _tell_gone(self, broker: int, image: MetadataImage, why: str) -> None:
        if broker in self._gone:
            return
        self._gone[broker] = None
        if broker in self._stopping:
            logger.info("broker %d has been stopped", broker)
            return
        led = sum(state.leader == broker for topic in image.topics.values() for state in topic.states)
        logger.warning("broker %d is gone: %s. Partitions that it led and that get another leader: %d", broker, why, led)

    def _learn_endpoints(self, image: MetadataImage) -> None:
        endpoints = {
            broker: node.endpoints[self._listener]
            for broker, node in image.brokers.items()
            if broker != self._broker_id and self._listener in node.endpoints
        }
        processes = {broker: image.brokers[broker].incarnation for broker in endpoints}
        if endpoints == self._endpoints and processes == self._processes:
            return
        # Connections to an earlier process may be half open, if its machine lost power: nothing will ever arrive on them.
        replaced = [broker for broker, process in self._processes.items() if processes.get(broker, process) != process]
        # First pass the set without these brokers, then with them: that closes the connections to the earlier processes.
        if replaced:
            self._know({broker: endpoint for broker, endpoint in self._endpoints.items() if broker not in replaced})
        self._endpoints, self._processes = endpoints, processes
        self._know(endpoints)


# This broker as a member of its cluster: its store, its registration, its metadata image, and callers waiting for something
# in it.


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
