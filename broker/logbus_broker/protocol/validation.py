"""Batches from a producer, and from a leader to its replica, checked before anything is stored.

A producer sends one whole, undamaged v2 batch of data records. The order of the checks is Kafka's, so the same damage gets the
same error code: shape, magic, size, checksum, counts, kind, codec, timestamps. Nothing here looks at the records themselves, with
one exception: if a client leaves `max_timestamp` unset, its records would be invisible to searches by time, so it is computed
from the records, provided that this takes only milliseconds, and the header is rewritten. Compressed records are checked for the
bytes with which every stream of their codec begins: anything else would stop every consumer that reaches it
(docs/decisions/2026-11-21-compressed-batches.md).

A replica stores its leader's bytes as they are, so it must reject anything that the leader would not have stored itself: each
batch begins at or after the end of the previous one (after it if compaction has left a gap), and leader epochs never decrease, up
to the one in which the replica sent its request.

Hot path, once per batch: 2 us, plus 0.05 us per KiB for the checksum.
"""

from __future__ import annotations

from dataclasses import dataclass

from logbus_broker import errors
from logbus_broker.protocol.batch import (
    BATCH_HEADER_BYTES,
    CODEC_MAX,
    CODEC_NAMES,
    COMPRESSION_MASK,
    CONTROL_BIT,
    CRC_START,
    DECOMPRESSED_BYTES_MAX,
    DELETE_HORIZON_BIT,
    LENGTH_END,
    MAGIC,
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    begins_like,
    crc32c,
    read_header,
)
from logbus_broker.protocol.records import check_keys, record_bytes, seal, timestamps_in

RECORD_BYTES_MIN = 7  # length, attributes, two deltas, null key, null value, no headers: one byte each
_UNUSUAL_BITS = CONTROL_BIT | TRANSACTIONAL_BIT | TIMESTAMP_TYPE_BIT | DELETE_HORIZON_BIT
# What the loop may spend on reading the records of a batch, which it does for compacted topics and if a producer left the largest
# timestamp unset: about 20 ms together. Measured: 20,000 records are walked in 10 ms (0.5 us each); 4 MiB are decompressed in
# 6 ms (snappy), 8 ms (lz4), 7 ms (zstd) and, from a megabyte of gzip, in 7 to 11 ms. By default, librdkafka sends at most 10,000
# records per batch, the Java client 16 KiB.
INSPECTED_RECORDS_MAX = 20_000
INSPECTED_BYTES_MAX = 4 << 20
# The same for all batches of a request together: about 50 ms at most, after which it is another connection's turn. More than
# clients send at once: thirty partitions with 16 KiB each, compressed to a tenth, have 50,000 records of 100 bytes. Others get
# REQUEST_TIMED_OUT: every client sends them again. After MESSAGE_TOO_LARGE only the Java client would, split.
INSPECTED_RECORDS_PER_REQUEST_MAX = 50_000
INSPECTED_BYTES_PER_REQUEST_MAX = 8 << 20
INT64_MAX = (1 << 63) - 1


@dataclass(slots=True)
class NewBatch:
    """A checked batch that has no offset yet. `view` is writable and may be part of a connection's buffer. Not frozen: creating
    a frozen one costs 0.6 us more, once per batch."""

    view: memoryview
    header: BatchHeader


class Inspection:
    """What reading the records of one request's batches has cost so far."""

    __slots__ = ("byte_count", "record_count")

    def __init__(self) -> None:
        self.record_count = 0
        self.byte_count = 0

    def read(self, header: BatchHeader, batch: memoryview) -> bytes:
        """The records of a batch, decompressed. InspectionTooLong: the request has had its share, except for its first batch."""
        records = self.record_count + header.record_count
        if self.byte_count >= INSPECTED_BYTES_PER_REQUEST_MAX or records > INSPECTED_RECORDS_PER_REQUEST_MAX:
            raise errors.InspectionTooLong("this request's batches have too many records to be checked at once: send fewer")
        self.record_count = records
        self.byte_count += INSPECTED_BYTES_MAX  # also if they cannot be decompressed: finding that out takes as long
        data = record_bytes(header, batch, INSPECTED_BYTES_MAX)
        self.byte_count += len(data) - INSPECTED_BYTES_MAX
        return data


