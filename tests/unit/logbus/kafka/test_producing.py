from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from logbus.errors import UserError
from logbus.kafka.producing import produce_arguments


@pytest.mark.parametrize(
    ("record", "value"),
    [
        ("text", b"text"),
        (b"\xff", b"\xff"),
        (None, None),
        ({"a": 1}, b'{"a": 1}'),
        ([1], b"[1]"),
        ({"value": "x"}, b"x"),
        ({"value": None}, None),
    ],
)
def test_a_value_is_bytes_text_or_json(record: Any, value: bytes | None) -> None:
    assert produce_arguments(0, record) == {"value": value, "key": None}


def test_a_record_may_say_all_that_a_record_has() -> None:
    at = datetime(2015, 5, 17, 10, tzinfo=UTC)
    record = {"value": "v", "key": "k", "headers": {"host": "web-1", "n": b"\0"}, "timestamp": at, "partition": 2}
    assert produce_arguments(0, record) == {
        "value": b"v",
        "key": b"k",
        "headers": [("host", b"web-1"), ("n", b"\0")],
        "timestamp": 1_431_856_800_000,
        "partition": 2,
    }
    assert produce_arguments(0, {"value": "v", "timestamp": 17})["timestamp"] == 17


def test_a_field_that_a_record_does_not_have_is_named() -> None:
    with pytest.raises(UserError, match="record 3 has 'topic': a record has value, key"):
        produce_arguments(3, {"value": "v", "topic": "t"})
