"""Zigzag varints of 32 and 64 bits: the encoding of a record's lengths and of its deltas to the batch's header."""

from __future__ import annotations

from broker.errors import InvalidRecord
from broker.records.batch import Buffer

_BITS_MAX = 63  # ten groups of seven bits hold a 64-bit number


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """The number at `position` and the position after it."""
    result = shift = 0
    while shift <= _BITS_MAX:
        try:
            byte = buffer[position]
        except IndexError:
            raise InvalidRecord("a record ends inside a number") from None
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), position
        shift += 7
    raise InvalidRecord("a record holds a number longer than 64 bits")


def write_varint(buffer: bytearray, value: int) -> None:
    """Append `value`."""
    encoded = (value << 1) ^ (value >> 63)
    while encoded > 0x7F:
        buffer.append((encoded & 0x7F) | 0x80)
        encoded >>= 7
    buffer.append(encoded)
