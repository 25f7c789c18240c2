"""The second witness: after the commit, somebody else counts again.

The table is counted anew (not the numbers the load wrote), checksums of its values are taken again, the ledger is compared, and
the broker is asked whether it still holds the same topic and the same offsets. Exact, or every difference is named with its
partition and how many. Records that retention has deleted since are no fault of the load: the window is audited and noted as no
longer replayable. Where producers number their records, what did not arrive at the broker is found as well. Where
records are stamped with other hours than their window's, the notes say with which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Protocol

from sqlalchemy import Engine

from logbus.fingerprint import as_text, combine
from logbus.kafka.topics import OffsetLog, TopicFacts
from logbus.ledger.accepted_losses import loss_text
from logbus.ledger.ledger import Ledger
from logbus.ledger.retained import SET_ASIDE, lost_ranges
from logbus.ledger.rows import pipeline_row
from logbus.ledger.stamped_hours import stamped_hours
from logbus.ledger.values import Published, ValuesReport
from logbus.ledger.witnesses import on_its_cluster, refuse_another_cluster
from logbus.model import AuditReport, FrozenWindow, PartitionTally, Pipeline, WindowCounts
from logbus.proof import tally
from logbus.proof.history import other_records_text
from logbus.proof.producers import check_producers


class Recounts(Protocol):
    """A sink, as far as the audit knows it."""

    def recount(self, window: FrozenWindow) -> Mapping[int, PartitionTally]:
        """Counts the window's public rows and dead letters anew."""

    def compare_values(self, window: FrozenWindow) -> ValuesReport:
        """Takes the checksums of their values again."""


class AuditedLog(Protocol):
    """The broker, as far as the audit knows it."""

    def topic(self, name: str) -> TopicFacts: ...

    def start_offsets(self, topic: str, partitions: Iterable[int]) -> dict[int, int]: ...

    def end_offsets(self, topic: str, partitions: Iterable[int], isolation_level: str) -> dict[int, int]: ...


SinkFor = Callable[[Pipeline, Engine], Recounts]

HEAD_UNKNOWN = "the window's head is unknown: records were gone, or may have been, before they were read"

# How often a window may be loaded again under an audit's eyes before it says what it sees.
LOOKS_MAX = 5


def audit_window(
    engine: Engine, log: OffsetLog, pipeline_name: str, start: datetime, now: datetime, sink_for: SinkFor
) -> AuditReport:
    """Counts and compares; keeps the outcome in the ledger. The report says whether it is exact; it raises only where the
    broker cannot be asked, or is not the pipeline's."""
    ledger = Ledger(engine)
    pipeline = ledger.pipeline(pipeline_name)
    window, found, values = count_again(ledger, sink_for(pipeline, engine), pipeline_name, start)
    refuse_another_broker(engine, log, window)
    notes = [*values.notes, *map(other_records_text, window.other_records)]
    # The broker is asked after the table was counted. What retention deletes between the two is then still a note about replays;
    # the other way round, a window could be called replayable which no longer was so when its audit was written down.
    problems = [*table_problems(pipeline, window, found), *values.problems, *broker_problems(log, pipeline, window, notes)]
    notes += accepted_losses(window)
    wrong, odd = check_producers(engine, pipeline, window)
    problems, notes = [*problems, *wrong], [*notes, *odd, *hour_notes(engine, window)]
    expected = {part.partition: part.count for part in window.ranges}
    report = AuditReport(window=window, expected=expected, found=found, problems=tuple(problems), notes=tuple(notes))
    ledger.record_audit(report, now)
    return report


def refuse_another_broker(engine: Engine, log: OffsetLog, window: FrozenWindow) -> None:
    """`AnotherCluster`, where the broker has a topic of the same name: its id would look as if the topic had been made again."""
    with engine.connect() as connection:
        row = pipeline_row(connection, window.pipeline)
    with on_its_cluster(row, log):
        found = log.topic(window.topic).topic_id
    if found != row["topic_id"]:
        refuse_another_cluster(row, log)


def count_again(
    ledger: Ledger, sink: Recounts, pipeline_name: str, start: datetime
) -> tuple[FrozenWindow, Mapping[int, PartitionTally], ValuesReport]:
    """The window, what the table holds of it and whether its values are those loaded, all of one moment: a reload or a redrive
    that commits between the looks would be taken for a fault."""
    window = ledger.window(pipeline_name, start)
    for _ in range(LOOKS_MAX):
        is_loaded = window.counts is not None  # otherwise there may be no table
        found = sink.recount(window) if is_loaded else {}
        values = sink.compare_values(window) if is_loaded else ValuesReport()
        now = ledger.window(pipeline_name, start)
        if as_loaded(now) == as_loaded(window):
            break
        window = now
    return window, found, values


