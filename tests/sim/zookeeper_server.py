"""The servers' side of the simulated ZooKeeper: each server's state, and the sessions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.sim.znode_tree import Change, Kind, ZnodeTree, parent_of

if TYPE_CHECKING:
    from tests.sim.zookeeper import SimZooKeeper
    from tests.sim.zookeeper_connection import Connection


class Server:
    """One server of the ensemble: its tree, how much of the log that covers, and the watches set on it."""

    def __init__(self, ensemble: SimZooKeeper) -> None:
        self.tree = ZnodeTree()
        self.applied = 0
        self.data_watches: dict[str, dict[Connection, None]] = {}
        self.child_watches: dict[str, dict[Connection, None]] = {}
        self._log = ensemble.log

    def catch_up(self, length: int) -> None:
        """Apply the log up to there."""
        while self.applied < length:
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
