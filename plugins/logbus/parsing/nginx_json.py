"""nginx's access log as JSON: `log_format json escape=json '{"time_iso8601":"$time_iso8601","remote_addr":"$remote_addr",...}'`.

nginx writes every variable as a string, empty where it has no value, and the member names are up to the format; these columns are
found under nginx's own variable names and a few common ones. Anything else in a line is kept in `more jsonb`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from logbus.parsing.base import Parser
from logbus.parsing.columns import from_text
from logbus.parsing.combined import split_request
from logbus.parsing.json_records import nested_too_deeply, parse_exact_object

# Column: its type, and the member names under which it is looked up, in order.
FIELDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
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
REQUEST = ("request",)  # method, path and protocol in one
MORE = "more"


def nginx_json_parser(settings: Mapping[str, Any]) -> Parser:
    return Parser(columns={**{name: kind for name, (kind, _) in FIELDS.items()}, MORE: "jsonb"}, parse=parse_line)


def parse_line(value: bytes) -> Sequence[Any]:
    """The columns of one line, or `Unparsable`."""
    found = parse_exact_object(value)
    taken: set[str] = set()
    row = {name: field(found, name, kind, names, taken) for name, (kind, names) in FIELDS.items()}
    request = next((found[name] for name in REQUEST if isinstance(found.get(name), str)), None)
    if request is not None:
        taken.update(REQUEST)
        method, path, protocol = split_request(request)
        row |= {"method": row["method"] or method, "path": row["path"] or path, "protocol": row["protocol"] or protocol}
    more = {name: one for name, one in found.items() if name not in taken}
    try:
        return *row.values(), json.dumps(more, ensure_ascii=False) if more else None
    except RecursionError:
        raise nested_too_deeply() from None


def field(found: Mapping[str, Any], name: str, kind: str, variables: Sequence[str], taken: set[str]) -> Any:
    """The value of the first variable that is not empty; adds the variables it has looked at to `taken`."""
    for variable in variables:
        said = found.get(variable)
        if said is None or isinstance(said, dict | list | bool):
            continue
        text = str(said)
        taken.add(variable)
        if text not in ("", "-"):
            return from_text(name, kind, text)
    return None
