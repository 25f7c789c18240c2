from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.groups.offset_records import CommittedOffset, OffsetKey, decode_key, decode_value, encode_key, encode_value

names = st.text(min_size=1, max_size=50)
int64 = st.integers(0, (1 << 63) - 1)


@given(names, names, st.integers(0, (1 << 31) - 1))
def test_a_key_reads_as_it_was_written(group: str, topic: str, partition: int) -> None:
    key = OffsetKey(group, topic, partition)
    assert decode_key(encode_key(key)) == key


@given(int64, st.integers(-1, 1000), st.text(max_size=200), int64)
def test_a_value_reads_as_it_was_written(offset: int, epoch: int, metadata: str, at: int) -> None:
    value = CommittedOffset(offset, epoch, metadata, at)
    assert decode_value(encode_value(value)) == value


def test_records_of_another_kind_are_stepped_over() -> None:
    assert decode_key(b"\0\x02\0\x05group") is None


@pytest.mark.parametrize(
    "raw", [b"", b"\0", b"\0\x01", b"\0\x01\0\x05grou", b"\0\x01\0\x01g\0\x01t\0\0", b"\0\x01\0\x01\xff\0\x01t\0\0\0\0"]
)
def test_a_key_that_makes_no_sense_is_a_value_error(raw: bytes) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        decode_key(raw)


@pytest.mark.parametrize("raw", [b"", b"\0\x03", b"\0\x01" + bytes(30), b"\0\x03" + bytes(12) + b"\x7f\xff"])
def test_a_value_that_makes_no_sense_is_a_value_error_and_never_taken_for_a_deletion(raw: bytes) -> None:
    with pytest.raises(ValueError, match="value of"):
        decode_value(raw)


def test_the_layout_is_kafkas() -> None:
    assert encode_key(OffsetKey("g", "t", 1)) == b"\0\x01\0\x01g\0\x01t\0\0\0\x01"
    assert encode_value(CommittedOffset(5, -1, "m", 7)) == b"\0\x03" + (5).to_bytes(8, "big") + b"\xff\xff\xff\xff\0\x01m" + (
        7
    ).to_bytes(8, "big")
