from __future__ import annotations

import json
from datetime import timedelta

import pytest
from logbus.errors import UserError
from logbus.model import OffsetRange, Pipeline, Witness
from logbus.windows.handover import TEXT_BYTES_MAX, as_text, hand_over, parse_text

from tests.support.airflow_context import HOUR_START
from tests.support.fake_ledger import window

PIPELINE = Pipeline(name="p", topic="t", table="p", parse="json")


def part(partition: int, start: int, end: int, lost: int = 0) -> OffsetRange:
    return OffsetRange(topic="t", partition=partition, start_offset=start, end_offset=end, lost=lost)


TEN = window(HOUR_START, ranges=(part(0, 5, 9), part(10, 0, 3)))
ELEVEN = window(HOUR_START + timedelta(hours=1), ranges=(part(0, 9, 20), part(10, 3, 3)))
NOON = window(HOUR_START + timedelta(hours=2), ranges=(part(0, 20, 21),))


def test_windows_that_touch_are_one_reading_for_the_connector() -> None:
    content = hand_over(PIPELINE, [TEN, ELEVEN])
    assert json.loads(content["startingOffsets"]) == {"t": {"0": 5, "10": 0}}
    assert json.loads(content["endingOffsets"]) == {"t": {"0": 20, "10": 3}}


def test_windows_with_others_between_them_are_not() -> None:
    content = hand_over(PIPELINE, [TEN, NOON])
    assert (content["startingOffsets"], content["endingOffsets"]) == (None, None)


def test_a_partition_that_came_later_is_read_from_where_it_came() -> None:
    later = window(HOUR_START + timedelta(hours=1), ranges=(part(0, 9, 20), part(10, 3, 4), part(11, 0, 2)))
    content = hand_over(PIPELINE, [TEN, later])
    assert json.loads(content["startingOffsets"]) == {"t": {"0": 5, "10": 0, "11": 0}}


def test_what_is_declared_lost_is_not_asked_for() -> None:
    content = hand_over(PIPELINE, [window(HOUR_START, ranges=(part(0, 5, 9, lost=2),))])
    assert content["windows"][0]["ranges"] == {"0": [7, 9]}
    assert json.loads(content["startingOffsets"]) == {"t": {"0": 7}}


def test_the_other_side_reads_what_was_handed_over() -> None:
    witnesses = {0: Witness(offset=19, timestamp_ms=-1, hash=-5)}
    handed = parse_text(as_text(hand_over(PIPELINE, [TEN, ELEVEN], witnesses)))
    assert (handed.pipeline, handed.topic, handed.topic_id, handed.isolation_level) == ("p", "t", "t", "read_committed")
    assert (handed.witnesses, handed.offset_gaps) == (witnesses, False)
    assert [(part.id, part.interval, part.ranges) for part in handed.windows] == [
        (part.id, part.interval, part.ranges) for part in (TEN, ELEVEN)
    ]


def test_more_than_a_command_line_takes_is_refused_with_advice() -> None:
    many = [window(HOUR_START + timedelta(hours=number), ranges=(part(0, 0, 10**12),)) for number in range(2_000)]
    with pytest.raises(UserError, match="fewer windows"):
        as_text(hand_over(PIPELINE, many))
    assert len(as_text(hand_over(PIPELINE, many[:200]))) < TEXT_BYTES_MAX
