"""What the pages' data takes: 50 topics, a week of hours, 20 groups; each route of a real Airflow api-server, over HTTP.

First: nobody has looked for more than a minute, so the look waits for ledger and broker. Cold: what was read is too old and is
read anew beside the request. Warm: somebody has just asked. Twenty browsers at once come cold too. How many requests a look costs
the broker is counted by the broker, with one partition a topic and with eight.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
from logbus.local.airflow_instance import AirflowSettings, airflow_environment
from logbus.local.processes import Program, Supervisor, wait_until
from logbus.local.stack import project_directory
from logbus.provider import CONNECTION_TYPE
from logbus.ui.shared import KEPT_SECONDS, STALE_SECONDS_MAX
from logbus.warehouse.embedded import EmbeddedPostgres
from logbus.warehouse.engine import connect
from logbus.windows.migrations import create_ledger
from logbus.windows.model import HOUR, instant_text
from rich.console import Console

from benchmarks.figures import Figure, Target, figure
from benchmarks.loads import Scale
from benchmarks.peers.logbus import LogbusBroker
from benchmarks.processes import free_port
from benchmarks.ui_data import HOURS, Platform

TARGET = Target(ours_max=300)
PARTITIONS_FEW, PARTITIONS_MANY = 1, 8
COLD_LOOKS, WARM_LOOKS, BROWSERS = 3, 10, 20  # a round
NEVER_KEPT = "window"  # each look reads the ledger
START_SECONDS_MAX = 180.0
SETTLED_SECONDS = 2.0  # after a look: what is read beside it is done
REQUESTS = "kafka_network_requestmetrics_requests_total"


def run(console: Console, scale: Scale) -> Sequence[Figure]:
    figures: list[Figure] = []
    requests: dict[str, dict[int, float]] = {}
    for partitions in (PARTITIONS_FEW, PARTITIONS_MANY):
        console.print(f"seeding 50 topics of {partitions} partition(s) ...")
        with platform(partitions) as (client, broker, paths):
            for name, path in paths.items():
                requests.setdefault(name, {})[partitions] = requests_of(client, broker, path)
            if partitions == PARTITIONS_MANY:
                figures += times(client, paths, scale)
    for name, counted in requests.items():
        few, many = counted[PARTITIONS_FEW], counted[PARTITIONS_MANY]
        against = f"{PARTITIONS_FEW} partition a topic"
        figures.append(
            figure(f"{name}: a cold look", "requests", ours=[many], peer=[few], target=Target(ratio_max=1.1), against=against)
        )
    return figures


def times(client: httpx.Client, paths: Mapping[str, str], scale: Scale) -> Iterator[Figure]:
    """The first look, then median and worst of each route, in milliseconds."""
    time.sleep(STALE_SECONDS_MAX + 1)
    for name, path in paths.items():
        yield figure(f"{name}, first", "ms", ours=[look(client, path)])
    for name, path in paths.items():
        cold = [] if name == NEVER_KEPT else [cold_look(client, path) for _ in range(COLD_LOOKS * scale.rounds)]
        warm = [look(client, path) for _ in range(WARM_LOOKS * scale.rounds)]
        for state, found in (("cold", cold), ("warm", warm)) if cold else (("any look", warm),):
            yield figure(f"{name}, {state}: median", "ms", ours=found, target=TARGET)
            yield figure(f"{name}, {state}: worst of {len(found)}", "ms", ours=[max(found)], target=TARGET)
    found = [one for _ in range(scale.rounds) for one in together(client, paths["overview"])]
    yield figure(f"overview, {BROWSERS} browsers at once: median", "ms", ours=found)
    yield figure(f"overview, {BROWSERS} browsers at once: worst", "ms", ours=[max(found)])


def look(client: httpx.Client, path: str) -> float:
    began = time.perf_counter()
    client.get(path).raise_for_status()
    return (time.perf_counter() - began) * 1000


def cold_look(client: httpx.Client, path: str) -> float:
    time.sleep(KEPT_SECONDS + 0.1)
    return look(client, path)


def together(client: httpx.Client, path: str) -> list[float]:
    time.sleep(KEPT_SECONDS + 0.1)
    with ThreadPoolExecutor(BROWSERS) as browsers:
        return list(browsers.map(lambda _: look(client, path), range(BROWSERS)))


def requests_of(client: httpx.Client, broker: LogbusBroker, path: str) -> float:
    """How many requests the broker got for one cold look; its connections are there already."""
    look(client, path)
    time.sleep(KEPT_SECONDS + 0.1)
    before = request_count(broker)
    look(client, path)
    time.sleep(SETTLED_SECONDS)
    return request_count(broker) - before


def request_count(broker: LogbusBroker) -> float:
    """All requests, but for those of clients that keep their metadata fresh: there are none as often as looks."""
    with urllib.request.urlopen(f"{broker.settings['logbus.metrics.listener']}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(REQUESTS + "{"))


@contextmanager
def platform(partitions: int) -> Iterator[tuple[httpx.Client, LogbusBroker, Mapping[str, str]]]:
    """Everything up and seeded, and the addresses to ask."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="logbus-ui-", ignore_cleanup_errors=True)))
        settings = {"logbus.metrics.listener": f"http://127.0.0.1:{free_port()}", "log.retention.ms": "-1"}
        broker = stack.enter_context(LogbusBroker(directory / "broker", settings=settings))
        postgres = stack.enter_context(EmbeddedPostgres(directory / "pg"))
        engine = connect(postgres.create_database("warehouse"))
        stack.callback(engine.dispose)
        create_ledger(engine)
        begin = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - HOURS * HOUR
        Platform(engine=engine, bootstrap=broker.bootstrap, partitions=partitions, begin=begin).seed()
        client = stack.enter_context(api_server(directory / "airflow", postgres, broker.bootstrap))
        paths = {name: f"/logbus/api/{name}" for name in ("overview", "topics", "groups")}
        yield client, broker, {**paths, "window": f"/logbus/api/windows/topic_00/{instant_text(begin)}"}


@contextmanager
def api_server(home: Path, postgres: EmbeddedPostgres, bootstrap: str) -> Iterator[httpx.Client]:
    """An api-server with our plugin, and a client that it lets in. No token is asked for: signing one is no part of a page."""
    home.mkdir()
    settings = AirflowSettings(
        home=home,
        run_directory=home / "run",
        project=project_directory(),
        port=free_port(),
        database_url=postgres.create_database("airflow"),
        connections={
            "kafka_default": {"conn_type": "kafka", "extra": {"bootstrap.servers": bootstrap}},
            "warehouse_default": {
                "conn_type": CONNECTION_TYPE,
                "host": str(postgres.socket_directory),
                "login": "postgres",
                "schema": "warehouse",
            },
        },
    )
    environment = airflow_environment(settings, os.environ)
    supervisor = Supervisor()

    def program(*arguments: str) -> Program:
        command = [sys.executable, "-m", "airflow", *arguments]
        return Program(
            name=arguments[0], command=command, environment=environment, directory=home / "run", working_directory=home
        )

    try:
        supervisor.run(program("db", "migrate"), START_SECONDS_MAX)
        server = supervisor.start(program("api-server", "--workers", "1"))
        with httpx.Client(base_url=settings.url, timeout=60.0, trust_env=False) as client:
            wait_until(
                lambda: answers(client), timeout_seconds=START_SECONDS_MAX, what="Airflow's api-server", processes=[server]
            )
            client.headers["Authorization"] = f"Bearer {client.get('/auth/token').json()['access_token']}"
            yield client
    finally:
        supervisor.end()


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/api/v2/version").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
