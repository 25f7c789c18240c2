"""What commands, doctor and Airflow say of a stream, from a ledger in which some of everything has happened to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from logbus.errors import ExitCode, StreamUnknown
from logbus.expressions import count
from logbus.status.ledger_checks import check_all
from logbus.streams import listing, stream_ledger
from logbus.streams.definition import define_stream
from logbus.streams.listing import StreamHourStatus, StreamStatus
from logbus.streams.stream_ledger import Ownership
from logbus.windows.rows import HEARTBEAT_EXPIRY
from sqlalchemy import insert

from tests.support.event_lines import COLUMNS, EventLines, Line
from tests.support.ledgers import NOW, World, at

LIVE = define_stream("live", "p", keys=["status"], measures={"requests": count()}, event_time="time")
LOADED = {"read_count": 2, "loaded_count": 2, "dead_lettered_count": 0, "filtered_count": 0}


@pytest.fixture
def lines(world: World) -> EventLines:
    """Hours 9 to 12 hold two lines each. 9 to 11 are frozen; the stream begins with 10."""
    event_lines = EventLines(world=world)
    event_lines.arrive([Line(arrived=at(hour + part), time=at(hour)) for hour in range(9, 13) for part in (0.2, 0.6)])
    event_lines.register()
    for number in (9, 10, 11):
        world.freeze(number)
    stream_ledger.define(world.ledger.engine, LIVE, NOW, since=at(10))
    return event_lines


def begun(world: World, now: datetime = NOW) -> Ownership:
    return stream_ledger.begin(world.ledger.engine, "live", "run", now)


def counted(world: World, *hours: int, read: int = 2) -> None:
    """As if an epoch for each hour had been committed, the last one a second ago."""
    schema_of = stream_ledger.schema
    first = world.freeze(hours[0]).ranges[0].start_offset
    with world.ledger.engine.begin() as connection:
        for number, hour in enumerate(hours, 1):
            part = {"partition": 0, "start_offset": first + 2 * (number - 1), "end_offset": first + 2 * number, "epoch": number}
            counts = {"read_count": read, "filtered_count": 0, "dead_lettered_count": 0, "untimed_count": 0, "fingerprint": "0"}
            connection.execute(insert(schema_of.epoch_part).values(stream="live", hour=at(hour), **part, **counts))
            epoch = {"number": number, "committed_at": NOW - timedelta(seconds=1), "read_count": read}
            connection.execute(insert(schema_of.stream_epoch).values(stream="live", newest_timestamp=at(hour + 0.6), **epoch))
    world.execute(f"update logbus.stream_partition set end_offset = {first + 2 * len(hours)}")


def compared(world: World, hour: int, state: str = "proven", attempt: int = 1) -> None:
    values = {"loaded_attempt": attempt, "loaded_count": 2, "record_count": 2, "proven_at": NOW, "difference_count": 0}
    differences = ["requests is 2, the rows give 3"] if state == "different" else []
    with world.ledger.engine.begin() as connection:
        row = {**values, "stream": "live", "hour": at(hour), "state": state, "differences": differences}
        connection.execute(insert(stream_ledger.schema.stream_hour).values(row))


def status(world: World, now: datetime = NOW) -> StreamStatus:
    with world.ledger.engine.connect() as connection:
        return listing.status_of(connection, "live", now)


def hours(world: World, **span: datetime) -> list[StreamHourStatus]:
    with world.ledger.engine.connect() as connection:
        return listing.hours_of(connection, "live", span.get("since"), span.get("until"))


def test_a_stream_is_new_runs_falls_silent_is_stopped_or_fails(lines: EventLines) -> None:
    world, engine = lines.world, lines.world.ledger.engine
    assert (status(world).state, status(world).positions) == ("new", {0: 2})
    owner = begun(world)
    assert (status(world).state, status(world).heartbeat_age) == ("running", 0)
    assert status(world, NOW + HEARTBEAT_EXPIRY + timedelta(seconds=1)).state == "silent"
    stream_ledger.end(engine, owner, NOW)
    assert status(world, NOW + timedelta(days=1)).state == "stopped"
    stream_ledger.end(engine, begun(world), NOW, "the topic was recreated")
    assert (status(world).state, status(world).error) == ("failed", "the topic was recreated")
    with pytest.raises(StreamUnknown, match="`logbus stream ls`"), engine.connect() as connection:
        listing.status_of(connection, "leave", NOW)


def test_hours_are_proven_by_their_newest_load_and_behind_until_then(lines: EventLines) -> None:
    world = lines.world
    begun(world)
    counted(world, 10, 11, 12)
    assert [(hour.hour, hour.state) for hour in hours(world)] == [(at(number), "not loaded") for number in (10, 11, 12)]
    for number in (9, 10, 11):  # hour 9 is of a time before the stream
        world.mark(number, loaded_attempt=1, audited_at=NOW, **LOADED)
    compared(world, 10)
    assert [hour.state for hour in hours(world)] == ["proven", "behind", "not loaded"]
    assert (status(world).proven, status(world).different, status(world).behind) == (1, 0, 1)
    compared(world, 11, "different")
    world.mark(10, loaded_attempt=2)
    assert [hour.state for hour in hours(world)] == ["behind", "different", "not loaded"]
    assert (status(world).proven, status(world).different, status(world).behind) == (0, 1, 1)
    assert [hour.hour for hour in hours(world, since=at(11), until=at(12))] == [at(11)]
    assert hours(world)[1].differences == ["requests is 2, the rows give 3"]
    world.mark(10, audited_at=None)
    assert status(world).behind == 0, "a proof waits for the audit"


def test_lag_is_what_the_log_holds_beyond_what_is_committed(lines: EventLines) -> None:
    world = lines.world
    begun(world)
    counted(world, 10)
    found = status(world)
    assert (found.epochs, found.read_lately, found.newest_timestamp) == (1, 2, at(10.6))
    assert found.lag(listing.log_ends(world.log, found)) == listing.StreamLag(records=4, seconds=(NOW - at(10.6)).total_seconds())
    counted_all = status(world).lag({0: 4})
    assert counted_all == listing.StreamLag(records=0, seconds=0.0)


def test_doctor_names_a_stream_that_ended_one_that_is_silent_and_hours_that_differ(lines: EventLines) -> None:
    world = lines.world

    def findings(now: datetime = NOW) -> list[tuple[str, str]]:
        every = check_all(world.ledger, world.log, [world.ledger.pipeline("p")], now)
        return [(finding.message, finding.advice) for finding in every if "stream live" in finding.message]

    assert findings() == []
    owner = begun(world)
    assert findings() == []
    [(silent, advice)] = findings(NOW + timedelta(hours=1))
    assert (silent, advice.split(",")[0]) == (
        "the driver of stream live sent its last heartbeat at 2026-11-21T12:30:00Z",
        "logbus stream run live",
    )
    stream_ledger.end(world.ledger.engine, owner, NOW, "the topic was recreated")
    compared(world, 10, "different")
    ended, different = findings()
    assert ended[0] == "stream live ended: the topic was recreated"
    assert different == (
        "stream live had counted 1 hour differently than they were loaded",
        "logbus stream show live: the loads' values stand there since",
    )


def test_the_commands_define_list_reset_and_drop(world: World, run: Callable[..., Any]) -> None:
    world.log.append_values("t", [(int(at(10.5).timestamp() * 1000), Line(arrived=at(10.5), time=at(10)).value())])
    world.register(parse="json", settings={"columns": COLUMNS})
    world.freeze(10)
    words = ("--pipeline", "p", "--key", "status", "--measure", "bytes=sum(bytes)", "--event-time", "time", "--window", "5m")
    made = run("stream", "create", "live", *words, "--trigger", "500ms", "--since", "2015-05-17T10")
    assert made.stdout == "live: bytes sum(bytes) by 5 min of time, status\nread live; `logbus stream run live` computes it\n"
    again = run("stream", "create", "live", "--pipeline", "p")
    assert (again.exit_code, "another name; or `logbus stream drop live`" in again.stderr) == (ExitCode.FAILED, True)
    refused = run("stream", "create", "other", "--pipeline", "p", "--since", "2015-05-17T07")
    assert "these hours are: 2015-05-17T10:00:00Z" in refused.stderr
    [listed] = json.loads(run("stream", "ls", "--bootstrap-server", "127.0.0.1:9", "--json").stdout)
    assert (listed["name"], listed["state"], listed["lag_records"], listed["trigger_seconds"]) == ("live", "new", None, 0.5)
    begun(world)
    counted(world, 10, read=1)
    dry = run("stream", "reset", "live", "--since", "2015-05-17T10")
    assert (dry.stdout, dry.stderr.split(":")[0]) == (
        "would be forgotten: 1 hour with 1 record since 2015-05-17T10:00:00Z\n",
        "dry run",
    )
    assert run("stream", "reset", "live", "--since", "2015-05-17T10", "--execute").stdout.startswith("forgotten: 1 hour")
    assert (hours(world), status(world).state, status(world).newest_timestamp) == ([], "stopped", None)
    assert run("stream", "prove", "live").stdout == "live: 0 proven, 0 different, 0 behind, 0 kept\n"
    assert run("stream", "drop", "live").stdout == "would be dropped: view live and table public.live_by_arrival of p\n"
    assert json.loads(run("stream", "drop", "live", "--execute", "--json").stdout)["executed"] is True
    assert [run("stream", word, "live").exit_code for word in ("drop", "once", "run")] == [ExitCode.NOT_FOUND] * 3
