"""Several of Kafka's command-line tools in one Java process: a start takes two seconds, a tool a tenth of that.

Java compiles the small launcher itself; if the installed Java has no compiler, each tool gets its own process.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from logbus.waiting import PATIENCE_SECONDS

from benchmarks.peers.java import JvmTools
from benchmarks.peers.maven import java

PROGRAMS = Path(__file__).parent / "jvm"
LAUNCHER = PROGRAMS / "RunTools.java"
_END = "\n\x01"
TOOLS = "org.apache.kafka.tools"


class Ran(NamedTuple):
    """One tool's standard output (and error: tools use both) and exit status."""

    output: str
    status: int


Command = Sequence[str]  # main class, arguments


def run_tools(tools: JvmTools, commands: Sequence[Command]) -> list[Ran]:
    """Run them in order; each sees what the previous ones have changed."""
    if not _has_compiler():
        return [_run(tools.command(*command), "") for command in commands]
    java_command = tools.command(str(LAUNCHER))
    ran = _run(java_command, "".join("\t".join(command) + "\n" for command in commands))
    outputs = ran.output.split(_END)
    assert len(outputs) == len(commands) + 1, ran.output
    statuses = [int(rest.split("\n", 1)[0]) for rest in outputs[1:]]
    texts = [outputs[0], *(rest.partition("\n")[2] for rest in outputs[1:])]
    return [Ran(text.strip("\n"), status) for text, status in zip(texts, statuses, strict=False)]  # nothing follows the last


def _run(command: Sequence[str], stdin: str) -> Ran:
    done = subprocess.run(
        command, input=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    return Ran(done.stdout, done.returncode)


@cache
def _has_compiler() -> bool:
    listed = subprocess.run([java(), "--list-modules"], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    return "jdk.compiler@" in listed.stdout
