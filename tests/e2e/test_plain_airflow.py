"""The wheel, and nothing else of ours, in a plain Airflow: the oldest that the metadata allow and the newest, each with another Spark.

`pip install` has to be all: an hour is loaded and proven, the timetable is known, and the pages answer. The newest stands beside an
Apache Kafka with SASL and TLS, whose user may read the topics of one prefix and nothing else. The warehouse is reached by the role
that loads, and neither its password nor the one of the broker is to be seen anywhere."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from logbus.cli.processes import Program, ReservedPorts, Supervisor
from logbus.kafka import client_config
from logbus.loads import roles
from logbus.loads.engine import connect
from logbus.waiting import PATIENCE_SECONDS, wait_until

from benchmarks.peers.logbus import LogbusBroker
from scripts.grid import RELEASES
from tests.support import canary
from tests.support.pages import PROJECT, blocks
from tests.support.plain_airflow import TOPIC, PlainAirflow, build_wheels, install, make_environment
from tests.support.postgres import postgres_server, server_directory, warehouse_url  # noqa: F401
from tests.support.secured_kafka import PASSWORDS, SecuredKafka, secured_kafka  # noqa: F401

PASSWORD = 'planted "in/the+warehouse" \\'
OLDEST, NEWEST = min(RELEASES), max(RELEASES)
KUBERNETES = "apache-airflow-providers-cncf-kubernetes"
PAGE = PROJECT / "docs" / "how-to" / "spark-on-kubernetes.md"
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


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    build_wheels(folder)
    return folder


@contextmanager
def serving(plain: PlainAirflow) -> Iterator[httpx.Client]:
    """The api-server, spoken to by its administrator."""
    with ReservedPorts(1) as ports, ExitStack() as stack:
        supervisor = Supervisor()
        stack.callback(supervisor.end)
        url = f"http://127.0.0.1:{ports.numbers[0]}"
        server = Program(
            name="api-server",
            command=[str(plain.programs / "airflow"), "api-server", "--host", "127.0.0.1", "--port", str(ports.numbers[0])],
            environment=plain.environment,
            directory=plain.home / "run",
            working_directory=plain.home,
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


@pytest.mark.parametrize(
    ("airflow", "spark", "log", "provider"),
    [
        (OLDEST, "4.0.0", "logbus", None),
        (NEWEST, "4.2.0", "kafka", None),
        pytest.param(NEWEST, "4.2.0", "logbus", KUBERNETES, marks=pytest.mark.long),
    ],
)
def test_the_wheel_alone_proves_an_hour_and_shows_it(
    airflow: str,
    spark: str,
    log: str,
    provider: str | None,
    request: pytest.FixtureRequest,
    wheels: Path,
    environment: Path,
    warehouse_url: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    programs = make_environment(environment)
    install(programs, wheels, ["logbus[airflow,spark]"], airflow=airflow, spark=spark)
    for user, settings in request.getfixturevalue(log).items():
        (tmp_path / user).write_text(client_config.properties(settings))
    given = {
        "LOGBUS_WAREHOUSE_URL": loader_url(warehouse_url),
        "LOGBUS_CLIENT_CONFIG": str(tmp_path / "reader"),
        "SPARK_CONF_DIR": str(tmp_path / "spark"),
    }
    keep_events(tmp_path / "spark")
    plain = PlainAirflow(programs=programs, home=tmp_path, variables=given)
    plain.write_dag()
    plain.run("airflow", "db", "migrate")
    plain.run("logbus", "airflow", "setup")
    plain.run("logbus", "sample", str(tmp_path / "access.log"))
    writer = ["--client-config", str(tmp_path / "writer")]
    plain.run("logbus", "ship", str(tmp_path / "access.log"), "--topic", TOPIC, *writer)
    end = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=3)
    with canary.command_lines() as seen:
        plain.run("airflow", "dags", "test", "access_log", end.isoformat())

    shown = plain.run("logbus", "window", "ls", "--pipeline", "access_log")
    assert re.search(rf"{end - timedelta(hours=1):%Y-%m-%dT%H}:00:00Z +audited +[1-9]", shown), shown
    with serving(plain) as client:
        assert [row["name"] for row in client.get("/logbus/api/overview").json()["pipelines"]] == ["access_log"]
        assert "../static/base.css" in client.get("/logbus/ui/ingestion").text
        pages = [
            client.get(f"/logbus/api/{path}").raise_for_status().text for path in ("pipelines/access_log", "topics", "overview")
        ]
    assert any(b"load_windows.py" in line for line in seen)
    assert list((tmp_path / "spark").glob("*/*"))
    places = [
        *((line.decode(errors="replace"), line) for line in seen),
        *((text[:100], text.encode()) for text in (*plain.printed, *pages)),
        *canary.files_below(tmp_path, without=[tmp_path / "reader", tmp_path / "writer"]),
        ("the warehouse", canary.dump(warehouse_url)),
    ]
    assert canary.found([PASSWORD, PASSWORDS["reader"]], places) == []
    if provider is not None:
        # Only now: beside it the Spark provider imports a client of eight hundred modules in every process.
        install(programs, wheels, [provider], airflow=airflow, spark=spark)
        validate_what_the_page_submits_to_kubernetes(plain, tmp_path / "kubernetes")


def loader_url(superusers: str) -> str:
    """The database as the role that loads, with a password that has to be escaped in URLs, JSON and shells."""
    administrator = connect(superusers)
    roles.prepare(administrator)
    url = administrator.url.set(username=roles.LOADER, password=PASSWORD)
    administrator.dispose()
    return url.render_as_string(hide_password=False)


def keep_events(folder: Path) -> None:
    """Spark's settings: each application leaves its event log, which is what its UI shows, below the folder."""
    (folder / "events").mkdir(parents=True)
    settings = f"spark.eventLog.enabled true\nspark.eventLog.dir {(folder / 'events').as_uri()}\n"
    (folder / "spark-defaults.conf").write_text(settings)


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
