"""What an aggregate computes from a pipeline's rows: measures of a group, and the condition that a row has to meet.

    measures={"requests": count(), "bytes": sum_of("bytes"), "slowest": max_of("seconds"), "size": avg_of("bytes")}
    where="status < 500 and (method = 'GET' or agent is null)"

The language is small, so that it means the same wherever it is written out: a condition compares columns with values, by SQL's
rule for null (a comparison with null is not true); texts are ordered by their UTF-8 bytes, whatever the database's collation. A
`Dialect` writes the tree as SQL. The one below is PostgreSQL's; another engine's is a subclass of it.

Every measure is exact and does not depend on the order of the rows. So sums of `double precision` are taken over the decimal
numbers (15 digits) that these values stand for: added as they are, the same rows give another sum each time. An average is a sum
and a count, which can be added up further; the average itself is computed from them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any, NoReturn

from logbus import errors, model, pipeline_settings

TEXT, TIMESTAMP, DATE, BOOLEAN, DOUBLE, NUMERIC = "text", "timestamptz", "date", "boolean", "double precision", "numeric"
NUMBERS = ("integer", "bigint", DOUBLE, NUMERIC)
ORDERED = (*NUMBERS, TEXT, TIMESTAMP, DATE)
COMPARED = (*ORDERED, BOOLEAN)
KEY_TYPES = ("integer", "bigint", NUMERIC, TEXT, TIMESTAMP, DATE, BOOLEAN)
SPELLINGS = {"timestamp with time zone": TIMESTAMP}  # by PostgreSQL, of the types that have another name here
SUM_TYPES = {"integer": "bigint", "bigint": NUMERIC, NUMERIC: NUMERIC, DOUBLE: DOUBLE}  # none of them overflows

WHERE_LENGTH_MAX = 10_000  # characters: far more than anybody writes, and little enough for a parser that calls itself
NUMBER_LENGTH_MAX = 400  # digits: more than any double has; Python converts no more than some thousand
DEPTH_MAX = 50  # of parentheses in each other
BIGINT_MAX = 2**63 - 1

Columns = Mapping[str, str]  # name to type


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a group of rows. Without a column it counts the rows."""

    function: str
    column: str | None = None

    def __str__(self) -> str:
        return f"{self.function}({self.column or ''})"


# The types of columns that each function takes.
FUNCTIONS: Mapping[str, Sequence[str]] = {
    "count": (*COMPARED, "jsonb", "bytea"),
    "sum": NUMBERS,
    "min": ORDERED,
    "max": ORDERED,
    "avg": NUMBERS,
}


def count(column: str | None = None) -> Measure:
    """The number of rows; with a column, of those in which it is not null."""
    return Measure("count", column)


def sum_of(column: str) -> Measure:
    return Measure("sum", column)


def min_of(column: str) -> Measure:
    return Measure("min", column)


def max_of(column: str) -> Measure:
    return Measure("max", column)


def avg_of(column: str) -> Measure:
    """The mean of those that are not null. The table has its sum and its count as well, which can be added up further."""
    return Measure("avg", column)


# Conditions, as a tree.


@dataclass(frozen=True, slots=True)
class ValueComparison:
    column: str
    operator: str
    value: Any


@dataclass(frozen=True, slots=True)
class OneOf:
    """`in (...)`."""

    column: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class IsNull:
    column: str


@dataclass(frozen=True, slots=True)
class Negation:
    condition: Condition


@dataclass(frozen=True, slots=True)
class Junction:
    """`word` is `and` or `or`."""

    word: str
    conditions: tuple[Condition, ...]


Condition = ValueComparison | OneOf | IsNull | Negation | Junction

