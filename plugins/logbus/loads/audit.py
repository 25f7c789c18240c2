"""The second witness: an independent count after the commit.

The table is counted anew (not the numbers that the load wrote), checksums of its values are taken again, both are compared with
the ledger, and the broker is asked whether it still has the same topic and offsets. The result is exact, or every difference is
named with its partition and count. Records that retention has deleted since are not a fault of the load: the window is audited
and noted as no longer replayable. If producers number their records, those that did not reach the broker are found as well. If
records are stamped with other hours than their window's, the notes list those hours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Protocol

from sqlalchemy import Engine

from logbus.fingerprint import as_text, combine
from logbus.formatting import many
from logbus.kafka.topics import OffsetLog, TopicFacts
from logbus.loads import completeness, history, tally
from logbus.loads.completeness import stamped_hours
from logbus.loads.ledger import Ledger
from logbus.model import AuditReport, FrozenWindow, PartitionTally, Pipeline, WindowCounts
from logbus.windows import log_changes, rows


class Recounts(Protocol):
    """What the audit needs of a sink."""

    def has_target(self) -> bool:
        """Whether there is a table."""

    def recount(self, window: FrozenWindow) -> Mapping[int, PartitionTally]:
        """Counts the window's public rows and dead letters anew."""

    def compare_values(self, window: FrozenWindow) -> tally.ValuesReport:
        """Takes the checksums of their values again."""


class AuditedLog(Protocol):
    """What the audit needs of the broker."""

    def topic(self, name: str) -> TopicFacts: ...

    def start_offsets(self, topic: str, partitions: Iterable[int]) -> dict[int, int]: ...

    def end_offsets(self, topic: str, partitions: Iterable[int], isolation_level: str) -> dict[int, int]: ...


SinkFor = Callable[[Pipeline, Engine], Recounts]

HEAD_UNKNOWN = "the window's head is unknown: records were gone, or may have been, before they were read"

# How many times an audit counts again because the window was reloaded during it, before it reports what it has.
LOOKS_MAX = 5


def audit_window(
    engine: Engine, log: OffsetLog, pipeline_name: str, start: datetime, now: datetime, sink_for: SinkFor
) -> AuditReport:
    """Counts, compares and stores the outcome in the ledger. Whether it is exact is in the report; it raises only if the
    broker cannot be reached or is not the pipeline's."""
    ledger = Ledger(engine)
    pipeline = ledger.pipeline(pipeline_name)
    window, tallies, values = count_again(ledger, sink_for(pipeline, engine), pipeline_name, start)
    refuse_another_broker(engine, log, window)
    notes = [*values.notes, *map(history.other_records_text, window.other_records)]
    # The broker is asked after the table is counted. What retention deletes in between is then still noted as not replayable;
    # the other way round, a window could be called replayable that no longer was when its audit was stored.
    problems = [*table_problems(pipeline, window, tallies), *values.problems, *broker_problems(log, pipeline, window, notes)]
    notes += accepted_losses(window)
    wrong, odd = completeness.check_producers(engine, pipeline, window)
    problems, notes = [*problems, *wrong], [*notes, *odd, *hour_notes(engine, window)]
    expected = {part.partition: part.count for part in window.ranges}
    report = AuditReport(window=window, expected=expected, counted=tallies, problems=tuple(problems), notes=tuple(notes))
    ledger.record_audit(report, now)
    return report


def refuse_another_broker(engine: Engine, log: OffsetLog, window: FrozenWindow) -> None:
    """`AnotherCluster` if another cluster has a topic of the same name: by its id the topic would seem to have been recreated."""
    with engine.connect() as connection:
        row = rows.pipeline_row(connection, window.pipeline)
    log_changes.topic_on_its_cluster(row, log)


def count_again(
    ledger: Ledger, sink: Recounts, pipeline_name: str, start: datetime
) -> tuple[FrozenWindow, Mapping[int, PartitionTally], tally.ValuesReport]:
    """The window, what the table holds of it and whether its values are those loaded, all from the same moment: a reload or
    redrive committed in between would look like a fault."""
    window = ledger.window(pipeline_name, start)
    for _ in range(LOOKS_MAX):
        # A window that no attempt has loaded may be the pipeline's first: then there is no table yet.
        is_there = window.counts is not None and (not window.is_proven_empty or sink.has_target())
        tallies = sink.recount(window) if is_there else {}
        values = sink.compare_values(window) if is_there else tally.ValuesReport()
        now = ledger.window(pipeline_name, start)
        if as_loaded(now) == as_loaded(window):
            break
        window = now
    return window, tallies, values


def as_loaded(window: FrozenWindow) -> tuple[object, ...]:
    """What changes with every load, and with every redrive that moves a record."""
    return window.loaded_attempt, window.counts, window.values_hash


