"""Stands where the Spark provider would start spark-submit, in tests of what it is started with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class FakeSubmit:
    """A process that keeps what it was started with, writes a little and ends."""

    def __init__(self, command: list[str], *, env: dict[str, str] | None = None, **arguments: Any) -> None:
        self.command = command
        self.env = env or {}
        self.stdout: Iterator[str] = iter(["loading\n", "java.lang.Boom: out of luck\n"])

    def wait(self) -> int:
        return self.exit_code

    exit_code = 0