OPERATORS = {"=": "=", "==": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
TOKEN = re.compile(
    r"""\s*(?:(?P<text>'(?:[^']|'')*')
          |(?P<quoted>"(?:[^"]|"")+")
          |(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
          |(?P<name>[^\W\d]\w*)
          |(?P<sign><=|>=|<>|!=|==|[=<>(),]))""",
    re.VERBOSE,
)
WORDS = frozenset(("and", "or", "not", "is", "null", "in", "true", "false"))
EXAMPLE = "a condition looks like status < 500 and method = 'GET'"


def parse_condition(where: str) -> Condition:
    """The tree of a condition as users write it; `UserError` says what is not understood, and where."""
    if len(where) > WHERE_LENGTH_MAX:
        raise errors.UserError(f"where has {len(where):,} characters; {WHERE_LENGTH_MAX:,} at most")
    if "\0" in where:
        raise errors.UserError("where has a NUL character, which no text in PostgreSQL has")
    return _Parser(where).parse()


class _Parser:
    """Reads `or` of `and` of `not` of comparisons, one word ahead."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.tokens = [*self._split()]
        self.position = 0
        self.depth = 0

    def _split(self) -> Iterator[tuple[str, str, int]]:
        """Kind, text and where it begins."""
        position, end = 0, len(self.where.rstrip())
        while position < end:
            match = TOKEN.match(self.where, position)
            if match is None:
                self._refuse(position)
            kind = str(match.lastgroup)
            yield kind, match[kind], match.start(kind)
            position = match.end()

    def _refuse(self, position: int) -> NoReturn:
        rest = self.where[position:].strip()
        at = f"at {rest[:20]!r}" if rest else "at its end"
        raise errors.UserError(f"where={self.where!r} is not understood {at}: {EXAMPLE}")

    def _refuse_here(self) -> NoReturn:
        self._refuse(self.tokens[self.position][2] if self.position < len(self.tokens) else len(self.where))

    def _word(self) -> str:
        """The keyword or sign that comes next, in lower case; empty for anything else."""
        if self.position == len(self.tokens):
            return ""
        kind, text, _ = self.tokens[self.position]
        return text.lower() if kind == "sign" or (kind == "name" and text.lower() in WORDS) else ""

    def _take(self, *words: str) -> str:
        """Steps over the next word if it is one of these; empty otherwise."""
        word = self._word()
        if word not in words:
            return ""
        self.position += 1
        return word

    def _expect(self, *words: str) -> None:
        for word in words:
            if not self._take(word):
                self._refuse_here()

    def parse(self) -> Condition:
        condition = self._junction("or", lambda: self._junction("and", self._negation))
        if self.position < len(self.tokens):
            self._refuse_here()
        return condition

    def _junction(self, word: str, part: Callable[[], Condition]) -> Condition:
        conditions = [part()]
        while self._take(word):
            conditions.append(part())
        return conditions[0] if len(conditions) == 1 else Junction(word, tuple(conditions))

    def _negation(self) -> Condition:
        negations = 0
        while self._take("not"):
            negations += 1
        condition = self._primary()
        return Negation(condition) if negations % 2 else condition

    def _primary(self) -> Condition:
        if not self._take("("):
            return self._comparison()
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise errors.UserError(f"where has more than {DEPTH_MAX} parentheses in each other")
        condition = self._junction("or", lambda: self._junction("and", self._negation))
        self._expect(")")
        self.depth -= 1
        return condition

    def _comparison(self) -> Condition:
        column = self._column()
        if self._take("is"):
            is_negated = bool(self._take("not"))
            self._expect("null")
            return Negation(IsNull(column)) if is_negated else IsNull(column)
        if self._take("not"):
            self._expect("in")
            return Negation(self._one_of(column))
        if self._take("in"):
            return self._one_of(column)
        operator = self._take(*OPERATORS)
        if not operator:
            self._refuse_here()
        return ValueComparison(column, OPERATORS[operator], self._value())

    def _one_of(self, column: str) -> OneOf:
        self._expect("(")
        values = [self._value()]
        while self._take(","):
            values.append(self._value())
        self._expect(")")
        return OneOf(column, tuple(values))

    def _column(self) -> str:
        if self.position < len(self.tokens):
            kind, text, _ = self.tokens[self.position]
            if kind == "quoted" or (kind == "name" and text.lower() not in WORDS):
                self.position += 1
                return text[1:-1].replace('""', '"') if kind == "quoted" else text
        self._refuse_here()

    def _value(self) -> Any:
        if word := self._take("true", "false"):
            return word == "true"
        if self.position < len(self.tokens):
            kind, text, position = self.tokens[self.position]
            if kind == "text":
                self.position += 1
                return text[1:-1].replace("''", "'")
            if kind == "number":
                if len(text) > NUMBER_LENGTH_MAX:
                    self._refuse(position)
                self.position += 1
                number: int | Decimal = int(text) if re.fullmatch(r"[+-]?\d+", text) else Decimal(text)
                # What no column can be equal to: PostgreSQL would refuse it when the condition runs.
                is_too_large = not -BIGINT_MAX <= number <= BIGINT_MAX
                if is_too_large if isinstance(number, int) else number and float(number) in (0.0, math.inf, -math.inf):
                    self._refuse(position)
                return number
        self._refuse_here()


def columns_of(condition: Condition) -> list[str]:
    match condition:
        case Junction(conditions=conditions):
            return [column for part in conditions for column in columns_of(part)]
        case Negation(condition=negated):
            return columns_of(negated)
        case _:
            return [condition.column]


@dataclass(slots=True)
class Dialect:
    """Writes measures and conditions over these columns as PostgreSQL's SQL. Values are `parameters`, never part of the text.

    Raises `UserError` for a column that there is not, or whose type does not allow what is asked.
    """

    columns: Columns
    quote: Callable[[str], str]  # identifiers
    parameters: dict[str, Any] = field(default_factory=dict)

    def kind_of(self, column: str, allowed: Sequence[str], purpose: str) -> str:
        if column not in self.columns:
            raise errors.WrongRequest(
                f"{purpose}: there is no column {column!r}: {pipeline_settings.advice(column, self.columns)}"
            )
        kind = SPELLINGS.get(self.columns[column], self.columns[column])
        without_digits = NUMERIC if kind.startswith(f"{NUMERIC}(") else kind  # numeric(10,2) is compared and added up as numeric
        if without_digits not in allowed:
            raise errors.WrongRequest(f"{purpose} takes columns of type {', '.join(allowed)}; {column!r} is {kind}")
        return without_digits

    # A measure is one or two columns of the aggregate's table: name to type, and name to the expression that fills it.

    def stored_columns(self, name: str, measure: Measure) -> dict[str, str]:
        if measure.function == "count":
            return {name: "bigint"}
        kind = self.kind_of(str(measure.column), FUNCTIONS[measure.function], f"{name}={measure}")
        if measure.function == "avg":
            return {f"{name}_sum": self.sum_type(kind), f"{name}_count": "bigint"}
        return {name: self.sum_type(kind) if measure.function == "sum" else kind}

    def sum_type(self, kind: str) -> str:
        return SUM_TYPES[kind]

    def computed_columns(self, name: str, measure: Measure) -> dict[str, str]:
        """Those that the database itself computes from the others: name to expression."""
        if measure.function != "avg":
            return {}
        total, rows = self.quote(f"{name}_sum"), self.quote(f"{name}_count")
        return {name: f"cast({total} as {DOUBLE}) / nullif({rows}, 0)"}

    def aggregated(self, name: str, measure: Measure) -> dict[str, str]:
        if measure.column is None:
            return {name: "count(*)"}
        kind, column = self.kind_of(measure.column, FUNCTIONS[measure.function], f"{name}={measure}"), self.quote(measure.column)
        match measure.function:
            case "count":
                return {name: f"count({column})"}
            case "avg":
                return {f"{name}_sum": self.sum_of(column, kind), f"{name}_count": f"count({column})"}
            case "sum":
                return {name: self.sum_of(column, kind)}
            case extreme:
                return {name: f"{extreme}({by_bytes(column, kind)}){plain(kind)}"}

    def sum_of(self, column: str, kind: str) -> str:
        return f"cast(sum(cast({column} as numeric)) as {DOUBLE})" if kind == DOUBLE else f"sum({column})"

    def key(self, column: str) -> str:
        kind = self.kind_of(column, KEY_TYPES, f"the key {column!r}")
        return f"{self.quote(column)}{plain(kind)}"

    def condition(self, condition: Condition) -> str:
        match condition:
            case Junction(word, conditions):
                return "(" + f" {word} ".join(map(self.condition, conditions)) + ")"
            case Negation(negated):
                return f"(not {self.condition(negated)})"
            case IsNull(column):
                self.kind_of(column, FUNCTIONS["count"], "where: is null")
                return f"({self.quote(column)} is null)"
            case OneOf(column, values):
                kind = self.kind_of(column, COMPARED, "where")
                written = ", ".join(self.value(column, kind, value) for value in values)
                return f"({by_bytes(self.quote(column), kind)} in ({written}))"
            case ValueComparison(column, operator, value):
                kind = self.kind_of(column, COMPARED, "where")
                if kind == BOOLEAN and operator not in ("=", "<>"):
                    raise errors.WrongRequest(
                        f"where: {column!r} is boolean, and neither more nor less than anything: use = or <>"
                    )
                return f"({by_bytes(self.quote(column), kind)} {operator} {self.value(column, kind, value)})"

    def value(self, column: str, kind: str, value: Any) -> str:
        """The parameter that stands for a value which the column is compared with."""
        sql_type, expected = kind, "a text, as in 'GET'"
        if kind in NUMBERS:
            expected, is_right = "a number", isinstance(value, int | Decimal) and not isinstance(value, bool)
            sql_type = kind if kind == DOUBLE else "bigint" if isinstance(value, int) else "numeric"
        elif kind == BOOLEAN:
            expected, is_right = "true or false", isinstance(value, bool)
        elif kind in (TIMESTAMP, DATE):
            expected, value, is_right = _parsed(kind, value)
        else:
            is_right = isinstance(value, str)
        if not is_right:
            raise errors.WrongRequest(
                f"where: {column!r} is {self.columns[column]}, so it is compared with {expected}; got {value!r}"
            )
        name = f"v{len(self.parameters)}"
        self.parameters[name] = value
        return f"cast(:{name} as {sql_type})"


def by_bytes(column: str, kind: str) -> str:
    return f'{column} collate "C"' if kind == TEXT else column


def plain(kind: str) -> str:
    """Without it, what was computed with another collation could not be compared with a stored text."""
    return ' collate "default"' if kind == TEXT else ""


def _parsed(kind: str, value: Any) -> tuple[str, Any, bool]:
    """What is expected, and whether the value is the text of one: then the instant or date itself."""
    expected = "an instant, as in '2015-05-17T10:00:00Z'" if kind == TIMESTAMP else "a date, as in '2015-05-17'"
    try:
        return expected, (model.parse_instant if kind == TIMESTAMP else date.fromisoformat)(value), True
    except (TypeError, ValueError):
        return expected, value, False
