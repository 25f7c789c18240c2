"""One notion of an instant: the same value is the same time for a shipped line, a column of CSV and a member of JSON."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from logbus.parsing import Unparsable, parser_for
from logbus.parsing.times import any_time, milliseconds

AT = datetime(2015, 5, 17, 10, 5, 3, tzinfo=UTC)
QUARTER = timedelta(milliseconds=250)
JSON = parser_for("json", {"columns": {"at": "timestamptz"}})
CSV = parser_for("csv", {"fields": ["at", "x"], "delimiter": ";", "columns": {"at": "timestamptz", "x": "double precision"}})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1431857103, AT),
        (1431857103.25, AT + QUARTER),
        (1431857103250, AT + QUARTER),
        (1431857103250000, AT + QUARTER),
        (1431857103250000000, AT + QUARTER),
        (946684800000, datetime(2000, 1, 1, tzinfo=UTC)),
        (20150517, datetime(2015, 5, 17, tzinfo=UTC)),
        (201505171005, AT.replace(second=0)),
        (20150517100503, AT),
        (20150517100503250, AT + QUARTER),
        ("2015-05-17", datetime(2015, 5, 17, tzinfo=UTC)),
        ("20150517T100503.25Z", AT + QUARTER),
        ("2015-05-17T12:05:03,250+02:00", AT + QUARTER),
        ("2015-05-17 07:05:03 -03", AT),
        ("2015-05-17 12:05:03 Europe/Berlin", AT),
        ("2015/05/17 10:05:03", AT),
        ("2015-05-17T10:05Z", AT.replace(second=0)),
        ("17/May/2015:12:05:03 +0200", AT),
        ("17 May 2015 18:05:03 UTC+8", AT),
        (0, datetime(1970, 1, 1, tzinfo=UTC)),
        (-86_400, datetime(1969, 12, 31, tzinfo=UTC)),
    ],
)
def test_a_written_time_is_the_same_instant_wherever_it_stands(value: Any, expected: datetime) -> None:
    members = [{"at": value}] if isinstance(value, str) else [{"at": value}, {"at": str(value)}]
    for member in members:
        line = json.dumps(member).encode()
        (parsed,) = JSON.parse(line)
        assert (parsed, parsed.tzinfo) == (expected, UTC)
        assert JSON.quick is not None
        quickly = JSON.quick([line, line])
        assert quickly is not None
        assert quickly[0].to_pylist() == [expected] * 2
    assert CSV.parse(f"{value};1".encode()) == [expected, 1.0]
    shipped = any_time(value, UTC)
    if expected.time() == datetime.min.time() and value != 946684800000:  # a day alone, or a duration
        assert shipped is None
    else:
        assert shipped is not None
        assert shipped.timestamp_ms == milliseconds(expected)


@pytest.mark.parametrize(
    "value",
    [
        20151340,
        20150517250000,
        10**20,
        20150517.5,
        "1_431_857_103",
        "2015-05-17 10:05:03 CET",
        "2015-05-17T10:05:03+99:00",
        "soon",
    ],
)
def test_what_is_no_instant_is_none_anywhere(value: Any) -> None:
    assert any_time(value, UTC) is None
    for refused in (lambda: JSON.parse(json.dumps({"at": value}).encode()), lambda: CSV.parse(f"{value};1".encode())):
        with pytest.raises(Unparsable):
            refused()


@pytest.mark.parametrize("number", ["1e400", "-1e400"])
def test_a_number_that_no_double_holds_is_no_infinity(number: str) -> None:
    with pytest.raises(Unparsable):
        CSV.parse(f"1431857103;{number}".encode())
    assert CSV.parse(b"1431857103;-Infinity")[1] == float("-inf")
