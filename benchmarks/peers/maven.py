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


# What Spark needs to read Kafka by itself.
SPARK_KAFKA = Jars(
    name="spark-kafka-4.1.3",
    artifacts=(
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",  # there is none of 4.1.3; it has no work here
        "org.apache.kafka:kafka-clients:3.9.1",
        "org.apache.commons:commons-pool2:2.12.1",
    ),
    has_dependencies=False,  # Spark has the others
)

# What Spark needs to write to PostgreSQL, whose only way in is a unix socket here.
POSTGRES_JDBC = Jars(
    name="postgresql-jdbc-42.7.7",
    artifacts=(
        "org.postgresql:postgresql:42.7.7",
        "com.kohlschutter.junixsocket:junixsocket-common:2.10.1",
        "com.kohlschutter.junixsocket:junixsocket-native-common:2.10.1",
    ),
    has_dependencies=False,
)


def spark_jars(*sets: Jars) -> dict[str, str]:
    """Spark's setting that gives a job these jars."""
    return {"spark.jars": ",".join(str(jar) for jars in sets for jar in jars.folder().glob("*.jar"))}


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
