r"""Records as text: kcat's format strings, kcat's JSON envelope, and columns for people.

    %s value   %S its length (-1: null)   %R the length as 4 bytes   %k key   %K its length   %o offset   %p partition   %t topic
    %T timestamp in ms   %h headers, name=value,...   %% a percent sign   \n \r \t \0 \x1f the bytes they stand for

Work that does not depend on the record is done once: a format is compiled into pieces, each a function of a record.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from logbus.console.lines import unescaped
from logbus.fingerprint import headers_of
from logbus.wording import inert_json, printable

Render = Callable[[Any], bytes]  # of a confluent_kafka.Message

TOKEN = re.compile(r"%(.)", re.DOTALL)
CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")  # all but tab and line feed
C1_BEGINS = b"\xc2"  # in UTF-8; of other characters that are common only a few begin so
CONTROL_AND_C1 = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")  # more than twice as slow
NO_TIMESTAMP = 0  # confluent_kafka.TIMESTAMP_NOT_AVAILABLE
TIMESTAMP_TYPES: Mapping[int, str] = {0: "unknown", 1: "create", 2: "logappend"}
KEY_COLUMNS = 20


def value_of(message: Any) -> bytes:
    return message.value() or b""


def length(data: bytes | None) -> bytes:
    return b"%d" % (-1 if data is None else len(data))


def headers_text(message: Any) -> bytes:
    return b",".join(b"%b=%b" % (name.encode(), b"NULL" if value is None else value) for name, value in headers_of(message))


TOKENS: Mapping[str, Render] = {
    "s": value_of,
    "S": lambda message: length(message.value()),
    "R": lambda message: struct.pack(">i", -1 if message.value() is None else len(message.value())),
    "k": lambda message: message.key() or b"",
    "K": lambda message: length(message.key()),
    "o": lambda message: b"%d" % message.offset(),
    "p": lambda message: b"%d" % message.partition(),
    "t": lambda message: message.topic().encode(),
    "T": lambda message: b"%d" % timestamp_ms(message),
    "h": headers_text,
    "%": lambda message: b"%",
}


def timestamp_ms(message: Any) -> int:
    """-1 where there is none, as kcat prints it."""
    kind, stamp = message.timestamp()
    return -1 if kind == NO_TIMESTAMP else int(stamp)


def compiled(template: str) -> Render:
    """The format as a function; a ValueError names an unknown token."""
    parts: list[Render] = []
    for number, text in enumerate(TOKEN.split(template)):
        if number % 2 == 0:
            parts += [constant(unescaped(text))] if text else []
        elif text in TOKENS:
            parts.append(TOKENS[text])
        else:
            raise ValueError(f"%{text} is unknown: there are {', '.join('%' + name for name in TOKENS)}")
    return lambda message: b"".join([part(message) for part in parts])


def constant(text: bytes) -> Render:
    return lambda message: text


def values(delimiter: bytes) -> Render:
    """Values only, each followed by the delimiter."""
    return lambda message: value_of(message) + delimiter


def envelope(message: Any) -> bytes:
    """One JSON object per line, with kcat's names. Bytes that are not UTF-8 are null, and in base64 under `..._base64`."""
    kind, _ = message.timestamp()
    headers = [
        text
        for name, value in headers_of(message)
        for text in (name, None if value is None else value.decode(errors="backslashreplace"))
    ]
    fields = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "tstype": TIMESTAMP_TYPES.get(kind, "unknown"),
        "ts": timestamp_ms(message),
        **({"headers": headers} if headers else {}),
        **readable("key", message.key()),
        **readable("payload", message.value()),
    }
    data = json.dumps(fields, ensure_ascii=False).encode()
    return (inert_json(data.decode()).encode() if C1_BEGINS in data else data) + b"\n"


def readable(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: None, f"{name}_base64": base64.b64encode(data).decode()}


HEADLINE = f"{'PARTITION':<9}  {'OFFSET':>10}  {'TIMESTAMP':<24}  {'KEY':<{KEY_COLUMNS}}  VALUE\n".encode()


def columns(message: Any) -> bytes:
    """A human-readable line: partition, offset, time, key, value. A line end in a key or a value does not begin another."""
    stamp = timestamp_ms(message)
    at = "-" if stamp < 0 else instant(stamp)
    key = "-" if message.key() is None else printable(message.key().decode(errors="backslashreplace"))
    value = "(null)" if message.value() is None else printable(message.value().decode(errors="backslashreplace"))
    return f"{message.partition():<9}  {message.offset():>10}  {at:<24}  {key:<{KEY_COLUMNS}}  {value}\n".encode()


def instant(stamp_ms: int) -> str:
    """To the millisecond; as a number if it is out of range for a datetime."""
    try:
        at = datetime.fromtimestamp(stamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{stamp_ms} ms"
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def harmless(render: Render) -> Render:
    """For a terminal: control characters are escaped. A record may hold anything, including what changes a terminal's title."""
    return lambda message: without_control(render(message))


def without_control(data: bytes) -> bytes:
    pattern = CONTROL_AND_C1 if C1_BEGINS in data else CONTROL
    return pattern.sub(lambda found: b"\\x%02x" % found[0][-1], data)  # of a C1 control the last byte is its number
