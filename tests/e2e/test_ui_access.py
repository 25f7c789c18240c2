"""Who sees and may do what, in a real api-server: an administrator, a viewer, a user with one Dag, a browser without a login."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from logbus.cli.stack import project_directory
from logbus.loads.embedded import EmbeddedPostgres
from logbus.loads.engine import connect
from logbus.model import TaskKey, instant_text
from logbus.waiting import PATIENCE_SECONDS
from logbus.windows.migrations import create_ledger
from sqlalchemy import Engine

from tests.support.api_server import DAGS, ApiServer
from tests.support.broker import LogbusBroker
from tests.support.fake_log import FakeLog
from tests.support.ledgers import NOW, World, at, remember_dag, stamps
from tests.support.loads import Loading
from tests.support.one_dag_auth_manager import OneDagAuthManager
from tests.support.postgres import postgres_server, server_directory  # noqa: F401
from tests.support.real_pipeline import RealPipeline

OPEN, SECRET = "open_pipeline", "secret_pipeline"
ONLY_OPEN = f"only_{OPEN}"
USERS = {"admin": "admin", "vic": "viewer", ONLY_OPEN: "user"}
TEN, ELEVEN, TWELVE = (instant_text(at(number)) for number in (10, 11, 12))
RUN = "of_ten"
ROUTES = ("overview", "topics", "groups", f"windows/{OPEN}/{TEN}", f"windows/{OPEN}/{TEN}/replay_plan")


@dataclass
class Site:
    server: ApiServer
    engine: Engine
    clients: dict[str, httpx.Client]

    def by(self, user: str | None) -> httpx.Client:
        """A browser in which the user has logged in, by its cookie; None is a browser without a login."""
        name = user or ""
        if name not in self.clients:
            cookies = {"_token": self.server.token(user)} if user else {}
            self.clients[name] = httpx.Client(
                base_url=self.server.url, cookies=cookies, timeout=PATIENCE_SECONDS, trust_env=False
            )
        return self.clients[name]


@pytest.fixture(scope="module")
def site(postgres_server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:  # noqa: F811
    """Two pipelines with a Dag each; for the open one, hour 10 is loaded with a dead letter and hour 11 is frozen."""
    home = tmp_path_factory.mktemp("access")
    engine = connect(postgres_server.create_database("ui_access"))
    create_ledger(engine)
    manager = f"{OneDagAuthManager.__module__}.{OneDagAuthManager.__qualname__}"
    with LogbusBroker(home / "broker") as broker:
        seed(engine, broker.bootstrap)
        server = ApiServer(
            home=home / "airflow",
            postgres=postgres_server,
            warehouse="ui_access",
            bootstrap=broker.bootstrap,
            dags={
                "pipelines.py": DAGS.format(pipelines={OPEN: "lines", SECRET: "lines"}),
                "redrive.py": (project_directory() / "dags" / "redrive.py").read_text(),
            },
            users=USERS,
            settings={
                "AIRFLOW__CORE__AUTH_MANAGER": manager,
                "PYTHONPATH": os.pathsep.join(map(str, (project_directory(), project_directory() / "plugins"))),
            },
        )
        with server:
            yield Site(server=server, engine=engine, clients={})
    engine.dispose()


def seed(engine: Engine, bootstrap: str) -> None:
    url = engine.url.render_as_string(hide_password=False)
    for name in (OPEN, SECRET):
        pipeline = RealPipeline(bootstrap, engine, partitions=1, name=name)
        pipeline.send([(10.2, b"one"), (10.4, b"two"), (11.1, b"three"), (12.1, b"four")])
        log = FakeLog()
        log.create(name)
        log.append(name, *stamps(10.2, 10.4, 11.1, 12.1))
        for number in (10, 11):
            pipeline.freeze(number)
            remember_dag(pipeline.ledger, name, name)
        window = pipeline.ledger.window(name, at(10))
        loading = Loading(World(pipeline.ledger, log), url, window, frozenset({1}))
        task = TaskKey(dag_id=name, task_id="load")
        (loading.attempt,) = pipeline.ledger.begin_attempts(name, [at(10)], RUN, 1, NOW, task)
        loading.create().run_task(7).commit()


def window_path(pipeline: str, start: str, action: str = "") -> str:
    return f"/logbus/api/windows/{pipeline}/{start}{action and '/'}{action}"


def actions(site: Site, user: str, start: str = TEN) -> dict[str, dict[str, Any]]:
    found = site.by(user).get(window_path(OPEN, start)).json()["actions"]
    return {one["name"]: one for one in found}


def test_nobody_is_let_in_without_logging_in(site: Site) -> None:
    for route in ROUTES:
        assert site.by(None).get(f"/logbus/api/{route}").status_code == 401
        assert site.by(None).get(f"/logbus/api/{route}", headers={"Authorization": "Bearer x"}).status_code == 403
    for action in ("rerun", "redrive"):
        assert site.by(None).post(window_path(OPEN, TEN, action), json={}).status_code == 401
    assert site.by(None).get(f"/logbus/windows/{OPEN}").status_code == 401


@pytest.mark.parametrize(("user", "pipelines"), [("admin", [OPEN, SECRET]), ("vic", [OPEN, SECRET]), (ONLY_OPEN, [OPEN])])
def test_everybody_sees_the_pipelines_of_dags_that_he_may_read(user: str, pipelines: list[str], site: Site) -> None:
    found = site.by(user).get("/logbus/api/overview").json()
    assert [one["name"] for one in found["pipelines"]] == pipelines
    topics = site.by(user).get("/logbus/api/topics").json()["topics"]
    assert sorted(name for one in topics for name in one["pipelines"]) == pipelines
    for route in (window_path(SECRET, TEN), window_path(SECRET, TEN, "replay_plan"), f"/logbus/windows/{SECRET}"):
        assert site.by(user).get(route).status_code == (200 if SECRET in pipelines else 404)
    unseen = site.by(user).post(window_path(SECRET, TEN, "redrive"), json={}).status_code
    assert unseen == 404 if SECRET not in pipelines else unseen in (403, 409)


def test_the_server_answers_to_its_own_names_only(site: Site) -> None:
    for path in ("/api/v2/version", "/auth/token", "/logbus/api/overview"):
        assert site.by("admin").get(path, headers={"Host": "rebound.example.net"}).status_code == 400
    assert site.by("admin").get("/api/v2/version", headers={"Host": "localhost:8080"}).status_code == 200


def test_a_viewer_looks_and_changes_nothing(site: Site) -> None:
    found = actions(site, "vic")
    assert {name: one["allowed"] for name, one in found.items()} == {"rerun": False, "redrive": False, "replay_plan": True}
    assert "you may not" in found["rerun"]["why_not"]
    for name in ("rerun", "redrive"):
        answer = site.by("vic").post(found[name]["href"], json={})
        assert (answer.status_code, "you may not" in answer.json()["detail"]) == (403, True)


def test_a_rerun_clears_the_run_of_the_hour_or_asks_for_one(site: Site) -> None:
    fields = {"logical_date": TEN, "data_interval_start": TEN, "data_interval_end": ELEVEN, "run_after": ELEVEN}
    site.server.api("POST", f"dags/{OPEN}/dagRuns", json={"dag_run_id": RUN, **fields})
    rerun = actions(site, "admin")["rerun"]
    assert (rerun["allowed"], "is paused" in rerun["why_not"]) == (False, True)
    paused = site.by("admin").post(rerun["href"], json={})
    assert (paused.status_code, f"airflow dags unpause {OPEN}" in paused.json()["detail"]) == (409, True)
    assert OPEN in site.by("admin").get("/logbus/api/overview").json()["paused_dag_ids"]
    site.server.api("PATCH", f"dags/{OPEN}", json={"is_paused": False})
    assert OPEN not in site.by("admin").get("/logbus/api/overview").json()["paused_dag_ids"]
    busy = site.by("admin").post(rerun["href"], json={})
    assert (busy.status_code, "wait until it has ended" in busy.json()["detail"]) == (409, True)
    site.server.api("PATCH", f"dags/{OPEN}/dagRuns/{RUN}", json={"state": "success"})
    done = site.by("admin").post(rerun["href"], json={})
    assert done.status_code == 200, done.text
    assert (done.json()["run_id"], done.json()["url"]) == (RUN, f"/dags/{OPEN}/runs/{RUN}")
    assert site.server.api("GET", f"dags/{OPEN}/dagRuns/{RUN}")["state"] == "queued"
    other = site.by(ONLY_OPEN).post(actions(site, ONLY_OPEN, ELEVEN)["rerun"]["href"], json={})
    made = site.server.api("GET", f"dags/{OPEN}/dagRuns/{other.json()['run_id']}")
    assert (made["data_interval_start"], made["data_interval_end"]) == (ELEVEN, TWELVE)
    assert made["triggering_user_name"] == ONLY_OPEN
