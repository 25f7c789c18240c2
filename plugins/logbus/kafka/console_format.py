r"""Records from text and as text: kcat's -P input, its format strings, its JSON envelope, and columns for people.

%s value   %S its length (-1: null)   %R the length as 4 bytes   %k key   %K its length   %o offset   %p partition   %t topic
%T timestamp in ms   %h headers, name=value,...   %% a percent sign   \n \r \t \0 \x1f the bytes they stand for
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, BinaryIO

from logbus import errors, fingerprint, formatting

READ_BYTES = 1 << 20
# Far above any broker's default limit; a file without the delimiter must not fill the memory before it is rejected.
RECORD_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFormat:
    """How text is split into records, and what else each record gets."""

    delimiter: bytes = b"\n"
    key_delimiter: bytes | None = None
    key: bytes | None = None
    partition: int | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    empty_is_null: bool = False

    def record(self, text: bytes) -> Mapping[str, Any]:
        """A record for logbus.kafka.producing. Text without the key delimiter is all value, with `key` as its key."""
        key, value = self.key, text
        if self.key_delimiter is not None:
            before, delimiter, behind = text.partition(self.key_delimiter)
            key, value = (before, behind) if delimiter else (self.key, text)
        own = {"key": self.none_for_empty(key), "value": self.none_for_empty(value)}
        return {**own, "headers": self.headers, "partition": self.partition}

    def none_for_empty(self, value: bytes | None) -> bytes | None:
        return None if self.empty_is_null and not value else value


def pieces(file: BinaryIO, delimiter: bytes, bytes_max: int = RECORD_BYTES_MAX) -> Iterator[bytes]:
    """The text between delimiters; a last piece without a delimiter counts, an empty one after the last delimiter does not."""
    if delimiter == b"\n":
        for line in iter(lambda: file.readline(bytes_max + 1), b""):
            yield _checked(line.removesuffix(b"\n"), bytes_max)
        return
    rest = b""
    while chunk := _read_some(file):
        *whole, rest = (rest + chunk).split(delimiter)
        for piece in whole:
            yield _checked(piece, bytes_max)
        _checked(rest, bytes_max)
    if rest:
        yield rest


def _read_some(file: BinaryIO) -> bytes:
    """What is available now, at least one byte except at end of file."""
    read = getattr(file, "read1", file.read)
    data: bytes = read(READ_BYTES)
    return data


def _checked(piece: bytes, bytes_max: int) -> bytes:
    if len(piece) > bytes_max:
        raise errors.UserError(f"a record of more than {bytes_max} bytes: is the delimiter (-D) right?")
    return piece


def records(files: Iterable[BinaryIO], form: LineFormat) -> Iterator[Mapping[str, Any]]:
    """The records of all files, in order."""
    for file in files:
        for piece in pieces(file, form.delimiter):
            yield form.record(piece)


def unescaped(text: str) -> bytes:
    r"""A delimiter as typed on a command line: `\n`, `\t`, `\r`, `\0` and `\x1f` are the bytes they stand for."""
    try:
        return text.encode().decode("unicode_escape").encode("latin-1")
    except (UnicodeDecodeError, UnicodeEncodeError):
        return text.encode()


Render = Callable[[Any], bytes]  # of a confluent_kafka.Message

TOKEN = re.compile(r"%(.)", re.DOTALL)
CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")  # all but tab and line feed
C1_BEGINS = b"\xc2"  # in UTF-8; of other characters that are common only a few begin so
CONTROL_AND_C1 = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")  # more than twice as slow
NO_TIMESTAMP = 0  # confluent_kafka.TIMESTAMP_NOT_AVAILABLE
TIMESTAMP_TYPES: Mapping[int, str] = {0: "unknown", 1: "create", 2: "logappend"}
KEY_COLUMNS = 20


def _value_of(message: Any) -> bytes:
    return message.value() or b""


def length(data: bytes | None) -> bytes:
    return b"%d" % (-1 if data is None else len(data))


def _headers_text(message: Any) -> bytes:
    return b",".join(
        b"%b=%b" % (name.encode(), b"NULL" if value is None else value) for name, value in fingerprint.headers_of(message)
    )


TOKENS: Mapping[str, Render] = {
    "s": _value_of,
    "S": lambda message: length(message.value()),
    "R": lambda message: struct.pack(">i", -1 if message.value() is None else len(message.value())),
    "k": lambda message: message.key() or b"",
    "K": lambda message: length(message.key()),
    "o": lambda message: b"%d" % message.offset(),
    "p": lambda message: b"%d" % message.partition(),
    "t": lambda message: message.topic().encode(),
    "T": lambda message: b"%d" % _timestamp_ms(message),
    "h": _headers_text,
    "%": lambda message: b"%",
}


def _timestamp_ms(message: Any) -> int:
    """-1 where there is none, as kcat prints it."""
    kind, stamp = message.timestamp()
    return -1 if kind == NO_TIMESTAMP else int(stamp)


def compiled(template: str) -> Render:
    """The format as a function; a ValueError names an unknown token."""
    parts: list[Render] = []
    for number, text in enumerate(TOKEN.split(template)):
        if number % 2 == 0:
            parts += [_constant(unescaped(text))] if text else []
        elif text in TOKENS:
            parts.append(TOKENS[text])
        else:
            raise ValueError(f"%{text} is unknown: there are {', '.join('%' + name for name in TOKENS)}")
    return lambda message: b"".join([part(message) for part in parts])


def _constant(text: bytes) -> Render:
    return lambda message: text


def values(delimiter: bytes) -> Render:
    """Values only, each followed by the delimiter."""
    return lambda message: _value_of(message) + delimiter


def envelope(message: Any) -> bytes:
    """One JSON object per line, with kcat's names. Bytes that are not UTF-8 are null, and in base64 under `..._base64`."""
    kind, _ = message.timestamp()
    headers = [
        text
        for name, value in fingerprint.headers_of(message)
        for text in (name, None if value is None else value.decode(errors="backslashreplace"))
    ]
    fields = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "tstype": TIMESTAMP_TYPES.get(kind, "unknown"),
        "ts": _timestamp_ms(message),
        **({"headers": headers} if headers else {}),
        **_readable("key", message.key()),
        **_readable("payload", message.value()),
    }
    data = json.dumps(fields, ensure_ascii=False).encode()
    return (formatting.inert_json(data.decode()).encode() if C1_BEGINS in data else data) + b"\n"


def _readable(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: None, f"{name}_base64": base64.b64encode(data).decode()}


HEADLINE = f"{'PARTITION':<9}  {'OFFSET':>10}  {'TIMESTAMP':<24}  {'KEY':<{KEY_COLUMNS}}  VALUE\n".encode()


def columns(message: Any) -> bytes:
    """A human-readable line: partition, offset, time, key, value. A line end in a key or a value does not begin another."""
    stamp = _timestamp_ms(message)
    at = "-" if stamp < 0 else _instant(stamp)
    key = "-" if message.key() is None else formatting.printable(message.key().decode(errors="backslashreplace"))
    value = "(null)" if message.value() is None else formatting.printable(message.value().decode(errors="backslashreplace"))
    return f"{message.partition():<9}  {message.offset():>10}  {at:<24}  {key:<{KEY_COLUMNS}}  {value}\n".encode()


def _instant(stamp_ms: int) -> str:
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
    return pattern.sub(lambda match: b"\\x%02x" % match[0][-1], data)  # of a C1 control the last byte is its number
