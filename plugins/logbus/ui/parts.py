"""JSON of which the large parts are made once for all who ask, and compressed once.

A part is deflated alone and ended by a full flush: at a whole byte, and nothing behind it refers to anything before it. So parts
that are put one after the other are one deflate stream, in whatever choice and order somebody may see them (RFC 1951, RFC 1952).
The checksum runs over all of it: what is the same for many comes first in an answer, so that it is counted once. A gzip member
for each part would be simpler, but browsers read the first member alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import orjson
from fastapi import Response

LEVEL = 5  # as Airflow compresses its own answers
RAW_DEFLATE = -zlib.MAX_WBITS
GZIP_HEAD = bytes([0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 255])  # deflate; no name, no time, no system
LAST_BLOCK = b"\x03\x00"  # an empty one, and nothing comes behind it
NOT_KEPT = {"Cache-Control": "no-store"}  # what somebody may see is his alone


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of an answer, as it is and deflated. `checksum` is that of the text where nothing is before it."""

    text: bytes
    deflated: bytes
    checksum: int


def part_of(text: bytes) -> Part:
    compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, RAW_DEFLATE)
    return Part(text, compressor.compress(text) + compressor.flush(zlib.Z_FULL_FLUSH), zlib.crc32(text))


def json_part(value: Any) -> Part:
    return part_of(orjson.dumps(value))


def joined(parts: Sequence[Part]) -> Part:
    """All as one."""
    text = b"".join(part.text for part in parts)
    return Part(text, b"".join(part.deflated for part in parts), zlib.crc32(text))


COMMA = part_of(b",")


def object_begun(name: str, items: Iterable[Part]) -> Part:
    """The beginning of a JSON object: a list of that name."""
    listed = list(chain.from_iterable((COMMA, item) for item in items))[1:]
    return joined([part_of(b"{" + orjson.dumps(name) + b":["), *listed, part_of(b"]")])


def rest_of_object(fields: Mapping[str, Any]) -> Part:
    """What comes behind it: these fields, of which there is one at least."""
    return part_of(b"," + orjson.dumps(fields)[1:])


def gzip_of(first: Part, second: Part) -> bytes:
    """Both in one gzip stream."""
    checksum, size = zlib.crc32(second.text, first.checksum), len(first.text) + len(second.text)
    trailer = checksum.to_bytes(4, "little") + (size % 2**32).to_bytes(4, "little")
    return b"".join([GZIP_HEAD, first.deflated, second.deflated, LAST_BLOCK, trailer])


def answer_of(first: Part, second: Part, accepted_encodings: str) -> Response:
    """Both as an answer to who takes these encodings (the header Accept-Encoding)."""
    headers = {**NOT_KEPT, "Vary": "Accept-Encoding"}
    if "gzip" not in accepted_encodings:
        return Response(first.text + second.text, media_type="application/json", headers=headers)
    return Response(gzip_of(first, second), media_type="application/json", headers={**headers, "Content-Encoding": "gzip"})
