"""What the Ingestion page must show for a pipeline at an instant, worked out anew from ledger rows and the records themselves.

Valid for the pipelines of the seeded platform: hourly, no lateness, every past hour holds records, timestamps rise with
offsets. So it can be simple where the product cannot: it counts records one by one and looks at one hour after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from logbus.model import HOUR
from logbus.wording import many

from tests.support.platform_facts import Facts, Row

# An hour expires soon if it will be deleted within a day, or within a quarter of its retention time if that is less.
SOON, SHARE = timedelta(hours=24), 4
DOWN = "the broker does not answer"
HIDDEN = "a record's timestamp is in the future and hides where the hours end: `logbus lag --pipeline {name}` finds it"
FUTURE = timedelta(hours=1)  # stamps further ahead are not evidence of an hour
LABELS = {  # in the order of the legend
    **{"lost": "Lost", "expiring": "Expiring", "failed": "Failed", "loading": "Loading", "dead_letters": "Dead letters"},
    **{"closed": "Closed", "loaded": "Loaded", "audited": "Audited", "open": "Open"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour:
    """A cell of the map."""

    start: datetime
    state: str
    records: int | None = None
    loaded: int = 0
    dead: int = 0
    lost: int = 0
    attempts: int = 0
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """How far a pipeline is behind; None where that is unknown."""

    problem: str | None = None
    hours: int | None = None
    records: int | None = None
    size_bytes: int | None = None
    is_estimated: bool = False
    open_records: int | None = None
    oldest: datetime | None = None
    expires_at: datetime | None = None
    expires_by: str | None = None


def hour_of(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


def stamp(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def kept_for(facts: Facts, topic: str) -> timedelta | None:
    """The topic's retention time; None for unlimited."""
    milliseconds = int(facts.settings.get(topic, {}).get("retention.ms", "-1"))
    return None if milliseconds < 0 else timedelta(milliseconds=milliseconds)


def gone(facts: Facts, window: Row) -> dict[int, int]:
    """By partition, how many records of a window that is not loaded the broker has deleted."""
    if window["loaded_attempt"] is not None or not facts.has_broker:
        return {}
    topic = facts.topics[facts.pipeline(window["pipeline"])["topic"]]
    return {
        one["partition"]: max(0, min(topic[one["partition"]].start, one["end_offset"]) - one["start_offset"])
        for one in facts.of_window("window_range", window, "partition")
    }


def state_of(facts: Facts, window: Row, at: datetime) -> str:
    ranges = facts.of_window("window_range", window, "partition")
    if any(one["lost"] for one in ranges) or sum(gone(facts, window).values()) or window["head_unknown"]:
        return "lost"
    if window["loaded_attempt"] is not None:
        return "dead_letters" if window["dead_lettered_count"] else "audited" if window["audited_at"] else "loaded"
    if expires_soon(facts, window["pipeline"], window["starts_at"], at):
        return "expiring"
    attempts = facts.of_window("attempt", window, "number")
    return {"failed": "failed", "running": "loading"}.get(attempts[-1]["state"], "closed") if attempts else "closed"


def expires_soon(facts: Facts, name: str, start: datetime, at: datetime) -> bool:
    kept = kept_for(facts, facts.pipeline(name)["topic"])
    return kept is not None and start + kept - at <= min(SOON, kept / SHARE)


def window_hour(facts: Facts, window: Row, at: datetime) -> Hour:
    ranges = facts.of_window("window_range", window, "partition")
    declared, deleted = sum(one["lost"] for one in ranges), sum(gone(facts, window).values())
    attempts = facts.of_window("attempt", window, "number")
    failure = attempts[-1]["error"] if attempts and attempts[-1]["state"] == "failed" else None
    problems = window["audit_problems"]
    notes = (
        f"retention has deleted {many(deleted, 'record')} that had not been loaded" if deleted else None,
        f"{many(declared, 'record')} declared lost" if declared else None,
        failure and failure.partition("\n")[0],
        f"the audit found: {problems[0]}" if problems else None,
    )
    return Hour(
        start=window["starts_at"],
        state=state_of(facts, window, at),
        records=sum(one["end_offset"] - one["start_offset"] for one in ranges) - declared,
        loaded=window["loaded_count"] or 0,
        dead=window["dead_lettered_count"] or 0,
        lost=declared + deleted,
        attempts=window["last_attempt"],
        note=next((note for note in notes if note), None),
    )


