"""Whatever a record holds, its window loads: it becomes a row or a dead letter, through COPY into a real PostgreSQL, and the audit
is exact."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from logbus.errors import ErrorBudgetExceeded
from logbus.loads.maintenance import merge_closed_days
from logbus.loads.redrive import Redrive
from logbus.parsing import Parser, Unparsable, parser_for
from logbus.windows.table_names import parse_table

from tests.support.ledgers import NOW, World, at, stamps
from tests.support.loads import Loading
from tests.support.mended import MENDED

MINE = "tests.integration.ledger.test_extreme_records"

# JSON, or nearly, that some parser accepts and PostgreSQL does not.
JSON = [
    *(
        "1e999",
        "-1e999",
        "NaN",
        "Infinity",
        "0e999999",
        "-0.0e99999999999",
        "1e-99999",
        "0." + "0" * 20_000 + "1",
        "9" * 400,
        "9" * 5_000,
    ),
    *(r'"\u0000"', r'"a\\\u0000"', r'"\\u0000"', r'"\ud800"', r'"\udc00\ud800"', '"' + "x" * 200_000 + '"', r'{"\u0000": 1}'),
    *("[" * depth + "]" * depth for depth in (200, 300, 900, 1_000, 1_022)),
    *("[" * 100_000, '{"a":' * 2_000, "", "null"),
]
OBJECTS = [
    *(f'{{"a": {one}}}' for one in JSON),
    *(f'{{"a": {one}, "a": 1}}' for one in JSON),
    *(f'{{"a": {one}, "n": 123456789012345678901234567890}}' for one in JSON),
    *(f'{{"remote_addr": {one}, "request": {one}, "status": {one}, "msec": {one}}}' for one in JSON),
]
LINES = [
    '1.2.3.4 - - [01/Jan/0001:00:00:00 +1400] "GET / HTTP/1.1" 200 1',
    '1.2.3.4 - - [31/Dec/9999:23:59:59 -1400] "GET / HTTP/1.1" 200 1',
    '1.2.3.4 - - [31/Dec/0000:23:59:59 +2400] "\\u0000" 200 999999999999999999 "\\x00" "\\ud800"',
    "<34>1 0001-01-01T00:00:00+14:00 h p 1 - - m",
    "<34>1 9999-12-31T23:59:59-14:00 h p 1 - - m",
    r'<34>1 - h p 1 - [a b="\u0000"] m',
    "<999>1 - h p 1 - - m",
    *("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "1e308", "-62135596801", "253402300800", "99999999999999999999"),
]
TEXTS = [*JSON, *OBJECTS, *LINES]


def of_their_own(settings: Mapping[str, Any]) -> Parser:
    """A user's parser that takes whatever it gets for a value of its only column, or for the reason why it cannot."""
    kind = settings["kind"]

    def parse(value: bytes) -> Sequence[Any]:
        found = value.decode(errors="surrogateescape")
        if kind == "refused":
            raise Unparsable(found, found)
        if kind == "timestamptz":
            return (int(found),)
        return (json.loads(found) if kind == "object" else found,)

    return Parser(columns={"a": "jsonb" if kind == "object" else "text" if kind == "refused" else kind}, parse=parse)


def quoted_for_csv(one: str) -> str:
    return '1,"' + one.replace('"', '""') + '"'


def quoted_for_logfmt(one: str) -> str:
    return 'x=1 a="' + one.replace("\\", "\\\\").replace('"', '\\"') + '"'


@dataclass
class Extreme(Loading):
    """Records with these values, and with keys and headers that are no better."""

    values: Sequence[bytes] = ()

    def value(self, partition: int, offset: int) -> bytes:
        return self.values[offset]

    def headers(self, partition: int, offset: int) -> list[tuple[str, bytes | None]]:
        return [("a\0b", b"a\0b"), ("", b"\xff"), ("logbus-sent", b"f" * 8_000 + b":%d" % (offset + 1)), ("\\u0000", None)]


