"""The value types of managed retention: what is kept, what is held back, what a run would delete. Frozen; no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from logbus.errors import UserError
from logbus.model import FrozenWindow, instant_text

ALARM, DELETE = "alarm", "delete"

# A weekend and a day to notice that a pipeline has stopped.
MAX_HOLD_DEFAULT = timedelta(days=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """What of a topic is kept: windows younger than `retain`, and the newest `retain_bytes` of records (keys and values)."""

    topic: str
    retain: timedelta | None = None
    retain_bytes: int | None = None
    max_hold: timedelta = MAX_HOLD_DEFAULT
    when_overdue: str = ALARM

    def __post_init__(self) -> None:
        if self.retain is None and self.retain_bytes is None:
            raise UserError(f"retention of {self.topic}: give a limit by hours, by bytes, or both")
        if (self.retain or timedelta(0)) < timedelta(0) or (self.retain_bytes or 0) < 0 or self.max_hold < timedelta(0):
            raise UserError(f"retention of {self.topic}: hours and bytes are not negative")
        if self.when_overdue not in (ALARM, DELETE):
            raise UserError(f"retention of {self.topic}: when overdue it is {ALARM!r} or {DELETE!r}, not {self.when_overdue!r}")

    def __str__(self) -> str:
        age = None if self.retain is None else f"{hours_text(self.retain)}"
        size = None if self.retain_bytes is None else f"{self.retain_bytes} bytes"
        return " and ".join(filter(None, (age, size)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """An order that nothing of a topic is deleted; `until` None means until it is released."""

    id: int
    topic: str
    reason: str
    made_at: datetime
    until: datetime | None = None

    def __str__(self) -> str:
        end = "it is released" if self.until is None else instant_text(self.until)
        return f"hold {self.id} until {end}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """The topic at the broker. `young` is the first record younger than the policy's limit, else the log end offset."""

    topic: str
    topic_id: str
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    young: Mapping[int, int] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How far a pipeline has come in a partition, why no further, and when the hour that it has not settled ended.

    `lost` counts offsets that were deleted before they were loaded, `given_up` are windows that held back for too long.
    """

    offset: int
    why: str
    ended_at: datetime | None = None
    lost: int = 0
    given_up: tuple[FrozenWindow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Records that the policy would release but a pipeline still needs. `overdue` is for how long."""

    pipeline: str
    partition: int
    offset: int
    records: int
    why: str
    overdue: timedelta | None

    def __str__(self) -> str:
        since = "" if self.overdue is None else f" for {hours_text(self.overdue)}"
        return f"partition {self.partition} held back at offset {self.offset}{since} by pipeline {self.pipeline}: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """The offsets [start_offset, end_offset) of a partition, which are to be deleted."""

    topic: str
    topic_id: str
    partition: int
    start_offset: int
    end_offset: int
    reason: str

    @property
    def records(self) -> int:
        """The number of offsets, that is: how many hold no record after compaction or transactions is unknown."""
        return self.end_offset - self.start_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """What a run does to a topic.

    Of the windows that are `cut`, the `unreplayable` are still complete now, and the `given_up` were never loaded.
    """

    policy: RetentionPolicy
    deletions: tuple[Deletion, ...] = ()
    held: tuple[Held, ...] = ()
    cut: tuple[FrozenWindow, ...] = ()
    unreplayable: tuple[FrozenWindow, ...] = ()
    given_up: tuple[FrozenWindow, ...] = ()
    alarms: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def records(self) -> int:
        return sum(deletion.records for deletion in self.deletions)

    @property
    def bytes(self) -> int:
        """Bytes of the windows deleted as a whole, as counted when they were loaded; pipelines share the same records."""
        ends = {deletion.partition: deletion.end_offset for deletion in self.deletions}
        sizes: dict[str, int] = {}
        for window in self.unreplayable:
            if window.counts and all(part.end_offset <= ends.get(part.partition, 0) for part in window.ranges if part.count):
                sizes[window.pipeline] = sizes.get(window.pipeline, 0) + window.counts.bytes
        return max(sizes.values(), default=0)

    def summary(self) -> dict[str, Any]:
        """The plan as JSON-ready values."""
        return {
            "topic": self.policy.topic,
            "keeps": str(self.policy),
            "records": self.records,
            "bytes": self.bytes,
            "deletions": [
                {
                    "partition": one.partition,
                    "from": one.start_offset,
                    "to": one.end_offset,
                    "records": one.records,
                    "why": one.reason,
                }
                for one in self.deletions
            ],
            "held": [
                {
                    "partition": one.partition,
                    "pipeline": one.pipeline,
                    "offset": one.offset,
                    "records": one.records,
                    "overdue_seconds": None if one.overdue is None else one.overdue.total_seconds(),
                    "why": one.why,
                }
                for one in self.held
            ],
            "no_longer_replayable": [window_name(window) for window in self.unreplayable],
            "given_up": [window_name(window) for window in self.given_up],
            "alarms": list(self.alarms),
            "notes": list(self.notes),
        }


def window_name(window: FrozenWindow) -> str:
    """`pipeline@start`, as `logbus group seek --to-window` accepts it."""
    return f"{window.pipeline}@{instant_text(window.interval.start)}"


def hours_text(span: timedelta) -> str:
    """`168 hours`, `1.5 hours`, `1 hour`."""
    hours = f"{span / timedelta(hours=1):.1f}".removesuffix(".0")
    return f"{hours} hour" if hours == "1" else f"{hours} hours"
