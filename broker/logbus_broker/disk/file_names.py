"""The names of partitions' directories and files: formatted here, and recognised here among other files.

A name is the broker's own only if formatting its parsed parts gives the same name again. `a-00`, `7.log` and digits of other
scripts are somebody else's: what has such a name is neither read nor renamed nor removed.
"""

from __future__ import annotations

import re

from logbus_broker.config.parsers import INT32_MAX, INT64_MAX

PARTITION_METADATA = "partition.metadata"
TEMPORARY = ".tmp"  # a file that is about to replace the one without it
_NAME_BYTES_MAX = 255
DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"

_PARTITION = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>[0-9]{1,10})")
_RETIRED = re.compile(rf"(?P<name>.+)\.(?P<id>[0-9a-f]{{32}})(?P<suffix>{DELETE_SUFFIX}|{STRAY_SUFFIX})")
_OF_OFFSET = re.compile(r"(?P<offset>[0-9]{20})(?P<suffix>[.-].+)")


def partition_name(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def parse_partition(name: str) -> tuple[str, int] | None:
    """Topic and partition of a directory with this name; None if it is no partition's."""
    match = _PARTITION.fullmatch(name)
    if match is None:
        return None
    topic, partition = match["topic"], int(match["partition"])
    return (topic, partition) if partition <= INT32_MAX and partition_name(topic, partition) == name else None


def retired_name(name: str, unique: str, suffix: str) -> str:
    """What a partition's directory is renamed to when it is deleted (DELETE_SUFFIX) or set aside (STRAY_SUFFIX); `unique` has 32
    hexadecimal digits."""
    # The topic's name is shortened if the whole is too long for a file name: the unique part tells it from others, the name is
    # only for people.
    suffix = f".{unique}{suffix}"
    return name[: _NAME_BYTES_MAX - len(suffix)] + suffix


def is_retired(name: str, suffixes: tuple[str, ...] = (DELETE_SUFFIX, STRAY_SUFFIX)) -> bool:
    """Whether `retired_name` formats such a name."""
    match = _RETIRED.fullmatch(name)
    if match is None or match["suffix"] not in suffixes:
        return False
    return parse_partition(match["name"]) is not None or len(name) == _NAME_BYTES_MAX


def offset_name(offset: int, suffix: str) -> str:
    """A file in a partition's directory that is named after an offset; the suffix begins with a dot or a hyphen."""
    return f"{offset:020d}{suffix}"


def parse_offset_name(name: str) -> tuple[int, str] | None:
    """Offset and suffix of such a file; None if it is another."""
    match = _OF_OFFSET.fullmatch(name)
    if match is None or int(match["offset"]) > INT64_MAX:
        return None
    return int(match["offset"]), match["suffix"]


def offsets_in(names: list[str], suffix: str) -> list[int]:
    """The offsets, ascending, after which files with this suffix are named."""
    parsed = map(parse_offset_name, names)
    return sorted(file[0] for file in parsed if file is not None and file[1] == suffix)
