from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from logbus.parsing import Unparsable, parser_for

PARSER = parser_for("syslog", {})


def row(line: str) -> dict[str, Any]:
    columns = dict(zip(PARSER.columns, PARSER.parse(line.encode()), strict=True))
    return {name: value for name, value in columns.items() if value is not None}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "Jun 14 15:16:01 combo sshd(pam_unix)[19939]: failure; rhost=218.188.2.4 ",
            {"host": "combo", "program": "sshd(pam_unix)", "pid": "19939", "message": "failure; rhost=218.188.2.4 "},
        ),
        (
            "Jun  4 15:16:01 combo kernel: usb 1-1: new device",
            {"host": "combo", "program": "kernel", "message": "usb 1-1: new device"},
        ),
        ("Jun 14 15:16:01 combo -- MARK --", {"host": "combo", "message": "-- MARK --"}),
        (
            "Nov 20 10:05:03 dropbear[1252]: Password auth: ok",
            {"program": "dropbear", "pid": "1252", "message": "Password auth: ok"},
        ),
        ("Nov 20 10:05:03 2001:db8::7 kernel:up", {"host": "2001:db8::7", "program": "kernel", "message": "up"}),
        (
            "<34>Oct 11 22:14:15 mymachine su: 'su root' failed",
            {"facility": "auth", "severity": "crit", "host": "mymachine", "program": "su", "message": "'su root' failed"},
        ),
    ],
)
def test_a_line_of_a_file_gives_its_parts_and_no_time(line: str, expected: dict[str, Any]) -> None:
    assert row(line) == expected


def test_a_line_of_a_file_with_an_iso_time_gives_it() -> None:
    at = datetime(2015, 5, 17, 10, 5, 3, 123_456, tzinfo=UTC)
    columns = row("2015-05-17T12:05:03.123456+02:00 web1 sshd[7]: Accepted publickey")
    assert columns == {"time": at, "host": "web1", "program": "sshd", "pid": "7", "message": "Accepted publickey"}
    for other in ("INFO started", "INFO: started"):
        with pytest.raises(Unparsable, match="neither"):
            row(f"2015-05-17T10:05:03Z {other}")


def test_a_line_that_was_sent_gives_its_time_and_its_structured_data() -> None:
    columns = row(
        '<165>1 2003-10-11T22:14:15.003Z host.example.com evntslog 7 ID47 [ex@32473 iut="3" say="a \\"b\\" \\]"][b@1] \ufeffAn event'
    )
    assert columns.pop("time") == datetime(2003, 10, 11, 22, 14, 15, 3_000, tzinfo=UTC)
    assert json.loads(columns.pop("data")) == {"ex@32473": {"iut": "3", "say": 'a "b" ]'}, "b@1": {}}
    sender = {"host": "host.example.com", "program": "evntslog", "pid": "7"}
    assert columns == {"facility": "local4", "severity": "notice", **sender, "message_id": "ID47", "message": "An event"}
    assert row("<0>1 - - - - - -") == {"facility": "kern", "severity": "emerg"}, "what a sent line does not say is null"


@pytest.mark.parametrize("line", ["", "no syslog at all", "<999>1 - - - - - -", "<34>1 yesterday host app - - - x"])
def test_anything_else_is_a_dead_letter(line: str) -> None:
    with pytest.raises(Unparsable):
        PARSER.parse(line.encode())
