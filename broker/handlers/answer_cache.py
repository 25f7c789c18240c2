"""Encoded answers by request: kept until something changes, and never more than a fixed number of entries and bytes.

The keys are chosen by clients, so both are bounded: a full cache is cleared, which costs one encoding per client.
"""

from __future__ import annotations

ENTRIES_MAX = 256  # distinct Metadata requests of one cluster's clients
BYTES_MAX = 16 << 20  # ten encodings of the largest cluster that one broker holds

Key = tuple[int, bytes, str]


class AnswerCache:
    """Maps a request's version, body and listener to the bytes of its answer."""

    def __init__(self) -> None:
        self._answers: dict[Key, bytes] = {}
        self.size_bytes = 0
        self.change = 0  # incremented whenever cached answers become invalid

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: Key) -> bytes | None:
        return self._answers.get(key)

    def put(self, key: Key, answer: bytes) -> None:
        """Keep the answer, unless it is too large."""
        size = len(key[1]) + len(answer)
        if size > BYTES_MAX:
            return
        if len(self._answers) >= ENTRIES_MAX or self.size_bytes + size > BYTES_MAX:
            self.clear()
        self._answers[key] = answer
        self.size_bytes += size

    def clear(self) -> None:
        """Drop everything: something has changed, or there is no room."""
        self._answers.clear()
        self.size_bytes = 0
        self.change += 1
