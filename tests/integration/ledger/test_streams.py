"""Streams in a real PostgreSQL: what is committed is exact, whoever else is at work, and each hour is proven against its load."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from logbus.errors import (
    AttemptSuperseded,
    AuditMismatch,
    ChainBroken,
    EpochStraddles,
    PipelineConflict,
    StreamUnknown,
    UserError,
)
from logbus.expressions import count, max_of, min_of, sum_of
from logbus.loads.redrive import Redrive
from logbus.parsing import parser_for
from logbus.streams import stream_ledger
from logbus.streams.definition import define_stream, of_ledger
from logbus.streams.kinds import arrival_table
from logbus.streams.proof import StreamProof, prove_due, prove_span, refuse_different
from logbus.windows import recovery, registration
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError

from tests.support.event_lines import COLUMNS, MEASURES, EventLines, Line, LineLoading, added_up, random_lines
from tests.support.ledgers import NOW, World, at
from tests.support.streaming import StreamDriver

MINUTE = timedelta(minutes=1)
LIVE = define_stream("live", "p", keys=["status"], measures=MEASURES, event_time="time", where="status is not null")


def streamed(world: World, *lines: Line, partitions: int = 1) -> EventLines:
    """A pipeline of these lines, of which nothing is loaded, and a stream from its first record on."""
    world.log.create("t", partitions)
    event_lines = EventLines(world=world)
    event_lines.arrive(lines)
    event_lines.register()
    stream_ledger.define(world.ledger.engine, LIVE, NOW)
    return event_lines


def loaded(lines: EventLines, *hours: int) -> None:
    for number in hours:
        lines.load(number)
        assert lines.world.audit(number).ok


def due(lines: EventLines) -> StreamProof:
    return prove_due(lines.world.ledger.engine, "live", NOW)


def everything(lines: EventLines) -> StreamProof:
    return prove_span(lines.world.ledger.engine, "live", NOW)


FIGURES = ("requests", "bytes", "first_host", "last", "slowness")


def assert_adds_up(world: World, lines: Sequence[Line]) -> None:
    """The view has a row of each minute and status, and it is what the lines add up to."""
    truth = added_up(lines, MINUTE)
    rows = world.rows(f"select window_start, status, {', '.join(FIGURES)} from live")
    assert {(start, status) for start, status, *_ in rows} == truth.keys()
    assert len(rows) == len(truth)
    for start, status, *figures in rows:
        row, expected = dict(zip(FIGURES, figures, strict=True)), dict(truth[start, status])
        average, true_average = row.pop("slowness"), expected.pop("slowness")
        assert row == expected
        assert average is true_average is None or math.isclose(average, true_average, rel_tol=1e-12)


def test_the_view_is_what_arrived_however_late_and_each_hour_is_proven_after_its_load(world: World) -> None:
    source, lines = random.Random(5), streamed(world, partitions=2)
    for partition in range(2):
        lines.arrive(random_lines(source, hours=4, per_hour=40, late=1 / 6), partition)
    driver, arrived, is_loaded = StreamDriver.begin(lines), lines.lines, 0
    while driver.read(offsets_max=source.choice([7, 23])):
        if source.random() < 0.3 and is_loaded < 4:
            loaded(lines, is_loaded)
            is_loaded += 1
            assert due(lines).of("different") == []
    assert_adds_up(world, arrived)
    loaded(lines, *range(is_loaded, 4))
    assert driver.repair() is False
    assert set(due(lines).of("proven")) <= set(everything(lines).of("proven")) == {at(number) for number in range(4)}
    assert due(lines).hours == [], "what is proven is not due again"
    assert world.one("select count(*) = 8 and sum(read_count) = 320 from logbus.epoch_part"), "one part of each hour"
    assert_adds_up(world, arrived)
    assert world.rows("select distinct state, replaced_by from logbus.stream_hour") == [("proven", None)]


def test_a_record_that_is_thirty_days_late_adds_to_its_minute(world: World) -> None:
    late = Line(arrived=at(10), time=at(10 - 30 * 24), status=404)
    lines = streamed(world, Line(arrived=at(9), time=at(9)), late, replace(late, arrived=at(11.5)))
    StreamDriver.begin(lines).read_all(offsets_max=1)
    assert_adds_up(world, lines.lines)
    loaded(lines, 9, 10, 11)
    assert due(lines).of("proven") == [at(9), at(10), at(11)]
    assert world.rows("select arrived_hour, requests from live_by_arrival where status = 404 order by 1") == [
        (at(10), 1),
        (at(11), 1),
    ]


def test_an_idle_topic_is_proven_hour_by_hour_without_a_record(world: World) -> None:
    lines = streamed(world, Line(arrived=at(1), time=at(1)))
    StreamDriver.begin(lines).read_all()
    loaded(lines, 1)
    world.freeze(2)
    world.freeze(3)
    assert due(lines).of("proven") == [at(1), at(2), at(3)]
    assert everything(lines).of("proven") == [at(1), at(2), at(3)]


def test_a_gap_an_overlap_and_another_number_are_refused_and_change_nothing(world: World) -> None:
    lines = streamed(world, *(Line(arrived=at(1 + number / 60), time=at(1)) for number in range(30)))
    driver = StreamDriver.begin(lines)
    driver.read(10)
    for spans, problem in (
        ([(0, 12, 20, at(1))], "leaves a gap"),
        ([(0, 9, 20, at(1))], "reads offsets again"),
        ([(0, 10, 15, at(1)), (0, 14, 20, at(1))], "reads offsets again"),
    ):
        with pytest.raises(ChainBroken, match=problem):
            driver.commit(driver.epoch(spans))
    with pytest.raises(ChainBroken, match="the next one is number 2"):
        driver.commit(replace(driver.epoch([(0, 10, 20, at(1))]), number=3))
    assert stream_ledger.positions(world.ledger.engine, "live") == {0: 10}
    assert_adds_up(world, lines.lines[:10])


def test_of_two_drivers_only_the_newer_commits_and_nothing_counts_twice(world: World) -> None:
    lines = streamed(world, *(Line(arrived=at(1 + number / 600), time=at(1), status=number % 3) for number in range(400)))
    asleep = StreamDriver.begin(lines)
    epoch = asleep.epoch(asleep.plan(50, 10**9))

    def drive(_: int) -> str:
        try:
            StreamDriver.begin(lines).read_all(offsets_max=20)
        except AttemptSuperseded:
            return "superseded"
        return "done"

    with ThreadPoolExecutor(3) as pool:
        assert set(pool.map(drive, range(6))) <= {"done", "superseded"}
    for act in (
        lambda: asleep.commit(epoch),
        lambda: stream_ledger.heartbeat(world.ledger.engine, asleep.ownership, NOW),
    ):
        with pytest.raises(AttemptSuperseded, match="driver 1 of stream live is superseded"):
            act()
    stream_ledger.end(world.ledger.engine, asleep.ownership, NOW, "slow")
    StreamDriver.begin(lines).read_all()
    assert_adds_up(world, lines.lines)
    assert world.rows("select error, owner from logbus.stream") == [(None, 8)]


def before_statement(world: World, beginning: str, act: Callable[[], None]) -> None:
    """Calls `act` once, before the next statement that begins like this."""
    acts = [act]

    def look(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if acts and statement.startswith(beginning):
            acts.pop()()

    event.listen(world.ledger.engine, "before_cursor_execute", look)


def test_what_is_killed_in_its_commit_has_changed_nothing_and_the_ledger_says_so(world: World) -> None:
    lines = streamed(world, *(Line(arrived=at(1 + number / 60), time=at(1)) for number in range(30)))
    driver, other = StreamDriver.begin(lines), create_engine(world.ledger.engine.url)
    driver.read(10)

    def kill() -> None:
        with other.connect() as connection:
            query = (
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity where query like :its and pid <> pg_backend_pid()"
            )
            assert connection.execute(text(query), {"its": 'insert into "public"."live_by_arrival"%'}).scalars().all() == [True]

    before_statement(world, "INSERT INTO logbus.epoch_part", kill)
    with pytest.raises(DBAPIError):
        driver.read(10)
    other.dispose()
    assert stream_ledger.positions(world.ledger.engine, "live") == {0: 10}
    assert_adds_up(world, lines.lines[:10])
    driver.read_all()
    assert_adds_up(world, lines.lines)


def test_an_epoch_that_a_window_cuts_since_it_was_planned_is_planned_again(world: World) -> None:
    lines = streamed(world, *(Line(arrived=at(1 + number / 4), time=at(1)) for number in range(8)))
    driver = StreamDriver.begin(lines, shift=timedelta(minutes=-30))
    driver.read(1)
    epoch = driver.epoch(driver.plan(8, 10**9))
    loaded(lines, 1)
    with pytest.raises(EpochStraddles, match="2015-05-17T01:00:00Z") as refusal:
        driver.commit(epoch)
    assert at(1) in refusal.value.hours
    driver.read_all()
    assert_adds_up(world, lines.lines)
    assert driver.repair() is True, "the record of the first epoch is counted in another hour"
    assert due(lines).of("proven") == [at(1)]
    assert_adds_up(world, lines.lines)


def test_what_was_foreseen_otherwise_is_read_again_and_then_proven(world: World) -> None:
    lines = streamed(world, *(Line(arrived=at(1 + number / 20), time=at(2), status=number) for number in range(80)))
    driver = StreamDriver.begin(lines, shift=timedelta(minutes=20))
    driver.read_all(offsets_max=7)
    loaded(lines, 1, 2)
    assert due(lines).of("behind") == [at(1), at(2)], "not different: the driver repairs it"
    position = stream_ledger.positions(world.ledger.engine, "live")
    assert driver.repair() is True
    assert driver.repair() is False
    assert stream_ledger.positions(world.ledger.engine, "live") == position
    assert_adds_up(world, lines.lines)
    assert due(lines).of("proven") == [at(1), at(2)]
    lines.arrive([Line(arrived=at(5), time=at(2))])
    driver.read_all()
    loaded(lines, 3, 4, 5)
    assert driver.repair() is True
    assert due(lines).of("proven") == [at(3), at(4), at(5)]
    assert_adds_up(world, lines.lines)


def test_hours_that_are_frozen_in_another_order_are_repaired_and_proven(world: World) -> None:
    lines = streamed(world, *(Line(arrived=at(1 + number / 10), time=at(1)) for number in range(30)))
    driver = StreamDriver.begin(lines, shift=timedelta(hours=2))
    driver.read(offsets_max=20)  # of hours 1 and 2, foreseen as 3 and 4
    loaded(lines, 3, 1)
    driver.read_all()
    assert due(lines).of("behind") == [at(1), at(3)]
    assert driver.repair() is True
    assert due(lines).of("proven") == [at(1), at(3)]
    loaded(lines, 2)
    assert driver.repair() is True
    assert due(lines).of("proven") == [at(2)]
    assert len(everything(lines).of("proven")) == 3
    assert_adds_up(world, lines.lines)


def test_a_reset_reads_again_what_was_foreseen_to_be_of_a_later_hour(world: World) -> None:
    lines = streamed(world, *(Line(arrived=at(1 + number / 10), time=at(1)) for number in range(20)))
    StreamDriver.begin(lines, shift=timedelta(hours=2)).read_all()
    loaded(lines, 1, 2)
    stream_ledger.reset(world.ledger.engine, "live", at(2), NOW)
    StreamDriver.begin(lines).read_all()
    assert_adds_up(world, lines.lines)
    assert due(lines).of("proven") == [at(1), at(2)]


def test_a_reset_begins_at_a_frozen_hour_again_and_fences_the_driver(world: World) -> None:
    lines = streamed(world, *(Line(arrived=at(number / 10), time=at(number / 20)) for number in range(40)))
    engine, driver = world.ledger.engine, StreamDriver.begin(lines)
    driver.read_all(offsets_max=6)
    loaded(lines, 0, 1, 2)
    assert len(due(lines).of("proven")) == 3
    with pytest.raises(UserError, match="no boundary of p is frozen at 2015-05-17T00:30:00Z"):
        stream_ledger.reset(engine, "live", at(0.5), NOW)
    stream_ledger.reset(engine, "live", at(1), NOW)
    assert_adds_up(world, lines.lines[:10])
    assert everything(lines).of("behind") == [at(1), at(2)]
    with pytest.raises(AttemptSuperseded, match="of run none: the stream was reset"):
        driver.commit(driver.epoch([(0, 10, 20, at(1))]))
    StreamDriver.begin(lines).read_all()
    assert_adds_up(world, lines.lines)
    assert due(lines).of("proven") == [at(1), at(2)]


def test_what_a_reset_passed_over_is_taken_from_the_load(world: World) -> None:
    """As when retention was quicker than the stream."""
    lines = streamed(world, *(Line(arrived=at(number / 10), time=at(number / 20)) for number in range(30)))
    StreamDriver.begin(lines).read(15)
    loaded(lines, 0, 1)
    stream_ledger.reset(world.ledger.engine, "live", at(2), NOW)
    StreamDriver.begin(lines).read_all()
    proof = due(lines)
    assert (proof.of("proven"), proof.of("different")) == ([at(0)], [at(1)])
    assert "ends at 20, its last part is" in proof.failure()
    assert_adds_up(world, lines.lines)


def test_a_stream_begins_at_the_newest_frozen_hour_or_at_a_named_one(world: World) -> None:
    lines, engine = streamed(world, *(Line(arrived=at(number / 10), time=at(0)) for number in range(30))), world.ledger.engine
    loaded(lines, 0, 1)
    for name, since, starts in (("newest", None, 20), ("named", at(1), 10)):
        stream_ledger.define(engine, define_stream(name, "p", keys=["status"], measures={"n": count()}), NOW, since=since)
        assert stream_ledger.positions(engine, name) == {0: starts}
        assert prove_due(engine, name, NOW).of("behind") == ([at(1)] if since else [])
    with pytest.raises(UserError, match="these hours are: 2015-05-17T01:00:00Z, 2015-05-17T00:00:00Z"):
        stream_ledger.define(engine, define_stream("wrong", "p", keys=[], measures={"n": count()}), NOW, since=at(7))


def test_a_partition_that_was_added_is_read_from_its_first_record_and_proven_with_its_first_hour(world: World) -> None:
    lines = streamed(world, Line(arrived=at(1), time=at(1)))
    driver = StreamDriver.begin(lines)
    driver.read_all()
    loaded(lines, 1)
    world.log.add_partitions("t", 2)
    lines.arrive([Line(arrived=at(1.5), time=at(1)), Line(arrived=at(2.5), time=at(1))], partition=1)
    driver.ownership = stream_ledger.add_partitions(world.ledger.engine, driver.ownership, [1])
    driver.read_all()
    stream_ledger.reset(world.ledger.engine, "live", at(1), NOW)  # before any window has the partition
    assert stream_ledger.positions(world.ledger.engine, "live") == {0: 0, 1: 0}
    StreamDriver.begin(lines).read_all()
    loaded(lines, 2)
    assert due(lines).of("proven") == [at(1), at(2)]
    assert_adds_up(world, lines.lines)


@pytest.mark.parametrize(
    ("spoil", "problem", "is_replaced"),
    [
        ("update live_by_arrival set requests = 2 where status = 200", "status 200: requests is 2, the rows give 1", True),
        ("delete from live_by_arrival where status = 200", "status 200: no row, and the pipeline's rows give one", True),
        (
            "insert into live_by_arrival (arrived_hour, window_start, status, _group) values "
            "('2015-05-17T01:00Z', '2015-05-17T01:00Z', 999, gen_random_uuid())",
            "status 999: a row, and the pipeline's rows give none",
            True,
        ),
        ("delete from t where status = 200", "p has 1 row of it, and its load brought 2: `logbus window audit", False),
        ("delete from t where status = 200", "status 200: a row, and the pipeline's rows give none", False),
        ("delete from logbus.epoch_part", "t-0 [0, 2): no epoch has read it", True),
        ("update logbus.epoch_part set fingerprint = '1'", "read 2 records, and not those of the load", True),
        ("update logbus.epoch_part set read_count = 3", "the stream read 3 records, the load 2", True),
    ],
)
def test_whatever_was_changed_is_named_by_stream_hour_and_key(world: World, spoil: str, problem: str, is_replaced: bool) -> None:
    lines = streamed(world, Line(arrived=at(1), time=at(1)), Line(arrived=at(1.5), time=at(1), status=404))
    StreamDriver.begin(lines).read_all()
    loaded(lines, 1)
    assert due(lines).of("proven") == [at(1)]
    world.execute(spoil)
    proof = everything(lines)
    with pytest.raises(AuditMismatch, match="stream live is not what was loaded in 1 hour: 2015-05-17T01:00:00Z: "):
        refuse_different(proof)
    assert problem in proof.failure()
    ((state, replaced_by, differences),) = world.rows("select state, replaced_by, differences from logbus.stream_hour")
    assert (state, replaced_by) == ("different", 1 if is_replaced else None)
    assert any(problem in difference for difference in differences)
    assert due(lines).hours == []
    if is_replaced:
        assert_adds_up(world, lines.lines)
        assert everything(lines).of("proven") == [at(1)]


def test_a_reload_that_changes_values_makes_the_load_win_without_a_failure(world: World) -> None:
    lines = streamed(world, *(Line(arrived=at(1), time=at(1), status=status) for status in (200, 404, 500)))
    StreamDriver.begin(lines).read_all()
    loaded(lines, 1)
    assert due(lines).of("proven") == [at(1)]
    lines.register(filter={"status": [200, 404]})
    loaded(lines, 1)
    proof = due(lines)
    assert (proof.of("proven"), proof.hours[0].replaced_by) == ([at(1)], 2)
    assert "status 500: a row, and the pipeline's rows give none" in proof.hours[0].problems[0]
    assert_adds_up(world, lines.lines[:2])
    assert world.rows("select state, loaded_attempt, replaced_by from logbus.stream_hour") == [("proven", 2, 2)]
    assert due(lines).hours == []


def test_what_a_redrive_adds_is_no_fault_of_the_stream(world: World) -> None:
    lines = streamed(world, Line(arrived=at(1), time=at(1)))
    world.log.append_values("t", [(int(at(1.5).timestamp() * 1000), b'{"time": "2015-05-17T04:30:00Z", "status": "many"}')])
    driver = StreamDriver.begin(lines)
    first, whole = driver.epoch([(0, 0, 1, at(1))]), driver.epoch([(0, 0, 2, at(1))], counts=False)
    driver.commit(replace(whole, deltas=first.deltas))  # what does not parse is a dead letter, and counts nowhere
    loaded(lines, 1)
    lenient = "tests.support.event_lines:lenient"
    world.register(parse=lenient, settings={"columns": COLUMNS})
    pipeline = world.ledger.pipeline("p")
    redrive = Redrive(
        engine=world.ledger.engine, pipeline=pipeline, parser=parser_for(lenient, pipeline.settings), run_id="r", now=lambda: NOW
    )
    redrive.run(world.ledger.window("p", at(1)))
    assert world.audit(1).ok
    proof = due(lines)
    assert (proof.of("proven"), proof.hours[0].replaced_by) == ([at(1)], 1)
    assert world.rows("select status, requests from live order by 1") == [(-1, 1), (200, 1)]


def test_rows_that_are_gone_with_an_old_partition_leave_the_hour_as_it_is(world: World) -> None:
    lines = streamed(world, Line(arrived=at(1), time=at(1)))
    StreamDriver.begin(lines).read_all()
    loaded(lines, 1)
    assert due(lines).of("proven") == [at(1)]
    world.execute('alter table t detach partition logbus_leaf."t_201505170100"')
    assert everything(lines).of("kept") == [at(1)]
    assert_adds_up(world, lines.lines)


def test_commits_do_not_wait_for_a_proof_nor_a_proof_for_commits(world: World) -> None:
    lines = streamed(world, *(Line(arrived=at(1 + number / 30), time=at(1)) for number in range(60)))
    driver = StreamDriver.begin(lines)
    driver.read(30)
    loaded(lines, 1)
    before_statement(world, "with stored as", lambda: [driver.read(10) for _ in range(3)].clear())
    assert due(lines).of("proven") == [at(1)]
    assert_adds_up(world, lines.lines)


def test_an_hour_that_is_reset_while_it_is_compared_is_not_called_proven(world: World) -> None:
    lines = streamed(world, *(Line(arrived=at(1 + number / 30), time=at(1)) for number in range(40)))
    StreamDriver.begin(lines).read_all()
    loaded(lines, 1)
    before_statement(world, "with stored as", lambda: stream_ledger.reset(world.ledger.engine, "live", at(1), NOW))
    assert due(lines).of("behind") == [at(1)]
    assert world.rows("select * from logbus.stream_hour") == []


def test_every_value_that_a_column_can_have_is_compared_and_taken_over_as_it_is(world: World) -> None:
    columns = {"time": "timestamptz", "a": "text", "b": "bigint", "flag": "boolean", "x": "double precision"}
    world.register(parse="json", settings={"columns": columns})
    measures = {
        "n": count(),
        "b_sum": sum_of("b"),
        "x_sum": sum_of("x"),
        "x_min": min_of("x"),
        "x_max": max_of("x"),
        "a_min": min_of("a"),
        "a_max": max_of("a"),
        "last": max_of("time"),
    }
    keys = ["a", "b", "flag", "_timestamp"]
    engine = world.ledger.engine
    for name, its in (("live", keys), ("total", [])):
        stream_ledger.define(engine, define_stream(name, "p", keys=its, measures=measures, event_time="time"), NOW)
    world.log.append_values("t", [(int(at(1).timestamp() * 1000) + number, b"{}") for number in range(12)])
    LineLoading.of(world, 1).load()
    assert world.audit(1).ok
    values = [
        ("'x'", "1", "true", "1e308"),
        ("'x'", "1", "true", "1.7e308"),
        ("'y'", "9223372036854775807", "false", "'NaN'"),
        ("'y'", "9223372036854775807", "null", "'-Infinity'"),
        (f"repeat('{'long ' * 10}', 2000)", "4294967296", "null", "0.1"),
        (f"repeat('{'long ' * 10}', 2000) || '!'", "4294967296", "null", "-0.0"),
        ("'\"\\{}, :a'", "null", "null", "5e-324"),
        ("null", "0", "null", "null"),
        ("''", "-9223372036854775808", "true", "0.30000000000000004"),
        ("'ä'", "1", "true", "1e15"),
    ]
    for number, (a, b, flag, x) in enumerate(values):
        time = "'0001-01-01T00:00:00.000001Z'" if number == 3 else f"'2015-05-17T01:00:0{number}.123457Z'"
        row = f"time = {time}, a = {a}, b = {b}, flag = {flag}, x = {x}"
        world.execute(f"update t set {row} where _offset = {number}".replace(":", r"\:"))
    for name, groups in (("live", len(values)), ("total", 2)):
        driver = StreamDriver.begin(EventLines(world=world), name)
        driver.commit(driver.epoch([(0, 0, 12, at(1))], counts=False))
        assert prove_due(engine, name, NOW).of("different") == [at(1)]
        assert prove_span(engine, name, NOW).of("proven") == [at(1)]
        assert world.one(f"select count(*) from {name}_by_arrival") == groups
        add_again(world, name)
        assert world.one(f"select sum(n) from {name}") == 2 * len(values)
        assert prove_span(engine, name, NOW).of("different") == [at(1)]
        differing = world.one(f"select differences from logbus.stream_hour where stream = '{name}'")
        assert [word for sentence in differing for word in ("_min", "_max", "last") if word in sentence] == []
    assert world.rows("select x_sum from live where a = 'x' order by 1") == [(1e308,), (1.7e308,)]
    assert world.rows("select b_sum, a_min, a_max from total where window_start > '2015-01-01'") == [
        (2 * 2**32 + 3 - 1, "", "\u00e4")
    ]
    assert math.isnan(world.one("select x_sum from total where window_start > '2015-01-01'"))
    world.execute("update total_by_arrival set x_sum = 2e308")
    assert set(world.rows("select x_sum from total")) == {(math.inf,)}


def add_again(world: World, name: str) -> None:
    """What an hour has, once more."""
    with world.ledger.engine.begin() as connection:
        row = stream_ledger.row_of(connection, name)
        table = arrival_table(of_ledger(row), row["columns"])
        listed = ", ".join(table.names)
        deltas = text(f"select cast(json_agg(d) as text) from (select arrived_hour, {listed} from {name}_by_arrival) d")
        connection.execute(table.add(), {"deltas": connection.execute(deltas).scalar_one()})


def test_names_tables_and_columns_that_are_taken_or_changed_are_refused_and_a_dropped_one_is_made_again(world: World) -> None:
    lines, engine = streamed(world, Line(arrived=at(1), time=at(1))), world.ledger.engine
    what: dict[str, Any] = {"keys": ["status"], "measures": MEASURES, "event_time": "time"}
    stream_ledger.define(engine, replace(LIVE, trigger=timedelta(seconds=9)), NOW)
    with engine.connect() as connection:
        assert stream_ledger.find(connection, "live").trigger == timedelta(seconds=9)
    with pytest.raises(UserError, match="is defined already, as .*`logbus stream drop live`"):
        stream_ledger.define(engine, define_stream("live", "p", **what), NOW)
    for table, owner in (("t", "pipeline p"), ("live", "stream live"), ("live_by_arrival", "stream live")):
        with pytest.raises(UserError, match=f"belongs to the {owner}"):
            stream_ledger.define(engine, define_stream("other", "p", **what, table=table), NOW)
    with pytest.raises(UserError, match="belongs to the stream live"):
        world.register(name="q", table="live_by_arrival")
    world.execute("create table mine_by_arrival (x int)")
    with pytest.raises(UserError, match="which stream mine did not make"):
        stream_ledger.define(engine, define_stream("mine", "p", **what), NOW)
    with pytest.raises(UserError, match="did you mean status"):
        stream_ledger.define(engine, define_stream("typo", "p", **{**what, "keys": ["statsu"]}), NOW)
    with pytest.raises(PipelineConflict, match="streams are computed from pipeline p: live. `logbus stream drop NAME`"):
        registration.remove(engine, "p", NOW, is_executed=True)
    world.register(parse="json", settings={"columns": {**COLUMNS, "status": "text"}})
    with pytest.raises(UserError, match="another type by now: status was integer, is text"):
        StreamDriver.begin(lines)
    lines.register()
    world.execute("create view users as select * from live")
    with pytest.raises(UserError, match="something depends on live"):
        stream_ledger.drop(engine, "live")
    world.execute("drop view users")
    StreamDriver.begin(lines).read_all()
    stream_ledger.drop(engine, "live")
    with pytest.raises(StreamUnknown, match="there is no stream 'live'"):
        StreamDriver.begin(lines)
    stream_ledger.define(engine, LIVE, NOW)
    StreamDriver.begin(lines).read_all()
    assert_adds_up(world, lines.lines)
    world.execute("drop table live_by_arrival cascade")
    with pytest.raises(UserError, match="live_by_arrival of stream live is gone"):
        StreamDriver.begin(lines)


def test_a_pipeline_that_goes_on_with_another_log_needs_a_reset(world: World) -> None:
    lines, engine = streamed(world, Line(arrived=at(1), time=at(1))), world.ledger.engine
    StreamDriver.begin(lines).read_all()
    loaded(lines, 1)
    assert due(lines).of("proven") == [at(1)]
    world.log.create("t")
    lines.arrive([Line(arrived=at(3), time=at(1))])
    recovery.rebase(engine, "p", world.log, NOW)
    with pytest.raises(UserError, match="another log of t than stream live has read: `logbus stream reset live --since HOUR`"):
        StreamDriver.begin(lines)
    stream_ledger.reset(engine, "live", at(2), NOW)
    StreamDriver.begin(lines).read_all()
    assert_adds_up(world, lines.lines)
    world.accept_loss(3)
    loaded(lines, 3)
    assert due(lines).of("proven") == [at(3)]
