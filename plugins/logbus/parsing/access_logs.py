r"""Access logs: the combined format of Apache and nginx (the common format lacks its last two fields), and nginx's as JSON.

    host ident username [time] "request" status bytes "referer" "agent"

Quoted fields hold whatever a client sent, with \" and \\ escaped. A request is `METHOD path PROTOCOL`; real logs also
contain requests without a protocol (HTTP/0.9) and garbage that never was HTTP: garbage is kept whole in `path`, with
method and protocol null, because the line itself is well formed. A field that is `-` is null.

nginx as JSON: `log_format json escape=json '{"time_iso8601":"$time_iso8601","remote_addr":"$remote_addr",...}'`. nginx writes
every variable as a string, empty where it has no value, and the member names are up to the format; these columns are looked up
under nginx's own variable names and a few common ones. Anything else in a line is kept in `more jsonb`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from logbus.parsing import Parser, Unparsable, decode, null, shown
from logbus.parsing.columns import from_text
from logbus.parsing.json_records import nested_too_deeply, parse_exact_object
from logbus.parsing.times import combined_time

COMBINED_COLUMNS = {
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
# Where a request was forwarded, the host may be a list of addresses, `192.0.2.16, 198.51.100.22`; the first is the client's.
COMBINED_LINE = re.compile(
    r"((?>[^\s,]+(?:, ?[^\s,]+)*)) (\S+) (.+?) "
    r"\[(\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})\] "
    rf"{QUOTED} (\d{{3}}|-) (\d{{1,18}}|-)(?: {QUOTED} {QUOTED})?\s*",
    re.DOTALL,
)
REQUEST_LINE = re.compile(r"([A-Z][A-Z_-]*) (.*?)(?: (HTTP/\d(?:\.\d)?))?", re.DOTALL)
# A virtual host and its port where the client is expected; then the client is taken for the ident, and a user name is two words.
# So it is with any other word there, but only a user name that begins with the `-` of no ident shows it.
VIRTUAL_HOST = re.compile(r"(?:[^\s:]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}")
ESCAPE = re.compile(r'\\(["\\])')


def combined_parser(settings: Mapping[str, Any]) -> Parser:
    return Parser(columns=COMBINED_COLUMNS, parse=_parse_combined)


def _parse_combined(value: bytes) -> Sequence[Any]:
    """The columns of one line, or `Unparsable`."""
    text = decode(value)
    match = COMBINED_LINE.fullmatch(text)
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
    at = combined_time(written.encode())
    if at is None:
        raise Unparsable("NoSuchTime", f"{written} is not a valid time: {shown(text)}")
    return (
        host,
        null(ident),
        null(username),
        at,
        *_split_request(request),
        None if status == "-" else int(status),
        None if size == "-" else int(size),
        _unescaped(referer),
        _unescaped(agent),
    )


def _unescaped(field: str | None) -> str | None:
    """A quoted field as the client sent it. Escapes other than those of quote and backslash (\\xNN) stand for bytes, not
    characters: they stay as written."""
    return null(field) if field is None or "\\" not in field else ESCAPE.sub(r"\1", field)


def _split_request(request: str) -> tuple[str | None, str | None, str | None]:
    """Method, path and protocol; text that is not an HTTP request is all path."""
    match = REQUEST_LINE.fullmatch(request)
    if match is None:
        return None, _unescaped(request), None
    method, path, protocol = match.groups()
    return method, _unescaped(path), protocol


# Column: its type, and the member names under which it is looked up, in order.
NGINX_FIELDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "time": ("timestamptz", ("time_iso8601", "msec", "time_local", "time", "timestamp", "@timestamp")),
    "host": ("text", ("remote_addr", "client", "client_ip", "http_x_real_ip")),
    "username": ("text", ("remote_user",)),
    "method": ("text", ("request_method", "method")),
    "path": ("text", ("request_uri", "uri", "path")),
    "protocol": ("text", ("server_protocol", "protocol")),
    "status": ("integer", ("status",)),
    "bytes": ("bigint", ("body_bytes_sent", "bytes_sent", "bytes")),
    "request_time": ("double precision", ("request_time",)),
    "upstream_time": ("text", ("upstream_response_time",)),  # for several upstreams, a comma-separated list
    "referer": ("text", ("http_referer", "referer", "referrer")),
    "agent": ("text", ("http_user_agent", "agent", "user_agent")),
}
OTHER_MEMBERS = "more"


def nginx_json_parser(settings: Mapping[str, Any]) -> Parser:
    return Parser(
        columns={**{name: kind for name, (kind, _) in NGINX_FIELDS.items()}, OTHER_MEMBERS: "jsonb"}, parse=_parse_nginx_json
    )


def _parse_nginx_json(value: bytes) -> Sequence[Any]:
    """The columns of one line, or `Unparsable`."""
    members = parse_exact_object(value)
    taken: set[str] = set()
    row = {name: _first_value(members, name, kind, names, taken) for name, (kind, names) in NGINX_FIELDS.items()}
    if isinstance(request := members.get("request"), str):  # method, path and protocol in one
        taken.add("request")
        method, path, protocol = _split_request(request)
        row |= {"method": row["method"] or method, "path": row["path"] or path, "protocol": row["protocol"] or protocol}
    others = {name: value for name, value in members.items() if name not in taken}
    try:
        return *row.values(), json.dumps(others, ensure_ascii=False) if others else None
    except RecursionError:
        raise nested_too_deeply() from None


def _first_value(members: Mapping[str, Any], name: str, kind: str, variables: Sequence[str], taken: set[str]) -> Any:
    """The value of the first variable that is not empty; adds the variables it has looked at to `taken`."""
    for variable in variables:
        value = members.get(variable)
        if value is None or isinstance(value, dict | list | bool):
            continue
        text = str(value)
        taken.add(variable)
        if text not in ("", "-"):
            return from_text(name, kind, text)
    return None
