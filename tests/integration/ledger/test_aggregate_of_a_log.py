"""Half a week of an access log, a part of it late by up to days: what an aggregate says is what `sort | uniq -c` counts in the file."""

from __future__ import annotations

import random
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from logbus.expressions import count
from logbus.model import HOUR, milliseconds
from logbus.streams.aggregate_definition import define_aggregate
from logbus.streams.aggregate_listing import prove_span
from logbus.streams.hourly_aggregates import bring_up_to_date, define
from logbus.waiting import PATIENCE_SECONDS

from tests.support.event_lines import LineLoading
from tests.support.ledgers import NOW, World, at

HOURS = 84
PER_HOUR = 120
LATE = 0.02
PER_MINUTE = define_aggregate("per_minute", "p", keys=["status"], measures={"requests": count()}, event_time="time", window="1m")
# Its fourth and ninth words: [17/May/2015:10:05:03 and the status.
COUNTED = r"""awk '{print substr($4, 2, 17), $9}' "$1" | LC_ALL=C sort | uniq -c"""

pytestmark = pytest.mark.long


def written(hours: int) -> list[tuple[datetime, datetime, str]]:
    """When each line arrived, its own time, and the line; in the order of arrival."""
    source, lines = random.Random(84), []
    for number in range(hours * PER_HOUR):
        time = at(number / PER_HOUR).replace(microsecond=0)
        is_late = number // PER_HOUR < hours - 1 and source.random() < LATE
        arrived = at(source.randrange(number // PER_HOUR + 1, hours) + source.random()) if is_late else time
        status = source.choice((200, 200, 200, 304, 404, 500))
        page = source.randrange(50)
        lines.append((arrived, time, f'10.0.0.7 - - [{time:%d/%b/%Y:%H:%M:%S %z}] "GET /{page} HTTP/1.1" {status} 17 "-" "-"'))
    return sorted(lines)


def counts_of(path: Path) -> dict[tuple[datetime, int], int]:
    """By minute and status, as the tools of any shell count them."""
    command = ["sh", "-c", COUNTED, "sh", str(path)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS).stdout
    rows = (line.split() for line in printed.splitlines())
    return {
        (datetime.strptime(f"{minute} +0000", "%d/%b/%Y:%H:%M %z"), int(status)): int(number) for number, minute, status in rows
    }


def versions(world: World) -> dict[datetime, set[tuple[str, str]]]:
    """By event hour, where its rows lie and which transactions wrote them."""
    by_hour: dict[datetime, set[tuple[str, str]]] = {}
    for hour, place, transaction in world.rows("select date_trunc('hour', window_start), ctid::text, xmin::text from per_minute"):
        by_hour.setdefault(hour, set()).add((place, transaction))
    return by_hour


def stored(world: World) -> dict[tuple[datetime, int], int]:
    return {
        (start, status): number for start, status, number in world.rows("select window_start, status, requests from per_minute")
    }


def test_half_a_week_is_counted_as_sort_and_uniq_count_it_and_only_touched_hours_are_written(
    world: World, tmp_path: Path
) -> None:
    lines, path, engine = written(HOURS), tmp_path / "access.log", world.ledger.engine
    path.write_text("".join(f"{line}\n" for _, _, line in lines))
    world.log.append_values("t", [(milliseconds(arrived), line.encode()) for arrived, _, line in lines])
    world.register(parse="combined")
    define(engine, PER_MINUTE, NOW)

    def event_hours(number: int) -> set[datetime]:
        return {time.replace(minute=0, second=0) for arrived, time, _ in lines if at(number) <= arrived < at(number + 1)}

    def aggregate(number: int) -> None:
        """After a load of the hour: writes the hours that it touches, and no row of another."""
        before, touched = versions(world) if number else {}, event_hours(number)
        assert set(bring_up_to_date(engine, "per_minute", "test", lambda: NOW).hours) == touched
        after = versions(world)
        assert {hour: rows for hour, rows in after.items() if hour not in touched} == {
            hour: rows for hour, rows in before.items() if hour not in touched
        }
        assert all(after[hour].isdisjoint(before.get(hour, ())) for hour in touched & after.keys())

    for number in range(HOURS):
        LineLoading.of(world, number).load()
        aggregate(number)
    assert stored(world) == counts_of(path)
    assert prove_span(engine, "per_minute", NOW, is_full=True).of("exact") == [at(number) for number in range(HOURS)]

    late = max(range(1, HOURS), key=lambda number: len(event_hours(number)))
    assert len(event_hours(late)) > 3, "an hour that touches many others"
    world.register(parse="combined", settings={"filter": {"status": [200]}})
    LineLoading.of(world, late).load()
    aggregate(late)
    kept = [line for arrived, _, line in lines if not at(late) <= arrived < at(late) + HOUR or '" 200 ' in line]
    path.write_text("".join(f"{line}\n" for line in kept))
    assert stored(world) == counts_of(path)
    assert max(arrived - time for arrived, time, _ in lines) > timedelta(days=2)
