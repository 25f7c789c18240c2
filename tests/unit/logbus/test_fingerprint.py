from __future__ import annotations

import struct

import xxhash
from hypothesis import given
from hypothesis import strategies as st
from logbus.fingerprint import MODULUS, as_signed, as_text, combine, record_hash, record_hashes

VECTOR = {
    "partition": 3,
    "offset": 1_234_567_890_123,
    "timestamp_ms": 1_431_857_103_000,
    "key": b"83.149.9.216",
    "value": "GET /\u00e9".encode(),
    "headers": [("server", b"web-1"), ("trace", None)],
}


def test_the_test_vector_of_every_reader() -> None:
    """Written out by hand from the encoding's description: other implementations can check against this number."""
    prefix = struct.pack("<iqq", 3, 1_234_567_890_123, 1_431_857_103_000)
    key, value = struct.pack("<i12s", 12, b"83.149.9.216"), struct.pack("<i7s", 7, b"GET /\xc3\xa9")
    headers = struct.pack("<ii6si5si5si", 2, 6, b"server", 5, b"web-1", 5, b"trace", -1)
    encoded = prefix + key + value + headers
    assert record_hash(**VECTOR) == xxhash.xxh64_intdigest(encoded)
    assert as_text(record_hash(**VECTOR)) == "f6600f4a984af215"


def test_null_is_not_empty_and_fields_do_not_run_together() -> None:
    pairs = [(None, b""), (b"", None), (b"", b""), (None, None), (b"ab", b"c"), (b"a", b"bc")]
    hashes = {record_hash(0, 0, 0, key, value) for key, value in pairs}
    hashes |= {record_hash(0, 0, 0, b"a", b"bc", [("h", content)]) for content in (None, b"")}
    assert len(hashes) == 8


def test_the_sum_does_not_care_about_order_or_grouping() -> None:
    hashes = [record_hash(0, offset, 0, None, b"x") for offset in range(50)]
    assert combine(hashes) == combine([combine(hashes[20:]), combine(reversed(hashes[:20]))])


def test_a_record_counted_twice_changes_the_sum_which_xor_would_hide() -> None:
    once, again = record_hash(0, 1, 0, None, b"x"), record_hash(0, 1, 0, None, b"x")
    assert combine([once, again, once]) != combine([once])


def test_signed_hashes_as_postgresql_keeps_them_sum_to_the_same_fingerprint() -> None:
    hashes = [record_hash(0, offset, 0, None, b"x") for offset in range(50)]
    assert combine(map(as_signed, hashes)) == combine(hashes)
    assert all(-(MODULUS // 2) <= as_signed(number) < MODULUS // 2 for number in hashes)


CONTENT = st.none() | st.binary(max_size=20)
HEADERS = st.lists(st.tuples(st.text(max_size=5), CONTENT), max_size=3)


@given(st.lists(st.tuples(st.integers(0, 2**62), st.integers(-1, 2**62), CONTENT, CONTENT, HEADERS), min_size=1, max_size=20))
def test_many_records_at_once_have_the_hashes_they_have_alone(
    records: list[tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
) -> None:
    offsets, stamps, keys, values, headers = zip(*records, strict=True)
    assert record_hashes(7, offsets, stamps, keys, values, headers) == [record_hash(7, *record) for record in records]
    assert record_hashes(7, offsets, stamps, keys, values) == [record_hash(7, *record[:4]) for record in records]
    filled = [value or b"" for value in values]
    keyless = [record_hash(7, offset, stamp, None, value) for offset, stamp, value in zip(offsets, stamps, filled, strict=True)]
    assert record_hashes(7, offsets, stamps, [None] * len(offsets), filled) == keyless
