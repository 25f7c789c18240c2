from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from logbus.errors import UserError
from logbus.expressions import Dialect, avg_of, columns_of, count, max_of, min_of, parse_condition, sum_of
from logbus.windows.table_names import quoted

COLUMNS = {
    "status": "integer",
    "bytes": "bigint",
    "method": "text",
    "seconds": "double precision",
    "time": "timestamp with time zone",
    "price": "numeric(10,2)",
    "day": "date",
    "is_bot": "boolean",
    "tags": "jsonb",
    "Odd: name": "text",
}


def written(where: str) -> tuple[str, list[object]]:
    dialect = Dialect(COLUMNS, quoted)
    sql = dialect.condition(parse_condition(where))
    return sql, list(dialect.parameters.values())


@pytest.mark.parametrize(
    ("where", "sql", "values"),
    [
        ("status < 500", '("status" < cast(:v0 as bigint))', [500]),
        ("status==500", '("status" = cast(:v0 as bigint))', [500]),
        ("status <> -1", '("status" <> cast(:v0 as bigint))', [-1]),
        ("status < 4.5", '("status" < cast(:v0 as numeric))', [Decimal("4.5")]),
        ("seconds >= 1e-3", '("seconds" >= cast(:v0 as double precision))', [Decimal("0.001")]),
        ("method = 'it''s'", '("method" collate "C" = cast(:v0 as text))', ["it's"]),
        ("method IN ('GET', 'PUT')", '("method" collate "C" in (cast(:v0 as text), cast(:v1 as text)))', ["GET", "PUT"]),
        ("method not in ('GET')", '(not ("method" collate "C" in (cast(:v0 as text))))', ["GET"]),
        ("tags is null", '("tags" is null)', []),
        ("is_bot is not null", '(not ("is_bot" is null))', []),
        ("is_bot = false", '("is_bot" = cast(:v0 as boolean))', [False]),
        ("time > '2015-05-17'", '("time" > cast(:v0 as timestamptz))', [datetime(2015, 5, 17, tzinfo=UTC)]),
        ("day = '2015-05-17'", '("day" = cast(:v0 as date))', [date(2015, 5, 17)]),
        ("price <= 0.10", '("price" <= cast(:v0 as numeric))', [Decimal("0.10")]),
        ("\"Odd: name\" = ''", '("Odd\\: name" collate "C" = cast(:v0 as text))', [""]),
    ],
)
def test_a_comparison_is_written_with_its_value_as_a_parameter(where: str, sql: str, values: list[object]) -> None:
    assert written(where) == (sql, values)


@pytest.mark.parametrize(
    ("where", "sql"),
    [
        ("tags is null or is_bot is null and time is null", "(a or (b and c))"),
        ("(tags is null or is_bot is null) and time is null", "((a or b) and c)"),
        ("not tags is null and not not is_bot is null", "((not a) and b)"),
        ("not (tags is null or is_bot is null or time is null)", "(not (a or b or c))"),
    ],
)
def test_not_binds_before_and_and_and_before_or(where: str, sql: str) -> None:
    names = {"a": '("tags" is null)', "b": '("is_bot" is null)', "c": '("time" is null)'}
    assert written(where)[0] == "".join(
        names.get(letter, letter) for letter in sql.replace("and", "&").replace("or", "|")
    ).replace("&", "and").replace("|", "or")


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("", "at its end"),
        ("status <", "at its end"),
        ("status < 500 500", "at '500'"),
        ("status < 500; drop table t", "at '; drop table t'"),
        ("500 < status", "at '500 < status'"),
        ("status = other", "at 'other'"),
        ("status in ()", r"at '\)'"),
        ("(status = 1", "at its end"),
        ("and = 1", "at 'and = 1'"),
        ("status is 5", "at '5'"),
        ("status = 9223372036854775808", "at '9223372036854775808'"),
        ("seconds = 1e400", "at '1e400'"),
        ("status = " + "9" * 5_000, "at '9999"),
        ("seconds > -1e-400", "at '-1e-400'"),
        ("(" * 60 + "status = 1" + ")" * 60, "more than 50 parentheses"),
        ("x" * 10_001, "10,001 characters"),
    ],
)
def test_what_is_not_understood_is_named(where: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_condition(where)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("statsu = 1", "did you mean status"),
        ("status = 'x'", "compared with a number; got 'x'"),
        ("status = true", "compared with a number; got True"),
        ("method = 5", "compared with a text, as in 'GET'; got 5"),
        ("time > 'yesterday'", "compared with an instant"),
        ("time > '0001-01-01T00:00+14:00'", "compared with an instant"),  # before all that there are, in UTC
        ("time > 3", "compared with an instant, as in '2015-05-17T10:00:00Z'; got 3"),
        ("day > '2015-02-30'", "compared with a date, as in '2015-05-17'; got '2015-02-30'"),
        ("price = 'free'", r"'price' is numeric\(10,2\), so it is compared with a number"),
        ("is_bot > true", "use = or <>"),
        ("is_bot = 1", "compared with true or false"),
        ("tags = 'x'", "'tags' is jsonb"),
    ],
)
def test_a_comparison_that_the_columns_do_not_allow_is_refused(where: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        written(where)


def test_the_columns_of_a_condition() -> None:
    assert columns_of(parse_condition("a = 1 and not (b is null or c in (1))")) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("measure", "stored", "sql"),
    [
        (count(), {"n": "bigint"}, {"n": "count(*)"}),
        (count("tags"), {"n": "bigint"}, {"n": 'count("tags")'}),
        (sum_of("status"), {"n": "bigint"}, {"n": 'sum("status")'}),
        (sum_of("bytes"), {"n": "numeric"}, {"n": 'sum("bytes")'}),
        (
            sum_of("seconds"),
            {"n": "double precision"},
            {"n": 'cast(sum(cast("seconds" as numeric)) as double precision)'},
        ),
        (min_of("time"), {"n": "timestamptz"}, {"n": 'min("time")'}),
        (sum_of("price"), {"n": "numeric"}, {"n": 'sum("price")'}),
        (max_of("day"), {"n": "date"}, {"n": 'max("day")'}),
        (max_of("method"), {"n": "text"}, {"n": 'max("method" collate "C") collate "default"'}),
        (avg_of("bytes"), {"n_sum": "numeric", "n_count": "bigint"}, {"n_sum": 'sum("bytes")', "n_count": 'count("bytes")'}),
    ],
)
def test_a_measure_is_columns_and_what_fills_them(measure: object, stored: dict[str, str], sql: dict[str, str]) -> None:
    dialect = Dialect(COLUMNS, quoted)
    assert (dialect.stored_columns("n", measure), dialect.aggregated("n", measure)) == (stored, sql)  # type: ignore[arg-type]


@pytest.mark.parametrize("measure", [sum_of("method"), min_of("is_bot"), avg_of("time"), max_of("tags"), count("nothing")])
def test_a_measure_of_a_column_that_has_none_is_refused(measure: object) -> None:
    with pytest.raises(UserError, match="n="):
        Dialect(COLUMNS, quoted).aggregated("n", measure)  # type: ignore[arg-type]


def test_an_average_is_computed_from_what_is_stored() -> None:
    assert Dialect(COLUMNS, quoted).computed_columns("size", avg_of("bytes")) == {
        "size": 'cast("size_sum" as double precision) / nullif("size_count", 0)'
    }
