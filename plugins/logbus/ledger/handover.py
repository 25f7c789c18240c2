"""Frozen windows as text that can be passed to any program: which offsets of which partitions, and nothing else.

    {"pipeline": ..., "topic": ..., "isolation_level": ...,
     "windows": [{"id": ..., "start": ..., "end": ..., "ranges": {"0": [5, 15]}}, ...],
     "startingOffsets": "{\\"topic\\": {\\"0\\": 5}}", "endingOffsets": "{\\"topic\\": {\\"0\\": 15}}"}

The last two are the Spark Kafka connector's options of these names. They are null if the windows are not adjacent: one read from
the first to the last would include records of no window. Ends are exclusive, as everywhere. Nothing in it is secret.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from logbus.errors import UserError
from logbus.model import FrozenWindow, Interval, OffsetRange, Pipeline, WindowState, instant_text, parse_instant

TEXT_BYTES_MAX = 100_000  # Linux allows 128 KiB in one argument or variable


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedWindows:
    """What the receiving program gets."""

    pipeline: str
    topic: str
    isolation_level: str
    windows: tuple[FrozenWindow, ...]
    starting_offsets: str | None
    ending_offsets: str | None


def hand_over(pipeline: Pipeline, windows: Sequence[FrozenWindow]) -> dict[str, Any]:
    """The text's content."""
    starting, ending = connector_offsets(pipeline.topic, windows)
    return {
        "pipeline": pipeline.name,
        "topic": pipeline.topic,
        "isolation_level": pipeline.isolation_level,
        "windows": [handed(window) for window in windows],
        "startingOffsets": starting,
        "endingOffsets": ending,
    }


def as_text(content: Mapping[str, Any]) -> str:
    """The text, if it is not too long to be passed on."""
    text = json.dumps(content, separators=(",", ":"))
    if len(text) > TEXT_BYTES_MAX:
        raise UserError(
            f"the ranges of {len(content['windows'])} windows are {len(text)} bytes long, and {TEXT_BYTES_MAX} can be handed "
            "over: take fewer windows in one run"
        )
    return text


def parse_text(text: str) -> HandedWindows:
    """The inverse: windows with as much as the text contains."""
    content = json.loads(text)
    return HandedWindows(
        pipeline=content["pipeline"],
        topic=content["topic"],
        isolation_level=content["isolation_level"],
        windows=tuple(parse_window(content["pipeline"], content["topic"], window) for window in content["windows"]),
        starting_offsets=content["startingOffsets"],
        ending_offsets=content["endingOffsets"],
    )


def handed(window: FrozenWindow) -> dict[str, Any]:
    return {
        "id": window.id,
        "start": instant_text(window.interval.start),
        "end": instant_text(window.interval.end),
        "ranges": {str(part.partition): [part.readable_from, part.end_offset] for part in window.ranges},
    }


def parse_window(pipeline: str, topic: str, content: Mapping[str, Any]) -> FrozenWindow:
    ranges = (
        OffsetRange(topic=topic, partition=int(partition), start_offset=start, end_offset=end)
        for partition, (start, end) in content["ranges"].items()
    )
    return FrozenWindow(
        id=content["id"],
        pipeline=pipeline,
        topic=topic,
        interval=Interval(parse_instant(content["start"]), parse_instant(content["end"])),
        topic_id="",
        ranges=tuple(ranges),
        state=WindowState.FROZEN,
    )


def connector_offsets(topic: str, windows: Sequence[FrozenWindow]) -> tuple[str | None, str | None]:
    """`startingOffsets` and `endingOffsets` over all the windows, or neither if they are not adjacent."""
    if any(before.interval.end != after.interval.start for before, after in pairwise(windows)):
        return None, None
    parts = [part for window in windows for part in window.ranges]
    starting = first_by_partition((part.partition, part.readable_from) for part in parts)
    ending = first_by_partition((part.partition, part.end_offset) for part in reversed(parts))
    return json.dumps({topic: starting}), json.dumps({topic: ending})


def first_by_partition(offsets: Iterable[tuple[int, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for partition, offset in offsets:
        found.setdefault(str(partition), offset)
    return dict(sorted(found.items(), key=lambda item: int(item[0])))
