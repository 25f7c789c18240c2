"""What a stream's tasks compute with Arrow is what PostgreSQL computes from the same rows: random rows, conditions and measures are
played through both, as one batch and as several that are merged."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from logbus import errors
from logbus.expressions import FUNCTIONS, KEY_TYPES, Measure
from logbus.parsing.batches import arrow_type
from logbus.streams.aggregate_definition import WINDOW_START, Aggregate
from logbus.streams.arrow_aggregation import Aggregator
from logbus.streams.definition import ARRIVED_HOUR
from logbus.streams.statements import Statements
from logbus.windows.table_names import SYSTEM_COLUMNS, parse_table
from sqlalchemy import Connection, text

from tests.support.ledgers import World

COLUMNS = {
    "at": "timestamptz",
    "small": "integer",
    "large": "bigint",
    "x": "double precision",
    "price": "numeric(10,2)",
    "number": "numeric(38,0)",
    "word": "text",
    "day": "date",
    "is_odd": "boolean",
    "object": "jsonb",
}
MIDNIGHT = datetime(2015, 5, 17, tzinfo=UTC)
VALUES: Mapping[str, list[Any]] = {
    "at": [
        None,
        MIDNIGHT,
        MIDNIGHT - timedelta(microseconds=1),
        MIDNIGHT + timedelta(minutes=10, seconds=1),
        datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    ],
    "small": [None, -(2**31), -1, 0, 3, 2**31 - 1],
    "large": [None, -(2**63), -(2**53) - 1, 0, 7, 2**53 + 1, 2**63 - 1],
    "x": [
        None,
        float("nan"),
        -float("nan"),
        float("inf"),
        float("-inf"),
        -0.0,
        0.0,
        0.1,
        0.1 + 2**-55,
        -2.5,
        1e300,
        5e-324,
        1 / 3,
    ],
    "price": [None, Decimal("-99999999.99"), Decimal("-0.01"), Decimal("0.00"), Decimal("2.50"), Decimal("99999999.99")],
    "number": [None, Decimal(1 - 10**38), Decimal(0), Decimal(2**64 - 1), Decimal(10**38 - 1)],
    "day": [None, date(1, 1, 1), date(1969, 12, 31), date(2015, 5, 17), date(9999, 12, 31)],
    "word": [None, "", "B", "a", "b'\\", "\u00e4", "\U0001f600", "\uffff"],
    "is_odd": [None, True, False],
    "object": [None, '{"a": 1}', "[]"],
}
LITERALS: Mapping[str, list[str]] = {
    "at": ["'2015-05-17T00:00:00Z'", "'1970-01-01'", "'2015-05-17T02:00:00+02:00'"],
    "small": ["0", "-1", "2.5", "-2.5", "2147483647", "9223372036854775807", "1e300", "3.0"],
    "large": ["9007199254740993", "9007199254740992.5", "-9223372036854775807", "7", "7.0", "-1e19", "9223372036854775807.5"],
    "x": ["0", "-2.5", "0.1", "1e300", "9223372036854775807", "0.3333333333333333"],
    "price": ["0", "-0.01", "2.5", "2.500", "2.505", "-2.505", "99999999.99", "99999999.995", "-1e300", "1e-300"],
    "number": [
        "0",
        "18446744073709551615.0",
        "18446744073709551615.5",
        "1e38",
        "-1e38",
        "99999999999999999999999999999999999999.0",
    ],
    "day": ["'2015-05-17'", "'1970-01-01'", "'0001-01-01'"],
    "word": ["''", "'B'", "'b''\\'", "'\u00e4'", "'\U0001f600'"],
    "is_odd": ["true", "false"],
}
OPERATORS = ["=", "<>", "<", "<=", ">", ">="]
HOUR = datetime(2015, 5, 17, 10, tzinfo=UTC)


def random_condition(source: random.Random, depth: int = 2) -> str:
    if depth and source.random() < 0.5:
        parts = [random_condition(source, depth - 1) for _ in range(source.randint(1, 3))]
        return source.choice(["({})", "not ({})"]).format(source.choice([" and ", " or "]).join(parts))
    column = source.choice([*COLUMNS])
    if column not in LITERALS or source.random() < 0.2:
        return f"{column} {source.choice(['is null', 'is not null'])}"
    if source.random() < 0.3:
        return f"{column} {source.choice(['in', 'not in'])} ({', '.join(source.choices(LITERALS[column], k=2))})"
    return f"{column} {source.choice(OPERATORS[:2] if column == 'is_odd' else OPERATORS)} {source.choice(LITERALS[column])}"


def random_aggregate(source: random.Random) -> Aggregate:
    plain = {column: kind.partition("(")[0] for column, kind in COLUMNS.items()}
    keys = [column for column, kind in plain.items() if kind in KEY_TYPES and column != "at"]
    possible = [Measure("count")]
    possible += [
        Measure(function, column) for function, kinds in FUNCTIONS.items() for column, kind in plain.items() if kind in kinds
    ]
    measures = source.sample(possible, 6)
    return Aggregate(
        name="random",
        pipeline="p",
        table="sums",
        keys=tuple(source.sample(keys, source.randint(0, 2))),
        measures={f"m{number}": measure for number, measure in enumerate(measures)},
        event_time="at",
        window=timedelta(minutes=source.choice([1, 15, 60])),
        where=random_condition(source) if source.random() < 0.8 else None,
    )


def random_rows(source: random.Random, count: int) -> list[dict[str, Any]]:
    return [{name: source.choice(values) for name, values in VALUES.items()} for _ in range(count)]


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    schema = pa.schema([(name, arrow_type(kind)) for name, kind in COLUMNS.items()])
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def insert_rows(connection: Connection, rows: list[dict[str, Any]]) -> None:
    columns = ", ".join(f"{name} {kind}" for name, kind in {**COLUMNS, **SYSTEM_COLUMNS}.items())
    connection.execute(text(f"create table loaded ({columns})"))
    names = ", ".join(f":{name}" for name in COLUMNS)
    origin = "'t', 0, 0, null, null, null, timestamptz '2015-05-17 10:00Z', 0"
    connection.execute(text(f"insert into loaded values ({names}, {origin})"), rows)


def by_postgres(connection: Connection, aggregate: Aggregate) -> list[tuple[Any, ...]]:
    columns = {name: kind.removesuffix(" not null") for name, kind in {**COLUMNS, **SYSTEM_COLUMNS}.items()}
    statements = Statements(aggregate=aggregate, topic="t", source=parse_table("loaded"), columns=columns)
    hours = connection.scalars(
        text("select distinct date_bin('1 hour', at, timestamptz 'epoch') from loaded where at is not null")
    )
    values = statements.values([HOUR], hours.all())
    return sorted((shown(row) for row in connection.execute(text(statements.computed(of_windows=False)), values)), key=repr)


def by_arrow(aggregate: Aggregate, rows: list[dict[str, Any]], task_count: int) -> pa.Table:
    """The first task adds up its rows in several steps, as one that has very many does."""
    results = []
    for task in range(task_count):
        aggregator = Aggregator(aggregate, COLUMNS)
        aggregator.rows_max = 70 if task == 0 else aggregator.rows_max
        for begin in range(task, len(rows), 40 * task_count):
            aggregator.add(batch_of(rows[begin : begin + 40 * task_count : task_count]), HOUR)
        results.append(aggregator.result())
    return Aggregator(aggregate, COLUMNS).merge(results)


def shown(row: Any) -> tuple[Any, ...]:
    """Values that are equal in PostgreSQL as equal texts."""
    return tuple(figure(value) for value in row)


def figure(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, datetime):
        return value.timestamp()
    if isinstance(value, int | Decimal) and Decimal(value).is_finite():
        return str(int(value)) if value == int(value) else str(value)
    return repr(float(value) + 0.0) if isinstance(value, float | Decimal) else value


def as_viewed(table: pa.Table, aggregate: Aggregate) -> list[tuple[Any, ...]]:
    """As the stream's view shows them: sums of doubles, which are texts of decimals, as doubles."""
    doubles = [
        name if measure.function == "sum" else f"{name}_sum"
        for name, measure in aggregate.measures.items()
        if measure.function in ("sum", "avg") and measure.column == "x"
    ]
    rows = [
        {
            name: float(value) if name in doubles and value is not None else value
            for name, value in row.items()
            if name != ARRIVED_HOUR
        }
        for row in table.to_pylist()
    ]
    return sorted((shown(row.values()) for row in rows), key=repr)


