"""docker-compose.airflow.yml without containers: its commands and health checks run as plain processes, and work together.

Services of other images (PostgreSQL's entrypoint, Prometheus, Grafana) are not run as the file says: Prometheus comes from
Debian's package if installed, with the file's configuration. docs/compose.md lists what that leaves untested.
"""

from __future__ import annotations

import json
import ssl
import stat
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest
import yaml
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from logbus import errors
from logbus.cli.secure_home import USERS
from logbus.kafka import client_config
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.loads.engine import connect, libpq_uri
from logbus.loads.ledger import Ledger
from logbus.model import Pipeline, WindowState, milliseconds
from logbus.parsing.decoders import reference_to_id
from logbus.parsing.registry_client import USER_INFO, RegistryClient
from logbus.waiting import PATIENCE_SECONDS, wait_until
from sqlalchemy import make_url

from benchmarks import processes
from tests.support.compose import PROJECT, services
from tests.support.exporting import fetch, samples, value
from tests.support.plain_services import PlainServices
from tests.support.postgres import server_directory  # noqa: F401
from tests.support.prometheus_server import prometheus
from tests.support.topics import create_topic

SHORT = ("security", "broker", "registry", "spark-master", "spark-worker", "exporter", "airflow-apiserver")
LONG = ("airflow-scheduler", "airflow-dag-processor", "airflow-triggerer")
ONCE = ("provisioner", "airflow-init")
ZOOKEEPERS, BROKERS = (tuple(f"{kind}-{number}" for number in (1, 2, 3)) for kind in ("zookeeper", "broker"))


@pytest.fixture(scope="module")
def running(server_directory: Path) -> Iterator[PlainServices]:  # noqa: F811
    """All but Airflow's components that depend on the api-server. Independent services start in parallel."""
    with PlainServices(server_directory / "compose") as made:
        made.start_postgres()
        begun = {name: made.start(name) for name in ("security", "spark-master", "spark-worker")}
        made.wait_until_healthy("security", begun["security"])
        begun["broker"] = made.start("broker")
        made.wait_until_healthy("broker", begun["broker"])
        for name in ONCE:
            made.run(name)
        begun |= {name: made.start(name) for name in ("airflow-apiserver", "exporter", "registry")}
        for name, process in begun.items():
            made.wait_until_healthy(name, process)
        yield made


@pytest.fixture(scope="module")
def cluster(server_directory: Path) -> Iterator[PlainServices]:  # noqa: F811
    """Brokers and ZooKeepers of the profile `cluster`, and what secures them."""
    with PlainServices(server_directory / "compose-cluster", profile="cluster") as made:
        begun = {name: made.start(name) for name in ("security", *ZOOKEEPERS)}
        made.wait_until_healthy("security", begun["security"])
        begun |= {name: made.start(name) for name in BROKERS}
        for name, process in begun.items():
            made.wait_until_healthy(name, process)
        made.run("provisioner")
        yield made


def test_every_service_of_our_image_is_run_here() -> None:
    assert {*SHORT, *LONG, *ONCE} == set(services(own=True, profile="single"))
    assert {*SHORT, *LONG, *ONCE, *ZOOKEEPERS, *BROKERS} - {"broker"} == set(services(own=True, profile="cluster"))


def test_a_cluster_of_three_keeps_what_is_acknowledged_while_a_broker_and_a_zookeeper_are_away(cluster: PlainServices) -> None:
    settings = client_config.read_client_config(cluster.directory / "secured" / "shared" / "admin" / "client.properties")
    assert settings["bootstrap.servers"] == f"127.0.0.1:{cluster.port('broker-1', '9092')}"
    create_topic(settings["bootstrap.servers"], "clicks", settings, partitions=3)
    producer, sent = Producer(settings | {"acks": "all"}), [b"%d" % number for number in range(300)]
    for number, value_sent in enumerate(sent):
        producer.produce("clicks", value_sent, partition=number % 3)
        if number == 150:
            cluster.begun["broker-3"].end()
            cluster.begun["zookeeper-3"].end()
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert sorted(values_of(settings, "clicks", len(sent))) == sorted(sent)

    def tell_who_is_away() -> bool:
        return [cluster.health(name).returncode for name in (*ZOOKEEPERS, *BROKERS)] == [0, 0, 1, 0, 0, 1]

    # The servers that are left elect a leader if it was theirs that went: until then they serve nobody, and say so.
    wait_until(tell_who_is_away, what="the health checks to tell who is away")


