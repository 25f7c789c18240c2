"""Requests damaged by accident or on purpose: whole ones, and seeded mutations of them.

A case is a function of its seed and number only, so those two reproduce a failure.
"""

from __future__ import annotations

import random
import struct
from functools import cache

from logbus_broker.protocol.api import APIS, ApiKey
from logbus_broker.protocol.batch import read_header, write_header
from logbus_broker.protocol.codec import request_class
from logbus_broker.protocol.records import seal

from tests.support.batches import plain_batch, produced
from tests.support.frames import captured_pairs
from tests.support.wire import Wanted, fetch_body, produce_body

LYING_NUMBERS = (0, 1, -1, -2, 0x7F, 0x80, 0x7FFF, -0x8000, 0x7FFFFFFF, -0x80000000, 1_000_000_000)


def frame(api_key: int, version: int, body: bytes) -> bytes:
    """A request without its length; flexible headers have an empty tag section."""
    tags = b"\0" if version >= APIS[api_key].flexible_from else b""
    return struct.pack(">hhih4s", api_key, version, 7, 4, b"fuzz") + tags + body


@cache
def whole_frames() -> tuple[bytes, ...]:
    """Requests of every offered API: captured from current clients where available, and made by us."""
    found = [pair.request for pair in captured_pairs() if pair.api_key in APIS and pair.version in APIS[pair.api_key]]
    found += [frame(ApiKey.PRODUCE, 9, bytes(produce_body({("fuzzed", 0): plain_batch(3)}, acks=acks))) for acks in (0, 1, -1)]
    found += [frame(ApiKey.FETCH, 12, bytes(fetch_body(Wanted(topic="fuzzed"), Wanted(topic="x"), wait_ms=100)))]
    found += [frame(key, version, body) for key, version in _offered() if (body := _empty_body(key, version)) is not None]
    assert {struct.unpack_from(">h", one)[0] for one in found} == set(APIS)
    return tuple(found)


def _offered() -> list[tuple[int, int]]:
    return [(key, version) for key, api in APIS.items() for version in range(api.first, api.last + 1)]


def _empty_body(key: int, version: int) -> bytes | None:
    """The request with its default values; None if those cannot be encoded."""
    message = request_class(key)()
    try:
        return bytes(message.encode(version=version))
    except Exception:
        return None


def mutated_frame(seed: int, number: int) -> bytes:
    """Case `number` of `seed`, preceded by its length, which may lie too."""
    chance = random.Random(f"{seed}:{number}")
    content = bytearray(_with_a_lying_batch(chance) if chance.random() < 0.15 else chance.choice(whole_frames()))
    spoil(content, chance)
    length = chance.choice(LYING_NUMBERS) if chance.random() < 0.02 else len(content)
    return struct.pack(">i", length) + content


def spoil(content: bytearray, chance: random.Random) -> None:
    """Damage it in up to eight places, or not at all."""
    for _ in range(chance.choice((0, 1, 1, 1, 2, 3, 8))):
        chance.choice(_SPOILERS)(content, chance)


def _with_a_lying_batch(chance: random.Random) -> bytes:
    """A Produce request whose batch has wrong fields under a correct checksum, and so passes the first line of defence."""
    batch = bytearray(
        chance.choice((plain_batch(3), produced(chance.randrange(5), 0, 2), plain_batch(2, codec=chance.randrange(1, 5))))
    )
    header = read_header(batch)
    field = chance.choice(
        ("attributes", "last_offset_delta", "base_timestamp", "max_timestamp", "record_count", "base_sequence", "producer_epoch")
    )
    value = chance.choice(LYING_NUMBERS) if field not in ("attributes", "producer_epoch") else chance.randrange(-0x8000, 0x8000)
    write_header(batch, header._replace(**{field: value}))
    for _ in range(chance.randrange(3)):
        batch[chance.randrange(61, len(batch))] = chance.randrange(256)
    seal(batch, read_header(batch))
    return frame(ApiKey.PRODUCE, 9, bytes(produce_body({("fuzzed", 0): bytes(batch)}, acks=chance.choice((0, 1, -1)))))


def _flip(content: bytearray, chance: random.Random) -> None:
    if content:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)


def _overwrite(content: bytearray, chance: random.Random) -> None:
    form = chance.choice((">b", ">h", ">i", ">q"))
    size = struct.calcsize(form)
    if len(content) >= size:
        limit = 1 << (8 * size - 1)
        value = max(-limit, min(limit - 1, chance.choice(LYING_NUMBERS)))
        struct.pack_into(form, content, chance.randrange(len(content) - size + 1), value)


def _cut(content: bytearray, chance: random.Random) -> None:
    del content[chance.randrange(len(content) + 1) :]


def _drop(content: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(content) + 1)
    del content[start : start + chance.randrange(1, 9)]


def _insert(content: bytearray, chance: random.Random) -> None:
    position = chance.randrange(len(content) + 1)
    content[position:position] = chance.randbytes(chance.randrange(1, 9))


def _repeat(content: bytearray, chance: random.Random) -> None:
    start = chance.randrange(len(content) + 1)
    piece = content[start : start + chance.randrange(1, 40)]
    content[start:start] = piece * chance.randrange(1, 20)


def _splice(content: bytearray, chance: random.Random) -> None:
    other = chance.choice(whole_frames())
    content[chance.randrange(len(content) + 1) :] = other[chance.randrange(len(other)) :]


def _long_number(content: bytearray, chance: random.Random) -> None:
    position = chance.randrange(len(content) + 1)
    content[position : position + 1] = chance.choice(
        (b"\xff\xff\xff\xff\x7f", b"\xff\xff\xff\xff\x0f", b"\x80" * 12, b"\x80\x80\x04")
    )


_SPOILERS = (_flip, _flip, _overwrite, _overwrite, _cut, _drop, _insert, _repeat, _splice, _long_number)
