"""What one small request may cost the loop: every list is counted before it is read, in every supported request.

What we rely on in the package that contains Kafka's message definitions.
"""

from __future__ import annotations

import struct
from typing import Any

import pytest
from logbus_broker.errors import ProtocolError
from logbus_broker.protocol.api import ApiKey, read_description
from logbus_broker.protocol.codec import ELEMENTS_MAX, decode_request, request_class


def encoded(message: Any, version: int) -> memoryview:
    return memoryview(bytes(message.encode(version=version)))


def metadata(names: list[str], version: int = 4) -> memoryview:
    kind = request_class(ApiKey.METADATA)
    topics = [kind.MetadataRequestTopic(name=name, topic_id=None) for name in names]
    return encoded(kind(topics=topics, allow_auto_topic_creation=False), version)


@pytest.mark.parametrize("version", [1, 4, 9, 12])
def test_more_elements_than_the_limit_are_refused_and_as_many_are_read(version: int) -> None:
    assert len(decode_request(ApiKey.METADATA, version, metadata(["t"] * ELEMENTS_MAX, version)).topics) == ELEMENTS_MAX
    with pytest.raises(ProtocolError, match=f"at most {ELEMENTS_MAX}"):
        decode_request(ApiKey.METADATA, version, metadata(["t"] * (ELEMENTS_MAX + 1), version))


def test_all_lists_of_a_request_count_together_and_the_next_request_begins_anew() -> None:
    kind = request_class(ApiKey.OFFSET_FETCH)
    half = ELEMENTS_MAX // 2
    topic = kind.OffsetFetchRequestTopic
    for _ in range(3):
        fits = [topic(name="a", partition_indexes=[1] * (half - 10)), topic(name="b", partition_indexes=[1] * half)]
        decode_request(ApiKey.OFFSET_FETCH, 5, encoded(kind(group_id="g", topics=fits), 5))
    too_many = [topic(name=name, partition_indexes=[1] * half) for name in ("a", "b", "c")]
    body = encoded(kind(group_id="g", topics=too_many), 5)
    with pytest.raises(ProtocolError, match="elements in its lists"):
        decode_request(ApiKey.OFFSET_FETCH, 5, body)


def test_a_count_that_lies_is_refused_before_anything_is_read_for_it() -> None:
    with pytest.raises(ProtocolError, match=f"{2**31 - 1} elements"):
        decode_request(ApiKey.METADATA, 4, memoryview(struct.pack(">i", 2**31 - 1) + b"\0\1a" * 100))


def test_tags_in_many_places_are_stepped_over_and_count_as_elements() -> None:
    one = bytes(16) + b"\x02t" + b"\x01\x07\x00"  # a topic with one tag, number 7, without a value
    half = ELEMENTS_MAX // 2
    for count in (50, half):
        assert len(decode_request(ApiKey.METADATA, 12, memoryview(_uvarint(count + 1) + one * count + b"\0\0\0")).topics) == count
    with pytest.raises(ProtocolError, match="elements in its lists"):
        decode_request(ApiKey.METADATA, 12, memoryview(_uvarint(half + 2) + one * (half + 1) + b"\0\0\0"))


@pytest.mark.parametrize("size", [1, 3])
def test_a_tag_of_another_length_than_its_field_is_refused(size: int) -> None:
    body = bytearray(encoded(request_class(ApiKey.FETCH)(cluster_id="c"), 12))
    assert body[-5:] == b"\x01\x00\x02\x02c"  # one tag: its number, its size, its value
    decode_request(ApiKey.FETCH, 12, memoryview(body))
    body[-3] = size
    with pytest.raises(ProtocolError, match="tag"):
        decode_request(ApiKey.FETCH, 12, memoryview(body + b"\0"))


def test_a_section_of_a_million_tags_is_refused() -> None:
    body = b"\x01\0\0" + _uvarint(1_000_000) + b"\x07\x00" * 400_000
    with pytest.raises(ProtocolError, match="elements in its lists"):
        decode_request(ApiKey.METADATA, 12, memoryview(body))


@pytest.mark.parametrize("version", [5, 6])  # the old encoding, and the flexible one, which could hold a longer string
def test_a_string_is_as_long_as_every_version_can_hold(version: int) -> None:
    kind = request_class(ApiKey.OFFSET_FETCH)
    body = encoded(kind(group_id="g" * 0x7FFF, topics=[]), version)
    assert len(decode_request(ApiKey.OFFSET_FETCH, version, body).group_id) == 0x7FFF


def test_a_longer_string_is_refused() -> None:
    body = encoded(request_class(ApiKey.OFFSET_FETCH)(group_id="g" * 0x8000, topics=[]), 6)
    with pytest.raises(ProtocolError, match="group_id has 32768 bytes"):
        decode_request(ApiKey.OFFSET_FETCH, 6, body)


@pytest.mark.parametrize("marker", [0x80, 0xFE, 0xFF])
def test_any_negative_byte_in_place_of_a_struct_is_null(marker: int) -> None:
    body = bytearray(encoded(request_class(ApiKey.DESCRIBE_TOPIC_PARTITIONS)(topics=[], cursor=None), 0))
    assert body[-2:] == b"\xff\0"  # null is written as -1; then the tags
    body[-2] = marker
    assert decode_request(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, memoryview(body)).cursor is None


def test_a_keyword_that_no_field_has_is_refused() -> None:
    with pytest.raises(TypeError, match="no_such_field"):
        request_class(ApiKey.METADATA)(no_such_field=1)


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def test_a_description_that_is_not_where_it_is_looked_for_is_named() -> None:
    assert read_description("MetadataRequest"), "this release of kafka-python has moved Kafka's descriptions"
    with pytest.raises(FileNotFoundError, match="NoSuchRequest.json in package 'kafka'"):
        read_description("NoSuchRequest")
