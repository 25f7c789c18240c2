"""Aggregates in a real PostgreSQL: exact over event hours after every load, reload and redrive, whoever else is at work."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from logbus.errors import (
    AggregateUnknown,
    AttemptSuperseded,
    EquationMismatch,
    ExitCode,
    PipelineConflict,
    UserError,
    WrongRequest,
)
from logbus.loads.redrive import Redrive
from logbus.model import HOUR, instant_text
from logbus.parsing import parser_for
from logbus.status.ledger_checks import check_all
from logbus.streams.aggregate_definition import Aggregate, define_aggregate
from logbus.streams.aggregate_listing import (
    DIFFERENCES_MAX,
    AggregateProof,
    drop_aggregate,
    hours_of,
    prove_span,
    prove_unaudited,
    status_of,
)
from logbus.streams.hourly_aggregates import (
    Aggregated,
    begin,
    bring_up_to_date,
    define,
    new_loads,
    statements_of,
    take_step,
    touched_hours,
)
from logbus.windows import registration
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError

from tests.support.event_lines import COLUMNS, MEASURES, EventLines, Line, added_up, counted, random_lines
from tests.support.ledgers import NOW, World, at

MINUTE = timedelta(minutes=1)
PER_MINUTE = define_aggregate(
    "per_minute", "p", keys=["status"], measures=MEASURES, event_time="time", window="1m", where="status is not null"
)


@pytest.fixture
def lines(world: World) -> EventLines:
    """Eight hours, of which nothing is loaded yet. Every twelfth line is up to seven hours late."""
    event_lines = EventLines(world=world)
    event_lines.arrive(random_lines(random.Random(7), hours=8, per_hour=90, late=1 / 12))
    event_lines.register()
    return event_lines


def aggregate(lines: EventLines, defined: Aggregate = PER_MINUTE, **how: Any) -> Aggregated:
    engine = lines.world.ledger.engine
    define(engine, defined, NOW)
    return bring_up_to_date(engine, defined.name, "test", lambda: NOW, **how)


def proven(lines: EventLines, **span: Any) -> AggregateProof:
    return prove_span(lines.world.ledger.engine, "per_minute", NOW, **span)


def arrived(lines: EventLines, *hours: int) -> list[Line]:
    return [line for line in lines.lines if any(at(hour) <= line.arrived < at(hour + 1) for hour in hours)]


def stored(world: World) -> dict[tuple[datetime, int], dict[str, Any]]:
    columns = ["requests", "bytes", "first_host", "last", "slowness"]
    rows = world.rows(f"select window_start, status, {', '.join(columns)} from per_minute")
    assert len({row[:2] for row in rows}) == len(rows)
    return {(start, status): dict(zip(columns, figures, strict=True)) for start, status, *figures in rows}


def assert_adds_up(world: World, lines: Sequence[Line]) -> None:
    truth, rows = added_up(lines, MINUTE), stored(world)
    assert {key: row["requests"] for key, row in rows.items()} == counted(lines, MINUTE)
    for key, row in rows.items():
        average, expected = row.pop("slowness"), {**truth[key]}
        true_average = expected.pop("slowness")
        assert row == expected
        assert average is true_average is None or math.isclose(average, true_average, rel_tol=1e-12)


def versions(world: World) -> dict[datetime, set[tuple[Any, ...]]]:
    """Where each row lies, and which transaction wrote it, by event hour."""
    by_hour: dict[datetime, set[tuple[Any, ...]]] = {}
    for hour, *version in world.rows("select date_trunc('hour', window_start), ctid::text, xmin::text from per_minute"):
        by_hour.setdefault(hour, set()).add(tuple(version))
    return by_hour


def event_hours(lines: Sequence[Line]) -> set[datetime]:
    return {at(0) + (line.time - at(0)) // HOUR * HOUR for line in lines if line.time is not None}


def test_after_every_load_it_is_what_the_lines_add_up_to_and_only_touched_hours_are_written(lines: EventLines) -> None:
    loaded: list[int] = []
    for number in (0, 1, 3, 2, 5, 4, 6, 7):
        lines.load(number)
        loaded.append(number)
        before, done, touched = versions(lines.world) if number else {}, aggregate(lines), event_hours(arrived(lines, number))
        assert (done.windows, set(done.hours)) == (1, touched)
        assert_adds_up(lines.world, arrived(lines, *loaded))
        after = versions(lines.world)
        assert {hour: rows for hour, rows in after.items() if hour not in touched} == {
            hour: rows for hour, rows in before.items() if hour not in touched
        }
        assert proven(lines).of("exact") == sorted(event_hours(arrived(lines, *loaded)))
    assert any(len(event_hours(arrived(lines, number))) > 2 for number in range(8)), "lines that are late by hours"
    status = status_of_it(lines)
    assert (status.windows, status.behind, status.verdict) == (8, 0, "exact")
    assert status.untimed == sum(line.time is None for line in lines.lines) > 0


def status_of_it(lines: EventLines) -> Any:
    with lines.world.ledger.engine.connect() as connection:
        return status_of(connection, "per_minute")


def test_one_that_is_defined_after_the_loads_takes_them_in_step_by_step(lines: EventLines) -> None:
    lines.load(*range(8))
    done = aggregate(lines, windows_max=3)
    assert (done.windows, len(done.hours)) == (8, 8)
    assert_adds_up(lines.world, lines.lines)
    assert aggregate(lines).hours == []
    assert lines.world.rows("select window_count, hour_count > 8, state from logbus.aggregation order by id limit 1") == [
        (8, True, "committed")
    ]


def test_a_reload_with_another_parser_changes_exactly_the_hours_that_it_touched_or_touches(lines: EventLines) -> None:
    lines.load(*range(8))
    aggregate(lines)
    before = versions(lines.world)
    lines.register(filter={"status": [200, 404]})
    lines.load(5)
    done, touched = aggregate(lines), event_hours(arrived(lines, 5))
    assert (done.windows, set(done.hours)) == (1, touched)
    assert_adds_up(lines.world, [line for line in lines.lines if line not in arrived(lines, 5) or line.status != 500])
    after = versions(lines.world)
    assert [hour for hour in before if before[hour] != after[hour]] == sorted(touched)
    assert proven(lines, is_full=True).of("wrong") == []


def test_an_hour_that_lost_its_last_row_stays_in_the_list_and_is_empty(lines: EventLines) -> None:
    world, late = lines.world, Line(arrived=at(9.5), time=at(-30.5))
    lines.arrive([late])
    lines.load(*range(10))
    aggregate(lines)
    lines.register(filter={"status": [404]})
    lines.load(9)
    assert aggregate(lines).hours == [at(-31)]
    assert world.rows(f"select count(*) from per_minute where window_start < '{instant_text(at(0))}'") == [(0,)]
    with world.ledger.engine.connect() as connection:
        [hour] = hours_of(connection, "per_minute", None, at(0))
    assert (hour.hour, hour.rows, hour.windows) == (at(-31), 0, 0)


def test_a_redrive_is_a_new_load_of_its_window(world: World) -> None:
    lines = EventLines(world=world)
    lines.arrive([Line(arrived=at(10 + number / 100), time=at(3), status=number) for number in range(4)])
    world.log.append_values("t", [(int(at(10.5).timestamp() * 1000), b'{"time": "2015-05-17T04:30:00Z", "status": "many"}')])
    lines.register()
    lines.load(10)
    assert aggregate(lines).hours == [at(3)]
    world.register(parse="tests.support.event_lines:lenient", settings={"columns": COLUMNS})
    pipeline = world.ledger.pipeline("p")
    parser = parser_for(pipeline.parse, pipeline.settings)
    Redrive(engine=world.ledger.engine, pipeline=pipeline, parser=parser, run_id="r", now=lambda: NOW).run(
        world.ledger.window("p", at(10))
    )
    assert aggregate(lines).hours == [at(3), at(4)]
    assert proven(lines, is_full=True).of("exact") == [at(3), at(4)]


def test_what_was_superseded_writes_nothing_however_late_it_wakes(lines: EventLines) -> None:
    engine = lines.world.ledger.engine
    lines.load(0, 1)
    define(engine, PER_MINUTE, NOW)
    asleep = begin(engine, "per_minute", "zombie", NOW)
    aggregate(lines)
    before = versions(lines.world)
    lines.load(2)
    with pytest.raises(AttemptSuperseded, match="the newest is"):
        take_step(engine, "per_minute", asleep, lambda: NOW)
    assert versions(lines.world) == before
    assert lines.world.rows("select run_id, state from logbus.aggregation order by id") == [
        ("zombie", "superseded"),
        ("test", "committed"),
    ]


def test_two_runs_at_once_beside_loads_leave_it_exact(lines: EventLines) -> None:
    define(lines.world.ledger.engine, PER_MINUTE, NOW)

    def run(_: int) -> str:
        try:
            bring_up_to_date(lines.world.ledger.engine, "per_minute", "test", lambda: NOW)
        except AttemptSuperseded:
            return "superseded"
        return "done"

    with ThreadPoolExecutor(3) as pool:
        loads = pool.submit(lines.load, *range(8))
        ends = [outcome for _ in range(6) for outcome in pool.map(run, range(2))]
        loads.result()
    assert set(ends) <= {"done", "superseded"}
    aggregate(lines)
    assert_adds_up(lines.world, lines.lines)
    assert proven(lines, is_full=True).of("exact") == sorted(event_hours(lines.lines))


def before_statement(world: World, beginning: str, act: Callable[[], None]) -> None:
    """Calls `act` once, before the next statement that begins like this."""

    acts = [act]

    def look(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if acts and statement.startswith(beginning):
            acts.pop()()

    event.listen(world.ledger.engine, "before_cursor_execute", look)


def test_what_is_killed_between_delete_and_insert_has_changed_nothing(lines: EventLines) -> None:
    lines.load(0, 1)
    aggregate(lines)
    before = versions(lines.world)
    lines.load(2)
    other = create_engine(lines.world.ledger.engine.url)

    def kill() -> None:
        with other.connect() as connection:
            query = (
                'select pg_terminate_backend(pid, 5000) from pg_stat_activity where query like \'delete from "public"."per_min%\''
            )
            assert connection.execute(text(query)).scalars().all() == [True]

    before_statement(lines.world, "with inserted", kill)
    with pytest.raises(DBAPIError):
        aggregate(lines)
    other.dispose()
    assert versions(lines.world) == before
    assert lines.world.rows("select state from logbus.aggregation order by id") == [("committed",), ("failed",)]
    aggregate(lines)
    assert_adds_up(lines.world, arrived(lines, 0, 1, 2))


def test_no_leaf_is_swapped_under_a_snapshot(lines: EventLines) -> None:
    """In the snapshot that is older than the new leaf's rows the window would be empty."""
    lines.load(0)
    refusals: list[str] = []
    other = create_engine(lines.world.ledger.engine.url)

    def swap() -> None:
        with other.connect() as connection:
            connection.execute(text("set lock_timeout = 100"))
            with pytest.raises(DBAPIError) as refused:
                connection.execute(text('alter table t detach partition logbus_leaf."t_201505170000"'))
        refusals.append(str(refused.value.orig))

    before_statement(lines.world, "select _window_start", swap)
    aggregate(lines)
    other.dispose()
    assert ["lock timeout" in refusal for refusal in refusals] == [True]