def values_of(settings: Mapping[str, Any], topic: str, count: int) -> list[bytes]:
    consumer = Consumer({**settings, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(3)])
    messages = consumer.consume(count, PATIENCE_SECONDS)
    consumer.close()
    return [bytes(message.value() or b"") for message in messages]


def test_the_health_check_of_a_service_that_is_not_there_fails(running: PlainServices, tmp_path: Path) -> None:
    with PlainServices(tmp_path / "nobody") as nobody:
        for name in services(own=True):
            if name not in (*ONCE, *ZOOKEEPERS[1:], *BROKERS):  # these are like others
                assert nobody.health(name).returncode == 1, name
    assert running.health("broker").returncode == 0


def test_init_leaves_the_passwords_to_their_owner_and_out_of_every_log(running: PlainServices) -> None:
    path = running.directory / "airflow" / "auth" / "passwords.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert set(json.loads(path.read_text())) == {"admin", "viewer"}
    output = "".join(log.read_text() for log in (running.directory / "run").glob("*.log"))
    assert "ready: the components may start" in output
    of_brokers_users = dict(line.split("=", 1) for line in (security_of(running) / "users").read_text().splitlines())
    assert of_brokers_users.keys() == set(USERS)
    typed = str([process.info["cmdline"] for process in psutil.process_iter(["cmdline"])])
    assert not [name for name, secret in (running.secrets | of_brokers_users).items() if secret in output + typed]


def security_of(running: PlainServices) -> Path:
    return running.directory / "secured" / "security"


def test_the_registry_lets_in_the_brokers_users_with_their_rights(running: PlainServices) -> None:
    url, shared = f"https://127.0.0.1:{running.ports['8085']}", running.directory / "secured" / "shared"
    with httpx.Client(base_url=url, verify=ssl.create_default_context(cafile=shared / "registry" / "ca.pem")) as http:

        def status(user: str, body: str | None = None) -> int:
            settings = client_config.read_client_config(shared / user / "client.properties")
            login, path = (user, settings["sasl.password"]), "/subjects/users/versions"
            answer = http.get(path, auth=login) if body is None else http.post(path, json={"schema": body}, auth=login)
            return answer.status_code

        assert http.get("/subjects").status_code == 401
        assert [status("shipper", '"string"'), status("spark"), status("spark", '"int"'), status("exporter")] == [
            200,
            200,
            403,
            403,
        ]
    # As a load asks: the registry's certificate is of the brokers' authority, and needs no setting.
    settings = client_config.read_client_config(shared / "airflow" / "client.properties")
    with RegistryClient(url, {**settings, USER_INFO: f"airflow:{settings['sasl.password']}"}) as client:
        schema = client.fetch(reference_to_id(1))
    assert schema is not None
    assert schema.text == '"string"'


def test_a_program_on_the_host_gets_all_that_it_needs_by_one_command(running: PlainServices, tmp_path: Path) -> None:
    """And a listener of its own: clients connect to the address that the broker advertises, and a container's would be
    unreachable."""
    command = ["logbus", "connect", "--for", "java", "--user", "shipper", "--advertised-listener", "localhost:29092"]
    printed = processes.run(running.words(command), seconds_max=PATIENCE_SECONDS, env=running.environment("security"))
    assert printed.returncode == 0, printed.stderr
    (tmp_path / "shipper.properties").write_text(printed.stdout)
    settings = client_config.read_client_config(tmp_path / "shipper.properties")
    assert settings["bootstrap.servers"] == f"127.0.0.1:{running.ports['29092']}"
    for port in ("29092", "9092"):
        address = {"bootstrap.servers": f"127.0.0.1:{running.ports[port]}"}
        told = AdminClient(settings | address).list_topics(timeout=PATIENCE_SECONDS).brokers
        assert [one.port for one in told.values()] == [int(running.ports[port])]
        for refused in (
            address,
            settings | address | {"sasl.password": "wrong"},
            settings | address | {"sasl.username": "spark"},
        ):
            client = Client.for_command(refused)
            with pytest.raises(errors.UserError, match=r"sasl\.password|security\.protocol"):
                client.ask(client.ask_cluster)


