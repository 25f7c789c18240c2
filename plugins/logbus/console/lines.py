"""Text to records, as `kcat -P` reads it: split by a delimiter, optionally with a leading key, from files or standard input.

Input is read as it arrives: a line typed into a terminal is sent before the next one, and a file of any size takes little
memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from logbus.errors import UserError

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
            before, found, behind = text.partition(self.key_delimiter)
            key, value = (before, behind) if found else (self.key, text)
        own = {"key": self.none_for_empty(key), "value": self.none_for_empty(value)}
        return {**own, "headers": self.headers, "partition": self.partition}

    def none_for_empty(self, value: bytes | None) -> bytes | None:
        return None if self.empty_is_null and not value else value


def pieces(file: BinaryIO, delimiter: bytes, bytes_max: int = RECORD_BYTES_MAX) -> Iterator[bytes]:
    """The text between delimiters; a last piece without a delimiter counts, an empty one after the last delimiter does not."""
    if delimiter == b"\n":
        for line in iter(lambda: file.readline(bytes_max + 1), b""):
            yield checked(line.removesuffix(b"\n"), bytes_max)
        return
    rest = b""
    while chunk := read_some(file):
        *whole, rest = (rest + chunk).split(delimiter)
        for piece in whole:
            yield checked(piece, bytes_max)
        checked(rest, bytes_max)
    if rest:
        yield rest


def read_some(file: BinaryIO) -> bytes:
    """What is available now, at least one byte except at end of file."""
    read = getattr(file, "read1", file.read)
    found: bytes = read(READ_BYTES)
    return found


def checked(piece: bytes, bytes_max: int) -> bytes:
    if len(piece) > bytes_max:
        raise UserError(f"a record of more than {bytes_max} bytes: is the delimiter (-D) right?")
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
