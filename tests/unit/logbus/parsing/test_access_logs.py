"""combined and nginx_json."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from logbus.parsing import Unparsable, parser_for

PARSER = parser_for("combined", {})
TIME = datetime(2015, 5, 17, 10, 5, 3, tzinfo=UTC)

LINE = (
    b'83.149.9.216 - frank [17/May/2015:10:05:03 +0000] "GET /images/kibana.png HTTP/1.1" 200 203023 '
    b'"http://semicomplete.com/" "Mozilla/5.0 (X11; Linux)"'
)


def parse(line: bytes) -> dict[str, object]:
    return dict(zip(PARSER.columns, PARSER.parse(line), strict=True))


def with_request(request: bytes) -> bytes:
    return b'h - - [17/May/2015:10:05:03 +0000] "' + request + b'" 200 1 "-" "-"'


def test_a_line_becomes_its_columns() -> None:
    client = {"host": "83.149.9.216", "ident": None, "username": "frank", "agent": "Mozilla/5.0 (X11; Linux)"}
    request = {"time": TIME, "method": "GET", "path": "/images/kibana.png", "protocol": "HTTP/1.1"}
    assert parse(LINE) == {**client, **request, "status": 200, "bytes": 203023, "referer": "http://semicomplete.com/"}


def test_the_common_format_has_no_referer_and_agent() -> None:
    row = parse(b'h - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.0" 304 -')
    assert (row["status"], row["bytes"], row["referer"], row["agent"]) == (304, None, None, None)


def test_a_zone_is_kept_as_the_instant_it_means() -> None:
    row = parse(LINE.replace(b"+0000", b"-0730"))
    assert row["time"] == datetime(2015, 5, 17, 10, 5, 3, tzinfo=timezone(-timedelta(hours=7, minutes=30)))


@pytest.mark.parametrize(
    ("request_text", "method", "path", "protocol"),
    [
        (b"GET /a b c HTTP/1.1", "GET", "/a b c", "HTTP/1.1"),
        (b"GET /old", "GET", "/old", None),
        (b"PRI * HTTP/2.0", "PRI", "*", "HTTP/2.0"),
        (b"GET / HTTP/2", "GET", "/", "HTTP/2"),
        (b"M-SEARCH * HTTP/1.1", "M-SEARCH", "*", "HTTP/1.1"),
        (b"-", None, None, None),
        (b"", None, "", None),
        (rb"\x16\x03\x01", None, r"\x16\x03\x01", None),
        (rb"GET /say=\"hi\" HTTP/1.1", "GET", '/say="hi"', "HTTP/1.1"),
        (rb"GET /back\\slash HTTP/1.1", "GET", "/back\\slash", "HTTP/1.1"),
    ],
)
def test_requests_as_clients_really_send_them(
    request_text: bytes, method: str | None, path: str | None, protocol: str | None
) -> None:
    row = parse(with_request(request_text))
    assert (row["method"], row["path"], row["protocol"]) == (method, path, protocol)


def test_an_escaped_quote_does_not_end_a_field() -> None:
    assert parse(LINE.replace(b"(X11; Linux)", rb"\"Nice\" (X11)"))["agent"] == 'Mozilla/5.0 "Nice" (X11)'


def test_a_username_may_hold_spaces() -> None:
    assert parse(LINE.replace(b"frank", b"frank the tank"))["username"] == "frank the tank"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b"", "NotCombinedLogLine"),
        (b"hello", "NotCombinedLogLine"),
        (LINE[:-1], "NotCombinedLogLine"),
        (LINE + b" more", "NotCombinedLogLine"),
        (LINE.replace(b" 200 ", b" two "), "NotCombinedLogLine"),
        (LINE.replace(b"203023", b"9" * 30), "NotCombinedLogLine"),
        (LINE.replace(b"17/May", b"31/Feb"), "NoSuchTime"),
        (LINE.replace(b"May", b"Mai"), "NoSuchTime"),
        (LINE.replace(b"10:05:03", b"25:05:03"), "NoSuchTime"),
        (LINE.replace(b"+0000", b"+9900"), "NoSuchTime"),
        (LINE.replace(b"Linux", b"Li\0ux"), "NulCharacter"),
        (LINE.replace(b"Linux", b"Li\xffux"), "NotUtf8"),
    ],
)
def test_what_is_no_log_line_says_why(line: bytes, kind: str) -> None:
    with pytest.raises(Unparsable) as caught:
        PARSER.parse(line)
    assert caught.value.kind == kind


@pytest.mark.timeout(300)  # one that costs more takes hours
def test_a_hostile_line_costs_no_more_than_its_length() -> None:
    with pytest.raises(Unparsable):
        PARSER.parse(b"h - " + b"a [" * 50_000 + b'"' + b"\\" * 50_001)
    with pytest.raises(Unparsable):
        PARSER.parse(b"h, " * 100_000)


@pytest.mark.parametrize(
    "before", [b"www.example.com:443", b"[2001:db8::1]:80", b"www.example.com", b"-", b"192.0.2.16, 10.0.0.9"]
)
@pytest.mark.parametrize("username", [b"-", b"frank", b"Jane Doe"])
def test_a_line_with_a_field_before_the_client_is_not_read_with_its_columns_shifted(before: bytes, username: bytes) -> None:
    with pytest.raises(Unparsable, match="another field precedes the client: the parser regex reads this") as refused:
        PARSER.parse(before + b" " + LINE.replace(b"frank", username))
    assert refused.value.kind == "FieldsBeforeClient"


@pytest.mark.parametrize("host", [b"2001:db8::1", b"10.0.0.9:51234", b"web1", b"192.0.2.16, 198.51.100.22"])
@pytest.mark.parametrize("username", ["-", "frank", "Jane Doe"])
def test_a_client_with_a_port_or_of_ipv6_is_no_virtual_host(host: bytes, username: str) -> None:
    row = parse(LINE.replace(b"83.149.9.216", host).replace(b"frank", username.encode()))
    assert (row["host"], row["ident"], row["username"]) == (host.decode(), None, None if username == "-" else username)


NGINX = parser_for("nginx_json", {})


def row(**variables: Any) -> dict[str, Any]:
    columns = dict(zip(NGINX.columns, NGINX.parse(json.dumps(variables).encode()), strict=True))
    return {name: value for name, value in columns.items() if value is not None}


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
        **{"time": TIME, "host": "10.0.0.7", "method": "GET", "path": "/a?b=c", "protocol": "HTTP/1.1", "status": 200},
        **{"bytes": 1234, "request_time": 0.25, "agent": "curl/8", "more": '{"host": "www.example.org"}'},
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
        NGINX.parse(line.encode())


@pytest.mark.parametrize("said", [r'"a\u0000b"', "1e999", "NaN", r'"\ud800"', "[" * 2_000])
@pytest.mark.parametrize("name", ["remote_addr", "request", "x"])
def test_what_postgresql_cannot_hold_is_a_dead_letter(name: str, said: str) -> None:
    with pytest.raises(Unparsable):
        NGINX.parse(f'{{"{name}": {said}}}'.encode())


def test_whole_numbers_keep_all_their_digits() -> None:
    number = 123456789012345678901
    assert row(remote_addr=number, x=number) == {"host": str(number), "more": f'{{"x": {number}}}'}
