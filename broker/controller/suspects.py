"""Brokers whose port refuses connections: their process is gone, though their session may live on for seconds.

That is reason enough for an election, which is safe at any time, and for nothing else. One answer clears a broker, as does a
newer process with its id. A port that refuses now and then, behind a proxy for instance, must not move leadership back and forth:
a broker that was cleared is not suspected again within SUSPECT_SECONDS of the last time. Pure: time is passed in.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.coordination.image import Image

SUSPECT_SECONDS = 5.0


class Suspects:
    """See the module docstring. `ids` are the current suspects."""

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

    def learn(self, image: Image) -> None:
        """A broker that has registered since is a different process from the one whose port refused."""
        now = {broker: node.incarnation for broker, node in image.brokers.items()}
        for broker in list(self.ids):
            if now.get(broker, -1) > self._incarnations.get(broker, -1):
                del self.ids[broker]
        self._incarnations = {**self._incarnations, **now}
