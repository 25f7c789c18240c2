"""Chains of hourly windows for tests of managed retention: hour `n` of the day, ten records an hour in each partition."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from logbus.model import FrozenWindow, Grid, Interval, OffsetRange, WindowCounts, WindowState, milliseconds
from logbus.status.retention_plan import RetentionPolicy, TopicState
from logbus.windows.pipeline_chains import Anchor, PipelineChain

DAY = datetime(2026, 11, 1, tzinfo=UTC)
RECORDS = 10
TOPIC_ID = "t-1"


def at(hour: float) -> datetime:
    return DAY + timedelta(hours=hour)


def stamps(*hours: float) -> list[int]:
    return [milliseconds(at(hour)) for hour in hours]


def hourly(hour: int, *, loaded: bool = True, audited: bool = True, partitions: int = 1, **changes: Any) -> FrozenWindow:
    """Hour `n` holds the offsets [10 n, 10 n + 10) of each partition, 100 bytes in all."""
    ranges = [
        OffsetRange(topic="t", partition=part, start_offset=RECORDS * hour, end_offset=RECORDS * (hour + 1))
        for part in range(partitions)
    ]
    fields: dict[str, Any] = {
        "id": hour,
        "pipeline": "p",
        "topic": "t",
        "interval": Interval(at(hour), at(hour + 1)),
        "topic_id": TOPIC_ID,
        "ranges": tuple(ranges),
        "state": WindowState.AUDITED if loaded and audited else WindowState.LOADED if loaded else WindowState.FROZEN,
        "loaded_attempt": 1 if loaded else None,
        "last_attempt": 1 if loaded else 0,
        "counts": WindowCounts(read=RECORDS, loaded=RECORDS, bytes=100) if loaded else None,
        "audited_at": at(hour + 2) if loaded and audited else None,
    }
    return FrozenWindow(**{**fields, **changes})


def chain(
    windows: Iterable[FrozenWindow], *, pipeline: str = "p", anchors: dict[int, Anchor] | None = None, **changes: Any
) -> PipelineChain:
    first = {part: Anchor(offset=0, at=None) for part in range(4)}
    fields: dict[str, Any] = {"grid": Grid(), "anchors": first if anchors is None else anchors}
    return PipelineChain(pipeline=pipeline, windows=tuple(windows), **{**fields, **changes})


def state(start: int = 0, end: int = 1000, *, partitions: int = 1, young: int = 0, **changes: Any) -> TopicState:
    parts = range(partitions)
    fields: dict[str, Any] = {
        "topic_id": TOPIC_ID,
        "starts": dict.fromkeys(parts, start),
        "ends": dict.fromkeys(parts, end),
        "young": dict.fromkeys(parts, young),
        "settings": {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"},
    }
    return TopicState(topic="t", **{**fields, **changes})


def policy(hours: float | None = 24, *, retain_bytes: int | None = None, **changes: Any) -> RetentionPolicy:
    retain = None if hours is None else timedelta(hours=hours)
    return RetentionPolicy(topic="t", retain=retain, retain_bytes=retain_bytes, **changes)
