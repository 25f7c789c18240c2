from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from logbus.kafka.topics import OffsetAndTimestamp
from logbus.model import milliseconds

from tests.support.ledgers import World, stamps

IN_2099 = milliseconds(datetime(2099, 1, 1, tzinfo=UTC))


def test_behind_a_stamp_of_2099_each_record_is_read_once_however_many_hours_are_frozen(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.log.append("t", IN_2099, *stamps(*(10 + minute / 60 for minute in range(0, 240, 5))))
    world.register()
    read: list[int] = []
    records = world.log.records

    def counted(topic: str, partition: int, start_offset: int, end_offset: int) -> Iterator[OffsetAndTimestamp]:
        for record in records(topic, partition, start_offset, end_offset):
            read.append(record.offset)
            yield record

    monkeypatch.setattr(world.log, "records", counted)
    assert [world.offsets(number) for number in (10, 11, 12)] == [(0, 13), (13, 25), (25, 37)]
    again = {offset for offset, times in Counter(read).items() if times > 1}
    assert again == {0, 1, 13, 25}  # to find the first hour's start; each hour's end is the next one's first record