def test_an_audit_that_is_quicker_makes_a_run_look_again(lines: EventLines) -> None:
    lines.load(0, 1)
    aggregate(lines)
    lines.load(*range(2, 8))
    before_statement(
        lines.world,
        "SELECT logbus.window.id",
        lambda: lines.world.execute("update logbus.aggregated_hour set audited_at = now()"),
    )
    aggregate(lines)
    assert_adds_up(lines.world, lines.lines)


@pytest.mark.parametrize(
    ("spoil", "hour", "problem"),
    [
        ("update per_minute set requests = 2 where window_start = '2015-05-17T01:00Z'", 1, "requests is 2, the rows give 1"),
        ("delete from per_minute where window_start = '2015-05-17T01:00Z'", 1, "no row, and the pipeline's rows give one"),
        ("insert into per_minute values ('2015-05-17T01:00Z', 999)", 1, "status 999: a row, and the pipeline's rows give none"),
        ("insert into per_minute values ('2015-05-17T09:59Z', 999)", 9, "status 999: a row, and the pipeline's rows give none"),
        ("delete from t where time = '2015-05-17T01:00Z'", 1, "a row, and the pipeline's rows give none"),
        (
            "update t set time = '2015-05-17T05:07Z' where time < '2015-05-17T01:00Z'",
            5,
            "no row, and the pipeline's rows give one",
        ),
    ],
)
def test_a_row_that_was_changed_anywhere_is_named_by_hour_and_key(world: World, spoil: str, hour: int, problem: str) -> None:
    lines = EventLines(world=world)
    lines.arrive([Line(arrived=at(1), time=at(1)), Line(arrived=at(1.5), time=at(0.5))])
    lines.register()
    lines.load(1)
    aggregate(lines)
    assert proven(lines).of("exact") == [at(0), at(1)]
    world.execute(spoil)
    report = proven(lines, is_full=True)
    assert at(hour) in report.of("wrong")
    assert f"{instant_text(at(hour))}: " in report.failure()
    assert problem in report.failure()
    assert status_of_it(lines).verdict == "wrong"


