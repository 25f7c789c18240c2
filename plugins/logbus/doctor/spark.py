"""Spark: a new enough Java, one version of everything, a spark-submit that runs, workers with our Python, connector jars."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from logbus import connector_jars, java
from logbus.doctor.looking import Surroundings
from logbus.spark_submit import launcher_environment, spark_submit_binary
from logbus.status.checkup import Finding, error, note, warning, well
from logbus.wording import first_line

PYTHON_VARIABLES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
PYTHON_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"
SUBMIT_VERSION = re.compile(r"version (\d[\w.]+)")


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


def check_spark(around: Surroundings) -> Iterator[Finding]:
    """What is installed, where SPARK_HOME points, which Python the workers use."""
    versions = {name: installed(name) for name in ("pyspark", "pyspark-client")}
    if len(set(versions.values())) > 1:
        shown = ", ".join(f"{name} {version or 'is not installed'}" for name, version in versions.items())
        message = f"{shown}: they install into the same directory, so one overwrites the other"
        yield error(
            "spark",
            message,
            f"reinstall both in one version: pyspark=={versions['pyspark']} pyspark-client=={versions['pyspark']}",
        )
    else:
        yield well("spark", f"pyspark and pyspark-client {versions['pyspark']}")
    yield from check_home(around, versions["pyspark"])
    yield from check_python(around)


def check_home(around: Surroundings, version: str | None) -> Iterator[Finding]:
    """SPARK_HOME takes precedence over the Spark that contains spark-submit."""
    home = around.environment.get("SPARK_HOME")
    if not home:
        return
    cores = sorted(Path(home).glob("jars/spark-core_*.jar"))
    if not cores:
        yield error("spark", f"SPARK_HOME is {home}, where there is no Spark", "unset SPARK_HOME")
    elif version is not None and not cores[0].stem.endswith(f"-{version}"):
        yield warning(
            "spark",
            f"SPARK_HOME is {home} with {cores[0].name}, pyspark is {version}",
            "unset SPARK_HOME, or use the same version",
        )


def check_python(around: Surroundings) -> Iterator[Finding]:
    """Spark refuses workers of another minor version than the driver's; our own loads name the Python themselves."""
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    for variable in PYTHON_VARIABLES:
        program = around.environment.get(variable)
        if not program:
            continue
        theirs = around.run([program, "-c", PYTHON_VERSION])
        if theirs.text.strip() != ours:
            message = (
                f"{variable} is {program} ({first_line(theirs.text)}), this is Python {ours}: programs of your own will fail"
            )
            yield warning("spark", message, f"export {variable}={sys.executable} (loads of logbus set it themselves)")
        else:
            yield well("spark", f"{variable} is Python {ours}")


def check_spark_submit(around: Surroundings) -> Iterator[Finding]:
    """Does it start? It needs a Java that works, and takes some seconds."""
    program = spark_submit_binary()
    # Spark's scripts look for a Python that has pyspark; without an activated environment, the one on the PATH does not.
    # Loads set ours, so this check does, too.
    ours = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    said = around.run([program, "--version"], {**launcher_environment(around.environment), **ours})
    found = SUBMIT_VERSION.search(said.text)
    if said.status == 0 and found is not None:
        yield well("spark-submit", f"{found[1]} ({program})")
    else:
        advice = "look at what `logbus doctor --only java --only spark` says; then install pyspark again"
        yield error("spark-submit", f"{program} --version does not run: {first_line(said.text)}", advice)


def check_jars(around: Surroundings) -> Iterator[Finding]:
    """The connector's jars, for pipelines that read with it; all others need none."""
    named = around.environment.get(connector_jars.JARS_VARIABLE)
    if not named:
        message = f"{connector_jars.JARS_VARIABLE} is not set; only pipelines with the reader `connector` need those jars"
        yield note("jars", message, f"logbus connector-jars DIRECTORY; export {connector_jars.JARS_VARIABLE}=DIRECTORY")
    elif missing := connector_jars.missing(Path(named)):
        yield error("jars", f"{named} lacks {', '.join(missing)}", f"logbus connector-jars {named}")
    else:
        yield well("jars", f"the connector's jars are in {named}")


def installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
