"""`make first-hour`: how long it takes until an hour of a topic that exists is proven, in an Airflow that exists.

The Airflow is a plain one of the newest release, the Kafka has SASL, TLS and ACLs, its user may read topics of one prefix, and a
PostgreSQL is there. Counted is what remains: three commands, and the first run of a Dag of two lines.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

from confluent_kafka.admin import AclOperation
from logbus.kafka.producing import produce
from logbus.loads.embedded import EmbeddedPostgres
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scripts.grid import RELEASES
from tests.support.plain_airflow import TOPIC, PlainAirflow, build_wheels, install, make_environment
from tests.support.secured_kafka import PASSWORDS, SecuredKafka

AIRFLOW, SPARK = max(RELEASES), "4.2.0"
USER, FILE = "reader", "client.properties"


HOUR = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=3)
LINE = f'203.0.113.7 - - [{HOUR:%d/%b/%Y:%H:%M:%S} +0000] "GET /first HTTP/1.1" 200 512 "-" "curl/8.0"'
RECORDS = [{"value": LINE, "timestamp": HOUR}] * 1_000


def main() -> None:
    console = Console()
    with tempfile.TemporaryDirectory(prefix="logbus-first-hour-", ignore_cleanup_errors=True) as directory, ExitStack() as stack:
        folder = Path(directory)
        console.print("making what is there already: an Airflow, a PostgreSQL, a Kafka, a topic with records")
        plain = existing_airflow(folder, stack.enter_context(EmbeddedPostgres(folder / "postgres")))
        kafka = stack.enter_context(SecuredKafka(folder / "kafka"))
        kafka.add_scram_users()
        for operation in (AclOperation.READ, AclOperation.DESCRIBE):
            kafka.grant(USER, operation, TOPIC)
        produce(kafka.settings("SASL_SSL", "admin", "PLAIN"), TOPIC, RECORDS)
        steps: dict[str, Callable[[], object]] = {
            "pip install 'logbus[airflow,spark]'": lambda: install(
                plain.programs, folder / "wheels", ["logbus[airflow,spark]"], airflow=AIRFLOW, spark=SPARK
            ),
            "logbus connect": lambda: plain.run("logbus", "connect", *connection(kafka, folder / FILE)),
            "logbus airflow setup": lambda: plain.run("logbus", "airflow", "setup"),
            "the first run of the Dag": lambda: first_run(plain),
        }
        table, began = Table("step", "seconds"), time.monotonic()
        for name, step in steps.items():
            started = time.monotonic()
            step()
            table.add_row(escape(name), f"{time.monotonic() - started:.1f}")
        table.add_row("until the hour is proven", f"{time.monotonic() - began:.1f}")
        shown = plain.run("logbus", "window", "ls", "--pipeline", "access_log")
    console.print(table)
    console.print(shown)
    if "audited" not in shown:
        raise SystemExit("the hour is not proven")


def existing_airflow(folder: Path, postgres: EmbeddedPostgres) -> PlainAirflow:
    build_wheels(folder / "wheels")
    programs = make_environment(folder / "environment")
    install(programs, folder / "wheels", ["apache-airflow-providers-apache-spark"], airflow=AIRFLOW, spark=SPARK)
    variables = {
        "LOGBUS_WAREHOUSE_URL": postgres.create_database("warehouse"),
        "LOGBUS_KAFKA_PASSWORD": PASSWORDS[USER],
        "LOGBUS_CLIENT_CONFIG": str(folder / FILE),
    }
    plain = PlainAirflow(programs=programs, home=folder, variables=variables)
    plain.run("airflow", "db", "migrate")
    return plain


def connection(kafka: SecuredKafka, path: Path) -> Sequence[str]:
    protocol = ["--bootstrap-server", kafka.address("SASL_SSL"), "--security-protocol", "sasl_ssl"]
    login = ["--mechanism", "scram-sha-512", "--user", USER, "--ca", str(kafka.authority.certificate)]
    return [*protocol, *login, "--no-input", "--write", str(path)]


def first_run(plain: PlainAirflow) -> None:
    plain.write_dag()
    plain.run("airflow", "dags", "test", "access_log", (HOUR + timedelta(hours=1)).isoformat())


if __name__ == "__main__":
    main()
