"""All fetchers of a broker, one for each leader, and which partition is fetched from which leader."""

from __future__ import annotations

import math
from collections.abc import Callable

from broker.replication.fetcher import LeaderFetcher
from broker.replication.replica import Key, Replica


class Fetchers:
    """All of them, and which one fetches which partition."""

    def __init__(self, make: Callable[[int], LeaderFetcher]) -> None:
        self._make = make
        self._by_leader: dict[int, LeaderFetcher] = {}
        self._leader_of: dict[Key, int] = {}

    def follow(self, replica: Replica, leader: int) -> None:
        """Fetch it from that broker, in its leader epoch, and from no other."""
        if self._leader_of.get(replica.key, leader) != leader:
            self.forget(replica.key)
        if leader not in self._by_leader:
            self._by_leader[leader] = self._make(leader)
        self._leader_of[replica.key] = leader
        self._by_leader[leader].follow(replica)

    def forget(self, key: Key) -> None:
        """Stop fetching it: it is led here, or it is gone."""
        leader = self._leader_of.pop(key, None)
        if leader is not None:
            self._by_leader[leader].forget(key)

    def flushed(self, key: Key) -> None:
        """A flush of the partition has ended."""
        leader = self._leader_of.get(key)
        if leader is not None:
            self._by_leader[leader].flushed(key)

    def reached(self, broker: int) -> None:
        if broker in self._by_leader:
            self._by_leader[broker].reached()

    def closed(self, broker: int) -> None:
        if broker in self._by_leader:
            self._by_leader[broker].closed()

    @property
    def due(self) -> float:
        """When `work` has something to do."""
        due = math.inf
        for fetcher in self._by_leader.values():  # runs every turn: takes half the time of `min` over a generator
            if fetcher.due < due:
                due = fetcher.due
        return due

    def work(self, now: float) -> None:
        for fetcher in self._by_leader.values():
            if fetcher.due <= now:
                fetcher.work(now)