def as_loaded(window: FrozenWindow) -> tuple[object, ...]:
    """What every load and every redrive that moves something changes."""
    return window.loaded_attempt, window.counts, window.values_hash


def accepted_losses(window: FrozenWindow) -> Iterator[str]:
    """Said at every audit, forever."""
    if window.loss_accepted is not None:
        lost = sum(part.lost for part in window.ranges)
        told = f"{lost} records are lost" if lost else HEAD_UNKNOWN
        yield f"{told}; accepted {loss_text(window.loss_accepted)}"


def table_problems(pipeline: Pipeline, window: FrozenWindow, found: Mapping[int, PartitionTally]) -> Iterator[str]:
    counts = window.counts
    if counts is None:
        yield "the window is not loaded: load it, then audit"
        return
    if window.head_unknown and window.loss_accepted is None:
        yield f"{HEAD_UNKNOWN}, so nothing can prove it whole"
    # A filter leaves holes in the offsets of the rows, as compaction does. Then not every offset can be asked for; that none is
    # there twice or lies outside of the range still can, and the sums below still have to be right.
    gaps_allowed = pipeline.options.offset_gaps or counts.filtered > 0
    yield from tally.problems(window, found, {}, gaps_allowed=gaps_allowed)
    yield from ledger_problems(window, counts, found)


def ledger_problems(window: FrozenWindow, counts: WindowCounts, found: Mapping[int, PartitionTally]) -> Iterator[str]:
    loaded, dead_lettered = sum(part.loaded for part in found.values()), sum(part.dead_lettered for part in found.values())
    if counts.read != counts.loaded + counts.dead_lettered + counts.filtered:
        yield f"the ledger's counts do not add up: read {counts.read}, loaded {counts.loaded}, dead {counts.dead_lettered}"
    if loaded != counts.loaded:
        yield f"the table holds {loaded} rows, {counts.loaded} were loaded ({loaded - counts.loaded:+d})"
    if dead_lettered != counts.dead_lettered:
        difference = dead_lettered - counts.dead_lettered
        yield f"{dead_lettered} dead letters are kept, {counts.dead_lettered} were written ({difference:+d})"
    fingerprint = as_text(combine(part.fingerprint for part in found.values()))
    # The load's fingerprint is over all that was read. Records that a filter left out have no row whose hash could be added, so
    # with a filter only the fingerprint of what was staged can be compared, partition by partition, below.
    if counts.filtered == 0 and fingerprint != window.fingerprint:
        yield f"the rows' fingerprint is {fingerprint}, the load's was {window.fingerprint}: some row is another record's"
    if window.values_hash is not None:
        yield from staged_problems(window, found, Published.from_json(window.values_hash).staged)


def staged_problems(window: FrozenWindow, found: Mapping[int, PartitionTally], staged: Mapping[int, str]) -> Iterator[str]:
    """The same by partition, and without what a filter left out: of that no row tells."""
    for part in window.ranges:
        is_now = as_text(found[part.partition].fingerprint if part.partition in found else 0)
        was = staged.get(part.partition, as_text(0))
        if is_now != was:
            yield f"{part}: the rows' fingerprint is {is_now}, that of the loaded rows was {was}: some row is another record's"


def hour_notes(engine: Engine, window: FrozenWindow) -> list[str]:
    """Where records are stamped with other hours than their window's. It is no fault of the load: the offsets are what they
    must be; but the hour is not what its name says."""
    with engine.connect() as connection:
        found = stamped_hours(connection, window)
    return found.sentences() if found is not None and found.is_remarkable else []


def broker_problems(log: AuditedLog, pipeline: Pipeline, window: FrozenWindow, notes: list[str]) -> Iterator[str]:
    """What the broker says today; deleted records are put down in `notes`."""
    facts = log.topic(window.topic)
    if facts.topic_id != window.topic_id:
        became = "has another log" if SET_ASIDE in window.topic_id else "was deleted and made again"
        notes.append(f"topic {window.topic} {became} since: the window is no longer replayable")
        return
    partitions = [part.partition for part in window.ranges]
    missing = set(partitions) - set(facts.partitions)
    if missing:
        yield f"the broker has no partition {', '.join(map(str, sorted(missing)))} of {window.topic} any more"
        return
    lost = lost_ranges(window, log.start_offsets(window.topic, partitions))
    if lost:
        notes.append(f"retention has deleted {', '.join(lost)}: the window is no longer replayable")
    ends = log.end_offsets(window.topic, partitions, pipeline.isolation_level)
    for part in window.ranges:
        if ends[part.partition] < part.end_offset:
            yield f"the broker's log of {part.topic}-{part.partition} ends at {ends[part.partition]}, inside or before {part}"
