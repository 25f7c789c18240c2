"""The hourly leaves of closed days are merged into one, whatever readers and loads do in the meantime, in a real PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial

import pytest
from click.testing import CliRunner
from logbus.cli import main
from logbus.errors import ExitCode, LogbusError
from logbus.hooks.warehouse import WarehouseHook
from logbus.loads.maintenance import leaves, maintain, merge_closed_days
from logbus.loads.sinks import MaintenanceOptions, sink_for
from logbus.model import Interval, Pipeline
from logbus.operators.maintenance import MaintainOperator
from logbus.waiting import PATIENCE_SECONDS
from logbus.windows.table_names import parse_table
from sqlalchemy import text

from tests.support.ledgers import DAY, NOW, World, at
from tests.support.loads import load_hours

TARGET = parse_table("t")
TOMORROW = DAY + timedelta(days=1)
Load = Callable[..., None]


@pytest.fixture
def load(world: World) -> Load:
    """Loads hours of the day; each has two records."""
    world.fill(*(hour + part for hour in range(30) for part in (0.1, 0.5)))
    return partial(load_hours, world)


@pytest.fixture
def day(world: World, load: Load) -> World:
    """Two hours of the day and one of the next are loaded."""
    load(0, 2, 25)
    return world


def merge(world: World, sleep: Callable[[float], None] = lambda seconds: None) -> tuple[int, int]:
    merged, left = merge_closed_days(world.ledger.engine, TARGET, TOMORROW, sleep)
    return len(merged), len(left)


def why_left(world: World, before: datetime = TOMORROW, sleep: Callable[[float], None] = lambda seconds: None) -> dict[int, str]:
    """By day of the month, why its hours stay."""
    _, left = merge_closed_days(world.ledger.engine, TARGET, before, sleep)
    return {day.day: why for day, why in left.items()}


def count(world: World, condition: str = "true") -> int:
    return int(world.one(f"select count(*) from t where {condition}"))


def spans(world: World) -> list[Interval]:
    with world.ledger.engine.begin() as connection:
        return [Interval(leaf.start, leaf.end) for leaf in leaves(connection, TARGET)]


HOUR_AFTER = Interval(at(25), at(26))


def test_a_closed_days_hours_become_one_leaf_and_other_days_stay(day: World) -> None:
    assert merge(day) == (1, 0)
    assert spans(day) == [Interval(DAY, TOMORROW), HOUR_AFTER]
    assert count(day) == 6
    assert day.audit(2).ok


def test_a_day_that_is_not_over_or_young_is_left_alone(day: World) -> None:
    merged, left = merge_closed_days(day.ledger.engine, TARGET, TOMORROW - timedelta(seconds=1), lambda seconds: None)
    assert (merged, left) == ([], {})
    assert len(spans(day)) == 3


def test_an_hour_of_a_merged_day_is_loaded_again_in_place(day: World, load: Load) -> None:
    merge(day)
    load(2)
    assert count(day) == 6
    assert day.audit(2).ok


def test_an_hour_of_a_merged_day_that_was_never_loaded_is_loaded_into_its_leaf(day: World, load: Load) -> None:
    merge(day)
    load(7)
    assert spans(day) == [Interval(DAY, TOMORROW), HOUR_AFTER]
    assert (count(day), count(day, "_window_start = '2015-05-17T07:00:00Z'")) == (8, 2)


def test_a_reader_in_an_open_transaction_is_not_disturbed_and_the_day_is_left_for_later(day: World) -> None:
    pauses: list[float] = []
    with day.ledger.engine.connect() as reader:
        before = reader.execute(text("select count(*) from t")).scalar_one()
        assert merge(day, pauses.append) == (0, 1)
        assert reader.execute(text("select count(*) from t")).scalar_one() == before
    assert len(pauses) == 4
    assert len(spans(day)) == 3
    assert merge(day) == (1, 0)


def test_a_reader_that_ends_between_two_tries_delays_a_merge_and_no_more(day: World) -> None:
    reader = day.ledger.engine.connect()
    reader.execute(text("select count(*) from t"))
    assert merge(day, lambda seconds: reader.close()) == (1, 0)
    assert count(day) == 6


def test_a_load_that_holds_an_hour_leaves_the_day_as_it_is(day: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logbus.loads.maintenance.SHARE_LOCK_TIMEOUT_MS", 100)
    with day.ledger.engine.connect() as loading:
        loading.execute(text("delete from t where _window_start = '2015-05-17T02:00:00Z'"))
        assert merge(day) == (0, 1)
    assert count(day) == 6


def test_a_reload_waits_for_nobody_but_a_writer_of_its_hour_while_somebody_reads(day: World, load: Load) -> None:
    with day.ledger.engine.connect() as reader:
        before = reader.execute(text("select count(*) from t")).scalar_one()
        reload = threading.Thread(target=load, args=[2])
        reload.start()
        reload.join(PATIENCE_SECONDS)
        assert not reload.is_alive()
        assert reader.execute(text("select count(*) from t")).scalar_one() == before == 6
    assert day.ledger.window("p", at(2)).loaded_attempt == 2


# What keeps the hours of the 17th: each of these, and what is said of it.
OBSTACLES = {
    "a partition of the user's own": (
        [
            "create table mine (like t)",
            "alter table t attach partition mine for values from ('2015-05-17 06:00+00') to ('2015-05-17 07:00+00')",
        ],
        "the day's leaf would overlap partition public.mine",
    ),
    "a partition that begins long before": (
        [
            "create table mine (like t)",
            "alter table t attach partition mine for values from (minvalue) to ('2015-05-17 00:00+00')",
            "alter table t detach partition logbus_leaf.t_201505170000",
            "create table more (like t)",
            "alter table t attach partition more for values from ('2015-05-17 00:00+00') to ('2015-05-17 01:30+00')",
        ],
        "the day's leaf would overlap partition public.more",
    ),
    "rows in a default partition": (
        ['create table "others:x" partition of t default'.replace(":", "\\:"), "insert into t select * from moved"],
        "rows of the day lie in the default partition public.others:x",
    ),
    "a view on an hour": (
        ["create view midnight as select * from logbus_leaf.t_201505170000"],
        "a view or something else depends on one of them",
    ),
    "a table with the day's name": (
        ["create table logbus_leaf.t_20150517_day ()"],
        "a table with the name of the day's leaf exists and is no partition",
    ),
}


@pytest.mark.parametrize(("statements", "why"), OBSTACLES.values(), ids=OBSTACLES)
def test_a_day_that_cannot_become_one_leaf_keeps_its_hours_and_the_next_is_merged(
    day: World, load: Load, statements: list[str], why: str
) -> None:
    load(3, 26)
    moved = "create table moved as select * from t limit 1; update moved set _window_start = '2015-05-17 09:00+00'"
    day.execute(moved, *statements)
    before = count(day)
    merged, left = merge_closed_days(day.ledger.engine, TARGET, TOMORROW + timedelta(days=1), lambda seconds: None)
    assert (merged, list(left)) == ([TOMORROW], [DAY])
    assert why in left[DAY]
    assert count(day) == before


def test_an_hour_that_is_attached_while_its_day_is_merged_leaves_the_day_for_the_next_run(day: World, load: Load) -> None:
    reader = day.ledger.engine.connect()
    reader.execute(text("select count(*) from t"))

    def load_another(seconds: float) -> None:
        """The hours are copied, and the exchange waits for the reader."""
        reader.close()
        load(5)

    assert why_left(day, sleep=load_another) == {17: "left for the next run, its partitions changed in the meantime"}
    assert count(day) == 8
    assert merge(day) == (1, 0)
    assert count(day) == 8


def test_a_leaf_that_is_dropped_while_they_are_listed_is_none(day: World) -> None:
    engine = day.ledger.engine
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as reader:
        first, second, third = leaves(reader, TARGET)
        with engine.begin() as other:
            other.execute(text(f"drop table {second.table.sql}"))
        assert leaves(reader, TARGET) == [first, third]


def test_two_that_merge_the_same_day_merge_it_once(day: World) -> None:
    with ThreadPoolExecutor(2) as both:
        merged = [done for done, _ in both.map(lambda _: merge(day), range(2))]
    assert sum(merged) == 1
    assert spans(day) == [Interval(DAY, TOMORROW), HOUR_AFTER]
    assert count(day) == 6


def test_indexes_of_the_table_are_there_on_the_days_leaf(day: World) -> None:
    day.execute("create index on t (line)")
    merge(day)
    assert day.one("select count(*) from pg_indexes where tablename = 't_20150517_day' and indexdef like '%(line)'") == 1
    assert day.one("select indisvalid from pg_index where indexrelid = 't_line_idx'::regclass")


def test_upkeep_merges_what_is_older_than_it_keeps_by_the_hour(day: World) -> None:
    sink = sink_for(day.ledger.pipeline("p"), day.ledger.engine)
    young = MaintenanceOptions(now=TOMORROW + timedelta(days=34), sleep=lambda seconds: None)
    assert sink.maintain(young) == []
    old = MaintenanceOptions(now=TOMORROW + timedelta(days=35), sleep=lambda seconds: None)
    assert sink.maintain(old) == ["2015-05-17: hourly leaves of public.t merged into one"]
    assert sink.maintain(old) == []


def test_leaves_are_found_whatever_the_sessions_time_zone(day: World) -> None:
    day.execute(f"alter database {day.ledger.engine.url.database} set timezone = 'America/St_Johns'")
    day.ledger.engine.dispose()
    assert merge(day) == (1, 0)
    assert count(day) == 6


def test_the_command_maintains_every_pipeline_and_says_what_it_did(day: World, warehouse_url: str) -> None:
    arguments = ["maintain", "--keep-hourly-days", "35", "--warehouse", warehouse_url]
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, result.output) == (0, "p: 2015-05-17: hourly leaves of public.t merged into one\n")
    assert CliRunner().invoke(main, arguments).output == "p: nothing to do\n"
    unknown = CliRunner().invoke(main, [*arguments, "q"])
    assert (unknown.exit_code, "no pipeline q is registered" in unknown.output) == (ExitCode.NOT_FOUND, True)


def test_a_pipeline_that_cannot_be_maintained_does_not_keep_the_others_from_it(day: World) -> None:
    day.log.create("other")
    broken = {"sink": "iceberg", "warehouse": "nowhere"}
    day.ledger.register(Pipeline(name="a", topic="other", table="other", parse="lines", settings=broken), day.log, NOW)
    with pytest.raises(LogbusError, match="1 of 2 pipelines: a: .*is relative"):
        maintain(day.ledger.engine, MaintenanceOptions(now=NOW, sleep=lambda seconds: None))
    assert spans(day) == [Interval(DAY, TOMORROW), HOUR_AFTER]


def test_the_operator_returns_what_was_done(day: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WarehouseHook, "get_engine", lambda hook: day.ledger.engine)
    operator = MaintainOperator(task_id="maintain", now=lambda: NOW, keep_hourly=timedelta(days=1))
    assert operator.execute({}) == {"p": ["2015-05-17: hourly leaves of public.t merged into one"]}
