"""A reader of a page: a fresh directory, every command in order, and the output that the page promises (pages.py)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from logbus.waiting import PATIENCE_SECONDS, wait_until

from tests.support.pages import Block, shows

TERMINAL = "run in a terminal of its own until it says: "
# `up` prints a note if a preferred port is taken: here by a concurrent test, which no page can promise.
BUSY_PORT = re.compile(r"^note: port \d+ is taken by .*\n", re.MULTILINE)
# Each block is a script; its final directory and environment are passed on to the next, as in one terminal.
SCRIPT = """set -euo pipefail
{text}
pwd >"$READER_LEFT.pwd"
env -0 >"$READER_LEFT.env"
"""


@dataclass
class Terminal:
    """A reader's terminal: a directory, an environment, and the last output."""

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
            assert shows(BUSY_PORT.sub("", self.printed), block.text), (
                f"{block.place} promises\n{block.text}\nbut this was printed:\n{self.printed}"
            )

    def run(self, block: Block) -> None:
        script = SCRIPT.format(text=block.text)
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.directory,
            env={**self.environment, "READER_LEFT": str(self.left)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        self.printed = done.stdout
        assert done.returncode == 0, f"{block.place} ended with {done.returncode}:\n{block.text}\n{done.stdout}"
        pairs = self.left.with_suffix(".env").read_text().split("\0")
        self.environment = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        self.directory = Path(self.left.with_suffix(".pwd").read_text().strip())


@dataclass
class OtherTerminal:
    """A command that keeps running in another terminal."""

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
        def has_said() -> bool:
            has_ended, said = self.process.poll() is not None, self.log.read_text()
            assert text in said or not has_ended, f"{self.block.place} ended with {self.process.returncode}:\n{said}"
            return text in said

        wait_until(has_said, what=f"{text!r} of {self.block.place}")
        return self.log.read_text()

    def interrupt(self) -> int:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE_SECONDS)


def fresh_environment(home: Path) -> dict[str, str]:
    """A reader's environment, after `source .venv/bin/activate`."""
    kept = {name: os.environ[name] for name in ("JAVA_HOME", "LANG", "PYTHONPATH", "TMPDIR", "USER") if name in os.environ}
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**kept, "PATH": programs, "HOME": str(home), "COLUMNS": "140", "PGCONNECT_TIMEOUT": "30"}
