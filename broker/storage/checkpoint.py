"""Kafka's checkpoint files: one number for each partition, in text.

0                   version
2                   entries
access 0 1500       topic, partition, offset
access 1 1487
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from broker.config.fields import INT32_MAX, INT64_MAX, between, whole_number
from broker.errors import StartupError
from broker.storage.filesystem import FileSystem

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
CLEANED_OFFSETS = "cleaner-offset-checkpoint"
VISIBLE_OFFSETS = "replication-offset-checkpoint"

TopicPartition = tuple[str, int]
Offsets = dict[TopicPartition, int]

_VERSION = "0"
# What records and answers have room for: a larger offset could be read here, and would then fail wherever it is used.
_parse_index, _parse_offset = between(0, INT32_MAX), between(0, INT64_MAX)


def read_checkpoint(filesystem: FileSystem, path: Path) -> Offsets:
    """The file's entries; none if there is no file. StartupError if it is not a checkpoint file."""
    try:
        text = filesystem.read_bytes(path).decode()
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError:
        raise StartupError(_fault(path, "it is not text")) from None
    lines = text.splitlines() if text.strip("\0") else []  # a power failure may leave zeros
    try:
        if len(lines) < 2:
            raise ValueError("it is empty" if not lines else f"it ends after {lines[0]!r}")
        version, count, *entries = lines
        if version != _VERSION or whole_number(count) != len(entries):
            raise ValueError(f"version {version} with {len(entries)} of {count} entries")
        return dict(map(_parse_entry, entries))
    except ValueError as error:
        raise StartupError(_fault(path, str(error))) from None


def write_checkpoint(filesystem: FileSystem, path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace the file atomically; it is on disk when this returns."""
    lines = [
        _VERSION,
        str(len(offsets)),
        *(f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())),
    ]
    filesystem.replace_bytes(path, "\n".join(lines).encode() + b"\n")


def _parse_entry(line: str) -> tuple[TopicPartition, int]:
    fields = line.split(" ")
    if len(fields) != 3:
        raise ValueError(f"{line[:100]!r} is no topic, partition and offset")
    topic, partition, offset = fields
    return (topic, _parse_index(partition)), _parse_offset(offset)


def _fault(path: Path, reason: str) -> str:
    return f"{path} cannot be read: {reason}. Remove it after an unclean stop: every log is then checked from its beginning"
