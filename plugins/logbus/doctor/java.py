"""Java: is there one, the one that JAVA_HOME names, and new enough for Spark?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from logbus.doctor.looking import Surroundings
from logbus.status.checkup import Finding, error, well

VERSION_MIN = 17  # what Spark 4 is compiled for
INSTALL = "install one, such as Debian's openjdk-21-jre-headless, or set JAVA_HOME to one of 17 or newer"
VERSION = re.compile(r'version "(\d+)([^"]*)"')


def check_java(around: Surroundings) -> Iterator[Finding]:
    """Spark starts $JAVA_HOME/bin/java, or `java` on the PATH where that is not set."""
    home = around.environment.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else around.which("java")
    if program is None:
        yield error("java", "there is no Java on the PATH, so Spark cannot run", INSTALL)
        return
    said = around.run([program, "-version"])
    found = VERSION.search(said.text)
    if said.status != 0 or found is None:
        advice = f"unset JAVA_HOME, or {INSTALL}" if home else INSTALL
        yield error("java", f"{program} does not run: {first_line(said.text)}", advice)
    elif int(found[1]) < VERSION_MIN:
        yield error("java", f"{program} is version {found[1]}{found[2]}; Spark needs {VERSION_MIN} or newer", INSTALL)
    else:
        yield well("java", f"{found[1]}{found[2]} ({program})" + ("" if home else "; JAVA_HOME is not set and need not be"))


def first_line(text: str) -> str:
    return text.strip().partition("\n")[0] or "it says nothing"
