"""What a task is given and what it returns: values passed between the driver and the workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from logbus.model import HOUR, MILLISECOND, Witness
from logbus.proof.read_tally import ReadTally


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedWindow:
    """Where this attempt stages the records of a window. The sink uses the names as tables, or as parts of paths."""

    window_id: int
    attempt: int
    start_ms: int
    end_ms: int
    staging_table: str
    dead_letter_table: str
    witnesses: Mapping[tuple[int, int], Witness] = field(default_factory=dict)  # by partition and offset, among its records


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskJob:
    """Everything a task needs. `sink_options` may hold secrets: the job is sent pickled, never as an option or argument."""

    pipeline: str
    topic: str
    parse: str
    settings: Mapping[str, Any]
    windows: Mapping[int, StagedWindow]
    interval_ms: int = HOUR // MILLISECOND  # by which stamps are counted
    sink: str = "postgres"
    sink_options: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What one task attempt read of one partition of one window. `files` are those the task wrote for the window; they are listed
    once, with the first of its partitions."""

    task: int
    window_id: int
    partition: int
    tally: ReadTally = field(default_factory=ReadTally)
    files: tuple[str, ...] = ()
