"""The checks of `logbus doctor` on what is installed: Java, Spark, the versions of everything, Airflow."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from logbus import spark_submit
from logbus.formatting import first_line
from logbus.status.checks import Finding, Machine, error, note, ok, warning

PYTHON_VARIABLES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
PYTHON_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"
SUBMIT_VERSION = re.compile(r"version (\d[\w.]+)")


def check_java(machine: Machine) -> Iterator[Finding]:
    """Spark starts $JAVA_HOME/bin/java, or `java` on the PATH where that is not set."""
    home = machine.environment.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else machine.which("java")
    output = machine.run([program, "-version"]) if program is not None else None
    text = "" if output is None else output.text
    trouble = spark_submit.java_problem(program, None if output is None else output.status, text, is_named=bool(home))
    if trouble is not None:
        yield error("java", trouble.removesuffix(f": {spark_submit.INSTALL}"), spark_submit.INSTALL)
    elif (java_version := spark_submit.java_version(text)) is not None:
        yield ok("java", f"{java_version[1]} ({program})" + ("" if home else "; JAVA_HOME is not set and need not be"))


def check_spark(machine: Machine) -> Iterator[Finding]:
    """What is installed, where SPARK_HOME points, which Python the workers use."""
    versions = {name: version for name in ("pyspark", "pyspark-client") if (version := installed(name))}
    if "pyspark" not in versions:
        yield note("spark", "no pyspark is installed here", "pip install 'logbus[spark]', for loads on this machine")
        return
    if len(set(versions.values())) > 1:
        shown = ", ".join(f"{name} {version}" for name, version in versions.items())
        message = f"{shown}: they install into the same directory, so one overwrites the other"
        yield error(
            "spark",
            message,
            f"reinstall both in one version: pyspark=={versions['pyspark']} pyspark-client=={versions['pyspark']}",
        )
    else:
        yield ok("spark", f"{' and '.join(versions)} {versions['pyspark']}")
    yield from _check_home(machine, versions["pyspark"])
    yield from _check_python(machine)


def _check_home(machine: Machine, version: str | None) -> Iterator[Finding]:
    """SPARK_HOME takes precedence over the Spark that contains spark-submit."""
    home = machine.environment.get("SPARK_HOME")
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


def _check_python(machine: Machine) -> Iterator[Finding]:
    """Spark refuses workers of another minor version than the driver's; our own loads name the Python themselves."""
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    for variable in PYTHON_VARIABLES:
        program = machine.environment.get(variable)
        if not program:
            continue
        theirs = machine.run([program, "-c", PYTHON_VERSION])
        if theirs.text.strip() != ours:
            message = (
                f"{variable} is {program} ({first_line(theirs.text)}), this is Python {ours}: programs of your own will fail"
            )
            yield warning("spark", message, f"export {variable}={sys.executable} (loads of logbus set it themselves)")
        else:
            yield ok("spark", f"{variable} is Python {ours}")


def check_spark_submit(machine: Machine) -> Iterator[Finding]:
    """Does it start? It needs a Java that works, and takes some seconds."""
    if installed("pyspark") is None:
        return
    program = spark_submit.spark_submit_binary()
    # Spark's scripts look for a Python that has pyspark; without an activated environment, the one on the PATH does not.
    # Loads set ours, so this check does, too.
    ours = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    output = machine.run([program, "--version"], {**spark_submit.launcher_environment(machine.environment), **ours})
    match = SUBMIT_VERSION.search(output.text)
    if output.status == 0 and match is not None:
        yield ok("spark-submit", f"{match[1]} ({program})")
    else:
        advice = "look at what `logbus doctor --only java --only spark` says; then install pyspark again"
        yield error("spark-submit", f"{program} --version does not run: {first_line(output.text)}", advice)


def installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


SHOWN = (
    "logbus",
    "apache-airflow",
    "apache-airflow-providers-apache-kafka",
    "apache-airflow-providers-apache-spark",
    "confluent-kafka",
)
PROVIDERS = "apache_airflow_provider"  # the entry points that Airflow looks for


def check_versions(machine: Machine) -> Iterator[Finding]:
    """Every requirement of the distribution against what is installed."""
    wrong = list(_unmet())
    for name, requirement, version in wrong:
        message = f"{name} is {version or 'not installed'}, logbus needs {requirement}"
        yield error("versions", message, f"uv pip install '{requirement}' (or pip), into the environment of {sys.executable}")
    if not any(point.value.startswith("logbus.") for point in metadata.entry_points(group=PROVIDERS)):
        yield error(
            "versions", "Airflow does not find the provider logbus", "install logbus as a distribution: uv pip install -e ."
        )
    if not wrong:
        shown = ", ".join(f"{name} {version}" for name in SHOWN if (version := installed(name)))
        yield ok("versions", f"Python {sys.version.split()[0]}, {shown}")


