"""When which group has something to do although nobody asks.

A heap with at most one live entry for each group: its earliest known deadline. Deadlines that move later (every heartbeat moves
one) cost nothing here; the entry comes up too early, and the group is asked again.
"""

from __future__ import annotations

import heapq

NEVER = float("inf")


class Timers:
    """The earliest deadline of each key."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._earliest: dict[str, float] = {}

    def schedule(self, key: str, deadline: float | None) -> None:
        """Wake `key` at `deadline`, unless it is to be woken before anyway."""
        if deadline is not None and deadline < self._earliest.get(key, NEVER):
            self._earliest[key] = deadline
            heapq.heappush(self._heap, (deadline, key))

    def next_deadline(self) -> float:
        """The earliest of all; a key's entry that an earlier one has replaced counts too, and costs one look."""
        return self._heap[0][0] if self._heap else NEVER

    def due(self, now: float) -> list[str]:
        """The keys whose time has come; each must be scheduled anew."""
        keys = []
        while self._heap and self._heap[0][0] <= now:
            deadline, key = heapq.heappop(self._heap)
            if self._earliest.get(key) == deadline:
                del self._earliest[key]
                keys.append(key)
        return keys
