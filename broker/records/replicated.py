"""What a leader sent to a replica, checked before anything is stored: whole, undamaged batches that follow the replica's log.

A replica stores its leader's bytes as they are, so it must reject anything that the leader would not have stored itself: each
batch begins at or after the end of the previous one (after it if compaction has left a gap), and leader epochs never decrease, up
to the one in which the replica sent its request. An answer is cut off at a number of bytes, so its last batch may be incomplete:
that part is skipped and arrives again with the next answer.

Hot path of a follower, once per batch: one unpack and one checksum.
"""

from __future__ import annotations

from broker.errors import ReplicationRefused
from broker.records.batch import BATCH_HEADER_BYTES, CRC_START, LENGTH_END, MAGIC, NO_EPOCH, BatchHeader, read_header
from broker.records.crc import crc32c


def split_replicated(view: memoryview, expected_offset: int, current_epoch: int, last_epoch: int = NO_EPOCH) -> list[BatchHeader]:
    """The headers of the whole batches at the start of `view`, at least one. The replica's log ends at `expected_offset`, its
    last batch is from `last_epoch`, and its request was from `current_epoch`. Raises ReplicationRefused with what is wrong."""
    headers: list[BatchHeader] = []
    position, end = 0, len(view)
    while end - position >= BATCH_HEADER_BYTES:
        header = read_header(view, position)
        base_offset, length, epoch, magic, crc, _, last_offset_delta = header[:7]
        following = position + length + LENGTH_END
        if magic != MAGIC or length < BATCH_HEADER_BYTES - LENGTH_END or last_offset_delta < 0:
            raise ReplicationRefused(f"no batch at byte {position} of {end}, where offset {expected_offset} was to come")
        if following > end:
            break
        if base_offset < expected_offset:
            raise ReplicationRefused(f"a batch at offset {base_offset} does not follow the end at {expected_offset}")
        if not last_epoch <= epoch <= current_epoch:
            raise ReplicationRefused(
                f"the batch at offset {base_offset} is of leader epoch {epoch}, "
                f"which is not within {last_epoch} to {current_epoch}"
            )
        if crc32c(view[position + CRC_START : following]) != crc:
            raise ReplicationRefused(f"the checksum of the batch at offset {base_offset} does not match its bytes")
        headers.append(header)
        position, expected_offset, last_epoch = following, base_offset + last_offset_delta + 1, epoch
    if not headers:
        raise ReplicationRefused(f"{end} bytes hold no whole batch, where offset {expected_offset} was to come")
    return headers
