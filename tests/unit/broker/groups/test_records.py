from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logbus_broker.groups.members import StoredGroup, StoredMember
from logbus_broker.groups.records import (
    CommittedOffset,
    GroupKey,
    OffsetKey,
    decode_group,
    decode_key,
    decode_value,
    encode_group,
    encode_key,
    encode_value,
)

from tests.support.groups import STORED_PAIR

names = st.text(min_size=1, max_size=50)
int32, int64 = st.integers(0, (1 << 31) - 1), st.integers(0, (1 << 63) - 1)
members = st.builds(
    StoredMember,
    member_id=names,
    instance_id=st.none() | names,
    client_id=names,
    client_host=st.sampled_from(["127.0.0.1", "::1"]),
    rebalance_timeout_ms=int32,
    session_timeout_ms=int32,
    metadata=st.binary(),
    assignment=st.binary(),
)
groups = st.builds(
    StoredGroup,
    protocol_type=names,
    generation=int32,
    protocol_name=names,
    leader_id=st.none() | names,
    members=st.lists(members, max_size=3, unique_by=(lambda one: one.member_id, lambda one: one.instance_id)).map(tuple),
)


@given(st.builds(OffsetKey, names, names, int32) | st.builds(GroupKey, names))
def test_a_key_reads_as_it_was_written(key: OffsetKey | GroupKey) -> None:
    assert decode_key(encode_key(key)) == key


@given(groups, int64)
def test_a_group_reads_as_it_was_written(group: StoredGroup, at: int) -> None:
    assert decode_group(encode_group(group, at)) == group


def test_a_group_that_makes_no_sense_is_a_value_error() -> None:
    raw = encode_group(STORED_PAIR, 5)
    ambiguous = [
        replace(STORED_PAIR, members=(one, replace(one, **{name: "x"})))
        for one in STORED_PAIR.members[:1]
        for name in ("member_id", "instance_id")
    ]
    nameless = [encode_group(group, 5) for group in (*ambiguous, replace(STORED_PAIR, protocol_name=""))]
    for broken in (*(raw[:size] for size in range(len(raw))), b"\0\4" + raw[2:], *nameless):
        with pytest.raises(ValueError, match="a group"):
            decode_group(broken)


@given(int64, st.integers(-1, 1000), st.text(max_size=200), int64)
def test_a_value_reads_as_it_was_written(offset: int, epoch: int, metadata: str, at: int) -> None:
    value = CommittedOffset(offset, epoch, metadata, at, 1.0)
    assert decode_value(encode_value(value), 2.0) == value


def test_records_of_another_kind_are_stepped_over() -> None:
    assert decode_key(b"\0\x03\0\x05group") is None


@pytest.mark.parametrize(
    "raw", [b"", b"\0", b"\0\x01", b"\0\x01\0\x05grou", b"\0\x01\0\x01g\0\x01t\0\0", b"\0\x01\0\x01\xff\0\x01t\0\0\0\0"]
)
def test_a_key_that_makes_no_sense_is_a_value_error(raw: bytes) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        decode_key(raw)


@pytest.mark.parametrize("raw", [b"", b"\0\x03", b"\0\x01" + bytes(30), b"\0\x03" + bytes(12) + b"\x7f\xff"])
def test_a_value_that_makes_no_sense_is_a_value_error_and_never_taken_for_a_deletion(raw: bytes) -> None:
    with pytest.raises(ValueError, match="value of"):
        decode_value(raw, 0.0)


def test_the_layout_is_kafkas() -> None:
    assert encode_key(OffsetKey("g", "t", 1)) == b"\0\x01\0\x01g\0\x01t\0\0\0\x01"
    assert encode_value(CommittedOffset(5, -1, "m", 7, 0.0)) == b"\0\x03" + (5).to_bytes(
        8, "big"
    ) + b"\xff\xff\xff\xff\0\x01m" + (7).to_bytes(8, "big")
