"""How windows are shown to people: tables and short lines. JSON comes from the values' own summaries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from logbus.cli.output import Cell, Coloured, Table
from logbus.loads import completeness, tally
from logbus.loads import history as comparison
from logbus.loads.history import AttemptRecord, WindowHistory, other_records_text
from logbus.model import DAY, HOUR, FrozenWindow, Pipeline, WindowCounts, WindowState, instant_text
from logbus.windows import log_changes, missing
from logbus.windows.rows import FAILED

ERROR_CHARACTERS_SHOWN = 100
STREAMS_SHOWN_MAX = 10
FOLDED_FROM = 10  # empty windows in a row: a log of 2015 and one of today have 100,000 hours between them


def windows_table(
    pipeline: Pipeline, windows: Sequence[FrozenWindow], gaps: Sequence[missing.Gap], failed: Collection[datetime] = ()
) -> Table:
    """Windows in order of time, and between them what is not frozen. `failed`: the starts of windows whose last attempt failed
    with nothing loaded. Many identical empty windows in a row are one line."""
    table = Table("window", "state", "records", "read", "loaded", "dead-lettered", "late", "attempt", "fingerprint")
    states = {window.id: state_text(window, window.interval.start in failed) for window in windows}
    rows = [
        (run[0].interval.start, window_row(run, states[run[0].id])) for run in folded(windows, lambda window: states[window.id])
    ]
    rows += [(gap.interval.start, gap_row(gap, pipeline)) for gap in gaps if not gap.is_frozen]
    for _, row in sorted(rows, key=lambda dated_row: dated_row[0]):
        table.add_row(*row)
    return table


def state_text(window: FrozenWindow, is_failed: bool) -> Cell:
    others = " (other records than before)" if window.other_records else ""
    return Coloured("failed", "red") if is_failed and window.state is WindowState.FROZEN else f"{window.state}{others}"


def folded(windows: Iterable[FrozenWindow], state_of: Callable[[FrozenWindow], Cell]) -> Iterator[Sequence[FrozenWindow]]:
    """One by one; adjacent windows without records and in the same state come together, if they are many."""

    def flushed() -> Iterator[Sequence[FrozenWindow]]:
        return iter([run] if len(run) >= FOLDED_FROM else [[window_alone] for window_alone in run])

    run: list[FrozenWindow] = []
    for window in windows:
        if run and not (
            window.record_count == run[-1].record_count == 0
            and window.interval.start == run[-1].interval.end
            and state_of(window) == state_of(run[-1])
        ):
            yield from flushed()
            run = []
        run.append(window)
    yield from flushed()


def span_text(windows: Sequence[FrozenWindow]) -> str:
    """`first` or `first .. last`."""
    names = [instant_text(window.interval.start) for window in windows]
    return names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]}"


def window_row(windows: Sequence[FrozenWindow], state: Cell) -> tuple[Cell, ...]:
    """For one window, or for many identical empty ones."""
    counts = windows[0].counts or WindowCounts()
    loaded = (counts.read, counts.loaded, counts.dead_lettered, counts.late) if windows[0].counts else ("-",) * 4
    how_many = "" if len(windows) == 1 else f", {len(windows)} windows, without any record"
    attempts = {window.loaded_attempt or "-" for window in windows}
    numbers = (windows[0].record_count, *loaded, attempts.pop() if len(attempts) == 1 else "-")
    text = state._replace(text=state.text + how_many) if isinstance(state, Coloured) else state + how_many
    return (span_text(windows), text, *map(str, numbers), windows[0].fingerprint or "-")


def gap_row(gap: missing.Gap, pipeline: Pipeline) -> tuple[Cell, ...]:
    """One line for consecutive intervals that are not frozen."""
    first, last = gap.interval.start, pipeline.grid.after(gap.interval.end, -1)
    span = instant_text(first) if gap.count == 1 else f"{instant_text(first)} .. {instant_text(last)}"
    how_many = "" if gap.count == 1 else f", {gap.count} windows"
    if gap.is_empty:
        return (span, f"{missing.Missing.NOT_FROZEN}{how_many}, without any record")
    return (span, Coloured(f"{missing.Missing.NOT_FROZEN}{how_many}", "yellow"))


def behind_text(pipeline: Pipeline, gaps: Sequence[missing.Gap], *, is_span: bool = False) -> str:
    """`p is 3 hours behind, the oldest 2015-05-17T10:00:00Z`: closed windows that wait for their records to be loaded. For a span
    it says so, since there may be more outside."""
    name = f"in this span {pipeline.name}" if is_span else pipeline.name
    count, without, first = missing.behind(gaps), missing.empty(gaps), missing.oldest(gaps)
    besides = f"; {unit_text(pipeline, without)} hold{'s' if without == 1 else ''} no record" if without else ""
    if first is None:
        every = "every closed window with records is loaded" if without else "every closed window is loaded"
        return f"{name} is up to date: {every}{besides}"
    frozen = sum(gap.count for gap in gaps if gap.is_frozen and not gap.is_empty)
    return (
        f"{name} is {unit_text(pipeline, count)} behind, the oldest {instant_text(first)} "
        f"({count - frozen} not frozen, {frozen} frozen and not loaded){besides}"
    )


def unit_text(pipeline: Pipeline, count: int) -> str:
    unit = "hour" if pipeline.interval == HOUR else "day" if pipeline.interval == DAY else "window"
    return f"{count} {unit}" if count == 1 else f"{count} {unit}s"


def history_lines(history: WindowHistory) -> Iterator[str]:
    """A window from its state to its dead letters, line by line."""
    window = history.window
    yield f"window {window.interval} of {window.pipeline}: {window.state}"
    if window.head_unknown:
        yield "  records were gone, or may have been, before they were read: what is loaded is not all there was"
    if window.loss_accepted is not None:
        yield f"  the loss was accepted {log_changes.loss_text(window.loss_accepted)}"
    yield f"  topic {window.topic} ({window.topic_id}), frozen {stamp(window.frozen_at)}"
    if window.is_proven_empty:
        yield "  no record: it begins and ends at the same offset in every partition, so there is nothing to load"
    elif window.counts is not None:
        yield f"  loaded {stamp(window.loaded_at)} by attempt {window.loaded_attempt}, audited {stamp(window.audited_at)}"
        yield f"  {counts_text(window.counts)}"
        yield f"  fingerprint {window.fingerprint}"
        yield f"  values: {values_text(window)}"
        if (loaded := history.attempt(window.loaded_attempt or 0)) is not None and loaded.task_logins is not None:
            yield f"  logins of Spark's tasks: {loaded.task_logins}"
        yield from (f"  the pipeline has been defined differently since: {change}" for change in history.changes)
    yield from (f"  {sentence}" for sentence in (history.hours.sentences() if history.hours else ()))
    yield from (f"  {other_records_text(note)}" for note in window.other_records)
    yield from (f"  audit: {problem}" for problem in history.audit_problems)
    yield from (redrive_line(redrive) for redrive in history.redrives)
    yield from stream_lines(history.streams)
    if history.dead_letters:
        classes = ", ".join(f"{name} {count}" for name, count in history.dead_letters.items())
        see = f"logbus dead-letter show --pipeline {window.pipeline} {instant_text(window.interval.start)}"
        yield f"  dead letters: {classes} ({see})"


def values_text(window: FrozenWindow) -> str:
    """What an audit compares the values with."""
    if window.values_hash is None:
        return "none"
    values = tally.Published.from_json(window.values_hash)
    if values.files is not None:
        return f"{len(values.files)} files, each with a hash of its content"
    return f"a checksum over {len(values.table.columns)} columns" if values.table else "no checksum could be taken"


def stream_lines(streams: Sequence[completeness.StreamCount]) -> Iterator[str]:
    """Producers that number their records; the first few."""
    for stream in streams[:STREAMS_SHOWN_MAX]:
        yield f"  producer {stream.stream}: {stream.count} records, numbers {stream.first} to {stream.last}"
    if len(streams) > STREAMS_SHOWN_MAX:
        yield f"  and {len(streams) - STREAMS_SHOWN_MAX} more producers (--json has all)"


def redrive_line(redrive: Mapping[str, Any]) -> str:
    moved = f"{redrive['loaded']} of {redrive['tried']} dead letters loaded"
    return f"  redrive {stamp(redrive['redriven_at'])} of run {redrive['run_id']}: {moved}"


def counts_text(counts: WindowCounts) -> str:
    equation = f"read {counts.read} = loaded {counts.loaded} + dead-lettered {counts.dead_lettered} + filtered {counts.filtered}"
    return f"{equation}; late {counts.late}, early {counts.early}, lost {counts.lost}; {counts.bytes:,} bytes"


def stamp(instant: datetime | None) -> str:
    return instant_text(instant.replace(microsecond=0)) if instant else "never"


def ranges_table(history: WindowHistory) -> Table:
    table = Table("partition", "offsets", "records", "lost", "first timestamp", "last timestamp")
    for part in history.window.ranges:
        first, last = history.spans.get(part.partition, (None, None))
        span = (at and instant_text(at) for at in (first, last))
        offsets = f"[{part.start_offset}, {part.end_offset})"
        table.add_row(str(part.partition), offsets, str(part.count), str(part.lost), *(at or "-" for at in span))
    return table


def attempts_table(attempts: Iterable[AttemptRecord]) -> Table:
    table = Table("attempt", "state", "run", "try", "began", "ended", "loaded", "fingerprint", "error")
    for attempt in attempts:
        error = (attempt.error or "-")[:ERROR_CHARACTERS_SHOWN]
        loaded = "-" if attempt.counts is None else str(attempt.counts.loaded)
        times = (stamp(attempt.began_at), stamp(attempt.ended_at) if attempt.ended_at else "-")
        row = (
            str(attempt.number),
            attempt.state,
            run_text(attempt),
            str(attempt.try_number),
            *times,
            loaded,
            attempt.fingerprint or "-",
            error,
        )
        table.add_row(*row)
    return table


def run_text(attempt: AttemptRecord) -> str:
    """The run, with its Dag if a task began the attempt."""
    return attempt.run_id if attempt.task is None else f"{attempt.task.dag_id} {attempt.run_id}"


def failure_lines(history: WindowHistory) -> Iterator[str]:
    """Why the last attempt failed, in full, with samples where too much did not parse."""
    last = history.attempts[-1] if history.attempts else None
    if last is None or last.state != FAILED:
        return
    first, *more = (last.error or "no reason is known").split("\n")
    yield f"attempt {last.number} failed: {first}"
    yield from (f"    {line}" for line in more)  # of a program's own output; so far right that none looks like one of ours
    samples = last.error_samples or {"classes": [], "examples": []}
    yield from (f"  {group['error_class']}: {group['count']}" for group in samples["classes"])
    for example in samples["examples"]:
        value = example["value"] if "value" in example else f"base64 {example['value_base64']}"
        position = f"partition {example['partition']} offset {example['offset']}"
        yield f"  {position}: {example['error_class']}: {example['error']}: {str(value)[:ERROR_CHARACTERS_SHOWN]!r}"


def differences_table(
    left: comparison.WindowReading, right: comparison.WindowReading, differences: Sequence[comparison.RecordDifference]
) -> Table:
    table = Table("", left.name, right.name)
    for difference in differences:
        table.add_row(difference.what, *(shown(value) for value in (difference.left, difference.right)))
    return table


def shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(f"[{start}, {end})" for start, end in value) if value and isinstance(value[0], list) else str(value)
    return "-" if value is None else str(value)
