"""Lines of syslog, as daemons write them to files (RFC 3164, or rsyslog's with an ISO time) or send them (RFC 5424).

    May 17 10:05:03 web1 sshd[7]: Accepted publickey for jane
    May 17 10:05:03 sshd[7]: Accepted publickey for jane
    2015-05-17T10:05:03.123456+02:00 web1 sshd[7]: Accepted publickey for jane
    <34>1 2015-05-17T10:05:03.003Z web1 su - ID47 [x@32473 class="high"] 'su root' failed

The first kind has neither year nor zone, so its `time` is null: the record's `_timestamp` is the shipper's reading of it.
Facility and severity are the names for the leading priority, which files seldom have. Structured data is a `jsonb`,
by element and name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from logbus.parsing import Parser, Unparsable, decode, null, shown
from logbus.parsing.times import instant

COLUMNS = {
    "facility": "text",
    "severity": "text",
    "time": "timestamptz",
    "host": "text",
    "program": "text",
    "pid": "text",
    "message_id": "text",
    "data": "jsonb",
    "message": "text",
}
FACILITIES = (
    *("kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp", "ntp", "audit"),
    *("alert", "clock", *(f"local{number}" for number in range(8))),
)
SEVERITIES = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")

FILE_LINE = re.compile(
    r"(?:<(\d{1,3})>)?(?:[A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d(?:\.\d+)?|(\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d))) "
    # Some devices write no host: a word that ends in a colon is the program.
    r"(?:(\S*[^\s:]) )?(?:([^\s:\[]+)(?:\[([^\]]*)\])?: ?)?(.*)",
    re.DOTALL,
)
SENT_LINE = re.compile(r"<(\d{1,3})>1 (\S+) (\S+) (\S+) (\S+) (\S+) (-|(?:\[(?:[^\]\\]|\\.)*\])+)(?: (.*))?", re.DOTALL)
ELEMENT = re.compile(r"\[([^ \]]+)((?:[^\]\\]|\\.)*)\]")
PARAMETER = re.compile(r'([^ =]+)="((?:[^"\\]|\\.)*)"')
ESCAPE = re.compile(r'\\([\\"\]])')


def syslog_parser(settings: Mapping[str, Any]) -> Parser:
    return Parser(columns=COLUMNS, parse=_parse_line)


def _parse_line(value: bytes) -> Sequence[Any]:
    """The columns of one line, or `Unparsable`."""
    text = decode(value).rstrip("\r\n")
    sent = SENT_LINE.fullmatch(text) if text[:1] == "<" else None
    if sent is not None:
        priority, time, host, program, pid, message_id, data, message = sent.groups()
        return (
            *_names_of(priority, text),
            _to_instant(time, text),
            *map(null, (host, program, pid, message_id)),
            _to_data(data),
            message.removeprefix("\ufeff") if message is not None else None,
        )
    line = FILE_LINE.fullmatch(text)
    priority, time, host, program, pid, message = line.groups() if line else (None,) * 6
    # Lines of many other formats begin with an ISO time and two words: with an ISO time host and program are required.
    if line is None or (time is not None and None in (host, program)):
        raise Unparsable("NotSyslog", f"neither `Mon DD HH:MM:SS host program[pid]: message` nor RFC 5424: {shown(text)}")
    written = None if time is None else _to_instant(time, text)
    return *_names_of(priority, text), written, host, program, pid, None, None, message


def _names_of(priority: str | None, text: str) -> tuple[str | None, str | None]:
    """Facility and severity."""
    if priority is None:
        return None, None
    facility, severity = divmod(int(priority), 8)
    if facility >= len(FACILITIES):
        raise Unparsable("NoSuchPriority", f"priority {priority} in {shown(text)}")
    return FACILITIES[facility], SEVERITIES[severity]


def _to_instant(written: str, text: str) -> datetime | None:
    if written == "-":
        return None
    try:
        return instant(written)
    except (TypeError, ValueError, OverflowError):
        raise Unparsable("NoSuchTime", f"{written} is not a valid time: {shown(text)}") from None


def _to_data(written: str) -> str | None:
    if written == "-":
        return None
    elements = {
        name: {key: ESCAPE.sub(r"\1", value) for key, value in PARAMETER.findall(parameters)}
        for name, parameters in ELEMENT.findall(written)
    }
    return json.dumps(elements, ensure_ascii=False)
