from __future__ import annotations

import struct

import cramjam
import pytest
from logbus_broker.errors import CorruptMessage, UnsupportedCompressionType
from logbus_broker.protocol.batch import CODEC_NAMES, compress, decompress

DATA = b"10.0.0.1 - - GET /index.html 200\n" * 3000


@pytest.mark.parametrize("codec", range(1, 5))
def test_output_up_to_the_limit_is_given_and_beyond_it_refused(codec: int) -> None:
    packed = compress(codec, DATA)
    assert decompress(codec, packed, len(DATA)) == DATA
    with pytest.raises(CorruptMessage, match=f"{CODEC_NAMES[codec]} records cannot be read within {len(DATA) - 1} bytes"):
        decompress(codec, packed, len(DATA) - 1)


@pytest.mark.parametrize("codec", range(1, 5))
@pytest.mark.parametrize("damage", ["cut", "garbage", "empty"])
def test_a_damaged_stream_is_refused(codec: int, damage: str) -> None:
    packed = compress(codec, DATA)
    damaged = {"cut": packed[: len(packed) // 2], "garbage": b"\xfe\x01" * 300, "empty": b""}[damage]
    with pytest.raises(CorruptMessage):
        decompress(codec, damaged)


def test_a_bomb_stops_at_the_limit() -> None:
    bomb = compress(1, bytes(50_000_000))
    assert len(bomb) < 60_000
    with pytest.raises(CorruptMessage):
        decompress(1, bomb, 1_000_000)


def xerial(*blocks: bytes) -> bytes:
    packed = [bytes(cramjam.snappy.compress_raw(block)) for block in blocks]
    return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">I", len(block)) + block for block in packed)


def test_the_framing_of_javas_snappy_library_is_read() -> None:
    assert decompress(2, xerial(b"first ", b"second ", DATA)) == b"first second " + DATA


@pytest.mark.parametrize("limit", [5, 6, 12])
def test_the_framing_of_javas_snappy_library_is_bounded(limit: int) -> None:
    with pytest.raises(CorruptMessage):
        decompress(2, xerial(b"first ", b"second "), limit)


@pytest.mark.parametrize("cut", [1, 5, 17])
def test_a_cut_block_of_javas_snappy_library_is_refused(cut: int) -> None:
    with pytest.raises(CorruptMessage):
        decompress(2, xerial(b"first ", b"second " * 10)[:-cut])


def test_lz4_blocks_are_independent_as_kafkas_java_clients_demand() -> None:
    assert compress(3, DATA)[4] & 0x20, "bit 5 of the frame's flags"


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_named(codec: int) -> None:
    with pytest.raises(UnsupportedCompressionType, match=f"codec {codec}"):
        decompress(codec, b"")
