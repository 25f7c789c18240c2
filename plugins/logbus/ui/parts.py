"""JSON of which the large parts are made once for all who ask, and compressed once.

A part is deflated alone and ended by a full flush: at a whole byte, and nothing behind it refers to anything before it. So parts
that are put one after the other are one deflate stream, in whatever choice and order somebody may see them (RFC 1951, RFC 1952);
only the checksum is counted for each answer, which takes a millisecond for a megabyte. A gzip member for each part would be
simpler, but browsers read the first member alone.
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
    """A piece of an answer, as it is and deflated."""

    text: bytes
    deflated: bytes


def part_of(text: bytes) -> Part:
    compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, RAW_DEFLATE)
    return Part(text, compressor.compress(text) + compressor.flush(zlib.Z_FULL_FLUSH))


def json_part(value: Any) -> Part:
    return part_of(orjson.dumps(value))


COMMA, END = part_of(b","), part_of(b"]}")


def object_with_list(fields: Mapping[str, Any], name: str, items: Sequence[Part]) -> list[Part]:
    """The JSON object of these fields (at least one), and behind them a list of that name."""
    head = part_of(orjson.dumps(fields)[:-1] + b"," + orjson.dumps(name) + b":[")
    return [head, *list(chain.from_iterable((COMMA, item) for item in items))[1:], END]


def gzip_of(parts: Iterable[Part]) -> bytes:
    """All in one gzip stream."""
    checksum, size, found = 0, 0, [GZIP_HEAD]
    for part in parts:
        checksum, size = zlib.crc32(part.text, checksum), size + len(part.text)
        found.append(part.deflated)
    return b"".join([*found, LAST_BLOCK, checksum.to_bytes(4, "little"), (size % 2**32).to_bytes(4, "little")])


def answer_of(parts: Sequence[Part], accepted_encodings: str) -> Response:
    """The parts as an answer to who takes these encodings (the header Accept-Encoding)."""
    headers = {**NOT_KEPT, "Vary": "Accept-Encoding"}
    if "gzip" not in accepted_encodings:
        return Response(b"".join(part.text for part in parts), media_type="application/json", headers=headers)
    return Response(gzip_of(parts), media_type="application/json", headers={**headers, "Content-Encoding": "gzip"})
