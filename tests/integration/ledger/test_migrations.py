"""The ledger's tables created, adopted and upgraded in a real PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from click.testing import CliRunner
from logbus.cli import main
from logbus.errors import UserError
from logbus.loads.engine import connect
from logbus.loads.ledger import Ledger
from logbus.model import Pipeline
from logbus.windows import schema
from logbus.windows.migrations import REVISION, create_ledger, ledger_revision, upgrade
from sqlalchemy import Engine, event, text

from tests.support.fake_log import FakeLog
from tests.support.ledgers import NOW, opened
from tests.support.loads import Loading


@pytest.fixture
def engine(empty_warehouse_url: str) -> Iterator[Engine]:
    engine = connect(empty_warehouse_url)
    yield engine
    engine.dispose()


def run(engine: Engine, statements: str) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(statements)


def differences(engine: Engine) -> list[Any]:
    """What the ledger's tables lack, or have in addition, compared with `schema.metadata`."""
    options = {"include_schemas": True, "version_table_schema": "logbus", "include_name": ours, "compare_server_default": True}
    with engine.connect() as connection:
        return list(compare_metadata(MigrationContext.configure(connection, opts=options), schema.metadata))


def ours(name: str | None, kind: str, parents: dict[str, Any]) -> bool:
    return name == "logbus" if kind == "schema" else True


def test_the_revisions_make_exactly_the_tables_that_the_code_knows(engine: Engine) -> None:
    create_ledger(engine)
    assert differences(engine) == []
    assert ledger_revision(engine) == REVISION


def test_the_command_tells_the_version_of_the_ledger_and_its_own(engine: Engine, empty_warehouse_url: str) -> None:
    words = ["ledger", "version", "--warehouse", empty_warehouse_url]
    versions = [json.loads(CliRunner().invoke(main, [*words, "-o", "json"]).stdout)]
    create_ledger(engine)
    versions.append(json.loads(CliRunner().invoke(main, [*words, "-o", "json"]).stdout))
    assert versions == [{"ledger": None, "logbus": REVISION}, {"ledger": REVISION, "logbus": REVISION}]
    assert CliRunner().invoke(main, words).stdout == f"ledger: {REVISION}; this logbus: {REVISION}\n"


@pytest.mark.parametrize(("version", "message"), [("9999", "install a newer logbus"), ("0005", "use a new database")])
def test_a_ledger_of_a_newer_logbus_or_from_before_the_first_is_refused_and_left_alone(
    engine: Engine, version: str, message: str
) -> None:
    create_ledger(engine)
    run(engine, f"update logbus.alembic_version set version_num = '{version}'")
    with pytest.raises(UserError, match=message):
        Ledger(engine).register(Pipeline(name="p", topic="t", table="t", parse="lines"), FakeLog(), NOW)
    assert differences(engine) == []


def test_four_that_migrate_at_once_wait_for_each_other(empty_warehouse_url: str, engine: Engine) -> None:
    def migrate(_: int) -> str | None:
        own = connect(empty_warehouse_url)
        try:
            create_ledger(own)
            return ledger_revision(own)
        finally:
            own.dispose()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(migrate, range(4))) == [REVISION] * 4
    assert differences(engine) == []


def test_a_migration_that_fails_leaves_the_ledger_as_it_was(engine: Engine) -> None:
    run(engine, 'create schema logbus; create table logbus."window" (nonsense int)')
    with pytest.raises(Exception, match="already exists"):
        create_ledger(engine)
    assert ledger_revision(engine) is None
    run(engine, 'drop table logbus."window"')
    create_ledger(engine)
    assert differences(engine) == []


def test_a_newer_logbus_that_was_faster_is_not_undone(engine: Engine) -> None:
    """Its upgrade was in progress when we checked, and is done once we hold the lock."""
    create_ledger(engine)

    @event.listens_for(engine, "before_cursor_execute", once=True)
    def somebody_newer(*_: Any) -> None:
        run(engine, "update logbus.alembic_version set version_num = '9999'")

    with engine.begin() as connection, pytest.raises(UserError, match="install a newer logbus"):
        upgrade(connection)


def test_a_user_who_may_not_make_the_ledger_is_told_who_may(engine: Engine) -> None:
    database = engine.url.database
    run(engine, f'create role "{database}_reader" login')
    reader = connect(engine.url.set(username=f"{database}_reader").render_as_string(hide_password=False))
    try:
        with pytest.raises(UserError, match="logbus ledger upgrade"):
            create_ledger(reader)
        create_ledger(engine)
        with pytest.raises(UserError, match="may not read or change the ledger"):
            create_ledger(reader)
        run(
            engine,
            f'grant usage on schema logbus to "{database}_reader"; grant select on all tables in schema logbus to "{database}_reader"',
        )
        create_ledger(reader)
    finally:
        reader.dispose()
        run(engine, f'drop owned by "{database}_reader"; drop role "{database}_reader"')


def test_what_is_up_to_date_costs_one_select(engine: Engine) -> None:
    create_ledger(engine)
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    create_ledger(engine)
    assert statements == ["select version_num from logbus.alembic_version"]


def test_airflows_own_revisions_in_the_same_database_stay_apart(engine: Engine) -> None:
    run(
        engine,
        "create table alembic_version (version_num varchar(32) primary key); insert into alembic_version values ('airflow')",
    )
    create_ledger(engine)
    with engine.connect() as connection:
        assert connection.execute(text("select version_num from public.alembic_version")).scalars().all() == ["airflow"]
    assert ledger_revision(engine) == REVISION


def test_a_role_that_may_create_no_schema_works_in_those_that_it_was_given(engine: Engine, empty_warehouse_url: str) -> None:
    role = f"{engine.url.database}_loader"
    run(engine, f'create role "{role}" login')
    for name in ("logbus", "logbus_staging", "logbus_leaf", "web"):
        run(engine, f'create schema {name}; grant usage, create on schema {name} to "{role}"')
    url = engine.url.set(username=role).render_as_string(hide_password=False)
    with opened(url) as world:
        world.fill(10.1, 10.6, 11.5, table="web.t")
        assert Loading.of(world, 10).load().loaded == 2
        assert world.audit().ok
    run(engine, f'drop owned by "{role}" cascade; drop role "{role}"')
