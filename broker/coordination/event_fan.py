"""A Store has one listener; a broker has several things that listen to it."""

from __future__ import annotations

from collections.abc import Sequence

from broker.coordination.store import StoreEvents


class EventFan:
    """Tells each of them, in their order: whoever registers comes before whoever reads, so that a read shows the registration."""

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