def test_no_hour_passes_for_exact_because_too_many_rows_of_others_differ(lines: EventLines) -> None:
    lines.load(*range(8))
    aggregate(lines)
    hours = proven(lines).of("exact")
    lines.world.execute("update per_minute set requests = requests + 1")
    [[count]] = lines.world.rows("select count(*) from per_minute")
    assert 2 * count > DIFFERENCES_MAX, "both sides of each row are fetched"
    assert proven(lines).of("wrong") == hours
    assert set(hours) <= set(aggregate(lines).hours)
    assert_adds_up(lines.world, lines.lines)
    lines.world.execute("drop table t cascade")
    assert proven(lines).of("kept") == hours, "nothing is exact that was not compared"


def test_an_hour_that_an_audit_found_wrong_is_computed_again_by_the_next_run(lines: EventLines) -> None:
    world, engine = lines.world, lines.world.ledger.engine
    lines.load(0, 1)
    aggregate(lines)
    world.execute("insert into per_minute values ('2015-05-17T09:59Z', 999)", "delete from per_minute where status = 404")
    assert set(proven(lines).of("wrong")) > {at(9)}
    assert prove_unaudited(engine, "per_minute", NOW).of("wrong") == proven(lines).of("wrong"), "a second look is no pardon"
    [finding] = [
        finding
        for finding in check_all(world.ledger, world.log, [world.ledger.pipeline("p")], NOW)
        if "aggregate" in finding.message
    ]
    assert (finding.message.partition(" found ")[0], finding.advice.partition(";")[0]) == (
        "the audit of aggregate per_minute",
        "logbus aggregate run per_minute",
    )
    assert at(9) in aggregate(lines).hours
    report = prove_unaudited(engine, "per_minute", NOW)
    assert (report.of("wrong"), bool(report.of("exact"))) == ([], True)
    assert prove_unaudited(engine, "per_minute", NOW).hours == []
    again = prove_unaudited(engine, "per_minute", NOW, run_id="test").of("exact")
    assert set(again) >= set(report.of("exact")), "an audit that is killed before it tells anybody looks again"
    assert_adds_up(world, arrived(lines, 0, 1))