def hours_of(facts: Facts, name: str, since: datetime, until: datetime, at: datetime) -> Iterator[Hour]:
    """The cells of a time span, in order."""
    windows = facts.windows(name)
    start = since
    while start < until:
        window = facts.window(name, start)
        if window is not None:
            yield window_hour(facts, window, at)
        elif start == hour_of(at):
            yield Hour(start=start, state="open")
        elif windows and windows[-1]["starts_at"] < start < at:
            yield unfrozen(facts, name, start, at)
        start += HOUR


def unfrozen(facts: Facts, name: str, start: datetime, at: datetime) -> Hour:
    if problem(facts, name) is not None:
        return Hour(start=start, state="closed", note="not frozen; record count unknown")
    state = "expiring" if expires_soon(facts, name, start, at) else "closed"
    return Hour(start=start, state=state, note="not frozen yet")


def problem(facts: Facts, name: str) -> str | None:
    """What keeps the lag from being counted."""
    if not facts.has_broker:
        return DOWN
    newest = facts.kept(f"newest {name}", lambda: max((one for _, _, one in records(facts, name)), default=0))
    return HIDDEN.format(name=name) if stamp(newest) > facts.at + FUTURE else None


def records(facts: Facts, name: str) -> Iterator[tuple[int, int, int]]:
    """Every record of the pipeline's topic: partition, offset, timestamp in milliseconds."""
    for number, partition in facts.topics[facts.pipeline(name)["topic"]].items():
        yield from ((number, offset, milliseconds) for offset, milliseconds in partition.stamps)


def waiting(facts: Facts, name: str) -> list[tuple[datetime, int, int]]:
    """The records outside all loaded windows: timestamp, partition and offset, in the order of time."""
    loaded = [
        (one["partition"], one["start_offset"], one["end_offset"])
        for window in facts.windows(name)
        if window["loaded_attempt"] is not None
        for one in facts.of_window("window_range", window, "partition")
    ]
    return sorted(
        (stamp(milliseconds), number, offset)
        for number, offset, milliseconds in records(facts, name)
        if not any(part == number and start <= offset < end for part, start, end in loaded)
    )


def behind(facts: Facts, name: str, at: datetime) -> Behind:
    trouble = problem(facts, name)
    if trouble is not None:
        return Behind(problem=trouble)
    found = facts.kept(f"waiting {name}", lambda: waiting(facts, name))
    late = [one for one in found if one[0] < hour_of(at)]
    not_loaded = [
        one for one in hours_of(facts, name, since_of(facts, name, at), hour_of(at), at) if not is_loaded(facts, name, one)
    ]
    size, is_estimated = estimate(facts, name, len(late))
    same = {"hours": len(not_loaded), "records": len(late), "open_records": len(found) - len(late)}
    if not late:
        return Behind(**same, size_bytes=0)
    oldest = min(moment for moment, _, _ in late if moment >= not_loaded[0].start)
    kept = kept_for(facts, facts.pipeline(name)["topic"])
    return Behind(
        **same,
        size_bytes=size,
        is_estimated=is_estimated,
        oldest=oldest,
        expires_at=None if kept is None else oldest + kept,
        expires_by=None if kept is None else "retention.ms",
    )


def since_of(facts: Facts, name: str, at: datetime) -> datetime:
    windows = facts.windows(name)
    found: datetime = windows[0]["starts_at"] if windows else hour_of(at)
    return found


def is_loaded(facts: Facts, name: str, hour: Hour) -> bool:
    window = facts.window(name, hour.start)
    return window is not None and window["loaded_attempt"] is not None


def estimate(facts: Facts, name: str, records: int) -> tuple[int | None, bool]:
    """The size in bytes, by the mean of the pipeline's loaded records, and whether it is an estimate."""
    loaded = [window for window in facts.windows(name) if window["loaded_attempt"] is not None]
    read, size = (sum(window[column] for window in loaded) for column in ("read_count", "byte_count"))
    return (round(records * size / read), True) if read else (None, False)
