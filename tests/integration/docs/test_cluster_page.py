"""The page about starting three brokers by hand, as a reader follows it, but on free ports."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import processes
from tests.support.pages import PROJECT, blocks
from tests.support.reader import Terminal, fresh_environment

PAGE = PROJECT / "docs" / "cluster.md"
PORTS = re.compile(r"\b(?:2181|909[123])\b")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    directory, home = tmp_path / "logbus", tmp_path / "home"
    directory.mkdir()
    home.mkdir()
    try:
        yield Terminal(directory=directory, environment=fresh_environment(home), left=tmp_path / "left")
    finally:
        for noted in directory.glob("*.pid"):
            with suppress(ProcessLookupError):
                os.kill(int(noted.read_text()), signal.SIGKILL)


@pytest.mark.long
def test_every_command_does_what_the_page_says(terminal: Terminal) -> None:
    ports: dict[str, str] = {}

    def free_one(found: re.Match[str]) -> str:
        return ports.setdefault(found[0], str(processes.free_port()))

    for block in blocks(PAGE):
        terminal.follow(replace(block, text=PORTS.sub(free_one, block.text)))
    assert len(ports) == 4
    for number in (1, 2, 3):
        assert "stopped" in (terminal.directory / f"broker-{number}.log").read_text().splitlines()[-1]
