"""Stands where the Spark provider would start spark-submit, in tests of what it is started with."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any


class FakeSubmit:
    """A process that keeps what it was started with, writes a little and ends."""

    def __init__(self, command: list[str], exit_code: int, *, env: dict[str, str] | None = None, **arguments: Any) -> None:
        self.command = command
        self.exit_code = exit_code
        self.env = env or {}
        self.stdout: Iterator[str] = iter(["loading\n", "java.lang.Boom: out of luck\n"])

    def wait(self) -> int:
        return self.exit_code


class Submitted(list[FakeSubmit]):
    """All that were started, each of which ends with `exit_code`."""

    exit_code = 0

    def start(self, command: list[str], **arguments: Any) -> FakeSubmit:
        self.append(FakeSubmit(command, self.exit_code, **arguments))
        return self[-1]


def subprocess_with(popen: Callable[..., FakeSubmit]) -> SimpleNamespace:
    """The module as the provider's hook sees it. The module itself stays: what is first imported meanwhile may start processes."""
    return SimpleNamespace(**{**vars(subprocess), "Popen": popen})
