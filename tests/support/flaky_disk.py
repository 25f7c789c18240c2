"""A real disk on which one chosen call fails, once."""

from __future__ import annotations

import errno
from typing import Any

from logbus_broker.filesystem import FileSystem

_CANNOT_FAIL = ("is_directory",)


class FlakyDisk(FileSystem):
    """After `fail_after(n)`, call number n from then on, counted from 0, raises an OSError; later ones succeed."""

    def __init__(self, number: int = errno.EIO) -> None:
        self._number = number
        self._calls_left = -1
        self.has_failed = False
        self.failed_call = ""

    def fail_after(self, calls: int) -> None:
        self._calls_left, self.has_failed = calls, False

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name.startswith("_") or not callable(value) or name == "fail_after" or name in _CANNOT_FAIL:
            return value
        if self._calls_left >= 0:
            self._calls_left -= 1
            if self._calls_left < 0:
                self.has_failed, self.failed_call = True, name
                raise OSError(self._number, f"injected failure of {name}")
        return value
