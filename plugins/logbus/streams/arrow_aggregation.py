"""An aggregate over batches of Arrow, exactly as `logbus.expressions.Dialect` means it in PostgreSQL.

A stream's tasks compute it from the rows that they have just parsed; the hour's proof computes it again in the warehouse from the
rows that were loaded. They are two witnesses, so this module is written without the other one's SQL, and a test plays random
rows, conditions and measures through both.

Where Arrow and PostgreSQL differ, PostgreSQL is right: a comparison with null is unknown, NaN is greater than every number and
equal to itself, there is one zero, whole and decimal numbers are compared with any number exactly, no sum overflows, and doubles
are summed as the decimals of 15 digits that PostgreSQL makes of them.

A group's stored columns are such that two rows of one group add up to one: so rows, the results of tasks, and what the warehouse
holds already are combined in the same way.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Context, Decimal, Inexact
from fractions import Fraction
from functools import reduce
from operator import eq, ge, gt, le, lt, ne
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from logbus import expressions, model
from logbus.expressions import Condition, IsNull, Junction, Negation, OneOf, ValueComparison
from logbus.parsing.batches import TIMESTAMP, arrow_type
from logbus.streams.aggregate_definition import WINDOW_START, Aggregate
from logbus.streams.definition import ARRIVED_HOUR
from logbus.windows.table_names import quoted

MICROSECOND = model.MILLISECOND / 1000

COUNT, TOTAL, DECIMAL_TOTAL, MINIMUM, MAXIMUM = "count", "total", "decimal total", "min", "max"
COMBINED_BY = {COUNT: "sum", TOTAL: "sum", DECIMAL_TOTAL: "list", MINIMUM: "min", MAXIMUM: "max"}
WHOLE = pa.decimal128(38, 0)  # the sum of as many bigints as there are offsets
DECIMAL_DIGITS = 76  # of the sum of decimals: the most that Arrow has, and twice as many as one of them has

# That a task holds until it adds them up: some tens of MB. One grouping of many rows takes far less time than many of few.
ROWS_MAX = 500_000

# Doubles of 15 digits lie between 1e-323 and 2e308: this many digits hold the sum of any number of them, and none is lost.
EXACTLY = Context(prec=1_000, Emin=-999_999, Emax=999_999, traps=[Inexact])


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """One column that a measure has in the table of deltas. `source`: the rows' column; None for a count of rows."""

    name: str
    role: str
    source: str | None = None
    kind: str = ""

    @property
    def type(self) -> pa.DataType:
        """A decimal total is the text of a number that no decimal of Arrow holds."""
        types = {COUNT: pa.int64(), TOTAL: WHOLE, DECIMAL_TOTAL: pa.string()}
        if self.role in types and not (self.role == TOTAL and pa.types.is_decimal(arrow_type(self.kind))):
            return types[self.role]
        kind = arrow_type(self.kind)
        return pa.decimal256(DECIMAL_DIGITS, kind.scale) if self.role == TOTAL else kind

    def of_rows(self, rows: pa.Table) -> Any:
        """What each row alone adds to it."""
        if self.source is None:
            return pa.repeat(pa.scalar(1, pa.int64()), len(rows))
        values = rows.column(self.source)
        if self.role == COUNT:
            return values.is_valid().cast(pa.int64())
        return values.cast(self.type) if self.role == TOTAL else values

    def to_grouped(self, values: Any) -> Any:
        """As Arrow can find the least and the greatest of them."""
        return ordered(values) if self.role in (MINIMUM, MAXIMUM) and self.kind == expressions.DOUBLE else values

    def from_grouped(self, values: pa.Array) -> pa.Array:
        if self.role == DECIMAL_TOTAL:
            return pa.array([decimal_total(group) for group in values.to_pylist()], pa.string())
        if self.role in (MINIMUM, MAXIMUM) and self.kind == expressions.DOUBLE:
            return doubles_of(values)
        return values.cast(self.type)


