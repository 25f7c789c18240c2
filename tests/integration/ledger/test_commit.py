"""What is published, refused and left in place, in a real PostgreSQL; staging runs the Spark task's own code."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from logbus.errors import AttemptSuperseded, EquationMismatch, LoadFailed
from logbus.loads import attempts, commit
from logbus.loads.engine import libpq_uri
from logbus.waiting import PATIENCE_SECONDS
from logbus.windows.rows import HOLD_SILENTLY_MS_MAX
from sqlalchemy import event, text
from sqlalchemy.exc import OperationalError

from tests.support.ledgers import NOW, World, at, stamps
from tests.support.loads import Loading

Start = Callable[..., Loading]


@pytest.fixture
def start(world: World) -> Start:
    """Starts a load of hour 10 (five records in two partitions) or 11 (two records)."""
    world.log.fill("t", stamps(10, 10.2, 10.4, 11), stamps(10.1, 10.3, 11.5))
    world.register()

    def loading(number: int = 10, bad_offsets: frozenset[int] = frozenset()) -> Loading:
        return Loading.of(world, number, bad_offsets=bad_offsets)

    return loading


@pytest.fixture
def start_large(start: Start, monkeypatch: pytest.MonkeyPatch) -> Start:
    """The same, where five rows are large enough to take the place of the leaf."""
    monkeypatch.setattr(commit, "SWAPPED_ROWS_MIN", 1)
    return start


def public(world: World) -> list[tuple[Any, ...]]:
    return world.rows("select _partition, _offset, line from t order by 1, 2")


HOUR_TEN = [(0, 0, "line 0/0"), (0, 1, "line 0/1"), (0, 2, "line 0/2"), (1, 0, "line 1/0"), (1, 1, "line 1/1")]


def test_a_row_says_where_it_comes_from(world: World, start: Start) -> None:
    start().load()
    columns = "_topic, _timestamp, _key, _headers, _window_start"
    (row,) = world.rows(f"select {columns} from t where _partition = 1 and _offset = 1")
    assert row == ("t", at(10.3), b"key", [["host", "web-1"]], at(10))


def test_records_that_do_not_parse_are_kept_with_the_reason_and_their_bytes(world: World, start: Start) -> None:
    counts = start(bad_offsets=frozenset({1})).load()
    assert (counts.read, counts.loaded, counts.dead_lettered) == (5, 3, 2)
    found = world.rows('select "partition", "offset", value, error_class, headers from logbus.dead_letter order by 1')
    assert found == [(0, 1, b"\xff", "NotUtf8", [["host", "web-1"]]), (1, 1, b"\xff", "NotUtf8", [["host", "web-1"]])]


def test_staged_rows_that_a_vacuum_freezes_are_still_those_of_their_tasks(world: World, start: Start) -> None:
    loading = start().begin().create().run_task(1, [(0, 0), (0, 1)])
    with psycopg.connect(libpq_uri(world.url), autocommit=True) as connection:
        connection.execute(f"vacuum (freeze) logbus_staging.{loading.attempt.staging_table}")
    assert loading.run_task(2, [(0, 2), (1, 0), (1, 1)]).commit().loaded == 5


def test_null_is_loaded_as_null_whatever_the_default_of_the_users_column(world: World) -> None:
    """COPY leaves out columns without a value."""
    world.fill(10, 10.2, 11, 11.5)
    world.register(parse="json", settings={"columns": {"a": "text", "b": "jsonb"}})
    Loading.of(world, 10).load(b'{"a": "x"}')
    world.execute("alter table t alter a set default 'mine', alter b set default '[]', alter _topic set default 'mine'")
    Loading.of(world, 11).load(b"{}")
    assert world.rows("select distinct _topic, _window_start, a, b from t order by 2") == [
        ("t", at(10), "x", None),
        ("t", at(11), None, None),
    ]
    leaf = "select distinct column_default from information_schema.columns where table_name = 't_201505171100'"
    assert world.rows(leaf) == [(None,)]


def test_nothing_is_left_in_staging_after_a_commit(world: World, start: Start) -> None:
    start().load()
    start().load()
    assert world.rows("select count(*) from pg_tables where schemaname = 'logbus_staging'") == [(0,)]


def test_rows_changed_in_staging_are_found_by_their_fingerprint(world: World, start: Start) -> None:
    loading = start().begin().create().run_task(1)
    table = f"logbus_staging.{loading.attempt.staging_table}"
    world.execute(f"update {table} set _fingerprint = _fingerprint + 1 where _partition = 0 and _offset = 0")
    with pytest.raises(EquationMismatch, match="fingerprints differ"):
        loading.commit()


def test_a_driver_whose_network_is_gone_does_not_hold_its_window_for_hours(world: World, start: Start) -> None:
    """The server has not noticed: the connection was never closed, and nothing arrives on it."""
    silent = start().begin()
    setting = "idle_in_transaction_session_timeout"
    with world.ledger.engine.connect() as gone:
        attempts.lock_if_current(gone, silent.attempt)
        limit_ms = gone.execute(text(f"select setting::int from pg_settings where name = '{setting}'")).scalar_one()
        assert limit_ms == HOLD_SILENTLY_MS_MAX
        gone.execute(text(f"set local {setting} = 1"))
        start().load()
        gone.invalidate()
    assert public(world) == HOUR_TEN


def test_an_older_attempt_can_neither_stage_nor_seal(world: World, start: Start) -> None:
    slow = start().begin()
    start().begin()
    slow.create()
    with pytest.raises(AttemptSuperseded):
        slow.commit()
    assert world.rows("select count(*) from pg_tables where schemaname = 'logbus_staging'") == [(0,)]


def test_what_an_older_attempt_staged_is_dropped_by_the_next(world: World, start: Start) -> None:
    start().begin().create().run_task(1)
    start().begin()
    assert world.rows("select count(*) from pg_tables where schemaname = 'logbus_staging'") == [(0,)]


def test_a_stale_table_that_somebody_holds_does_not_stop_the_next_attempt(world: World, start: Start) -> None:
    slow = start().begin().create()
    with world.ledger.engine.connect() as zombie:
        zombie.execute(text(f"lock table logbus_staging.{slow.attempt.staging_table} in row exclusive mode"))
        start().load()
    assert public(world) == HOUR_TEN
    start().begin()
    assert world.rows(f"select to_regclass('logbus_staging.{slow.attempt.staging_table}')") == [(None,)]


def test_a_failed_attempt_keeps_its_reason_and_the_table_its_rows(world: World, start: Start) -> None:
    start().load()
    failing = start().begin().create()
    world.ledger.fail_attempts([failing.attempt], "out of luck", NOW)
    assert world.rows("select state, error from logbus.attempt order by number") == [
        ("committed", None),
        ("failed", "out of luck"),
    ]
    with pytest.raises(AttemptSuperseded, match="is failed"):
        failing.commit()
    assert public(world) == HOUR_TEN


def test_failing_attempts_does_not_touch_what_is_committed(world: World, start: Start) -> None:
    loading = start()
    loading.load()
    world.ledger.fail_attempts([loading.attempt], "too late to fail", NOW)
    assert world.rows("select state from logbus.attempt") == [("committed",)]


def test_a_connection_that_dies_at_commit_is_resolved_from_the_ledger(world: World, start: Start) -> None:
    """The server committed and the response was lost: the load reports committed, with its counts."""
    loading = start().begin().create().run_task(1)
    sealed = loading.seal()

    @event.listens_for(world.ledger.engine, "commit", once=True)
    def lose_the_answer(connection: Any) -> None:
        connection.connection.dbapi_connection.commit()
        raise OperationalError(
            "commit", None, psycopg.OperationalError("server closed the connection"), connection_invalidated=True
        )

    assert loading.sink.commit(sealed, NOW).loaded == 5
    assert public(world) == HOUR_TEN


def test_a_server_that_dies_before_the_commit_leaves_the_window_as_it_was(world: World, start: Start) -> None:
    loading = start().begin().create().run_task(1)
    sealed = loading.seal()

    @event.listens_for(world.ledger.engine, "commit", once=True)
    def kill_the_backend(connection: Any) -> None:
        pid = connection.connection.dbapi_connection.info.backend_pid
        with psycopg.connect(libpq_uri(loading.url), autocommit=True) as other:
            other.execute("select pg_terminate_backend(%s, 5000)", [pid])

    with pytest.raises(LoadFailed, match="was not"):
        loading.sink.commit(sealed, NOW)
    assert public(world) == []
    assert loading.sink.commit(sealed, NOW).loaded == 5


def test_a_column_added_while_a_load_runs_is_kept(world: World, start: Start) -> None:
    loading = start().begin().create().run_task(1)
    world.execute("alter table t add column note text")
    loading.commit()
    assert world.rows("select count(*), count(note) from t") == [(5, 0)]


OWN_TABLE = (
    "create table t (id bigint generated always as identity, line text, _topic text not null, "
    "_partition integer not null, _offset bigint not null, "
    "_timestamp timestamptz, _key bytea, _headers jsonb, _window_start timestamptz not null, _fingerprint bigint not null)"
)


@pytest.mark.parametrize(
    ("key", "bounds"),
    [
        ("hash (_partition)", "with (modulus 1, remainder 0)"),
        ("list (_topic)", "in ('t')"),
        ("range (_timestamp)", "from ('2015-01-01') to ('2016-01-01')"),
        ("range (_window_start, _partition)", "from (minvalue, minvalue) to (maxvalue, maxvalue)"),
        ("range (extract(year from _window_start at time zone 'UTC'))", "from (2015) to (2016)"),
    ],
)
def test_a_table_that_is_partitioned_otherwise_is_the_users_own(world: World, start: Start, key: str, bounds: str) -> None:
    world.execute(OWN_TABLE.replace("id bigint generated always as identity, ", "") + f" partition by {key}")
    with pytest.raises(LoadFailed, match="its partitions are yours, so give it one for them"):
        start().load()
    world.execute(f"create table part partition of t for values {bounds}")
    start().load()
    start().load()
    assert public(world) == HOUR_TEN
    assert world.rows("select distinct tableoid::regclass::text from t") == [("part",)]


def test_an_hour_of_which_a_default_partition_holds_rows_is_loaded_into_that(world: World, start: Start) -> None:
    start().begin().create()
    columns = "_topic, _partition, _offset, _window_start, _fingerprint"
    world.execute(
        "create table others partition of t default",
        f"insert into t ({columns}) values ('x', 0, 0, '2015-05-17 10:00+00', 0)",
    )
    start().load()
    start().load()
    assert world.rows("select tableoid::regclass::text, count(*) from t where _topic = 't' group by 1") == [("others", 5)]


LEAF = "logbus_leaf.t_201505171000"


@pytest.mark.parametrize("swapped_rows_min", [1, 1_000_000], ids=["large", "small"])
@pytest.mark.parametrize(
    ("statement", "said", "mend"),
    [
        (f"alter table t detach partition {LEAF}", r"is detached\. Attach it again \((.*?\('.*?'\).*?\('.*?'\))\)", ""),
        ("alter table t rename to old", r"partition of public\.old\. If .*, (alter table .*?)\)", "drop table t"),
    ],
    ids=["detached", "renamed"],
)
def test_a_reload_of_an_hour_whose_leaf_is_elsewhere_says_what_to_do(
    world: World, start: Start, statement: str, said: str, mend: str, swapped_rows_min: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "SWAPPED_ROWS_MIN", swapped_rows_min)
    start().load()
    world.execute(statement)
    with pytest.raises(LoadFailed, match="has no partition for rows of") as refused:
        start().load()
    advice = re.search(said, str(refused.value))
    assert advice, refused.value
    world.execute(*filter(None, [mend, advice[1]]))
    start().load()
    assert public(world) == HOUR_TEN


def test_a_window_inside_a_merged_leaf_is_reloaded_in_place(world: World, start: Start) -> None:
    """A closed day may have been merged into one leaf: the hour no longer has a leaf to attach or find."""
    start().load()
    world.execute(
        "alter table t detach partition logbus_leaf.t_201505171000",
        "create table logbus_leaf.t_day partition of t for values from ('2015-05-17') to ('2015-05-18')",
        "insert into t select * from logbus_leaf.t_201505171000",
        "drop table logbus_leaf.t_201505171000",
    )
    start().load()
    assert public(world) == HOUR_TEN


@pytest.mark.parametrize("swapped_rows_min", [1, 1_000_000], ids=["large", "small"])
def test_a_reload_does_not_wait_for_a_reader_of_another_hour(
    world: World, start: Start, swapped_rows_min: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "SWAPPED_ROWS_MIN", swapped_rows_min)
    start(10).load()
    start(11).load()
    with world.ledger.engine.connect() as reader:
        reader.execute(text("select count(*) from t where _window_start = '2015-05-17T11:00:00Z'"))
        reload = threading.Thread(target=start(10).load)
        reload.start()
        reload.join(PATIENCE_SECONDS)
        assert not reload.is_alive()
    assert world.ledger.window("p", at(10)).loaded_attempt == 2


def test_a_large_reload_takes_the_place_of_the_leaf(world: World, start_large: Start) -> None:
    """Its commit takes no longer than that of a first load, whatever the size."""
    leaf = "select 'logbus_leaf.t_201505171000'::regclass::oid"
    start_large(10).load()
    start_large(11).load()
    (first,) = world.rows(leaf)
    start_large(10).load()
    (second,) = world.rows(leaf)
    assert second != first
    assert public(world) == [*HOUR_TEN[:3], (0, 3, "line 0/3"), *HOUR_TEN[3:], (1, 2, "line 1/2")]
    assert world.rows("select count(*) from pg_inherits where inhparent = 't'::regclass") == [(2,)]


def test_a_leaf_with_rows_of_another_topic_is_not_replaced_as_a_whole(world: World, start_large: Start) -> None:
    """Rows of a pipeline that shared the table before tables had a single owner, or rows inserted by hand."""
    start_large(10).load()
    world.execute(
        "create temp table theirs on commit drop as select * from t limit 1",
        "update theirs set _topic = 'theirs'",
        "insert into t select * from theirs",
    )
    start_large(10).load()
    assert world.rows("select _topic, count(*) from t group by 1 order by 1") == [("t", len(HOUR_TEN)), ("theirs", 1)]


def test_a_large_reload_waits_for_a_sign_of_life_of_its_own_attempt(world: World, start_large: Start) -> None:
    """Only the swap has a short lock timeout; the ledger updates that follow it wait, as in any commit."""
    start_large(10).load()
    again = start_large(10).begin().create().run_task(1)
    with world.ledger.engine.connect() as heart:
        beat = "update logbus.attempt set heartbeat_at = now() where number = 2"
        heart.execute(text(beat))
        reload = threading.Thread(target=again.commit)
        reload.start()
        reload.join(4 * commit.SWAP_LOCK_TIMEOUT_MS / 1000)
        assert reload.is_alive()
        heart.commit()
    reload.join(PATIENCE_SECONDS)
    assert world.ledger.window("p", at(10)).loaded_attempt == 2


def test_a_large_reload_of_a_table_with_indexes_keeps_its_leaf(world: World, start_large: Start) -> None:
    start_large(10).load()
    world.execute("create index on t (_offset)")
    leaf = world.rows("select 'logbus_leaf.t_201505171000'::regclass::oid")
    start_large(10).load()
    assert world.rows("select 'logbus_leaf.t_201505171000'::regclass::oid") == leaf
    assert public(world) == HOUR_TEN


def test_an_attempt_from_before_a_restore_of_the_ledger_is_refused_though_its_number_is_given_again(
    world: World, start: Start
) -> None:
    slow = start().begin().create().run_task(1)
    sealed = slow.seal()
    world.execute(  # as restored from a backup taken before the attempt began
        *("update logbus.window set last_attempt = 0", "delete from logbus.attempt"),
        *("drop schema logbus_staging cascade", "create schema logbus_staging"),
    )
    again = start().begin()
    assert again.attempt.number == slow.attempt.number
    with pytest.raises(AttemptSuperseded, match="restored from a backup since attempt 1"):
        slow.sink.commit(sealed, NOW)
    world.ledger.fail_attempts([slow.attempt], "refused", NOW)  # this attempt, not the other one with its number
    again.create().run_task(1).commit()
    assert public(world) == HOUR_TEN


def test_a_driver_that_a_restored_ledger_has_forgotten_writes_into_tables_of_its_own(world: World, start: Start) -> None:
    """Not into those of the next attempt with the same number, whose tasks may have the same numbers as well."""
    forgotten = start().begin().create()
    world.execute("update logbus.window set last_attempt = 0", "delete from logbus.attempt")
    again = start().begin().create().run_task(7)
    forgotten.run_task(7)
    again.commit()
    assert public(world) == HOUR_TEN


def test_the_checksum_is_of_what_is_public_where_a_trigger_changes_it_on_its_way(world: World, start: Start) -> None:
    start(12).begin().create()
    trigger = (
        "create function shout() returns trigger language plpgsql as $$ begin new.line := upper(new.line); return new; end $$"
    )
    world.execute(
        "drop table t", OWN_TABLE, trigger, "create trigger shouting before insert on t for each row execute function shout()"
    )
    start().load()
    assert public(world)[0] == (0, 0, "LINE 0/0")
    assert world.audit().ok


@pytest.mark.parametrize("swapped_rows_min", [1, 1_000_000], ids=["large", "small"])
def test_every_way_into_the_table_gives_the_same_checksum(
    world: World, start: Start, swapped_rows_min: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attached, swapped for the old leaf, or deleted and inserted."""
    start().load()
    first = world.ledger.window("p", at(10)).values_hash
    monkeypatch.setattr(commit, "SWAPPED_ROWS_MIN", swapped_rows_min)
    start().load()
    assert world.ledger.window("p", at(10)).values_hash == first