def test_an_hour_whose_rows_are_gone_with_an_old_partition_is_kept_as_it_is(world: World) -> None:
    lines = EventLines(world=world)
    lines.arrive([Line(arrived=at(hour), time=at(time)) for hour, time in ((1, 1), (2, 2), (3, 1), (3.5, 3), (4, 2))])
    lines.register()
    lines.load(1, 2)
    aggregate(lines)
    world.execute('alter table t detach partition logbus_leaf."t_201505170100"')
    assert (proven(lines).of("kept"), proven(lines).of("exact")) == ([at(1)], [at(2)])
    lines.load(3, 4)
    done = aggregate(lines)
    assert (done.hours, list(done.kept)) == ([at(2), at(3)], [at(1)])
    assert world.rows("select window_start, requests from per_minute order by 1") == [(at(1), 1), (at(2), 2), (at(3), 1)]
    report = proven(lines, is_full=True)
    assert (report.of("kept"), report.of("wrong")) == ([at(1)], [])
    world.execute(
        "alter table t attach partition logbus_leaf.t_201505170100 for values from ('2015-05-17T01:00Z') to ('2015-05-17T02:00Z')"
    )
    lines.load(1)
    assert aggregate(lines).hours == [at(1)]
    assert_adds_up(world, lines.lines)
    assert status_of_it(lines).kept == 0


