"""The tutorial, as a reader follows it: a fresh directory, every command in order, and what it says one will see.

Real broker, PostgreSQL and Spark, by the commands alone. The page's DAG, its last step, runs in tests/e2e/test_tutorial_dag.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.demos import processes_of
from tests.support.pages import PROJECT, Block, blocks, shows

pytestmark = pytest.mark.timeout(600)

PAGE = PROJECT / "docs" / "tutorial.md"
TERMINAL = "run in a terminal of its own until it says: "
SECONDS_MAX = 300.0  # of one command; nothing here is timed
# Each block is a script; where it ends, directory and environment go on to the next, as in one terminal.
SCRIPT = """set -euo pipefail
{text}
pwd >"$TUTORIAL_LEFT.pwd"
env -0 >"$TUTORIAL_LEFT.env"
"""


@dataclass
class Terminal:
    """A reader's terminal: a directory, an environment, and what was printed last."""

    directory: Path
    environment: dict[str, str]
    left: Path
    printed: str = ""
    others: list[OtherTerminal] = field(default_factory=list)

    def follow(self, block: Block) -> None:
        if block.mark == "run":
            self.run(block)
        elif block.mark.startswith(TERMINAL):
            self.others.append(OtherTerminal.start(block, self.directory, self.environment))
            self.printed = self.others[-1].wait_for(block.mark.removeprefix(TERMINAL))
        elif block.mark == "see":
            assert shows(self.printed, block.text), f"{block.place} promises\n{block.text}\nbut this was printed:\n{self.printed}"

    def run(self, block: Block) -> None:
        script = SCRIPT.format(text=block.text)
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.directory,
            env={**self.environment, "TUTORIAL_LEFT": str(self.left)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS_MAX,
        )
        self.printed = done.stdout
        assert done.returncode == 0, f"{block.place} ended with {done.returncode}:\n{block.text}\n{done.stdout}"
        pairs = self.left.with_suffix(".env").read_text().split("\0")
        self.environment = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        self.directory = Path(self.left.with_suffix(".pwd").read_text().strip())


@dataclass
class OtherTerminal:
    """A command that goes on in a terminal of its own."""

    block: Block
    log: Path
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, block: Block, directory: Path, environment: Mapping[str, str]) -> OtherTerminal:
        log = directory.parent / f"terminal-{block.line}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {block.text}"],
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(block, log, process)

    def wait_for(self, text: str) -> str:
        deadline = time.monotonic() + SECONDS_MAX
        while text not in (said := self.log.read_text()):
            assert self.process.poll() is None, f"{self.block.place} ended with {self.process.returncode}:\n{said}"
            assert time.monotonic() < deadline, f"{self.block.place} did not say {text!r}:\n{said}"
            time.sleep(0.1)
        return said

    def interrupt(self) -> int:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(SECONDS_MAX)


def fresh_environment(home: Path) -> dict[str, str]:
    """A reader's, behind `source .venv/bin/activate`."""
    kept = {name: os.environ[name] for name in ("JAVA_HOME", "LANG", "TMPDIR", "USER") if name in os.environ}
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**kept, "PATH": programs, "HOME": str(home), "COLUMNS": "140", "PGCONNECT_TIMEOUT": "30"}


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    """Not in pytest's own folders, which the server's account may not enter where we are root."""
    with tempfile.TemporaryDirectory(prefix="logbus-tutorial-") as place:
        home, directory = Path(place) / "home", Path(place) / "logbus"
        for folder in (home, directory):
            folder.mkdir()
        made = Terminal(directory=directory, environment=fresh_environment(home), left=Path(place) / "left")
        try:
            yield made
        finally:
            for other in made.others:
                if other.process.poll() is None:
                    other.interrupt()


@pytest.fixture(scope="module")
def followed(terminal: Terminal) -> Terminal:
    """Everything in the tutorial that is not Airflow's."""
    for block in blocks(PAGE):
        terminal.follow(block)
    return terminal


def test_every_command_does_what_the_tutorial_says(followed: Terminal) -> None:
    marks = [block.mark for block in blocks(PAGE)]
    assert marks.count("run") >= 10
    assert marks.count("see") >= 8


def test_ctrl_c_ends_all_that_was_started_and_what_was_stored_stays(followed: Terminal) -> None:
    up = followed.directory / ".logbus" / "up"
    assert (up / "env").exists()
    assert [other.interrupt() for other in followed.others] == [0]
    assert not (up / "env").exists()
    assert processes_of(followed.directory) == []
    assert (up / "postgres" / "data" / "PG_VERSION").exists()
