"""The content of a stopped broker's files, batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from logbus_broker.filesystem import FileSystem
from logbus_broker.log.segment import checksum_matches, scan_headers
from logbus_broker.protocol.records import read_records


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """`data` are its bytes as stored, the same on all replicas. `session` names the run of batch sequences to which it belongs;
    empty if its producer is not idempotent."""

    base_offset: int
    leader_epoch: int
    session: str
    data: bytes

    @property
    def values(self) -> list[str]:
        return [(record.value or b"").decode() for record in read_records(self.data)]


def stored_batches(data: Path, topic: str, partition: int) -> Sequence[StoredBatch]:
    """The batches of one partition in a broker's data directory."""
    filesystem, found = FileSystem(), []
    for path in sorted((data / f"{topic}-{partition}").glob("*.log")):
        file = filesystem.open_for_reading(path)
        for position, header in scan_headers(filesystem, file, 0, filesystem.size(file)):
            assert checksum_matches(filesystem, file, position, header), f"{path} at {position}"
            session = "" if header.base_sequence < 0 else f"{header.producer_id}-{header.producer_epoch}"
            batch = filesystem.read_at(file, header.size, position)
            found.append(StoredBatch(header.base_offset, header.leader_epoch, session, bytes(batch)))
    return found


def difference(replicas: dict[int, Sequence[StoredBatch]]) -> str:
    """Where the logs of these brokers differ; empty if they hold the same bytes."""
    (first, expected), *others = replicas.items()
    for number, batches in others:
        for one, other in zip(expected, batches, strict=False):
            if one.data != other.data:
                return f"brokers {first} and {number} differ at offset {one.base_offset}, epochs {one.leader_epoch}, {other.leader_epoch}"
        if len(expected) != len(batches):
            return f"broker {first} has {len(expected)} batches, broker {number} has {len(batches)}"
    return ""