def test_each_program_has_a_role_of_its_own_that_reaches_one_database_and_is_no_superuser(running: PlainServices) -> None:
    urls = {
        "logbus_loader": running.environment("airflow-scheduler")["LOGBUS_WAREHOUSE_URL"],
        "logbus_ui": running.environment("airflow-apiserver")["LOGBUS_PAGES_WAREHOUSE_URL"],
        "airflow": running.environment("airflow-scheduler")["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].replace("+psycopg2", ""),
    }
    assert running.environment("exporter")["LOGBUS_WAREHOUSE_URL"] == urls["logbus_ui"]
    for role, url in ((role, make_url(url)) for role, url in urls.items()):
        with psycopg.connect(libpq_uri(url)) as connection:
            found = connection.execute("select session_user, rolsuper from pg_roles where rolname = session_user").fetchone()
        assert found == (role, False)
        other = "logbus" if url.database == "airflow" else "airflow"
        with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
            psycopg.connect(libpq_uri(url.set(database=other)))


def test_sparks_secret_is_in_files_of_their_owner_and_on_no_command_line(running: PlainServices) -> None:
    """The worker has registered, so both have it."""
    secret = running.secrets["LOGBUS_SPARK_SECRET"]
    settings = running.directory / "airflow" / "spark" / "spark-defaults.conf"
    assert stat.S_IMODE(settings.stat().st_mode) == 0o600
    assert f"spark.authenticate.secret {secret}" in settings.read_text()
    daemons = [
        process for process in psutil.process_iter(["cmdline"]) if "org.apache.spark.deploy" in str(process.info["cmdline"])
    ]
    assert daemons
    assert not [process for process in daemons if secret in str(process.info["cmdline"])]


def token(running: PlainServices, user: str, password: str) -> str:
    credentials = {"username": user, "password": password}
    answer = httpx.post(running.url("8080", "/auth/token"), json=credentials, timeout=PATIENCE_SECONDS, trust_env=False)
    return str(answer.raise_for_status().json()["access_token"])


def ask(running: PlainServices, path: str, bearer: str) -> Any:
    headers = {"Authorization": f"Bearer {bearer}"}
    return (
        httpx.get(running.url("8080", path), headers=headers, timeout=PATIENCE_SECONDS, trust_env=False).raise_for_status().json()
    )


def test_each_user_logs_in_with_the_password_of_the_env_file_and_no_other(running: PlainServices) -> None:
    admin = token(running, "admin", running.secrets["LOGBUS_ADMIN_PASSWORD"])
    assert token(running, "viewer", running.secrets["LOGBUS_VIEWER_PASSWORD"])
    for user, password in (("admin", "admin"), ("viewer", running.secrets["LOGBUS_ADMIN_PASSWORD"])):
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            token(running, user, password)
    connections = {one["connection_id"]: one for one in ask(running, "/api/v2/connections", admin)["connections"]}
    assert {"kafka_default", "warehouse_default", "spark_default"} <= set(connections)
    kafka = json.loads(connections["kafka_default"]["extra"])
    assert (kafka["security.protocol"], kafka["sasl.username"]) == ("SASL_SSL", "airflow")
    assert kafka["ssl.ca.pem"] == (security_of(running) / "ca.pem").read_text()
    assert connections["spark_default"]["host"] == f"spark://127.0.0.1:{running.ports['7077']}"
    assert ask(running, "/api/v2/pools/logbus_load", admin)["slots"] == 1
    assert "logbus" in {one["name"] for one in ask(running, "/api/v2/plugins", admin)["plugins"]}


def test_the_worker_has_registered_with_the_master(running: PlainServices) -> None:
    master = json.loads(fetch(running.url("8081", "/json/")))
    assert [(worker["state"], worker["cores"]) for worker in master["workers"]] == [("ALIVE", 2)]


def test_the_exporter_reads_broker_and_ledger(running: PlainServices) -> None:
    found = samples(fetch(running.url("9308", "/metrics")))
    for target in ("broker", "ledger", "lag"):
        assert value(found, "logbus_up", target=target, reason="ok") == 1


def test_prometheus_scrapes_both_with_the_configuration_of_the_docs(running: PlainServices, tmp_path: Path) -> None:
    """Debian's Prometheus, the file's jobs, with hosts and ports replaced. Alertmanager is not run here."""
    jobs = yaml.safe_load((PROJECT / "docs" / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    targets = {job["job_name"]: running.replaced(target_of(job)) for job in jobs}
    assert targets.keys() == {"logbus-exporter", "logbus-broker"}
    with prometheus(tmp_path, targets, PROJECT / "docs" / "prometheus" / "alerts.yml") as server:
        assert sum(len(group["rules"]) for group in server.ask("rules")["groups"]) == 32


def target_of(job: Mapping[str, Any]) -> str:
    if "static_configs" in job:
        return str(job["static_configs"][0]["targets"][0])
    (discovered,) = job["dns_sd_configs"]
    return f"{discovered['names'][0]}:{discovered['port']}"


@pytest.mark.long
def test_an_hour_is_loaded_by_an_application_on_the_cluster(running: PlainServices) -> None:
    environment, now = running.environment("airflow-scheduler"), datetime.now(UTC)
    settings = client_config.read_client_config(Path(environment["LOGBUS_CLIENT_CONFIG"]))
    create_topic(settings["bootstrap.servers"], "clicks", settings, partitions=2)
    producer, stamp = Producer(settings), milliseconds(now - timedelta(hours=2))
    for number in range(100):
        producer.produce("clicks", b"line %d" % number, partition=number % 2, timestamp=stamp)
    assert producer.flush(PATIENCE_SECONDS) == 0
    engine = connect(environment["LOGBUS_WAREHOUSE_URL"])
    ledger = Ledger(engine)
    ledger.register(
        Pipeline(name="clicks", topic="clicks", table="clicks", parse="lines"),
        Topics(Client(settings)),
        now,
    )
    options = ["--pipeline", "clicks", "--master", f"spark://127.0.0.1:{running.ports['7077']}"]
    result = processes.run(running.words(["logbus", "load", *options]), seconds_max=180, env=environment, cwd=PROJECT)
    assert result.returncode == 0, result.stdout + result.stderr
    (window,) = ledger.windows("clicks")
    engine.dispose()
    assert (window.state, window.record_count) == (WindowState.AUDITED, 100)
    wait_until(lambda: finished(running) == ["FINISHED"], what="the end of the application")


def finished(running: PlainServices) -> list[str]:
    """How applications on the cluster ended; the master learns of it a moment later."""
    return [app["state"] for app in json.loads(fetch(running.url("8081", "/json/")))["completedapps"]]


@pytest.mark.long
def test_init_may_run_again_and_leaves_what_is_there(running: PlainServices) -> None:
    output = running.run("airflow-init")
    assert output.count("ready: the components may start") == 2
    assert "connection warehouse_default: already exists, unchanged" in output


@pytest.mark.long
def test_airflows_other_components_are_healthy_by_their_own_checks(running: PlainServices) -> None:
    begun = {name: running.start(name) for name in LONG}
    for name, process in begun.items():
        running.wait_until_healthy(name, process)
    admin = token(running, "admin", running.secrets["LOGBUS_ADMIN_PASSWORD"])
    wait_until(
        lambda: ask(running, "/api/v2/dags?limit=1", admin)["total_entries"] > 0,
        what="the dags",
        processes=list(begun.values()),
    )
    assert not ask(running, "/api/v2/importErrors", admin)["import_errors"]
