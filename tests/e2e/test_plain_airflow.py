"""The wheel, and nothing else of ours, in a plain Airflow: the oldest that the metadata allow and the newest, each with another Spark.

`pip install` has to be all: an hour is loaded and proven, the timetable is known, and the pages answer. The newest stands beside an
Apache Kafka with SASL and TLS, whose user may read the topics of one prefix and nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from logbus.cli.processes import Program, ReservedPorts, Supervisor
from logbus.kafka import client_config
from logbus.waiting import PATIENCE_SECONDS, wait_until

from benchmarks.peers.logbus import LogbusBroker
from scripts.grid import FREE, RELEASES, uv_program
from tests.support.pages import blocks
from tests.support.postgres import postgres_server, server_directory, warehouse_url  # noqa: F401
from tests.support.secured_kafka import SecuredKafka, secured_kafka  # noqa: F401

CHECKOUT = Path(__file__).parents[2]
OLDEST, NEWEST = min(RELEASES), max(RELEASES)
KUBERNETES = "apache-airflow-providers-cncf-kubernetes"
PAGE = CHECKOUT / "docs" / "how-to" / "spark-on-kubernetes.md"
# As a task of the DAG that the page shows would be rendered after `begin`, by the provider's own operator.
RENDER = """
import json, sys
from types import SimpleNamespace
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(sys.argv[1], load_op_links=False)
assert not bag.import_errors, bag.import_errors
dag = bag.dags["clicks"]
submit = dag.get_task("submit")
words = ["--pipeline", "clicks", "--window", "2026-11-26T10:00:00Z=3"]
submit.render_template_fields({"ti": SimpleNamespace(xcom_pull=lambda task_ids, key: words)})
print("RENDERED " + json.dumps(submit.template_body["spark"]))
"""
DAG = """# airflow dag
from logbus.pipelines import hourly_ingest
hourly_ingest(pipeline="access_log", topic="read.access_log", table="access_log", parse="combined")
"""


@dataclass(frozen=True)
class PlainAirflow:
    """An environment of its own with an Airflow and our wheel."""

    programs: Path
    environment: Mapping[str, str]

    def run(self, *words: str) -> str:
        ended = subprocess.run(
            [str(self.programs / words[0]), *words[1:]], env=self.environment, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stdout[-4_000:] + ended.stderr[-4_000:]
        return ended.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    subprocess.run(
        [uv_program(), "build", "--quiet", "--all-packages", "--wheel", "--out-dir", str(folder)], check=True, cwd=CHECKOUT
    )
    return folder


def install(folder: Path, wheels: Path, *requirements: str, options: Sequence[str] = ()) -> Path:
    """The folder of an environment's programs."""
    uv, python = uv_program(), folder / "bin" / "python"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
    command = [uv, "pip", "install", "--quiet", "--no-config", "--python", str(python), "--find-links", str(wheels)]
    subprocess.run([*command, *requirements, *options], check=True, cwd=folder)
    return folder / "bin"


@contextmanager
def serving(plain: PlainAirflow, home: Path) -> Iterator[httpx.Client]:
    """The api-server, spoken to by its administrator."""
    with ReservedPorts(1) as ports, ExitStack() as stack:
        supervisor = Supervisor()
        stack.callback(supervisor.end)
        url = f"http://127.0.0.1:{ports.numbers[0]}"
        server = Program(
            name="api-server",
            command=[str(plain.programs / "airflow"), "api-server", "--host", "127.0.0.1", "--port", str(ports.numbers[0])],
            environment=plain.environment,
            directory=home / "run",
            working_directory=home,
        )
        process = supervisor.start(server)
        client = httpx.Client(base_url=url, timeout=PATIENCE_SECONDS, trust_env=False)

        def token() -> str | None:
            return str(client.get("/auth/token").raise_for_status().json()["access_token"])

        client.headers["Authorization"] = (
            f"Bearer {wait_until(token, what='the api-server', not_yet=httpx.HTTPError, processes=[process])}"
        )
        yield client


