r"""The combined access-log format of Apache and nginx; the common format is the same without the last two fields.

    host ident username [time] "request" status bytes "referer" "agent"

Quoted fields hold whatever a client sent, with \" and \\ escaped. A request is `METHOD path PROTOCOL`; real logs also
contain requests without a protocol (HTTP/0.9) and garbage that never was HTTP: garbage is kept whole in `path`, with
method and protocol null, because the line itself is well formed. A field that is `-` is null.

Where a request was forwarded, `host` may be a list of addresses, `192.0.2.16, 198.51.100.22`; the first is the client's.

Some logs have other fields before all of these, as Apache's vhost_combined has the virtual host and its port. The columns have no
place for them, so such a line is not read as one whose fields are shifted: it is a dead letter that names `regex`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from logbus.parsing.base import Parser, Unparsable, decode, null, shown
from logbus.parsing.times import combined_time

COLUMNS = {
    "host": "text",
    "ident": "text",
    "username": "text",
    "time": "timestamptz",
    "method": "text",
    "path": "text",
    "protocol": "text",
    "status": "integer",
    "bytes": "bigint",
    "referer": "text",
    "agent": "text",
}

QUOTED = r'"((?:[^"\\]|\\.)*)"'
LINE = re.compile(
    r"((?>[^\s,]+(?:, ?[^\s,]+)*)) (\S+) (.+?) "
    r"\[(\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})\] "
    rf"{QUOTED} (\d{{3}}|-) (\d{{1,18}}|-)(?: {QUOTED} {QUOTED})?\s*",
    re.DOTALL,
)
REQUEST = re.compile(r"([A-Z][A-Z_-]*) (.*?)(?: (HTTP/\d(?:\.\d)?))?", re.DOTALL)
# A virtual host and its port where the client is expected; then the client is taken for the ident, and a user name is two words.
# So it is with any other word there, but only a user name that begins with the `-` of no ident shows it.
VIRTUAL_HOST = re.compile(r"(?:[^\s:]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}")
ESCAPE = re.compile(r'\\(["\\])')


def combined_parser(settings: Mapping[str, Any]) -> Parser:
    return Parser(columns=COLUMNS, parse=parse_line)


def parse_line(value: bytes) -> Sequence[Any]:
    """The columns of one line, or `Unparsable`."""
    text = decode(value)
    match = LINE.fullmatch(text)
    if match is None:
        form = 'host ident user [time] "request" status bytes, or with "referer" "agent" as well'
        raise Unparsable(
            "NotCombinedLogLine", f"not {form}: where there are more fields, `logbus try` has a pattern: {shown(text)}"
        )
    host, ident, username, written, request, status, size, referer, agent = match.groups()
    if " " in username and ident != "-" and (username.startswith("- ") or VIRTUAL_HOST.fullmatch(host)):
        raise Unparsable(
            "FieldsBeforeClient",
            f"another field precedes the client: the parser regex reads this, `logbus try` shows its pattern: {shown(text)}",
        )
    return (
        host,
        null(ident),
        null(username),
        to_instant(written, text),
        *split_request(request),
        None if status == "-" else int(status),
        None if size == "-" else int(size),
        unescaped(referer),
        unescaped(agent),
    )


def unescaped(field: str | None) -> str | None:
    """A quoted field as the client sent it. Escapes other than those of quote and backslash (\\xNN) stand for bytes, not
    characters: they stay as written."""
    return null(field) if field is None or "\\" not in field else ESCAPE.sub(r"\1", field)


def split_request(request: str) -> tuple[str | None, str | None, str | None]:
    """Method, path and protocol; text that is not an HTTP request is all path."""
    match = REQUEST.fullmatch(request)
    if match is None:
        return None, unescaped(request), None
    method, path, protocol = match.groups()
    return method, unescaped(path), protocol


def to_instant(written: str, text: str) -> datetime:
    at = combined_time(written.encode())
    if at is None:
        raise Unparsable("NoSuchTime", f"there is no time {written} in {shown(text)}")
    return at
