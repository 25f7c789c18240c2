"""Whether what is stored is what was sent."""

from __future__ import annotations

import pytest
from logbus_broker.protocol.batch import stamp

from benchmarks.costs.codecs import differing_bytes
from benchmarks.costs.lines import batches_of, log_lines

SENT = batches_of(log_lines(100, seed=1), now_ms=1)


@pytest.fixture
def stored() -> list[bytearray]:
    """The batches as a broker stores them."""
    batches = [bytearray(batch) for batch in SENT]
    for number, batch in enumerate(batches):
        stamp(batch, number * 50, 7)
    return batches


def test_what_a_broker_stamps_is_no_difference_and_a_missing_batch_is_an_error(stored):
    assert differing_bytes(SENT, stored) == 0
    with pytest.raises(ValueError, match="shorter"):
        differing_bytes(SENT, stored[:1])


@pytest.mark.parametrize("position", [8, 11, 16, 17, 21, 61, -1])
def test_any_other_byte_is_one(position, stored):
    stored[1][position] ^= 0xFF
    assert differing_bytes(SENT, stored) == 1


def test_a_batch_of_another_length_differs_as_a_whole(stored):
    stored[0] += b"x"
    assert differing_bytes(SENT, stored) == len(SENT[0]) + 1
