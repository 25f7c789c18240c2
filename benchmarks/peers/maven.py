"""Jar folders, fetched by Maven into the user's cache on first use.

None of them is in the repository. A folder appears, by a rename, only once it is complete, so two runs that fetch at once
cannot see half of one. If this machine lacks something (java, mvn, a way to the repository), `Missing` is raised.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks import processes
from benchmarks.processes import Missing

FETCH_SECONDS_MAX = 600
ANYTHING = "<groupId>*</groupId><artifactId>*</artifactId>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Jars:
    """A set of artifacts; `name` is its folder in the cache. Artifacts are `group:artifact:version`. `has_dependencies`: theirs
    are fetched as well."""

    name: str
    artifacts: tuple[str, ...]
    has_dependencies: bool = True

    def folder(self) -> Path:
        """The folder with the jars; fetched once."""
        folder = cache() / self.name / "jars"
        if not folder.is_dir():
            self._fetch(folder)
        return folder

    def class_path(self) -> str:
        return f"{self.folder()}/*"

    def _fetch(self, folder: Path) -> None:
        maven = shutil.which("mvn")
        if maven is None:
            raise Missing(f"no `mvn` on PATH to fetch {self.name}: install Maven, or put its jars into {folder}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            pom = Path(scratch, "pom.xml")
            pom.write_text(self.pom())
            copy = ["dependency:copy-dependencies", f"-DoutputDirectory={scratch}/jars"]
            done = processes.run([maven, "-q", "-B", "-f", str(pom), *copy], seconds_max=FETCH_SECONDS_MAX)
            if done.returncode != 0:
                raise Missing(f"mvn could not fetch {self.name}: {done.stdout[-500:].strip()}")
            if not folder.is_dir():
                Path(scratch, "jars").rename(folder)

    def pom(self) -> str:
        parts = [one.split(":") for one in self.artifacts]
        alone = "" if self.has_dependencies else f"<exclusions><exclusion>{ANYTHING}</exclusion></exclusions>"
        dependencies = "".join(
            f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>{alone}</dependency>"
            for group, artifact, version in parts
        )
        return (
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>logbus</groupId>'
            f"<artifactId>{self.name}</artifactId><version>1</version><packaging>pom</packaging>"
            f"<dependencies>{dependencies}</dependencies></project>"
        )


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "logbus"


def java() -> str:
    """The java executable, or Missing."""
    return _of_java("java", "install a Java runtime, version 17 or newer, or set JAVA_HOME")


def javac() -> str:
    """The Java compiler, or Missing: a runtime alone does not have it."""
    return _of_java("javac", "our Java load generators are compiled on the spot: install a JDK, version 17 or newer")


def _of_java(name: str, advice: str) -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(name, path=f"{home}/bin" if home else None) or shutil.which(name)
    if found is None:
        raise Missing(f"no `{name}` on PATH: {advice}")
    return found
