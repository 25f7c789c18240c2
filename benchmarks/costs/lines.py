"""Records as in a real log: lines of 200 bytes that compress like those of an access log, in batches of 50 as in the paper."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from logbus_broker.protocol.batch import NONE
from logbus_broker.protocol.records import NewRecord, build_batch

from benchmarks.loads import RECORD_BYTES

BATCH_RECORDS = 50
_PATHS = ("/", "/cart", "/checkout", "/login", "/api/items/{:06d}", "/api/users/{:05d}/orders", "/static/app.{:04x}.js")
_STATUSES = (200, 200, 200, 200, 200, 301, 304, 404, 500)
_AGENTS = (
    "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/138.0",
    "curl/8.9.1",
)


def log_lines(count: int, *, seed: int) -> list[bytes]:
    """Lines of an access log, each cut or padded to RECORD_BYTES."""
    chance = random.Random(seed)
    return [_line(chance, number).encode().ljust(RECORD_BYTES)[:RECORD_BYTES] for number in range(count)]


def _line(chance: random.Random, number: int) -> str:
    address = f"10.{chance.randrange(4)}.{chance.randrange(256)}.{chance.randrange(256)}"
    path = chance.choice(_PATHS).format(chance.randrange(100_000))
    took_ms, sent_bytes = chance.randrange(900), chance.randrange(90_000)
    stamp = f"2026-11-21T{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}.{chance.randrange(1000):03d}Z"
    head = f'{address} - - [{stamp}] "GET {path} HTTP/1.1" {chance.choice(_STATUSES)} {sent_bytes} {took_ms}ms'
    return f'{head} "{chance.choice(_AGENTS)}" id={chance.getrandbits(64):016x}'


def batches_of(values: Sequence[bytes], *, now_ms: int, keys: Sequence[bytes | None] = (), codec: int = NONE) -> list[bytes]:
    """The values in order, BATCH_RECORDS to a batch, each with the key at its place."""
    records = [NewRecord(timestamp=now_ms, key=key, value=value) for key, value in zip(_keys(keys, values), values, strict=True)]
    groups = (records[first : first + BATCH_RECORDS] for first in range(0, len(records), BATCH_RECORDS))
    return [bytes(build_batch(group, codec=codec)) for group in groups]


def _keys(keys: Sequence[bytes | None], values: Sequence[bytes]) -> Iterable[bytes | None]:
    return keys or [None] * len(values)
