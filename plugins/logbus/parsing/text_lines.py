r"""Parsers of lines: access logs of Apache and nginx (the common format lacks the last two fields of the combined one, and nginx
writes JSON, too), syslog (RFC 3164, rsyslog's with an ISO time, RFC 5424), and lines whose fields the user describes: as they are
(`raw`), `regex`, `csv` and `logfmt`.

regex: {"pattern": "(?P<level>\\w+) (?P<took>\\d+)ms (?P<message>.*)", "columns": {"took": "integer"}}. The pattern must match the
whole line, without its line end. Its named groups are the columns, text unless `columns` gives another type; a group that took no
part in the match is null. Nothing limits a match's time: backtracking is up to the author.

csv (RFC 4180): {"fields": ["time", "user"], "columns": {"time": "timestamptz"}, "delimiter": ";"}. `fields` are the columns in
the order of the line, text unless `columns` gives another type. An empty field is null, and so is one that holds `null_value`. A
header line with the fields' names, capitals and punctuation aside, is filtered: counted, but not a dead letter; so is a line that
begins with `comment`. A quoted field cannot continue on the next line: a record is one line.

logfmt: `at=2015-05-17T10:00:00Z level=info msg="started up" debug`. A value with spaces is in double quotes, in which \" and \\
and \n, \t, \r are escapes; others stay as written. A word without a value is true, but a line of nothing else is prose, not
logfmt. A declared column holds the pair of its name, of several the last; without declared columns all pairs are one `data jsonb`
of strings, and of lists of strings where a name occurs more than once.

combined, the access log of Apache and nginx:

    host ident username [time] "request" status bytes "referer" "agent"

Quoted fields hold whatever a client sent, with \" and \\ escaped. A request is `METHOD path PROTOCOL`; real logs also
contain requests without a protocol (HTTP/0.9) and garbage that never was HTTP: garbage is kept whole in `path`, with
method and protocol null, because the line itself is well formed. A field that is `-` is null.

nginx as JSON: `log_format json escape=json '{"time_iso8601":"$time_iso8601","remote_addr":"$remote_addr",...}'`. nginx writes
every variable as a string, empty where it has no value, and the member names are up to the format; these columns are looked up
under nginx's own variable names and a few common ones. Anything else in a line is kept in `more jsonb`.

syslog:

    May 17 10:05:03 web1 sshd[7]: Accepted publickey for jane
    May 17 10:05:03 sshd[7]: Accepted publickey for jane
    2015-05-17T10:05:03.123456+02:00 web1 sshd[7]: Accepted publickey for jane
    <34>1 2015-05-17T10:05:03.003Z web1 su - ID47 [x@32473 class="high"] 'su root' failed

The first kind has neither year nor zone, so its `time` is null: the record's `_timestamp` is the shipper's reading of it.
Facility and severity are the names for the leading priority, which files seldom have. Structured data is a `jsonb`,
by element and name.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from logbus.errors import UserError
from logbus.parsing import Filtered, Parser, Unparsable, decode, null, shown
from logbus.parsing.batches import column_names, columns_named, declared_columns, from_text
from logbus.parsing.json_records import nested_too_deeply, parse_exact_object
from logbus.parsing.times import combined_time, instant


def raw_parser(settings: Mapping[str, Any]) -> Parser:
    return Parser(
        columns={"value": "bytea"},
        parse=lambda value: (value,),
        quick=lambda values: [pa.array(values, pa.binary())],
        of_no_value=(None,),
    )


def regex_parser(settings: Mapping[str, Any]) -> Parser:
    pattern = _compiled_pattern(settings.get("pattern"))
    columns = columns_named(pattern.groupindex, settings, "a named group of settings.pattern")
    return Parser(columns=columns, parse=lambda value: _parse_by_pattern(value, pattern, columns))


def _compiled_pattern(pattern: Any) -> re.Pattern[str]:
    if not isinstance(pattern, str):
        raise UserError('the parser "regex" needs settings.pattern: a regular expression with named groups, (?P<name>...)')
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise UserError(f"settings.pattern is not a regular expression: {error}") from None
    if not expression.groupindex:
        raise UserError("settings.pattern has no named groups, (?P<name>...): they become the columns")
    return expression


def _parse_by_pattern(value: bytes, pattern: re.Pattern[str], columns: Mapping[str, str]) -> Sequence[Any]:
    text = decode(value).rstrip("\r\n")
    match = pattern.fullmatch(text)
    if match is None:
        raise Unparsable("NoMatch", f"the pattern does not match {shown(text)}")
    groups = match.groupdict()
    return [from_text(name, kind, groups[name]) for name, kind in columns.items()]


# A field may be as long as a record: Kafka counts a batch's bytes in 32 bits. The module's own limit of 131,072 characters would
# make dead letters of valid lines; it is one for the whole process.
FIELD_CHARACTERS_MAX = 2**31 - 1
csv.field_size_limit(FIELD_CHARACTERS_MAX)


def csv_parser(settings: Mapping[str, Any]) -> Parser:
    fields, delimiter = settings.get("fields"), settings.get("delimiter") or ","
    if not isinstance(fields, list | tuple) or not fields or len({*fields}) < len(fields):
        raise UserError('the parser "csv" needs settings.fields: the names of a line\'s fields, in their order, each once')
    if not isinstance(delimiter, str) or len(delimiter) != 1:
        raise UserError(f"settings.delimiter is one character, such as ; or a tab; got {delimiter!r}")
    columns = columns_named(fields, settings, "among settings.fields")
    line = CsvLine(
        columns=columns,
        header=column_names(fields),
        delimiter=delimiter,
        comment=settings.get("comment"),
        nulls=frozenset({"", settings.get("null_value") or ""}),
    )
    return Parser(columns=columns, parse=line.parse)


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvLine:
    """How a line is read. `header`: the fields as `column_names` writes them."""

    columns: Mapping[str, str]
    header: Sequence[str]
    delimiter: str
    comment: str | None
    nulls: Collection[str]

    def parse(self, value: bytes) -> Sequence[Any]:
        text = decode(value).rstrip("\r\n")
        if self.comment and text.startswith(self.comment):
            raise Filtered
        try:
            rows = list(csv.reader([text], delimiter=self.delimiter, strict=True))
        except csv.Error as error:
            raise Unparsable("NotCsv", f"{error}: {shown(text)}") from None
        row = rows[0] if rows else []
        if len(row) != len(self.columns):
            raise Unparsable("WrongNumberOfFields", f"{len(row)} fields, not {len(self.columns)}: {shown(text)}")
        if self.is_header(row):
            raise Filtered
        fields = zip(self.columns.items(), row, strict=True)
        return [from_text(name, kind, None if field in self.nulls else field) for (name, kind), field in fields]

    def is_header(self, row: Sequence[str]) -> bool:
        first = row[0][:1]
        if first.isalnum() and first.casefold()[0] != self.header[0][0]:  # nearly every row
            return False
        return column_names(row[:1]) == self.header[:1] and column_names(row) == self.header


WHOLE_LINE = "data"
TRUE = "true"

PAIR = re.compile(r'\s*([^\s="]+)(?:=(?:"((?:[^"\\]|\\.)*)"(?=\s|$)|([^\s"]*)(?=\s|$)))?', re.DOTALL)
ESCAPED_CHARACTER = re.compile(r"\\(.)", re.DOTALL)
ESCAPED = {"\\": "\\", '"': '"', "n": "\n", "t": "\t", "r": "\r"}


def logfmt_parser(settings: Mapping[str, Any]) -> Parser:
    columns = declared_columns(settings)
    if not columns:
        return Parser(columns={WHOLE_LINE: "jsonb"}, parse=_parse_whole_line)

    def parse(value: bytes) -> Sequence[Any]:
        pairs = dict(_parse_pairs(value))
        return [from_text(name, kind, pairs.get(name)) for name, kind in columns.items()]

    return Parser(columns=columns, parse=parse)


def _parse_whole_line(value: bytes) -> Sequence[Any]:
    pairs = _parse_pairs(value)
    whole: dict[str, Any] = dict(pairs)
    if len(whole) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        whole |= {name: [text for other, text in pairs if other == name] for name, count in counts.items() if count > 1}
    return (json.dumps(whole, ensure_ascii=False),)


def _parse_pairs(value: bytes) -> list[tuple[str, str]]:
    """The names and values of a line, in their order."""
    text = decode(value).rstrip()
    pairs: list[tuple[str, str]] = []
    position = 0
    while position < len(text):
        pair = PAIR.match(text, position)
        if pair is None or (pair.end() < len(text) and not text[pair.end()].isspace()):
            raise Unparsable("NotLogfmt", f"no pair of name=value at {position}: {shown(text[position:])}")
        pairs.append((pair[1], _to_value(pair[2], pair[3])))
        position = pair.end()
    if "=" not in text:
        raise Unparsable("NotLogfmt", f"no pair of name=value: {shown(text)}")
    return pairs


def _to_value(quoted: str | None, plain: str | None) -> str:
    if quoted is not None:
        return ESCAPED_CHARACTER.sub(lambda escape: ESCAPED.get(escape[1], escape[0]), quoted) if "\\" in quoted else quoted
    return TRUE if plain is None else plain


# Access logs: the combined format of Apache and nginx (the common format lacks its last two fields), and nginx's as JSON.


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


# Lines of syslog, as daemons write them to files (RFC 3164, or rsyslog's with an ISO time) or send them (RFC 5424).


SYSLOG_COLUMNS = {
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
SYSLOG_ESCAPE = re.compile(r'\\([\\"\]])')


def syslog_parser(settings: Mapping[str, Any]) -> Parser:
    return Parser(columns=SYSLOG_COLUMNS, parse=_parse_line)


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
        name: {key: SYSLOG_ESCAPE.sub(r"\1", value) for key, value in PARAMETER.findall(parameters)}
        for name, parameters in ELEMENT.findall(written)
    }
    return json.dumps(elements, ensure_ascii=False)
