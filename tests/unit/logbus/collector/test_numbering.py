from __future__ import annotations

import pytest
from logbus.collector.numbering import KEYS_REMEMBERED, Numbering, murmur2, partition_of


@pytest.mark.parametrize(
    ("data", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_the_java_client(data: bytes, hashed: int) -> None:
    """The examples from Apache Kafka's own test, as signed integers."""
    assert murmur2(data) == hashed % 2**32


def test_each_partition_has_numbers_of_its_own_from_1_on() -> None:
    numbers, keys = Numbering("run", 3), [b"web-%d" % number for number in range(30)]
    found: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    for key in keys:
        partition, (name, content) = numbers.next(key)
        assert (name, partition) == ("logbus-sent", partition_of(key, 3))
        found[partition].append(content)
    for part, contents in found.items():
        assert contents == [b"run-%d:%d" % (part, number) for number in range(1, len(contents) + 1)]
    assert all(found.values())


def test_a_key_keeps_its_partition_though_it_is_forgotten() -> None:
    numbers = Numbering("run", 5)
    first = [numbers.next(key)[0] for key in (b"a", b"b", b"c")]
    for number in range(KEYS_REMEMBERED):
        numbers.next(b"%d" % number)
    assert [numbers.next(key)[0] for key in (b"a", b"b", b"c")] == first
