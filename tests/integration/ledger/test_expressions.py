"""Conditions mean in PostgreSQL what they say: compared with an evaluation in Python, by SQL's rule for null."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from operator import eq, ge, gt, le, lt, ne
from typing import Any

from logbus.expressions import Condition, Dialect, IsNull, Junction, Negation, OneOf, ValueComparison, parse_condition
from logbus.windows.table_names import quoted
from sqlalchemy import text

from tests.support.ledgers import World

COLUMNS = {"n": "integer", "x": "double precision", "word": "text", "at": "timestamptz", "is_odd": "boolean"}
VALUES: Mapping[str, list[Any]] = {
    "n": [None, -1, 0, 3, 2**31 - 1],
    "x": [None, -0.5, 0.0, 0.1, 1e300],
    "word": [None, "", "B", "a", "b'\\", "\u00e4", "\U0001f600"],
    "at": [None, datetime(2015, 5, 17, tzinfo=UTC), datetime(2015, 5, 17, 10, 30, tzinfo=UTC)],
    "is_odd": [None, True, False],
}
OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {"=": eq, "<>": ne, "<": lt, "<=": le, ">": gt, ">=": ge}


def literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    return "'" + (value.isoformat() if isinstance(value, datetime) else value).replace("'", "''") + "'"


def random_condition(source: random.Random, depth: int = 3) -> str:
    if depth and source.random() < 0.6:
        parts = [random_condition(source, depth - 1) for _ in range(source.randint(1, 3))]
        joined = source.choice([" and ", " or "]).join(parts)
        return source.choice(["({})", "not ({})"]).format(joined)
    column = source.choice([*COLUMNS])
    values = [literal(value) for value in VALUES[column] if value is not None]
    operators = ["=", "<>"] if column == "is_odd" else [*OPERATORS]
    return source.choice(
        [
            f"{column} {source.choice(operators)} {source.choice(values)}",
            f"{column} {source.choice(['is null', 'is not null'])}",
            f"{column} {source.choice(['in', 'not in'])} ({', '.join(source.sample(values, 2))})",
        ]
    )


def holds(condition: Condition, row: Mapping[str, Any]) -> bool | None:
    """None: unknown."""
    match condition:
        case Negation(negated):
            value = holds(negated, row)
            return None if value is None else not value
        case Junction(word, conditions):
            values = [holds(part, row) for part in conditions]
            decisive = word == "or"
            return decisive if decisive in values else None if None in values else not decisive
        case IsNull(column):
            return row[column] is None
        case OneOf(column, values):
            return None if row[column] is None else any(compared(column, "=", row[column], value) for value in values)
        case ValueComparison(column, operator, value):
            return None if row[column] is None else compared(column, operator, row[column], value)


def compared(column: str, operator: str, left: Any, right: Any) -> bool:
    if column == "word":  # by bytes, whatever the database's collation says of B and a
        left, right = left.encode(), right.encode()
    if column == "at":
        right = datetime.fromisoformat(right)
    return OPERATORS[operator](left, float(right) if column == "x" else right)


def test_a_condition_takes_the_rows_that_it_says(world: World) -> None:
    source = random.Random(11)
    rows = [{name: source.choice(values) for name, values in VALUES.items()} for _ in range(300)]
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    with world.ledger.engine.begin() as connection:
        connection.execute(text(f"create table rows (id integer, {columns})"))
        names = ", ".join(f":{name}" for name in COLUMNS)
        connection.execute(
            text(f"insert into rows values (:id, {names})"), [{"id": number, **row} for number, row in enumerate(rows)]
        )
        for _ in range(200):
            where = random_condition(source)
            condition, dialect = parse_condition(where), Dialect(COLUMNS, quoted)
            taken = connection.scalars(
                text(f"select id from rows where {dialect.condition(condition)} order by id"), dialect.parameters
            )
            assert taken.all() == [number for number, row in enumerate(rows) if holds(condition, row)], where
