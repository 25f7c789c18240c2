"""What a fetcher asks of a partition that this broker follows: follower.py makes it of a log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.errors import BrokerError

Key = tuple[bytes, int]  # topic id and partition


class Replica(Protocol):
    """One followed partition, as its log is now."""

    name: str
    key: Key

    @property
    def leader_epoch(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def flushed_offset(self) -> int: ...

    @property
    def log_start_offset(self) -> int: ...

    @property
    def last_epoch(self) -> int:
        """The newest epoch that the log knows; -1: none."""

    @property
    def is_offline(self) -> bool:
        """Nothing can be stored in it until the broker is restarted."""

    def append(self, records: memoryview) -> None:
        """Check and store what the leader sent. ReplicationRefused: it is damaged or does not follow; nothing of it is stored.
        StorageError: the disk has refused."""

    def learn(self, visible_offset: int, log_start_offset: int) -> None:
        """What the leader says is visible, and where its log starts."""

    def want_flush(self, offset: int) -> None:
        """Somebody at the leader waits until everything below `offset` is flushed."""

    def cut(self, epoch: int, end_offset: int, then: Callable[[BrokerError | None], None]) -> None:
        """The leader's log parts from ours: `epoch` is the largest that it knows up to our last, and ends there at `end_offset`.
        `then` comes when the log can be fetched for again, or is as it was."""

    def reset(self, offset: int, then: Callable[[BrokerError | None], None]) -> None:
        """Begin anew at `offset`, where the leader's log starts; likewise."""
