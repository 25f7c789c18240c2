"""Frozen windows as text that can be passed to any program: which offsets of which partitions, and of which log.

    {"pipeline": ..., "topic": ..., "topic_id": ..., "isolation_level": ..., "offset_gaps": false,
     "witnesses": {"0": [14, 1431856799000, -3203]},
     "windows": [{"id": ..., "start": ..., "end": ..., "ranges": {"0": [5, 15]}}, ...],
     "startingOffsets": "{\\"topic\\": {\\"0\\": 5}}", "endingOffsets": "{\\"topic\\": {\\"0\\": 15}}"}

The last two are the Spark Kafka connector's options of these names. They are null if the windows are not adjacent: one read from
the first to the last would include records of no window. Ends are exclusive, as everywhere. Nothing in it is secret.

Offsets mean nothing in another log. So the text names the topic's id and, by partition, the last record before the windows' last
boundary (offset, timestamp in ms, hash), which vouches for all before it: whoever reads the windows compares both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from sqlalchemy import Engine

from logbus import errors, model
from logbus.kafka.topics import OffsetLog
from logbus.windows.log_changes import differences, last_witnesses, log_changed, refuse_if_recreated, refuse_if_shorter

TEXT_BYTES_MAX = 100_000  # Linux allows 128 KiB in one argument or variable


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedWindows:
    """What the receiving program gets."""

    pipeline: str
    topic: str
    isolation_level: str
    windows: tuple[model.FrozenWindow, ...]
    starting_offsets: str | None
    ending_offsets: str | None
    topic_id: str
    offset_gaps: bool
    witnesses: Mapping[int, model.Witness] = field(default_factory=dict)

    def refuse_another_log(self, log: OffsetLog) -> None:
        """`TopicRecreated` or `LogChanged` unless this is the log on which the windows were frozen."""
        refuse_if_recreated(self.topic, self.topic_id, log.topic(self.topic).topic_id)
        pipeline = model.Pipeline(
            name=self.pipeline, topic=self.topic, table="t", parse="raw", settings={"offset_gaps": self.offset_gaps}
        )
        reached = {part.partition: part.end_offset for window in self.windows for part in window.ranges}
        refuse_if_shorter(pipeline, reached, log.end_offsets(self.topic, list(reached), self.isolation_level))
        if changed := differences(pipeline, log, self.witnesses):
            raise log_changed(self.pipeline, changed.values())


def hand_over_from(
    engine: Engine, pipeline: model.Pipeline, windows: Sequence[model.FrozenWindow], log: OffsetLog
) -> dict[str, Any]:
    """The text's content. `TopicRecreated` or `LogChanged` if the log is not the one on which the windows were frozen."""
    found_id = log.topic(pipeline.topic).topic_id
    for window in windows:
        refuse_if_recreated(pipeline.topic, window.topic_id, found_id)
    content = hand_over(pipeline, windows, last_witnesses(engine, windows))
    parse_content(content).refuse_another_log(log)
    return content


def hand_over(
    pipeline: model.Pipeline, windows: Sequence[model.FrozenWindow], witnesses: Mapping[int, model.Witness] | None = None
) -> dict[str, Any]:
    """The same, of windows of one log that is known to be there."""
    starting, ending = connector_offsets(pipeline.topic, windows)
    return {
        "pipeline": pipeline.name,
        "topic": pipeline.topic,
        "topic_id": windows[-1].topic_id,
        "isolation_level": pipeline.isolation_level,
        "offset_gaps": pipeline.options.offset_gaps,
        "witnesses": {
            str(part): [witness.offset, witness.timestamp_ms, witness.hash] for part, witness in (witnesses or {}).items()
        },
        "windows": [handed(window) for window in windows],
        "startingOffsets": starting,
        "endingOffsets": ending,
    }


def as_text(content: Mapping[str, Any]) -> str:
    """The text, if it is not too long to be passed on."""
    text = json.dumps(content, separators=(",", ":"))
    if len(text) > TEXT_BYTES_MAX:
        raise errors.UserError(
            f"the ranges of {len(content['windows'])} windows are {len(text)} bytes long, and {TEXT_BYTES_MAX} can be handed "
            "over: take fewer windows in one run"
        )
    return text


def parse_text(text: str) -> HandedWindows:
    """The inverse: windows with as much as the text contains."""
    return parse_content(json.loads(text))


def parse_content(content: Mapping[str, Any]) -> HandedWindows:
    return HandedWindows(
        pipeline=content["pipeline"],
        topic=content["topic"],
        isolation_level=content["isolation_level"],
        windows=tuple(parse_window(content["pipeline"], content["topic"], window) for window in content["windows"]),
        starting_offsets=content["startingOffsets"],
        ending_offsets=content["endingOffsets"],
        topic_id=content["topic_id"],
        offset_gaps=content["offset_gaps"],
        witnesses={
            int(partition): model.Witness(offset=offset, timestamp_ms=stamp, hash=record_hash)
            for partition, (offset, stamp, record_hash) in content["witnesses"].items()
        },
    )


def handed(window: model.FrozenWindow) -> dict[str, Any]:
    return {
        "id": window.id,
        "start": model.instant_text(window.interval.start),
        "end": model.instant_text(window.interval.end),
        "ranges": {str(part.partition): [part.readable_from, part.end_offset] for part in window.ranges},
    }


def parse_window(pipeline: str, topic: str, content: Mapping[str, Any]) -> model.FrozenWindow:
    ranges = (
        model.OffsetRange(topic=topic, partition=int(partition), start_offset=start, end_offset=end)
        for partition, (start, end) in content["ranges"].items()
    )
    return model.FrozenWindow(
        id=content["id"],
        pipeline=pipeline,
        topic=topic,
        interval=model.Interval(model.parse_instant(content["start"]), model.parse_instant(content["end"])),
        topic_id="",
        ranges=tuple(ranges),
        state=model.WindowState.FROZEN,
    )


def connector_offsets(topic: str, windows: Sequence[model.FrozenWindow]) -> tuple[str | None, str | None]:
    """`startingOffsets` and `endingOffsets` over all the windows, or neither if they are not adjacent."""
    if any(before.interval.end != after.interval.start for before, after in pairwise(windows)):
        return None, None
    parts = [part for window in windows for part in window.ranges]
    starting = first_by_partition((part.partition, part.readable_from) for part in parts)
    ending = first_by_partition((part.partition, part.end_offset) for part in reversed(parts))
    return json.dumps({topic: starting}), json.dumps({topic: ending})


def first_by_partition(offsets: Iterable[tuple[int, int]]) -> dict[str, int]:
    first: dict[str, int] = {}
    for partition, offset in offsets:
        first.setdefault(str(partition), offset)
    return dict(sorted(first.items(), key=lambda item: int(item[0])))
