"""The last offset of each key in the dirty part of a log, within a fixed amount of memory.

A key is kept as a digest of 16 bytes, so a long key costs no more than a short one: about 150 bytes of memory each, measured,
and the limit assumes 200, since a growing dict exists twice for an instant. The digest is a cryptographic one, since one of two
keys with the same digest would be lost. A full map ends the dirty part early: the rest is left for the next pass.
"""

from __future__ import annotations

from hashlib import blake2b

ENTRY_BYTES = 200
_DIGEST_BYTES = 16


class KeyMap:
    """Key to its last offset."""

    __slots__ = ("_entries_max", "_newest")

    def __init__(self, bytes_max: int) -> None:
        self._entries_max = max(bytes_max // ENTRY_BYTES, 1)
        self._newest: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._newest)

    @property
    def is_full(self) -> bool:
        return len(self._newest) >= self._entries_max

    def put(self, key: bytes, offset: int) -> None:
        """The record at `offset` has this key; offsets come in order."""
        self._newest[blake2b(key, digest_size=_DIGEST_BYTES).digest()] = offset

    def is_newest(self, key: bytes | None, offset: int) -> bool:
        """Whether no later record with this key was put. A record without a key is never the newest, and is removed."""
        return key is not None and self._newest.get(blake2b(key, digest_size=_DIGEST_BYTES).digest(), -1) <= offset