class Aggregator:
    """Of one task, or of the driver, which merges what tasks have returned. `columns` are those of the rows, name to type.

    Raises `UserError` for a column that there is not, or whose type does not allow what is asked.
    """

    def __init__(self, aggregate: Aggregate, columns: expressions.Columns) -> None:
        self._kinds = {name: expressions.SPELLINGS.get(kind, kind) for name, kind in columns.items()}
        dialect = expressions.Dialect(self._kinds, quoted)
        dialect.kind_of(aggregate.event_time, [expressions.TIMESTAMP], "event_time")
        if aggregate.condition is not None:
            dialect.condition(aggregate.condition)
        for key in aggregate.keys:
            dialect.kind_of(key, expressions.KEY_TYPES, f"the key {key!r}")
        self.aggregate = aggregate
        self.stored = [
            column for name, measure in aggregate.measures.items() for column in stored_columns(dialect, name, measure)
        ]
        self._keys = [ARRIVED_HOUR, WINDOW_START, *aggregate.keys]
        key_types = [TIMESTAMP, TIMESTAMP, *(arrow_type(self._kinds[key]) for key in aggregate.keys)]
        self.schema = pa.schema(
            [*zip(self._keys, key_types, strict=True), *((column.name, column.type) for column in self.stored)]
        )
        self._sources = [*dict.fromkeys(column.source for column in self.stored if column.source is not None)]
        # Keys by numbers that no column is named by: one may be measured, too.
        self._names = [*(f"\0{number}" for number in range(len(self._keys))), *self._sources]
        conditions = [] if aggregate.condition is None else expressions.columns_of(aggregate.condition)
        self._read = [*dict.fromkeys((aggregate.event_time, *aggregate.keys, *self._sources, *conditions))]
        self._rows: list[pa.RecordBatch] = []
        self._results: list[pa.Table] = []
        self._row_count = 0
        self.rows_max = ROWS_MAX

    def add(self, rows: pa.RecordBatch, arrived_hour: datetime) -> int:
        """Takes in the rows of one interval of arrival; how many of them have no event time, and so are in no group."""
        rows = rows.select(self._read)
        instants = rows.column(self.aggregate.event_time)
        mask = None if self.aggregate.condition is None else holds(self.aggregate.condition, rows, self._kinds)
        if instants.null_count:
            mask = instants.is_valid() if mask is None else pc.and_kleene(mask, instants.is_valid())
        chosen = rows if mask is None else rows.filter(mask)
        keys = [
            pa.repeat(pa.scalar(arrived_hour, TIMESTAMP), len(chosen)),
            floored(chosen.column(self.aggregate.event_time), self.aggregate.window // MICROSECOND),
            *(chosen.column(key) for key in self.aggregate.keys),
        ]
        sources = [chosen.column(source) for source in self._sources]
        self._rows.append(pa.RecordBatch.from_arrays([*keys, *sources], names=self._names))
        self._row_count += len(chosen)
        if self._row_count >= self.rows_max:
            self._combine_rows()
        return int(instants.null_count)

    def _combine_rows(self) -> None:
        rows = pa.Table.from_batches(self._rows)
        keys = [rows.column(number) for number in range(len(self._keys))]
        self._results.append(self._combined(keys, [column.of_rows(rows) for column in self.stored]))
        self._rows, self._row_count = [], 0

    def result(self) -> pa.Table:
        """Of all rows that were added: a row for each group of each interval of arrival, with the columns of `schema`."""
        if self._rows:
            self._combine_rows()
        return self._results[0] if len(self._results) == 1 else self.merge(self._results)

    def merge(self, results: Iterable[pa.Table]) -> pa.Table:
        """Several results as one."""
        table = pa.concat_tables([self.schema.empty_table(), *results])
        columns = [table.column(number) for number in range(table.num_columns)]
        return self._combined(columns[: len(self._keys)], columns[len(self._keys) :])

    def _combined(self, keys: Sequence[Any], stored: Sequence[Any]) -> pa.Table:
        grouped = [column.to_grouped(values) for column, values in zip(self.stored, stored, strict=True)]
        numbers = [str(number) for number in range(len(keys) + len(grouped))]
        chosen = [(number, COMBINED_BY[column.role]) for number, column in zip(numbers[len(keys) :], self.stored, strict=True)]
        table = pa.Table.from_arrays([*keys, *grouped], names=numbers)
        groups = table.group_by(numbers[: len(keys)], use_threads=False).aggregate(chosen)
        arrays = [groups.column(number).combine_chunks() for number in numbers[: len(keys)]]
        for column, (number, function) in zip(self.stored, chosen, strict=True):
            arrays.append(column.from_grouped(groups.column(f"{number}_{function}").combine_chunks()))
        return pa.Table.from_arrays(arrays, schema=self.schema)


def as_json(deltas: pa.Table) -> str:
    """Rows as objects. What JSON has no number for, or none as exact, is text: PostgreSQL reads it by its column's type. Arrow
    writes the texts of a column at once, which takes a third of the time of Python's values."""
    rows = zip(*map(json_values, deltas.columns), strict=True)
    return json.dumps([dict(zip(deltas.column_names, row, strict=True)) for row in rows], ensure_ascii=False)


def json_values(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_binary(column.type):
        return [None if value is None else rf"\x{value.hex()}" for value in column.to_pylist()]
    is_written = (pa.types.is_timestamp, pa.types.is_date, pa.types.is_decimal, pa.types.is_floating)
    values: list[Any] = (column.cast(pa.string()) if any(is_it(column.type) for is_it in is_written) else column).to_pylist()
    return values


def stored_columns(dialect: expressions.Dialect, name: str, measure: expressions.Measure) -> list[StoredColumn]:
    """Those of one measure; `Dialect.stored_columns` names them as well."""
    kind = ""
    if measure.column is not None:
        dialect.kind_of(measure.column, expressions.FUNCTIONS[measure.function], f"{name}={measure}")
        kind = dialect.columns[measure.column]
    total = DECIMAL_TOTAL if kind == expressions.DOUBLE else TOTAL
    match measure.function:
        case "count":
            return [StoredColumn(name, COUNT, measure.column, kind)]
        case "sum":
            return [StoredColumn(name, total, measure.column, kind)]
        case "avg":
            total_column = StoredColumn(f"{name}_sum", total, measure.column, kind)
            return [total_column, StoredColumn(f"{name}_count", COUNT, measure.column, kind)]
        case extreme:
            return [StoredColumn(name, extreme, measure.column, kind)]


def floored(instants: pa.Array, step: int) -> pa.Array:
    """The starts of the buckets of so many microseconds, counted from 1970; Arrow divides towards zero."""
    microseconds = instants.cast(pa.int64())
    towards_zero = pc.multiply(pc.divide(microseconds, step), step)
    starts = pc.if_else(pc.less(microseconds, towards_zero), pc.subtract(towards_zero, step), towards_zero)
    return starts.cast(TIMESTAMP)


def decimal_total(values: Sequence[float | str | None]) -> str | None:
    """The exact sum of doubles, and of texts of decimals, as PostgreSQL casts and adds them; null if all of them are."""
    texts = (value if isinstance(value, str) else f"{value:.15g}" for value in values if value is not None)
    decimals = [*map(Decimal, texts)]
    return str(reduce(EXACTLY.add, decimals)) if decimals else None


ALL_BUT_THE_SIGN = 2**63 - 1


def ordered(doubles: Any) -> pa.Array:
    """Doubles as integers in PostgreSQL's order: the bits of one, where those of a negative one are turned round."""
    values = doubles.combine_chunks() if isinstance(doubles, pa.ChunkedArray) else doubles
    plain = pc.if_else(pc.is_nan(values), math.nan, pc.add(values, 0.0))  # one NaN, and no zero below zero
    return _turned(plain.view(pa.int64()))


def doubles_of(integers: pa.Array) -> pa.Array:
    """The inverse of `ordered`."""
    return _turned(integers).view(pa.float64())


def _turned(bits: pa.Array) -> pa.Array:
    return pc.if_else(pc.less(bits, 0), pc.bit_wise_xor(bits, ALL_BUT_THE_SIGN), bits)


# Conditions: true, false, or null for unknown, for each row.

COMPARED_BY: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
OF_NUMBERS: Mapping[str, Callable[[Any, Any], bool]] = {"=": eq, "<>": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
JOINED_BY = {"and": pc.and_kleene, "or": pc.or_kleene}


def holds(condition: Condition, rows: pa.RecordBatch, kinds: Mapping[str, str]) -> pa.Array:
    """Whether the condition holds for each row."""
    match condition:
        case Junction(word, conditions):
            return reduce(JOINED_BY[word], (holds(part, rows, kinds) for part in conditions))
        case Negation(negated):
            return pc.invert(holds(negated, rows, kinds))
        case IsNull(column):
            return rows.column(column).is_null()
        case OneOf(column, values):
            equal = (compared(rows.column(column), kinds[column], "=", value) for value in values)
            return reduce(pc.or_kleene, equal)
        case ValueComparison(column, operator, value):
            return compared(rows.column(column), kinds[column], operator, value)


def compared(values: pa.Array, kind: str, operator: str, value: Any) -> pa.Array:
    """Each of a column's values with one value, which `Dialect` has found to be of a type that it can be compared with."""
    if kind == expressions.DOUBLE:
        compares = COMPARED_BY[operator](values, pa.scalar(float(value), pa.float64()))
        return pc.or_kleene(compares, pc.is_nan(values)) if operator in (">", ">=") else compares
    if kind == expressions.TIMESTAMP:
        return COMPARED_BY[operator](values, pa.scalar(model.parse_instant(value), TIMESTAMP))
    if kind == expressions.DATE:
        return COMPARED_BY[operator](values, pa.scalar(date.fromisoformat(value), pa.date32()))
    if pa.types.is_integer(values.type) or pa.types.is_decimal(values.type):
        return _compared_exactly(values, operator, value)
    return COMPARED_BY[operator](values, pa.scalar(value))


def _compared_exactly(values: pa.Array, operator: str, number: int | Decimal) -> pa.Array:
    """Whole numbers, or decimals as multiples of their last digit, with any number: x < 2.5 if x < 3, and x > 2.5 if x > 2."""
    is_decimal = pa.types.is_decimal(values.type)
    digits = values.type.scale if is_decimal else 0
    multiple = Fraction(number) * 10**digits
    bound = math.ceil(multiple) if operator in ("<", ">=") else math.floor(multiple)
    least = 1 - 10**values.type.precision if is_decimal else -expressions.BIGINT_MAX - 1
    is_beyond_all = not least <= bound <= (-least if is_decimal else expressions.BIGINT_MAX)
    if is_beyond_all or (bound != multiple and operator in ("=", "<>")):  # then it is the same for every value that there is
        always = pa.scalar(OF_NUMBERS[operator](0, number) if is_beyond_all else operator == "<>")
        return pc.if_else(values.is_valid(), always, pa.scalar(None, pa.bool_()))
    if is_decimal:
        return COMPARED_BY[operator](values, pa.scalar(EXACTLY.scaleb(Decimal(bound), -digits), values.type))
    return COMPARED_BY[operator](values.cast(pa.int64()), pa.scalar(bound, pa.int64()))
