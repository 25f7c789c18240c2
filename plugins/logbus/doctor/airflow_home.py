"""Airflow: does the one that is set up here have the connections and the pool that our DAGs name, and does it see those DAGs?

Airflow is queried in a process of its own, because importing it takes seconds and fixes its home for good. Nothing secret leaves
that process: it prints types and addresses.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from logbus.doctor.looking import Surroundings
from logbus.spark_submit import LOAD_POOL
from logbus.status.checkup import Finding, error, note, warning, well

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


def check_airflow(around: Surroundings) -> Iterator[Finding]:
    """Only where an Airflow was set up: a configuration file, or a database that the environment names."""
    home = Path(around.environment.get("AIRFLOW_HOME") or around.home / "airflow")
    if not (home / "airflow.cfg").is_file() and "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN" not in around.environment:
        yield note("airflow", f"no Airflow is set up in {home}", "export AIRFLOW_HOME, if it is somewhere else")
        return
    said = around.run([sys.executable, "-c", PROGRAM, json.dumps([list(CONNECTIONS), LOAD_POOL, MARK])])
    _, mark, answer = said.text.rpartition(MARK)
    if not mark:
        last = (said.text.strip().splitlines() or ["no message"])[-1]
        yield error("airflow", f"the Airflow in {home} cannot be queried: {last}", "airflow db check; airflow db migrate")
        return
    yield from judged(json.loads(answer.splitlines()[0]), home)


def judged(found: Mapping[str, Any], home: Path) -> Iterator[Finding]:
    connections: Mapping[str, Any] = found["connections"]
    for name, kind in CONNECTIONS.items():
        if name not in connections:
            yield warning("airflow", f"there is no connection {name}", f"{SETUP}, or name your own in the DAGs")
        elif connections[name]["type"] != kind:
            yield error("airflow", f"connection {name} is of type {connections[name]['type']}, not {kind}", f"{SETUP} --replace")
    if not found["has_pool"]:
        yield error("airflow", f"there is no pool {LOAD_POOL}: loads stay in the state scheduled forever", SETUP)
    for path in found["skipped"]:
        yield error("airflow", f"{path} uses logbus.pipelines, but Airflow skips it without a message", SEEN)
    if found["has_pool"] and connections.keys() == CONNECTIONS.keys():
        places = ", ".join(f"{name} at {one['place']}" for name, one in connections.items())
        yield well("airflow", f"{home}: {places}; pool {LOAD_POOL}")