def validate_new_batch(
    records: memoryview | None,
    *,
    message_bytes_max: int,
    now_ms: int,
    timestamp_after_ms_max: int = 3_600_000,
    timestamp_before_ms_max: int = INT64_MAX,
    stamps_at_append: bool = False,
    inspection: Inspection | None = None,
) -> NewBatch:
    """The batch in `records`; raises the RequestError that describes what is wrong with it. `inspection` is that of the whole
    request, if it has several batches."""
    if not records:
        raise errors.InvalidRecord("no records: each partition takes exactly one record batch")
    if len(records) < BATCH_HEADER_BYTES:
        raise errors.InvalidRecord(f"{len(records)} bytes are less than a record batch's header of {BATCH_HEADER_BYTES}")
    header = read_header(records)
    if header.magic != MAGIC:
        raise errors.InvalidRecord(f"message format version {header.magic}: only version {MAGIC} is supported")
    size = header.length + 12
    if size != len(records):
        raise errors.InvalidRecord(_size_fault(header, len(records)))
    if size > message_bytes_max:
        raise errors.MessageTooLarge(f"a batch of {size} bytes is larger than max.message.bytes={message_bytes_max}")
    if crc32c(records[CRC_START:]) != header.crc:
        raise errors.CorruptMessage("the batch's checksum does not match its bytes")
    _check_header(header)
    if header.attributes & COMPRESSION_MASK:
        _check_compressed(header, records)
    if stamps_at_append:  # the producer's timestamps do not matter, so they are not checked
        stamp = header._replace(attributes=header.attributes | TIMESTAMP_TYPE_BIT, max_timestamp=now_ms)
        return NewBatch(records, seal(records, stamp))
    if header.max_timestamp < header.base_timestamp:
        header = _with_max_timestamp(records, header, inspection or Inspection())
    if header.max_timestamp > now_ms + timestamp_after_ms_max or header.base_timestamp < now_ms - timestamp_before_ms_max:
        _check_timestamps(header, now_ms, timestamp_after_ms_max)
    return NewBatch(records, header)


def _size_fault(header: BatchHeader, available: int) -> str:
    if header.length < BATCH_HEADER_BYTES - 12:
        return f"a batch length of {header.length} is less than its header"
    if header.size > available:
        return f"a batch of {header.size} bytes is cut short to {available}"
    return f"{available - header.size} bytes after the batch: each partition takes exactly one record batch"


def _check_header(header: BatchHeader) -> None:
    if header.base_offset != 0:
        raise errors.InvalidRecord(f"base offset {header.base_offset}: a producer's batch begins at 0, the broker numbers it")
    if header.record_count <= 0 or header.last_offset_delta != header.record_count - 1:
        raise errors.InvalidRecord(f"{header.record_count} records with a last offset delta of {header.last_offset_delta}")
    if header.producer_id > NO_PRODUCER_ID and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise errors.InvalidRecord(
            f"producer {header.producer_id} with epoch {header.producer_epoch} and sequence {header.base_sequence}"
        )
    if header.attributes & _UNUSUAL_BITS:
        _check_kind(header)
    codec = header.attributes & COMPRESSION_MASK
    if codec > CODEC_MAX:
        raise errors.UnsupportedCompressionType(f"compression codec {codec} is unknown")
    if not codec and header.record_count * RECORD_BYTES_MIN > header.size - BATCH_HEADER_BYTES:
        raise errors.InvalidRecord(f"{header.record_count} records do not fit into {header.size - BATCH_HEADER_BYTES} bytes")


