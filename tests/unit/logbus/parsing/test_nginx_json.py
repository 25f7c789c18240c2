from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from logbus.parsing import Unparsable, parser_for

PARSER = parser_for("nginx_json", {})
TIME = datetime(2015, 5, 17, 10, 5, 3, tzinfo=UTC)


def row(**variables: Any) -> dict[str, Any]:
    found = dict(zip(PARSER.columns, PARSER.parse(json.dumps(variables).encode()), strict=True))
    return {name: value for name, value in found.items() if value is not None}


def test_nginxs_texts_become_columns_of_their_types_and_the_rest_is_kept() -> None:
    assert row(
        time_iso8601="2015-05-17T10:05:03+00:00",
        remote_addr="10.0.0.7",
        remote_user="",
        request="GET /a?b=c HTTP/1.1",
        status="200",
        body_bytes_sent="1234",
        request_time="0.250",
        http_referer="-",
        http_user_agent="curl/8",
        host="www.example.org",
    ) == {
        "time": TIME,
        "host": "10.0.0.7",
        "method": "GET",
        "path": "/a?b=c",
        "protocol": "HTTP/1.1",
        "status": 200,
        "bytes": 1234,
        "request_time": 0.25,
        "agent": "curl/8",
        "more": '{"host": "www.example.org"}',
    }


@pytest.mark.parametrize(
    "time", [{"msec": "1431857103.000"}, {"time_local": "17/May/2015:12:05:03 +0200"}, {"@timestamp": "2015-05-17T10:05:03Z"}]
)
def test_every_variable_of_nginxs_for_the_time_is_read(time: dict[str, str]) -> None:
    assert row(**time) == {"time": TIME}


def test_numbers_may_be_numbers_and_method_and_path_may_stand_apart() -> None:
    assert row(status=304, request_method="HEAD", uri="/x") == {"status": 304, "method": "HEAD", "path": "/x"}


@pytest.mark.parametrize("line", ["", "[1]", "{", '{"status": "two hundred"}', '{"time_local": "yesterday"}'])
def test_anything_else_is_a_dead_letter(line: str) -> None:
    with pytest.raises(Unparsable):
        PARSER.parse(line.encode())


@pytest.mark.parametrize("said", [r'"a\u0000b"', "1e999", "NaN", r'"\ud800"', "[" * 2_000])
@pytest.mark.parametrize("name", ["remote_addr", "request", "x"])
def test_what_postgresql_cannot_hold_is_a_dead_letter(name: str, said: str) -> None:
    with pytest.raises(Unparsable):
        PARSER.parse(f'{{"{name}": {said}}}'.encode())


def test_whole_numbers_keep_all_their_digits() -> None:
    found = dict(
        zip(PARSER.columns, PARSER.parse(b'{"remote_addr": 123456789012345678901, "x": 123456789012345678901}'), strict=True)
    )
    assert (found["host"], found["more"]) == ("123456789012345678901", '{"x": 123456789012345678901}')
