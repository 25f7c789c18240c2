"""Streams of rows in a real PostgreSQL: each record is in the view once, whatever is loaded meanwhile, and joins of two are complete
however late a side comes. The log is in memory, and there is no Spark."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from click.testing import Result
from logbus.errors import AuditMismatch, ExitCode, UserError, WrongRequest
from logbus.expressions import count, sum_of
from logbus.streams import stream_ledger
from logbus.streams.definition import Lookup, define_live_rows, define_stream
from logbus.streams.joins import KINDS, define_join
from logbus.streams.proof import prove_span, refuse_different
from sqlalchemy import Connection, create_engine, event, text

from tests.support.in_process import without_spark  # noqa: F401
from tests.support.ledgers import NOW, World, at
from tests.support.live_worlds import LiveWorld, Record

pytestmark = pytest.mark.usefixtures("without_spark")

COLUMNS = {
    "word": "text",
    "small": "integer",
    "large": "bigint",
    "ratio": "double precision",
    "is_odd": "boolean",
    "at": "timestamptz",
    "day": "date",
    "object": "jsonb",
}
UNPARSABLE = b"\xff no JSON"


@pytest.fixture
def live(world: World) -> LiveWorld:
    return LiveWorld(world)


def clicks(source: random.Random, hours: Sequence[int], per_hour: int = 12) -> list[Record]:
    """Of all types, with nulls, unparsable ones, and some that arrive at the head of a later hour."""
    records: list[Record] = []
    for number in hours:
        for step in range(per_hour):
            fields = {
                "word": source.choice([None, "", "a", "\\N", 'quoted "\u00e4"', "\U0001f600\n"]),
                "small": source.choice([None, 0, -(2**31), 2**31 - 1]),
                "large": source.choice([None, 2**63 - 1, -(2**63)]),
                "ratio": source.choice([None, 0.1, -1e300, 5e-324, 1 / 3]),
                "is_odd": source.choice([None, True, False]),
                "at": source.choice([None, "2015-05-17T10:00:00.123456Z", "0001-01-01T00:00:00Z"]),
                "day": source.choice([None, "2015-05-17"]),
                "object": source.choice([None, {"a": [1, None, "\u00e4"]}, [], "text", 1.5]),
            }
            records.append((number + step / per_hour, UNPARSABLE if source.random() < 0.1 else fields))
    return records


def offsets(connection: Connection, view: str = "clicks_live") -> list[tuple[int, int]]:
    return [tuple(row) for row in connection.execute(text(f"select _partition, _offset from {view} order by 1, 2"))]


def parsed_offsets(records: Iterable[Record], partition: int = 0) -> list[tuple[int, int]]:
    return [(partition, offset) for offset, (_, value) in enumerate(records) if value != UNPARSABLE]


def streamed(live: LiveWorld, records: Sequence[Record]) -> None:
    live.register("clicks", COLUMNS)
    live.define(define_live_rows("clicks_live", "clicks", columns=[*COLUMNS, "_key", "_headers"], indexed=["word"]))
    live.arrive("clicks", records)


def test_each_record_is_in_the_view_once_before_during_and_after_its_load_and_its_proof(live: LiveWorld) -> None:
    records = clicks(random.Random(1), [9, 10, 11])
    streamed(live, records)
    assert live.once("clicks_live").read == len(records)
    expected, engine, watched = parsed_offsets(records), live.engine, create_engine(live.world.url)
    with engine.connect() as connection:
        assert offsets(connection) == expected
    older = engine.connect().execution_options(isolation_level="REPEATABLE READ")
    looks = 0

    @event.listens_for(watched, "after_cursor_execute")
    def look(connection: Connection, cursor: Any, statement: str, *rest: Any) -> None:
        nonlocal looks
        looks += 1
        if "attach partition" in statement and not older.in_transaction():
            older.execute(text("select 1 from logbus.window")).all()
        with engine.connect() as reader:
            assert offsets(reader) == expected

    for hours in ([9, 10], [11], [10]):  # the last one is a reload
        live.load("clicks", *hours, engine=watched)
        with engine.connect() as connection:
            assert offsets(connection) == expected
    assert looks > 50
    # A partition is there for a statement as soon as it is attached, whatever its snapshot shows of the ledger.
    assert offsets(older) == expected
    older.close()
    assert live.prove("clicks_live").of("proven") == [at(9), at(10), at(11)]
    with engine.connect() as connection:
        assert offsets(connection) == expected
    assert live.world.one("select count(*) from clicks_live_by_arrival") == 0
    assert live.prove("clicks_live").hours == []
    live.load("clicks", 10)
    assert live.prove("clicks_live").of("proven") == [at(10)], "a reload is compared by its records alone"


def test_rows_of_all_types_are_the_loaded_ones(live: LiveWorld) -> None:
    records = clicks(random.Random(2), [9, 10], per_hour=60)
    streamed(live, records)
    live.once("clicks_live")
    query = f"select {', '.join(COLUMNS)}, _key, _headers, _timestamp, arrived_hour from clicks_live order by _offset"
    before = live.world.rows(query)
    live.load("clicks", 9, 10)
    assert live.world.rows(query) == before
    assert live.prove("clicks_live").of("proven") == [at(9), at(10)]
    assert live.world.rows(query) == before


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("update clicks_live_by_arrival set small = 7 where _offset = 1", "_partition 0, _offset 1: small is 7, the rows give"),
        (
            "delete from clicks_live_by_arrival where _offset = 1",
            "_partition 0, _offset 1: no row, and the pipeline's rows give one",
        ),
    ],
)
def test_a_row_that_differs_is_named_and_the_loaded_one_is_shown(live: LiveWorld, change: str, problem: str) -> None:
    records: list[Record] = [(10 + number / 60, {"small": number}) for number in range(5)]
    streamed(live, records)
    live.once("clicks_live")
    live.world.execute(change)
    live.load("clicks", 10)
    proof = live.prove("clicks_live")
    with pytest.raises(AuditMismatch, match=f"in 1 hour: 2015-05-17T10:00:00Z: {problem}"):
        refuse_different(proof)
    assert live.world.rows("select small from clicks_live order by _offset") == [(0,), (1,), (2,), (3,), (4,)]
    assert live.world.one("select count(*) from clicks_live_by_arrival") == 0
    assert live.prove("clicks_live").hours == []
    live.load("clicks", 10)
    assert live.prove("clicks_live").of("proven") == [at(10)]


def test_what_is_reset_is_read_and_proven_again(live: LiveWorld) -> None:
    records = clicks(random.Random(3), [9, 10, 11])
    streamed(live, records)
    live.once("clicks_live")
    live.load("clicks", 9, 10)
    live.prove("clicks_live")
    stream_ledger.reset(live.engine, "clicks_live", at(10), NOW)
    with live.engine.connect() as connection:
        assert offsets(connection) == [pair for pair in parsed_offsets(records) if records[pair[1]][0] < 11]
    live.once("clicks_live")
    with live.engine.connect() as connection:
        assert offsets(connection) == parsed_offsets(records)
    assert live.prove("clicks_live").of("proven") == [at(10)]
    assert prove_span(live.engine, "clicks_live", NOW).of("proven") == [at(9), at(10)]
    live.load("clicks", 11)
    assert live.prove("clicks_live").of("proven") == [at(11)]


def test_a_stream_that_is_defined_before_the_first_load_makes_its_view_when_it_begins(live: LiveWorld) -> None:
    live.register("clicks", COLUMNS)
    live.define(define_live_rows("clicks_live", "clicks", columns=["word"]))
    assert live.world.one("select to_regclass('clicks_live')") is None
    live.once("clicks_live")
    assert live.world.rows("select * from clicks_live") == []
    stream_ledger.drop(live.engine, "clicks_live")
    live.define(define_live_rows("clicks_live", "clicks", columns=["word"]))
    assert live.world.one("select to_regclass('clicks_live') is not null")
    live.world.execute("drop view clicks_live")
    live.once("clicks_live")
    assert live.world.rows("select * from clicks_live") == []
    with pytest.raises(UserError, match="'clicks' has no column|clicks has no column 'words'; it has .*word"):
        live.define(define_live_rows("others", "clicks", columns=["words"]))


# Joins.

ORDERS = {"order_id": "bigint", "amount": "integer", "at": "timestamptz"}
PAYMENTS = {"order": "bigint", "amount": "integer", "at": "timestamptz"}
MINUTES = 1 / 60


def moment(number: float) -> str:
    return at(number).isoformat()


@pytest.mark.parametrize("kind", ["inner", "left"])
def test_a_join_is_complete_however_late_a_side_comes_as_records_arrive_and_as_hours_are_loaded(
    live: LiveWorld, kind: str
) -> None:
    source = random.Random(4)
    live.register("orders", ORDERS, partitions=2)
    live.register("payments", PAYMENTS)
    join = define_join(
        "paid",
        left="orders",
        right="payments",
        on={"order_id": "order"},
        kind=kind,
        left_columns=["amount"],
        right_columns={"paid": "amount"},
        event_time="at",
    )
    for _ in range(2):  # again: nothing changes
        stream_ledger.define_join(live.engine, join, NOW)
    # Of each order when it was made and paid, and when that arrived: up to seven hours later, on either side.
    orders, payments = list[tuple[float, dict[str, Any]]](), list[tuple[float, dict[str, Any]]]()
    for number in range(80):
        made = source.uniform(9, 13)
        key = source.choice([number, number // 2, None])
        paid = made + source.choice([-59, 0, 1, 59, 61, 200]) * MINUTES
        late = [source.choice([0, 0, 0, source.uniform(0, 7)]) for _ in range(2)]
        orders.append((made + late[0], {"order_id": key, "amount": number, "at": moment(made)}))
        if source.random() < 0.8:
            payments.append((paid + late[1], {"order": key, "amount": -number, "at": moment(paid)}))

    def assert_joined(until: float) -> None:
        arrived = [[pair for pair in side if pair[0] <= until] for side in (orders, payments)]
        expected = sorted(joined(*arrived, kind=kind), key=repr)
        rows = live.world.rows("select order_id, amount, paid, is_late from paid")
        assert sorted(rows, key=repr) == expected
        assert any(late for *_, late in rows) or until < 12

    sent = 8.0
    for until in (10.5, 12.2, 14.7, 21.0):
        for name, side in (("orders", orders), ("payments", payments)):
            partitions = 2 if name == "orders" else 1
            for partition in range(partitions):
                chosen = sorted(
                    pair for pair in side if sent < pair[0] <= until and (pair[1]["amount"] % partitions) == partition
                )
                live.arrive(name, chosen, partition)
        sent = until
        live.once("paid_left")
        live.once("paid_right")
        assert_joined(until)
        # One side is loaded before the other one.
        live.load("payments", *range(int(until) - 1, int(until)))
        assert_joined(until)
        live.prove("paid_right")
        live.load("orders", int(until) - 1)
        live.prove("paid_left")
        assert_joined(until)
    for name, side in (("orders", "paid_left"), ("payments", "paid_right")):
        live.load(name, *(number for number in range(8, 21) if at(number) not in live.loaded(name)))
        assert live.prove(side).of("different") == []
    assert_joined(21.0)
    assert live.world.rows(
        "select (select count(*) from paid_left_by_arrival) + (select count(*) from paid_right_by_arrival)"
    ) == [(0,)]
    over_tables = (
        f"select o.order_id, o.amount, p.amount, o._window_start <> p._window_start from orders o {KINDS[kind]} payments p "
        "on p.\"order\" = o.order_id and p.at between o.at - interval '1 hour' and o.at + interval '1 hour'"
    )
    assert sorted(live.world.rows("select order_id, amount, paid, is_late from paid"), key=repr) == sorted(
        live.world.rows(over_tables), key=repr
    )
    stream_ledger.drop(live.engine, "paid")
    assert live.world.rows("select name from logbus.stream union all select name from logbus.stream_join") == []


def joined(
    orders: Sequence[tuple[float, dict[str, Any]]], payments: Sequence[tuple[float, dict[str, Any]]], kind: str
) -> list[tuple[Any, ...]]:
    """By two loops."""
    rows: list[tuple[Any, ...]] = []
    for arrived, order in orders:
        matches = [
            (order["order_id"], order["amount"], payment["amount"], int(arrived) != int(paid))
            for paid, payment in payments
            if order["order_id"] is not None
            and order["order_id"] == payment["order"]
            and abs(minutes_of(order) - minutes_of(payment)) <= 60
        ]
        rows += matches or ([(order["order_id"], order["amount"], None, None)] if kind == "left" else [])
    return rows


def minutes_of(record: dict[str, Any]) -> float:
    return (datetime.fromisoformat(record["at"]) - at(0)).total_seconds() / 60


def test_sides_that_cannot_be_joined_and_one_that_is_in_use_are_refused(live: LiveWorld) -> None:
    live.register("orders", ORDERS)
    live.register("payments", {**PAYMENTS, "order": "text"})
    join = define_join("paid", left="orders", right="payments", on={"order_id": "order"})
    stream_ledger.define_join(live.engine, join, NOW)
    with pytest.raises(WrongRequest, match="join 'paid' is defined already, .*`logbus stream drop paid`"):
        stream_ledger.define_join(live.engine, replace(join, kind="left"), NOW)
    live.once("paid_left")
    with pytest.raises(WrongRequest, match="orders join payments on order_id = order, within 1:00:00: operator does not exist"):
        live.once("paid_right")
    with pytest.raises(UserError, match="paid_left is a side of the join paid: `logbus stream drop paid`"):
        stream_ledger.drop(live.engine, "paid_left")
    with pytest.raises(WrongRequest, match="the table public.paid belongs to the join paid"):
        live.define(define_live_rows("paid", "orders", columns=["amount"]))


def test_the_commands_define_and_drop_rows_and_joins(live: LiveWorld, run: Callable[..., Result]) -> None:
    live.register("orders", ORDERS)
    live.register("payments", PAYMENTS)
    assert run("stream", "rows", "seen", "--pipeline", "orders", "--column", "amount").stdout == (
        "seen: rows with amount\nread seen; `logbus stream run seen` computes it\n"
    )
    words = ("--left", "orders", "--right", "payments", "--on", "order_id=order", "--right-column", "paid=amount")
    assert run("stream", "join", "paid", *words).stdout == (
        "paid: orders join payments on order_id = order, within 1:00:00\n"
        "read paid; `logbus stream run paid_left` and `logbus stream run paid_right` compute it\n"
    )
    listed = run("stream", "ls").stdout.splitlines()
    assert listed[-1] == "paid: orders join payments on order_id = order, within 1:00:00, of paid_left and paid_right"
    hint = run("stream", "show", "paid")
    assert (hint.exit_code, hint.stderr) == (
        ExitCode.NOT_FOUND,
        "error: paid is a join of the streams paid_left and paid_right: name one of these\n",
    )
    shown = json.loads(run("stream", "join", "paid", *words, "--json").stdout)
    assert [side["columns"] for side in shown["streams"]] == [["order_id"], ["order", "amount"]]
    live.world.execute("create table people (order_id bigint unique, who text)")
    live.once("paid_left")
    table = ("--key", "order_id", "--lookup", "people", "order_id", "who")
    assert "with who of people for order_id" in run("stream", "create", "by_who", "--pipeline", "orders", *table).stdout
    assert run("stream", "drop", "paid").stdout.splitlines() == [
        "would be dropped: view paid_left and table public.paid_left_by_arrival of orders",
        "would be dropped: view paid_right and table public.paid_right_by_arrival of payments",
    ]
    assert run("stream", "drop", "paid", "--execute").exit_code == 0
    assert live.world.rows("select name from logbus.stream order by 1") == [("by_who",), ("seen",)]


# A stream with a table.


def test_a_changed_table_is_looked_up_at_once_for_all_that_was_counted(live: LiveWorld) -> None:
    live.register("hits", {"host": "text", "bytes": "bigint"})
    stream = define_stream(
        "hits_by_team",
        "hits",
        keys=["host"],
        measures={"hits": count(), "bytes": sum_of("bytes")},
        window="1h",
        lookup=Lookup(table="hosts", on="host", columns=("team",)),
    )
    with pytest.raises(WrongRequest, match="there is no table hosts to look up host in"):
        live.define(stream)
    live.world.execute(
        "create table hosts (host text, team text, bytes bigint)", "insert into hosts values ('a', 'red'), ('b', 'blue')"
    )
    with pytest.raises(WrongRequest, match='host is not unique in hosts, .*: alter table "public"."hosts" add unique'):
        live.define(stream)
    live.world.execute("alter table hosts add unique (host)")
    live.define(stream)
    live.arrive("hits", [(10 + n / 60, {"host": "abc"[n % 3], "bytes": n}) for n in range(9)])
    live.once("hits_by_team")
    query = "select team, hits, bytes from hits_by_team order by 1"
    assert live.world.rows(query) == [("blue", 3, 12), ("red", 3, 9), (None, 3, 15)]
    live.world.execute("update hosts set team = 'red'", "insert into hosts values ('c', 'blue')")
    assert live.world.rows(query) == [("blue", 3, 15), ("red", 6, 21)]
    live.load("hits", 10)
    assert live.prove("hits_by_team").of("proven") == [at(10)]
    assert live.world.rows(query) == [("blue", 3, 15), ("red", 6, 21)]