def _check_kind(header: BatchHeader) -> None:
    if header.is_control:
        raise errors.InvalidRecord("control batches are the broker's own")
    if header.is_transactional:
        raise errors.InvalidRecord("transactions are not supported")
    if header.delete_horizon_ms is not None:
        raise errors.InvalidRecord("only compaction sets the horizon of tombstones")
    raise errors.InvalidTimestamp("a producer may not mark its timestamps as the time of append")


def require_keys(batch: NewBatch, inspection: Inspection | None = None) -> None:
    """InvalidRecord if compaction could not work with a record: it has no key, so it could never be replaced, or its timestamp or
    offset is invalid. Reads the records, so only producers to compacted topics pay for it."""
    header = batch.header
    if header.record_count > INSPECTED_RECORDS_MAX:
        raise errors.InvalidRecord(f"a batch of {header.record_count} records: a compacted topic takes {INSPECTED_RECORDS_MAX}")
    try:
        check_keys((inspection or Inspection()).read(header, batch.view), header)
    except errors.CorruptMessage as error:  # which clients would retry in vain: a batch that is too large stays too large
        raise errors.InvalidRecord(
            f"a compacted topic takes batches of {INSPECTED_BYTES_MAX} bytes after decompression: {error}"
        ) from None


def _check_compressed(header: BatchHeader, batch: memoryview) -> None:
    if not begins_like(header.compression, batch[BATCH_HEADER_BYTES:]):
        raise errors.CorruptMessage(f"the records are not a {CODEC_NAMES[header.compression]} stream")
    if header.record_count * RECORD_BYTES_MIN > DECOMPRESSED_BYTES_MAX:
        raise errors.InvalidRecord(f"{header.record_count} records do not fit into {DECOMPRESSED_BYTES_MAX} decompressed bytes")


def _with_max_timestamp(batch: memoryview, header: BatchHeader, inspection: Inspection) -> BatchHeader:
    if header.record_count > INSPECTED_RECORDS_MAX:
        raise errors.InvalidTimestamp(f"a batch of {header.record_count} records without its largest timestamp")
    largest = max(timestamp for _, timestamp in timestamps_in(inspection.read(header, batch), header))
    return seal(batch, header._replace(max_timestamp=max(largest, NO_TIMESTAMP)))


def _check_timestamps(header: BatchHeader, now_ms: int, after_ms_max: int) -> None:
    if header.max_timestamp > now_ms + after_ms_max:
        raise errors.InvalidTimestamp(
            f"timestamp {header.max_timestamp} is further ahead of the broker's clock ({now_ms}) than "
            f"message.timestamp.after.max.ms={after_ms_max} allows"
        )
    if header.base_timestamp != NO_TIMESTAMP:
        raise errors.InvalidTimestamp(
            f"timestamp {header.base_timestamp} is further behind the broker's clock ({now_ms}) than "
            "message.timestamp.before.max.ms allows"
        )


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
            raise errors.ReplicationRefused(f"no batch at byte {position} of {end}, where offset {expected_offset} was to come")
        if following > end:
            break
        if base_offset < expected_offset:
            raise errors.ReplicationRefused(f"a batch at offset {base_offset} does not follow the end at {expected_offset}")
        if not last_epoch <= epoch <= current_epoch:
            raise errors.ReplicationRefused(
                f"the batch at offset {base_offset} is of leader epoch {epoch}, "
                f"which is not within {last_epoch} to {current_epoch}"
            )
        if crc32c(view[position + CRC_START : following]) != crc:
            raise errors.ReplicationRefused(f"the checksum of the batch at offset {base_offset} does not match its bytes")
        headers.append(header)
        position, expected_offset, last_epoch = following, base_offset + last_offset_delta + 1, epoch
    if not headers:
        raise errors.ReplicationRefused(f"{end} bytes hold no whole batch, where offset {expected_offset} was to come")
    return headers
