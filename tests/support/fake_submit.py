"""Replaces the spark-submit process of the Spark provider, in tests of its command line and environment."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any


class FakeSubmit:
    """A process that keeps its arguments, writes a little and ends."""

    def __init__(self, command: list[str], exit_code: int, *, env: dict[str, str] | None = None, **arguments: Any) -> None:
        self.command = command
        self.exit_code = exit_code
        self.env = env or {}
        self.stdout: Iterator[str] = iter(["loading\n", "java.lang.Boom: out of luck\n"])

    def wait(self) -> int:
        return self.exit_code


class Submitted(list[FakeSubmit]):
    """All processes started; each ends with `exit_code`."""

    exit_code = 0

    def start(self, command: list[str], **arguments: Any) -> FakeSubmit:
        self.append(FakeSubmit(command, self.exit_code, **arguments))
        return self[-1]


def subprocess_with(popen: Callable[..., FakeSubmit]) -> SimpleNamespace:
    """The module as the provider's hook sees it. The real one is not patched: modules first imported now may start processes."""
    return SimpleNamespace(**{**vars(subprocess), "Popen": popen})
