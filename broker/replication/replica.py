"""What a fetcher needs of a partition that this broker follows: follower.py implements it on a log."""

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
        """The newest epoch in the log; -1: none."""

    @property
    def is_offline(self) -> bool:
        """Whether nothing can be stored in it until the broker is restarted."""

    def append(self, records: memoryview) -> None:
        """Check and store what the leader sent. ReplicationRefused: it is damaged or does not follow; none of it is stored.
        StorageError: the write failed."""

    def learn(self, visible_offset: int, log_start_offset: int) -> None:
        """The leader's visible offset and log start offset."""

    def want_flush(self, offset: int) -> None:
        """A request at the leader waits until everything below `offset` is flushed."""

    def cut(self, epoch: int, end_offset: int, then: Callable[[BrokerError | None], None]) -> None:
        """The leader's log diverges from ours: `epoch` is the largest it has up to our last one, and ends there at `end_offset`.
        `then` is called when fetching may resume, or with an error if the log is as it was."""

    def reset(self, offset: int, then: Callable[[BrokerError | None], None]) -> None:
        """Start over at `offset`, the leader's log start offset; `then` as for `cut`."""
