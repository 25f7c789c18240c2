"""Brokers whose port refuses connections: their process is gone, though their session may live on for seconds.

That is reason enough for an election, which is safe at any time, and for nothing else. One answer clears a broker, as does a
newer process under its id. A port that refuses now and then, behind a proxy say, must not have the lead of everything handed
around: a broker that was cleared is not suspected again within SUSPECT_SECONDS of the last time. Pure: time comes in.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.coordination.image import Image

SUSPECT_SECONDS = 5.0


class Suspects:
    """See the file's theory. `ids` are those of now."""

    def __init__(self) -> None:
        self.ids: dict[int, None] = {}
        self._suspected_at: dict[int, float] = {}
        self._incarnations: Mapping[int, int] = {}

    def refused(self, broker: int, now: float) -> None:
        """Nobody listens there. Said again with each attempt."""
        if broker not in self.ids and now - self._suspected_at.get(broker, -SUSPECT_SECONDS) >= SUSPECT_SECONDS:
            self._suspected_at[broker] = now
            self.ids[broker] = None

    def reached(self, broker: int) -> None:
        """It has answered."""
        self.ids.pop(broker, None)

    def learn(self, image: Image) -> None:
        """Who has registered since is another process than the one whose port refused."""
        now = {broker: node.incarnation for broker, node in image.brokers.items()}
        for broker in list(self.ids):
            if now.get(broker, -1) > self._incarnations.get(broker, -1):
                del self.ids[broker]
        self._incarnations = {**self._incarnations, **now}
