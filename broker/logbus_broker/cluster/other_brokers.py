"""The other brokers of the cluster, as one broker sees them: where each listens, which of them are gone, and which may be.

registered    ZooKeeper has a session of it: it is in the image
suspected     its port refuses connections (`FailureDetector`); its session may live on for seconds
gone          its port refuses, or its session has ended: logged once, by whichever sign comes first, until it answers again
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from logbus_broker.cluster.metadata_image import Endpoint, MetadataImage

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
