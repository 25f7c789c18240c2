"""A reload of an hour loaded a minute ago meets autovacuum, in a server whose autovacuum wakes every second."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from logbus.loads import commit
from logbus.loads.embedded import EmbeddedPostgres
from logbus.loads.engine import connect
from logbus.waiting import wait_until
from logbus.windows.migrations import create_ledger

from tests.support.ledgers import NOW, World
from tests.support.loads import Loading
from tests.support.postgres import FAST

LEAF = "logbus_leaf.t_201505171000"
# A tenth of a second per page: autovacuum is still at work when the reload starts.
SLOW = """
    autovacuum_vacuum_insert_threshold = 0, autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1
"""


@pytest.fixture
def warehouse_url(server_directory: Path) -> Iterator[str]:
    """A database with a ledger, in a separate server."""
    with EmbeddedPostgres(server_directory / "autovacuum", settings={**FAST, "autovacuum_naptime": "1s"}) as server:
        url = server.create_database()
        create_ledger(connect(url))
        yield url


def test_a_large_reload_replaces_the_leaf_that_autovacuum_works_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Autovacuum yields to its lock request after deadlock_timeout, so it does not fall back to deleting row by row."""
    monkeypatch.setattr(commit, "SWAPPED_ROWS_MIN", 1)
    world.fill(10, 10.2, 11)
    Loading.of(world, 10).load()
    before = world.one(f"select '{LEAF}'::regclass::oid")
    world.execute("insert into t select t.* from t, generate_series(1, 20000)", f"alter table {LEAF} set ({SLOW})")
    at_work = f"select pid from pg_stat_activity where query like 'autovacuum: %{LEAF}%'"
    ((worker,),) = wait_until(lambda: world.rows(at_work), what="autovacuum", poll_seconds=0.05)
    again = Loading.of(world, 10).begin().create().run_task(1)
    sealed = again.seal()
    locks = f"select count(*) from pg_locks where pid = {worker} and relation = '{LEAF}'::regclass"
    assert world.one(locks) == 0, "the commit would wait for it"
    again.sink.commit(sealed, NOW)
    assert world.one(f"select '{LEAF}'::regclass::oid") != before
    assert world.one("select count(*) from t") == 2


def test_staged_tables_are_left_alone_by_autovacuum_and_the_public_ones_are_not(world: World) -> None:
    switched_off = "select relnamespace::regnamespace::text from pg_class where 'autovacuum_enabled=false' = any(reloptions)"
    world.fill(10, 10.2, 11)
    loading = Loading.of(world, 10).begin().create()
    assert world.rows(switched_off) == [("logbus_staging",)] * 2
    loading.run_task(1).commit()
    assert world.rows(switched_off) == []