def _unmet() -> Iterator[tuple[str, str, str | None]]:
    """Name, requirement and installed version of each requirement that is not met; of extras, only what is installed counts."""
    from packaging.requirements import Requirement

    for text in metadata.requires("logbus") or []:
        requirement = Requirement(text)
        is_optional = requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})
        version = installed(requirement.name)
        is_met = is_optional if version is None else requirement.specifier.contains(version, prereleases=True)
        if not is_met:
            yield requirement.name, str(requirement).partition(";")[0].strip(), version


# Airflow is queried in a process of its own, because importing it takes seconds and fixes its home for good. Nothing secret
# leaves that process: it prints types and addresses.
CONNECTIONS: Mapping[str, str] = {"kafka_default": "kafka", "warehouse_default": "logbus_warehouse", "spark_default": "spark"}
SEEN = (
    "write the words dag and airflow into the file, a comment will do, or set AIRFLOW__CORE__DAG_DISCOVERY_SAFE_MODE=False; "
    "see .airflowignore, too"
)
SETUP = "logbus airflow setup --warehouse URL --bootstrap-server HOST:PORT"
MARK = "LOGBUS_FOUND "
PROGRAM = """
import json, pathlib, sys
from airflow.configuration import conf
from airflow.models.connection import Connection
from airflow.models.pool import Pool
from airflow.utils.file import list_py_file_paths
names, pool, mark = json.loads(sys.argv[1])
found = {}
for name in names:
    try:
        one = Connection.get_connection_from_secrets(name)
    except Exception as problem:
        if type(problem).__name__ != "AirflowNotFoundException":
            raise
        continue
    found[name] = {"type": one.conn_type, "place": one.extra_dejson.get("bootstrap.servers") or one.host or ""}
folder = conf.get("core", "dags_folder")
read = {str(pathlib.Path(path)) for path in list_py_file_paths(folder)}
files = [path for path in sorted(pathlib.Path(folder).rglob("*.py")) if b"logbus.pipelines" in path.read_bytes()]
skipped = [str(path) for path in files if str(path) not in read]
print(mark + json.dumps({"connections": found, "has_pool": Pool.get_pool(pool) is not None, "skipped": skipped}))
"""


def check_airflow(machine: Machine) -> Iterator[Finding]:
    """Only where an Airflow was set up: a configuration file, or a database that the environment names."""
    home = Path(machine.environment.get("AIRFLOW_HOME") or machine.home / "airflow")
    if not (home / "airflow.cfg").is_file() and "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN" not in machine.environment:
        yield note("airflow", f"no Airflow is set up in {home}", "export AIRFLOW_HOME, if it is somewhere else")
        return
    output = machine.run([sys.executable, "-c", PROGRAM, json.dumps([list(CONNECTIONS), spark_submit.LOAD_POOL, MARK])])
    _, mark, answer = output.text.rpartition(MARK)
    if not mark:
        last = (output.text.strip().splitlines() or ["no message"])[-1]
        yield error("airflow", f"cannot query the Airflow in {home}: {last}", "airflow db check; airflow db migrate")
        return
    yield from judged(json.loads(answer.splitlines()[0]), home)


def judged(airflow: Mapping[str, Any], home: Path) -> Iterator[Finding]:
    connections: Mapping[str, Any] = airflow["connections"]
    for name, kind in CONNECTIONS.items():
        if name not in connections:
            yield warning("airflow", f"there is no connection {name}", f"{SETUP}, or name your own in the DAGs")
        elif connections[name]["type"] != kind:
            yield error("airflow", f"connection {name} is of type {connections[name]['type']}, not {kind}", f"{SETUP} --replace")
    if not airflow["has_pool"]:
        yield error("airflow", f"there is no pool {spark_submit.LOAD_POOL}: loads stay in the state scheduled forever", SETUP)
    for path in airflow["skipped"]:
        yield error("airflow", f"{path} uses logbus.pipelines, but Airflow skips it without a message", SEEN)
    if airflow["has_pool"] and connections.keys() == CONNECTIONS.keys():
        places = ", ".join(f"{name} at {connection['place']}" for name, connection in connections.items())
        yield ok("airflow", f"{home}: {places}; pool {spark_submit.LOAD_POOL}")