def test_one_that_is_defined_when_old_partitions_are_gone_begins_with_what_is_there(lines: EventLines) -> None:
    lines.load(*range(8))
    lines.world.execute('drop table logbus_leaf."t_201505170000"')
    aggregate(lines)
    assert_adds_up(lines.world, [line for line in lines.lines if line not in arrived(lines, 0)])
    assert status_of_it(lines).missing == len(arrived(lines, 0))


def test_hours_that_a_load_has_touched_since_are_behind_and_not_compared(lines: EventLines) -> None:
    lines.load(*range(7))
    aggregate(lines)
    lines.load(7)
    report, engine = proven(lines), lines.world.ledger.engine
    assert set(report.of("behind")) == event_hours(arrived(lines, 7)) & set(report.of("behind")) != set()
    assert report.of("wrong") == []
    assert prove_unaudited(engine, "per_minute", NOW).of("exact") == []
    assert status_of_it(lines).verdict == "behind"
    aggregate(lines)
    assert prove_unaudited(engine, "per_minute", NOW).of("exact") == sorted(event_hours(arrived(lines, 7)))


def test_rows_that_the_load_did_not_bring_are_refused(lines: EventLines) -> None:
    lines.load(0)
    lines.world.execute("delete from t where _offset = 3")
    with pytest.raises(EquationMismatch, match="has 80 rows, and its load brought 81"):
        aggregate(lines)
    assert status_of_it(lines).newest == "failed"