@pytest.mark.parametrize("seed", range(2))
def test_arrow_and_postgresql_compute_the_same(world: World, seed: int) -> None:
    source = random.Random(seed)
    rows = random_rows(source, 400)
    with world.ledger.engine.begin() as connection:
        insert_rows(connection, rows)
        for _ in range(50):
            aggregate = random_aggregate(source)
            table = by_arrow(aggregate, rows, source.randint(1, 3))
            assert table.column_names[:2] == [ARRIVED_HOUR, WINDOW_START]
            assert as_viewed(table, aggregate) == by_postgres(connection, aggregate), aggregate


def test_rows_without_an_event_time_are_told_and_counted_in_no_group() -> None:
    aggregate = Aggregate(name="n", pipeline="p", table="t", keys=(), measures={"n": Measure("count")}, event_time="at")
    aggregator = Aggregator(aggregate, COLUMNS)
    rows = [{**dict.fromkeys(COLUMNS), "at": at} for at in (MIDNIGHT, None, None)]
    assert aggregator.add(batch_of(rows), HOUR) == 2
    assert [row["n"] for row in aggregator.result().to_pylist()] == [1]


def test_what_cannot_be_computed_is_refused_before_any_row() -> None:
    aggregate = Aggregate(name="n", pipeline="p", table="t", keys=(), measures={"n": Measure("sum", "word")}, event_time="at")
    with pytest.raises(errors.WrongRequest, match=r"n=sum\(word\) takes columns of type"):
        Aggregator(aggregate, COLUMNS)
    with pytest.raises(errors.WrongRequest, match="there is no column 'colour'"):
        Aggregator(replace(aggregate, keys=("colour",)), COLUMNS)
