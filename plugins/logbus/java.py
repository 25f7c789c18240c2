"""The Java that Spark (and ZooKeeper) would start, and why it cannot be used.

It is $JAVA_HOME/bin/java, or `java` on the PATH where that is not set. What is wrong with it is said in one sentence before
anything is started: Spark's own scripts answer with a shell's errors, line numbers included.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from logbus.formatting import first_line

VERSION_MIN = 17  # what Spark 4 is compiled for
INSTALL = "install one, such as Debian's openjdk-21-jre-headless, or set JAVA_HOME to one of 17 or newer"
ANSWER_SECONDS_MAX = 60.0  # a tenth of a second, unless the machine is very busy
_VERSION = re.compile(r'version "(\d+)([^"]*)"')


def program(environment: Mapping[str, str]) -> str | None:
    """Where it is, or would be."""
    home = environment.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environment.get("PATH"))


def version(printed: str) -> tuple[int, str] | None:
    """Out of what `java -version` prints: 21 and "21.0.4"."""
    match = _VERSION.search(printed)
    return None if match is None else (int(match[1]), match[1] + match[2])


def problem(path: str | None, status: int | None, printed: str, *, is_named: bool) -> str | None:
    """What keeps Spark from running by it; None where nothing does. `is_named` by JAVA_HOME."""
    if path is None:
        return f"no Java on the PATH, so Spark cannot run: {INSTALL}"
    found_version = version(printed)
    if status != 0 or found_version is None:
        return f"{path} does not run: {first_line(printed)}: {'unset JAVA_HOME, or ' if is_named else ''}{INSTALL}"
    if found_version[0] < VERSION_MIN:
        return f"{path} is version {found_version[1]}; Spark needs {VERSION_MIN} or newer: {INSTALL}"
    return None


def why_not(environment: Mapping[str, str]) -> str | None:
    """Looks, which takes a tenth of a second."""
    path, status, printed = program(environment), None, ""
    if path is not None:
        try:
            done = subprocess.run(
                [path, "-version"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=dict(environment),
                timeout=ANSWER_SECONDS_MAX,
                check=False,
                text=True,
                errors="replace",
            )
            status, printed = done.returncode, done.stderr + done.stdout
        except OSError as error:
            printed = str(error.strerror)
        except subprocess.TimeoutExpired:
            return None  # it is there; what is wrong with it, Spark finds out
    return problem(path, status, printed, is_named=bool(environment.get("JAVA_HOME")))