def test_no_more_hours_are_fetched_than_a_step_may_have(lines: EventLines) -> None:
    """Times that are no times would fill the memory before they are refused."""
    lines.load(*range(8))
    engine = lines.world.ledger.engine
    define(engine, PER_MINUTE, NOW)
    touched = len({line.time and at(0) + (line.time - at(0)) // HOUR * HOUR for line in lines.lines})
    fetched: list[int] = []
    with engine.connect() as connection:
        event.listen(connection, "after_cursor_execute", lambda _, cursor, *others: fetched.append(cursor.rowcount))
        statements, loads = statements_of(connection, PER_MINUTE), new_loads(connection, PER_MINUTE)
        assert statements is not None
        assert len(touched_hours(connection, statements, loads, hours_max=touched)) == 8
        everything = fetched[-1]
        with pytest.raises(WrongRequest, match="of 8 windows fall into more than 2 different hours: is 'time' the time"):
            touched_hours(connection, statements, loads, hours_max=2)
        assert 3 <= fetched[-1] < everything


def test_before_the_first_load_there_is_nothing_to_do_and_no_table(lines: EventLines) -> None:
    done = aggregate(lines)
    assert (done.windows, done.hours) == (0, [])
    assert lines.world.one("select to_regclass('per_minute') is null")
    assert proven(lines).hours == []
    with pytest.raises(PipelineConflict, match="aggregates are computed from pipeline p: per_minute"):
        registration.remove(lines.world.ledger.engine, "p", NOW, is_executed=True)


def test_a_name_or_a_table_that_is_taken_is_refused_and_a_dropped_one_is_made_again(lines: EventLines) -> None:
    engine = lines.world.ledger.engine
    changes: dict[str, Any] = {"keys": ["status"], "measures": MEASURES}
    lines.load(0)
    aggregate(lines)
    with pytest.raises(UserError, match="is defined already, as .*`logbus aggregate drop per_minute`"):
        define(engine, define_aggregate("per_minute", "p", **changes), NOW)
    with pytest.raises(UserError, match="belongs to the aggregate per_minute"):
        define(engine, define_aggregate("other", "p", **changes, table="per_minute"), NOW)
    with pytest.raises(UserError, match="belongs to the pipeline p"):
        define(engine, define_aggregate("other", "p", **changes, table="t"), NOW)
    lines.world.execute("create table mine (x int)")
    with pytest.raises(UserError, match="which aggregate other did not make"):
        aggregate(lines, define_aggregate("other", "p", **changes, table="mine"))
    with pytest.raises(UserError, match="did you mean status"):
        aggregate(lines, define_aggregate("third", "p", **{**changes, "keys": ["statsu"]}))
    lines.world.execute("drop table per_minute")
    with pytest.raises(UserError, match="is gone"):
        aggregate(lines)
    drop_aggregate(engine, "per_minute")
    with pytest.raises(AggregateUnknown, match="there is no aggregate 'per_minute'"):
        bring_up_to_date(engine, "per_minute", "test", lambda: NOW)
    aggregate(lines)
    assert_adds_up(lines.world, arrived(lines, 0))


def test_the_commands_show_run_verify_and_drop(lines: EventLines, run: Callable[..., Any]) -> None:
    lines.load(0, 1)
    define(lines.world.ledger.engine, PER_MINUTE, NOW)
    assert run("aggregate", "ls").stdout.split()[-7:] == ["per_minute", "p", "per_minute", "behind", "0", "0", "2"]
    done = json.loads(run("aggregate", "run", "per_minute", "--json").stdout)
    assert (done["windows"], done["hours"]) == (2, ["2015-05-17T00:00:00Z", "2015-05-17T01:00:00Z"])
    assert run("aggregate", "run", "per_minute").stdout == "per_minute: 0 windows, 0 hours, 0 rows\n"
    assert run("aggregate", "verify", "per_minute", "--full").stdout == "per_minute: 2 exact, 0 wrong, 0 behind, 0 kept\n"
    lines.world.execute("delete from per_minute where window_start >= '2015-05-17T01:00:00Z'")
    wrong = run("aggregate", "verify", "per_minute", "--since", "2015-05-17T01")
    assert (wrong.exit_code, wrong.stdout) == (ExitCode.CHECK_FAILED, "per_minute: 0 exact, 1 wrong, 0 behind, 0 kept\n")
    assert "error: aggregate per_minute is wrong in 1 hour: 2015-05-17T01:00:00Z: 2015-05-17T01:" in wrong.stderr
    shown = run("aggregate", "show", "per_minute", "--until", "2015-05-17T01").stdout
    assert "requests count(), bytes sum(bytes)" in shown
    assert "2015-05-17T00:00:00Z  exact" in shown
    assert json.loads(run("aggregate", "show", "per_minute", "--json").stdout)["wrong"] == 1
    assert run("aggregate", "drop", "per_minute").stdout == "would be dropped: table per_minute with 2 hours of p\n"
    assert json.loads(run("aggregate", "drop", "per_minute", "--execute", "--json").stdout)["executed"] is True
    assert run("aggregate", "show", "per_minute").exit_code == ExitCode.NOT_FOUND
