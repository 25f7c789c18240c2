"""What each role of a warehouse may, and may not: on a ledger and a table that a superuser had made, on a table of the user's own,
and on what loads make afterwards."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from logbus.cli import options
from logbus.kafka import topics
from logbus.loads import roles
from logbus.loads.embedded import EmbeddedPostgres
from logbus.loads.engine import connect, libpq_uri
from logbus.loads.ledger import Ledger
from sqlalchemy import URL, make_url

from tests.support.commands import Run
from tests.support.ledgers import World, at
from tests.support.loads import Loading
from tests.support.postgres import FAST

NOW = at(16.5)


def execute(url: URL, *statements: str) -> list[Any]:
    with psycopg.connect(libpq_uri(url), autocommit=True) as connection:
        cursors = [connection.execute(statement) for statement in statements]  # type: ignore[call-overload]
        return cursors[-1].fetchall() if cursors[-1].description else []


@pytest.fixture
def airflow(world: World) -> Iterator[URL]:
    """A database that Airflow had before it had a role of its own."""
    warehouse = make_url(world.url)
    url = warehouse.set(database=f"{warehouse.database}_airflow")
    execute(warehouse, f'create database "{url.database}"')
    execute(url, "create type state as enum ('on')", "create table connection (id serial primary key, now state, password text)")
    yield url
    execute(warehouse, f'drop database "{url.database}" with (force)')


@pytest.fixture
def logged_in(world: World, airflow: URL, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, URL]:
    """The warehouse's URL as each role: hour 10 was loaded before there were any, and `mine` is the user's own table."""
    monkeypatch.setattr(topics, "Topics", lambda *arguments, **options: world.log)
    monkeypatch.setattr(options, "clock", lambda: NOW)
    world.fill(10.1, 10.6, 11.5, 12.5)
    Loading.of(world, 10).load()
    world.execute("create table mine (like t)", "create table logbus_staging.left_over (a int)")
    world.log.create("other")
    world.log.append("other", *world.log.topics["t"][0].stamps_ms)
    world.register(name="q", topic="other", table="mine")

    words = ["roles", "--airflow-database", str(airflow.database), "--passwords", str(tmp_path / "passwords")]
    shown = run(*words)
    assert 'alter table "public"."t" owner to logbus_owner;' in shown.stdout
    assert world.one("select pg_get_userbyid(nspowner) from pg_namespace where nspname = 'logbus'") == "postgres"
    for _ in range(2):
        assert run(*words, "--execute").exit_code == 0
    assert stat.S_IMODE((tmp_path / "passwords").stat().st_mode) == 0o600
    return {name: make_url(world.url).set(username=name) for name in (*roles.LOGINS, roles.AIRFLOW)}


def test_a_load_by_the_loader_is_read_by_readers_without_another_grant(
    world: World, logged_in: dict[str, URL], airflow: URL, run: Run
) -> None:
    loading = World(ledger=Ledger(connect(logged_in[roles.LOADER])), log=world.log)
    assert [Loading.of(loading, hour).load().loaded for hour in (10, 11)] == [2, 1]
    assert (loading.audit(11).ok, loading.one("select current_user")) == (True, roles.OWNER)
    window = loading.ledger.freeze_or_get("q", world.freeze(10).interval, world.log, NOW)
    assert Loading(world=loading, url=loading.url, window=window).load().loaded == 2
    loading.execute("create schema web", "create table web.later (a int)")
    loading.ledger.engine.dispose()

    for reader in (roles.READER, roles.UI):
        url = logged_in[reader]
        assert execute(url, "select (select count(*) from t), (select count(*) from mine), (select count(*) from web.later)") == [
            (3, 2, 0)
        ]
        assert execute(url, "select count(*) from logbus_leaf.t_201505171100") == [(1,)]
        told = run("lag", "--warehouse", url.render_as_string(), "-o", "json")
        assert {one["pipeline"]: one["hours_behind"] for one in json.loads(told.stdout)} == {"p": 1, "q": 2}
    assert execute(airflow.set(username=roles.AIRFLOW), "insert into connection (now) values ('on') returning id") == [(1,)]


FORBIDDEN = [
    (roles.LOADER, "copy (select 1) to program 'true'", "permission denied to COPY to or from an external program"),
    (roles.LOADER, "copy t from '/etc/passwd'", "permission denied to COPY from a file"),
    (roles.LOADER, "create role mallory superuser", "permission denied to create role"),
    (roles.LOADER, "create database another", "permission denied to create database"),
    (roles.LOADER, "set role postgres", "permission denied to set role"),
    (roles.LOADER, "set session authorization postgres", "permission denied to set session authorization"),
    (roles.LOADER, f"select {roles.MAKE_TASK_LOGIN}('mallory', 'SCRAM-SHA-256$1:a$a:a')", "no login of tasks"),
    (roles.LOADER, f"select {roles.MAKE_TASK_LOGIN}('logbus_task_0123456789abcdef', 'guessed')", "no login of tasks"),
    (roles.LOADER, f"select {roles.DROP_TASK_LOGIN}('{roles.READER}')", "no login of tasks"),
    (roles.READER, f"select {roles.DROP_TASK_LOGIN}('{roles.READER}')", "permission denied for function drop_task_login"),
    (roles.READER, "delete from t", "permission denied for table t"),
    (roles.READER, "create table another (a int)", "permission denied for schema public"),
    (roles.UI, "update logbus.window set audited_at = now()", "permission denied for table window"),
    (roles.UI, "select * from logbus_staging.left_over", "permission denied for schema logbus_staging"),
    (roles.AIRFLOW, "select 1", "permission denied for database"),
]


def test_what_no_role_may(logged_in: dict[str, URL], airflow: URL, world: World, run: Run) -> None:
    for role, statement, reason in FORBIDDEN:
        with pytest.raises(psycopg.Error, match=reason):
            execute(logged_in[role], statement)
    for role in roles.LOGINS:
        with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
            execute(airflow.set(username=role), "select * from connection")
    kept = world.rows("select rolname, left(rolpassword, 14) from pg_authid where rolpassword is not null order by 1")
    assert kept == [(name, "SCRAM-SHA-256$") for name in sorted(logged_in)]
    result = run("roles", "--warehouse", logged_in[roles.READER].render_as_string(), "--execute")
    assert (result.exit_code, "such as the superuser postgres" in result.stderr) == (1, True)


def test_an_administrator_who_is_no_superuser_makes_them_and_goes_on_with_his_ledger(run: Run, tmp_path: Path) -> None:
    """As at a provider's, whose customers get no superuser."""
    with EmbeddedPostgres(tmp_path / "pg", settings=FAST) as server:
        superuser = make_url(server.url("postgres"))
        execute(superuser, "create role admin createrole createdb login", "create database logbus owner admin")
        own = ["--warehouse", server.url("logbus", "admin")]
        for words in (
            ["ledger", "upgrade"],
            *2 * [["roles", "--airflow-database", "airflow", "--execute"]],
            ["ledger", "version"],
        ):
            result = run(*words, *own)
            assert result.exit_code == 0, result.stderr
        for user in ("admin", roles.LOADER):
            made = execute(make_url(server.url("logbus", user)), f"create table {user} (a int)", "select current_user")
            assert made == [(roles.OWNER,)]
        task, own_url = "logbus_task_0123456789abcdef", make_url(server.url("logbus", roles.LOADER))
        execute(own_url, f"select {roles.MAKE_TASK_LOGIN}('{task}', 'SCRAM-SHA-256$4096:a$a:a')")
        with pytest.raises(psycopg.Error, match="permission denied"):
            execute(own_url.set(username=task), "select from logbus.attempt")
        execute(own_url, f"select {roles.DROP_TASK_LOGIN}('{task}')")
        with pytest.raises(psycopg.OperationalError, match="does not exist"):
            execute(own_url.set(username=task), "select 1")