@pytest.fixture
def environment() -> Iterator[Path]:
    """A folder that is gone after the test: pytest keeps its own for three runs, and this one holds a gigabyte."""
    with tempfile.TemporaryDirectory(prefix="logbus-plain-") as folder:
        yield Path(folder) / "environment"


@pytest.fixture
def logbus(tmp_path: Path) -> Iterator[Mapping[str, Mapping[str, str]]]:
    """The clients' settings of a reader and of who may write."""
    with LogbusBroker(tmp_path / "broker") as running:
        settings = {"bootstrap.servers": running.bootstrap}
        yield {"reader": settings, "writer": settings}


@pytest.fixture
def kafka(secured_kafka: SecuredKafka) -> Mapping[str, Mapping[str, str]]:  # noqa: F811
    return {
        "reader": secured_kafka.settings("SASL_SSL", "reader"),
        "writer": secured_kafka.settings("SASL_SSL", "admin", "PLAIN"),
    }


@pytest.mark.parametrize(("airflow", "spark", "log"), [(OLDEST, "4.0.0", "logbus"), (NEWEST, "4.2.0", "kafka")])
def test_the_wheel_alone_proves_an_hour_and_shows_it(
    airflow: str,
    spark: str,
    log: str,
    request: pytest.FixtureRequest,
    wheels: Path,
    environment: Path,
    warehouse_url: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    programs = install(
        environment,
        wheels,
        "logbus[airflow,spark]",
        *(f"apache-airflow=={airflow}", f"pyspark=={spark}", f"pyspark-client=={spark}"),
        *([KUBERNETES] if airflow == NEWEST else []),
        options=["--exclude-newer", RELEASES[airflow], *FREE],
    )
    for user, settings in request.getfixturevalue(log).items():
        (tmp_path / user).write_text(client_config.properties(settings))
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "access_log.py").write_text(DAG)
    plain = PlainAirflow(
        programs=programs,
        environment={
            **{name: os.environ[name] for name in ("HOME", "JAVA_HOME", "LANG", "TMPDIR") if name in os.environ},
            "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
            "AIRFLOW_HOME": str(tmp_path / "airflow"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "LOGBUS_WAREHOUSE_URL": warehouse_url,
            "LOGBUS_CLIENT_CONFIG": str(tmp_path / "reader"),
        },
    )
    plain.run("airflow", "db", "migrate")
    plain.run("logbus", "airflow", "setup")
    plain.run("logbus", "sample", str(tmp_path / "access.log"))
    plain.run(
        *(
            "logbus",
            "ship",
            str(tmp_path / "access.log"),
            "--topic",
            "read.access_log",
            "--client-config",
            str(tmp_path / "writer"),
        )
    )
    end = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=3)
    plain.run("airflow", "dags", "test", "access_log", end.isoformat())

    shown = plain.run("logbus", "window", "ls", "--pipeline", "access_log")
    assert re.search(rf"{end - timedelta(hours=1):%Y-%m-%dT%H}:00:00Z +audited +[1-9]", shown), shown
    with serving(plain, tmp_path) as client:
        assert [row["name"] for row in client.get("/logbus/api/overview").json()["pipelines"]] == ["access_log"]
        assert "../static/base.css" in client.get("/logbus/ui/ingestion").text
    if airflow == NEWEST:
        validate_what_the_page_submits_to_kubernetes(plain, tmp_path / "kubernetes")


def validate_what_the_page_submits_to_kubernetes(plain: PlainAirflow, folder: Path) -> None:
    """No cluster is there: this is as far as Airflow goes before it asks for one."""
    folder.mkdir()
    for block in blocks(PAGE):
        if name := block.file_name("dag of another provider") or block.file_name("file"):
            (folder / name).write_text(block.text)
    rendered = plain.run("python", "-c", RENDER, str(folder)).rpartition("RENDERED ")[2]
    application = json.loads(rendered)
    assert application["kind"] == "SparkApplication"
    assert application["spec"]["arguments"] == ["--pipeline", "clicks", "--window", "2026-11-26T10:00:00Z=3"]
    assert "postgresql" not in rendered
