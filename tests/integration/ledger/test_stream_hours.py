"""Hour after hour as their DAGs do it: what has arrived is computed, the hour is loaded and audited, and the next proof finds it
equal, whatever the records are: late, without a value, unparsable, without a time, or of another hour's beginning."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from logbus.expressions import count
from logbus.streams.definition import define_live_rows, define_stream

from tests.support.in_process import without_spark  # noqa: F401
from tests.support.ledgers import World, at
from tests.support.live_worlds import LiveWorld, Record

pytestmark = pytest.mark.usefixtures("without_spark")

COLUMNS = {"at": "timestamptz", "page": "text"}
UNUSABLE = (None, b"\xff", b"[", b'{"at": "yesterday"}')


def records_of(source: random.Random, hour: int, records: int) -> list[Record]:
    """What arrives in an hour: some of it up to thirty hours late, and some of it of no use."""
    stamps = sorted(hour + source.random() for _ in range(records))
    return [(stamp, record(source, stamp)) for stamp in stamps]


def record(source: random.Random, stamp: float) -> Mapping[str, Any] | bytes | None:
    if source.random() < 0.08:
        return source.choice(UNUSABLE)
    happened = stamp - (source.uniform(0, 30) if source.random() < 0.05 else 0)
    return {"at": None if source.random() < 0.02 else at(happened).isoformat(), "page": source.choice("abc")}


@pytest.mark.parametrize("hours", [4, pytest.param(84, marks=pytest.mark.long)])
def test_each_hour_is_proven_in_the_run_after_its_audit(world: World, hours: int) -> None:
    live, source = LiveWorld(world), random.Random(hours)
    live.register("hits", COLUMNS, partitions=2)
    live.define(define_stream("by_minute", "hits", keys=["page"], measures={"hits": count()}, event_time="at"))
    live.define(define_live_rows("rows", "hits", columns=[*COLUMNS]))
    counted, parsed = Counter[tuple[Any, ...]](), Counter[int]()
    for number in range(hours + 1):
        for partition in range(2):
            records = records_of(source, number, 60)
            live.arrive("hits", records, partition)
            usable = [value for _, value in records if isinstance(value, Mapping)]
            parsed[partition] += len(usable)
            counted += Counter((value["at"][:16], value["page"]) for value in usable if value["at"] is not None)
        for name in ("by_minute", "rows"):
            live.once(name)
        if number:
            live.load("hits", number - 1)
            for name in ("by_minute", "rows"):
                proof = live.prove(name)
                assert [(hour.hour, hour.verdict) for hour in proof.hours] == [(at(number - 1), "proven")]
    minute = "to_char(window_start at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI')".replace(":", r"\:")
    assert (
        Counter({(start, page): hits for start, page, hits in world.rows(f"select {minute}, page, hits from by_minute")})
        == counted
    )
    assert dict(world.rows("select _partition, count(distinct _offset) from rows group by 1")) == parsed
    assert world.one("select count(*) from rows") == parsed.total()
    assert world.rows("select distinct stream, state, difference_count from logbus.stream_hour order by 1") == [
        ("by_minute", "proven", 0),
        ("rows", "proven", 0),
    ]
    assert world.rows("select count(*) from logbus.stream_hour group by stream") == [(hours,), (hours,)]
