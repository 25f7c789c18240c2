"""The jars of Spark's Kafka connector, for pipelines with `{"reader": "connector"}`. Everything else of logbus needs none.

A machine that reaches Maven's repository fetches them once into a directory; LOGBUS_CONNECTOR_JARS names it wherever spark-submit
is started. `--packages` would fetch them anew on every machine and cannot resolve this release.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from logbus.errors import UserError

JARS_VARIABLE = "LOGBUS_CONNECTOR_JARS"

# What works with our pyspark. The token provider of this very release is not found everywhere; the classes of its preview are the
# same.
ARTIFACTS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
FETCH_SECONDS_MAX = 300


def jar_names() -> list[str]:
    parts = [artifact.split(":") for artifact in ARTIFACTS]
    return [f"{name}-{version}.jar" for _, name, version in parts]


def missing(directory: Path) -> list[str]:
    """The jars that are not there."""
    return [name for name in jar_names() if not (directory / name).is_file()]


def fetch(directory: Path) -> None:
    """Fetches what is missing, one artifact after another: none of what they depend on is wanted."""
    maven = shutil.which("mvn")
    if maven is None and missing(directory):
        raise UserError(f"Maven (mvn) fetches the connector: install it, or put {', '.join(missing(directory))} into {directory}")
    directory.mkdir(parents=True, exist_ok=True)
    for artifact, name in zip(ARTIFACTS, jar_names(), strict=True):
        if maven is not None and not (directory / name).is_file():
            command = [maven, "-q", "-B", COPY, f"-Dartifact={artifact}", f"-DoutputDirectory={directory.absolute()}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX, check=False)
            if done.returncode != 0:
                raise UserError(f"mvn could not fetch {artifact}: {done.stdout[-500:].strip()}")


def class_path(directory: Path) -> str:
    """The jars as `spark.jars` takes them."""
    if missing(directory):
        raise UserError(
            f"{JARS_VARIABLE} names {directory}, which lacks {', '.join(missing(directory))}: `logbus connector-jars {directory}`"
        )
    return ",".join(str(directory.absolute() / name) for name in jar_names())