def accepted_losses(window: FrozenWindow) -> Iterator[str]:
    """Reported by every audit, forever."""
    if window.loss_accepted is not None:
        lost = sum(part.lost for part in window.ranges)
        loss = f"{many(lost, 'record')} lost" if lost else HEAD_UNKNOWN
        yield f"{loss}; accepted {log_changes.loss_text(window.loss_accepted)}"


def table_problems(pipeline: Pipeline, window: FrozenWindow, tallies: Mapping[int, PartitionTally]) -> Iterator[str]:
    counts = window.counts
    if counts is None:
        yield "the window is not loaded: load it, then audit"
        return
    if window.head_unknown and window.loss_accepted is None:
        yield f"{HEAD_UNKNOWN}, so nothing can prove it whole"
    # A filter leaves gaps in the rows' offsets, as compaction does. Then not every offset can be required, but that none occurs
    # twice or is outside the range still is, and the sums below still have to match.
    gaps_allowed = pipeline.options.offset_gaps or counts.filtered > 0
    yield from tally.problems(window, tallies, {}, gaps_allowed=gaps_allowed)
    yield from ledger_problems(window, counts, tallies)


def ledger_problems(window: FrozenWindow, counts: WindowCounts, tallies: Mapping[int, PartitionTally]) -> Iterator[str]:
    loaded, dead_lettered = sum(part.loaded for part in tallies.values()), sum(part.dead_lettered for part in tallies.values())
    if counts.read != counts.loaded + counts.dead_lettered + counts.filtered:
        yield f"the ledger's counts do not add up: read {counts.read}, loaded {counts.loaded}, dead {counts.dead_lettered}"
    if loaded != counts.loaded:
        yield f"the table holds {many(loaded, 'row')}, loaded: {counts.loaded:,} ({loaded - counts.loaded:+d})"
    if dead_lettered != counts.dead_lettered:
        difference = dead_lettered - counts.dead_lettered
        yield f"{many(dead_lettered, 'dead letter')} kept, written: {counts.dead_lettered:,} ({difference:+d})"
    fingerprint = as_text(combine(part.fingerprint for part in tallies.values()))
    # The load's fingerprint covers all records read. Records that a filter left out have no row whose hash could be added, so
    # with a filter only the fingerprints of what was staged can be compared, partition by partition, below.
    if counts.filtered == 0 and fingerprint != window.fingerprint:
        yield f"the rows' fingerprint is {fingerprint}, the load's was {window.fingerprint}: some row is another record's"
    if window.values_hash is not None:
        yield from staged_problems(window, tallies, tally.Published.from_json(window.values_hash).staged)


def staged_problems(window: FrozenWindow, tallies: Mapping[int, PartitionTally], staged: Mapping[int, str]) -> Iterator[str]:
    """The same by partition, and without what a filter left out, which has no rows."""
    for part in window.ranges:
        is_now = as_text(tallies[part.partition].fingerprint if part.partition in tallies else 0)
        was = staged.get(part.partition, as_text(0))
        if is_now != was:
            yield f"{part}: the rows' fingerprint is {is_now}, that of the loaded rows was {was}: some row is another record's"


def hour_notes(engine: Engine, window: FrozenWindow) -> list[str]:
    """Notes on records stamped with other hours than their window's. That is not a fault of the load, since the offsets are
    right, but the window then holds other hours than its name suggests."""
    with engine.connect() as connection:
        hours = stamped_hours(connection, window)
    return hours.sentences() if hours is not None and hours.is_remarkable else []


def broker_problems(log: AuditedLog, pipeline: Pipeline, window: FrozenWindow, notes: list[str]) -> Iterator[str]:
    """How the broker's log differs from the window today; deleted records are added to `notes`."""
    facts = log.topic(window.topic)
    if facts.topic_id != window.topic_id:
        became = "has another log" if log_changes.SET_ASIDE in window.topic_id else "was deleted and recreated"
        notes.append(f"topic {window.topic} {became} since: the window is no longer replayable")
        return
    partitions = [part.partition for part in window.ranges]
    missing = set(partitions) - set(facts.partitions)
    if missing:
        yield f"the broker has no partition {', '.join(map(str, sorted(missing)))} of {window.topic} any more"
        return
    lost = log_changes.lost_ranges(window, log.start_offsets(window.topic, partitions))
    if lost:
        notes.append(f"retention has deleted {', '.join(lost)}: the window is no longer replayable")
    ends = log.end_offsets(window.topic, partitions, pipeline.isolation_level)
    for part in window.ranges:
        if ends[part.partition] < part.end_offset:
            yield f"the broker's log of {part.topic}-{part.partition} ends at {ends[part.partition]}, inside or before {part}"