# Rows of 500 texts fit into PostgreSQL's page or do not, by the length of the texts; among numbers those begin at multiples of 8.
WIDE = [",".join(["x" * length] * 500) for length in (0, 1, 13, 14, 15, 16, 22, 23, 24, 200)]
MIXED = {f"c{number}": ("text", "bigint", "jsonb", "boolean", "text", "integer")[number % 6] for number in range(600)}
MIXED_VALUES = [
    json.dumps({name: {"text": "x" * length, "jsonb": length, "boolean": True}.get(kind, length) for name, kind in MIXED.items()})
    for length in (0, 1, 5, 12, 23, 24, 200)
]
SETTINGS_OF_TYPES = [{"columns": {"a": kind}} for kind in ("jsonb", "text", "double precision", "integer", "timestamptz")]
CASES: list[tuple[str, dict[str, Any], list[str]]] = [
    ("json", {}, OBJECTS),
    ("json", {"infer": True}, OBJECTS),
    *[("json", settings, OBJECTS) for settings in SETTINGS_OF_TYPES],
    ("nginx_json", {}, OBJECTS),
    ("combined", {}, LINES),
    ("syslog", {}, LINES),
    ("lines", {}, [*TEXTS, "a\0b", "\udcff"]),
    ("logfmt", {}, [quoted_for_logfmt(one) for one in TEXTS]),
    *[("logfmt", settings, [quoted_for_logfmt(one) for one in TEXTS]) for settings in SETTINGS_OF_TYPES],
    *[("csv", {"fields": ["x", "a"], **settings}, [quoted_for_csv(one) for one in TEXTS]) for settings in SETTINGS_OF_TYPES],
    *[("regex", {"pattern": "(?P<a>(?s:.*))", **settings}, TEXTS) for settings in SETTINGS_OF_TYPES],
    ("csv", {"fields": [f"c{number}" for number in range(500)]}, WIDE),
    ("json", {"columns": MIXED}, MIXED_VALUES),
    (f"{MINE}:of_their_own", {"kind": "jsonb"}, [*TEXTS, "a\0b", "\udcff"]),
    (f"{MINE}:of_their_own", {"kind": "object"}, [*TEXTS, "{}"]),
    (f"{MINE}:of_their_own", {"kind": "text"}, [*TEXTS, "a\0b", "\udcff"]),
    (f"{MINE}:of_their_own", {"kind": "refused"}, [*TEXTS, "a\0b", "\udcff"]),
    (f"{MINE}:of_their_own", {"kind": "timestamptz"}, [str(2**62), str(-(2**62)), str(-(2**63)), "0", str(2**70)]),
]


def load(world: World, values: Sequence[str], parse: str, settings: Mapping[str, Any]) -> tuple[int, int]:
    """How many rows and dead letters hour 10 has, whose audit is exact."""
    encoded = [one.encode(errors="surrogateescape") for one in values]
    world.log.append("t", *stamps(*(10 + place / len(values) for place in range(len(values)))))
    world.register(parse=parse, settings={"max_error_rate": 1.0, **settings})
    counts = Extreme.of(world, 10, values=encoded).load()
    assert counts.read == len(values)
    report = world.audit()
    assert (report.problems, report.notes) == ((), ())
    return counts.loaded, counts.dead_lettered


@pytest.mark.parametrize(("parse", "settings", "values"), CASES, ids=[f"{parse}-{settings}"[:80] for parse, settings, _ in CASES])
def test_every_record_becomes_a_row_or_a_dead_letter(
    world: World, parse: str, settings: dict[str, Any], values: list[str]
) -> None:
    loaded, dead = load(world, values, parse, settings)
    assert loaded + dead == len(values)


ODD = "x:y.a :b %s::c"


def test_a_table_may_have_any_name(world: World) -> None:
    """Loaded, loaded again, audited, redriven and merged; empty windows and hours over their error budget too."""
    pipeline = world.fill(10, 10.5, 11, 11.5, table=ODD, settings={"max_error_rate": 1.0})
    engine, target = world.ledger.engine, parse_table(ODD)
    for number, bad in ((10, 1), (11, 3), (11, 3)):
        Loading.of(world, number, bad_offsets=frozenset({bad})).load()
    world.freeze(12)
    moving = Redrive(engine=engine, pipeline=pipeline, parser=parser_for(MENDED, {}), run_id="run", now=lambda: NOW)
    assert moving.run(world.ledger.window("p", at(10))).loaded == 1
    assert [len(days) for days in merge_closed_days(engine, target, at(48), lambda seconds: None)] == [1, 0]
    Loading.of(world, 11, bad_offsets=frozenset({3})).load()
    for number in (10, 11, 12):
        assert world.audit(number).ok
    world.register(table=ODD, settings={"max_errors": 0})
    with pytest.raises(ErrorBudgetExceeded):
        Loading.of(world, 11, bad_offsets=frozenset({3})).load()
    assert world.one(f"select count(*) from {target.sql}") == 3
