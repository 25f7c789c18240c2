"""Bytes for replicas that are not in sync (KIP-73): a new one that reads a whole partition must not slow down those who write.

A bucket of one second's bytes. Whoever finds any in it may send a whole piece, and what that takes beyond zero is paid before the
next one: so a piece larger than the bucket is sent, and the rate holds all the same. Pure: time comes in.
"""

from __future__ import annotations

from math import inf

BURST_SECONDS = 1.0


class Throttle:
    """`bytes_per_second` of inf lets everything through, and costs nothing."""

    __slots__ = ("_filled_at", "_tokens", "bytes_per_second")

    def __init__(self, bytes_per_second: float = inf) -> None:
        self.bytes_per_second = bytes_per_second
        self._tokens = bytes_per_second * BURST_SECONDS
        self._filled_at = -inf

    def has_tokens(self, now: float) -> bool:
        """Whether something may be sent now."""
        if self.bytes_per_second == inf:
            return True
        burst = self.bytes_per_second * BURST_SECONDS
        if self._filled_at > -inf:
            self._tokens = min(burst, self._tokens + (now - self._filled_at) * self.bytes_per_second)
        self._filled_at = now
        return self._tokens > 0

    def take(self, byte_count: int) -> None:
        """So many bytes are sent."""
        if self.bytes_per_second != inf:
            self._tokens -= byte_count
