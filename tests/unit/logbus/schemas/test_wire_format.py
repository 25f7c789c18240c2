from __future__ import annotations

import uuid

import pytest
from logbus.parsing import decoders
from logbus.parsing.decoders import (
    MessageIndexOutOfRange,
    NoSchemaHeader,
    TruncatedValue,
    Undecodable,
    indexes_of,
    prefix_of,
    reference_of,
    with_prefixes,
)

GUID = uuid.UUID("6d3d6ba7-8a22-4f5e-9a67-8f1f4c4f3a10")


def test_an_id_and_a_guid_are_what_precedes_the_payload() -> None:
    by_id, by_guid = bytes.fromhex("00 00000007"), b"\x01" + GUID.bytes
    assert prefix_of(by_id + b"payload") == by_id
    assert prefix_of(by_guid + b"payload") == by_guid
    assert (decoders.schema_id(by_id), decoders.schema_guid(by_id)) == (7, None)
    assert (decoders.schema_id(by_guid), decoders.schema_guid(by_guid)) == (None, str(GUID))
    assert decoders.named(by_id) == "schema id 7"
    assert str(GUID) in decoders.named(by_guid)
    assert decoders.reference_to_id(7) == by_id


@pytest.mark.parametrize(
    ("indexes", "written"),
    [((0,), "00"), ((1,), "0202"), ((0, 2), "040004"), ((1, 0), "040200"), ((64,), "028001")],
)
def test_protobufs_indexes_are_part_of_the_prefix(indexes: tuple[int, ...], written: str) -> None:
    reference = bytes.fromhex("00 00000003")
    prefix = prefix_of(reference + bytes.fromhex(written) + b"\x08\x01", has_indexes=True)
    assert prefix == reference + bytes.fromhex(written)
    assert (reference_of(prefix), indexes_of(prefix)) == (reference, indexes)


@pytest.mark.parametrize(
    ("value", "has_indexes", "kind"),
    [
        (b"", False, NoSchemaHeader),
        (b'{"id": 1}', False, NoSchemaHeader),
        (b"\0\0\0", False, TruncatedValue),
        (b"\x01" + GUID.bytes[:9], False, TruncatedValue),
        (b"\0\0\0\0\x01", True, TruncatedValue),
        (b"\0\0\0\0\x01\x04\x00", True, TruncatedValue),
        (b"\0\0\0\0\x01\xff\xff\xff\xff\xff\x01", True, MessageIndexOutOfRange),
        (b"\0\0\0\0\x01\x7e", True, MessageIndexOutOfRange),
        (b"\0\0\0\0\x01\x01", True, MessageIndexOutOfRange),  # -1 of them
    ],
)
def test_what_is_no_prefix_says_what_is_wrong(value: bytes, has_indexes: bool, kind: type[Undecodable]) -> None:
    with pytest.raises(kind):
        prefix_of(value, has_indexes=has_indexes)


def test_a_name_in_a_header_precedes_its_value_and_a_tombstone_stays_one() -> None:
    name = b"\x01" + GUID.bytes
    headers = [[("trace", b"x"), (decoders.VALUE_HEADER, name)], [], [(decoders.VALUE_HEADER, name)], [("trace", None)]]
    assert with_prefixes([b"a", b"b", None, b"d"], headers) == [name + b"a", b"b", None, b"d"]
    assert with_prefixes([b"a", None], None) == [b"a", None]
