"""Whether what is stored is what was sent."""

from __future__ import annotations

import pytest

from benchmarks.costs.codecs import differing_bytes
from benchmarks.costs.lines import batches_of, log_lines
from broker.protocol.batch import stamp

SENT = batches_of(log_lines(100, seed=1), now_ms=1)


def stored() -> list[bytearray]:
    """The batches as a broker stores them."""
    found = [bytearray(one) for one in SENT]
    for number, one in enumerate(found):
        stamp(one, number * 50, 7)
    return found


def test_what_a_broker_stamps_is_no_difference():
    assert differing_bytes(SENT, stored()) == 0


@pytest.mark.parametrize("position", [8, 11, 16, 17, 21, 61, -1])
def test_any_other_byte_is_one(position):
    found = stored()
    found[1][position] ^= 0xFF
    assert differing_bytes(SENT, found) == 1


def test_a_batch_of_another_length_differs_as_a_whole():
    found = stored()
    found[0] += b"x"
    assert differing_bytes(SENT, found) == len(SENT[0]) + 1


def test_a_batch_too_few_is_an_error():
    with pytest.raises(ValueError, match="shorter"):
        differing_bytes(SENT, stored()[:1])
