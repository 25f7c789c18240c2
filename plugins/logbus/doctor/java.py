"""Java: is there one, the one that JAVA_HOME names, and new enough for Spark?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from logbus import java
from logbus.doctor.looking import Surroundings
from logbus.status.checkup import Finding, error, well


def check_java(around: Surroundings) -> Iterator[Finding]:
    """Spark starts $JAVA_HOME/bin/java, or `java` on the PATH where that is not set."""
    home = around.environment.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else around.which("java")
    said = around.run([program, "-version"]) if program is not None else None
    text = "" if said is None else said.text
    trouble = java.problem(program, None if said is None else said.status, text, is_named=bool(home))
    if trouble is not None:
        yield error("java", trouble.removesuffix(f": {java.INSTALL}"), java.INSTALL)
    elif (found := java.version(text)) is not None:
        yield well("java", f"{found[1]} ({program})" + ("" if home else "; JAVA_HOME is not set and need not be"))


def first_line(text: str) -> str:
    return text.strip().partition("\n")[0] or "it says nothing"
