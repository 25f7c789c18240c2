"""A platform with samples in every metric family of the exporter: a real broker, a real ledger, five hours of two partitions.

Two records an hour in partition 0, one in partition 1; `first_hour` is five hours ago. Hour 0 is loaded (its second record does
not parse) and audited, hour 1 is loaded, hour 2 is frozen and its attempt failed, hour 3 is closed but not frozen, and one record
is half an hour ahead, in an hour that stays open during the tests whenever they run. Group `dashboards` has committed three
records of partition 0 and all of partition 1, group `live` everything. The table `theirs`, which something else loads, was audited.
An aggregate has both loaded hours; a stream begins with hour 3, and has counted its first record.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from logbus.expressions import count
from logbus.kafka.client import Client
from logbus.kafka.groups import Groups
from logbus.kafka.topics import Topics
from logbus.loads.audit import audit_window
from logbus.loads.engine import connect
from logbus.loads.ledger import Ledger
from logbus.loads.sinks import sink_for
from logbus.loads.table_audit import HourAudit, Spans, TableReport, record_report
from logbus.model import Interval, Pipeline, milliseconds
from logbus.status.retention_run import RetentionStore
from logbus.streams import hourly_aggregates, stream_ledger
from logbus.streams.aggregate_definition import define_aggregate
from logbus.streams.definition import define_stream
from logbus.streams.epoch_commit import Epoch, commit_epoch
from logbus.streams.epochs import EpochPart
from sqlalchemy import Engine

from tests.support.broker import AnyBroker
from tests.support.exporting import Samples
from tests.support.fake_log import FakeLog
from tests.support.ledgers import World
from tests.support.loads import Loading
from tests.support.topics import create_topic, send

HOUR = timedelta(hours=1)
MINUTES = {0: (6, 30), 1: (12,)}  # of each hour, by partition
CLOSED_HOURS = 4
RETENTION_DAYS = 7
AHEAD = timedelta(minutes=30)
GROUP, LIVE_GROUP = "dashboards", "live"


@dataclass(frozen=True, kw_only=True)
class Platform:
    """The platform. `url` is the warehouse's."""

    bootstrap: str
    url: str
    name: str
    now: datetime
    first_hour: datetime

    def at(self, hour: float) -> datetime:
        return self.first_hour + hour * HOUR


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What an exporter of that platform serves."""

    platform: Platform
    text: str
    found: Samples


def fill_computed(made: Platform, engine: Engine) -> None:
    measures = {"count": count()}
    of_hours = define_aggregate(f"{made.name}_by_hour", made.name, keys=[], measures=measures)
    hourly_aggregates.define(engine, of_hours, made.now)
    hourly_aggregates.bring_up_to_date(engine, of_hours.name, "test", lambda: made.now)
    live = define_stream(f"{made.name}_live", made.name, keys=[], measures=measures)
    stream_ledger.define(engine, live, made.now)
    owner = stream_ledger.begin(engine, live.name, "test", made.now)
    start = owner.positions[0]
    of_record = {"partition": 0, "start_offset": start, "end_offset": start + 1}
    part = EpochPart(**of_record, epoch=1, hour=made.at(3), read=1, fingerprint=0)
    epoch = Epoch(number=1, parts=[part], deltas=pa.table({}), newest_timestamp=made.now)
    commit_epoch(engine, owner, epoch, made.now)


def make_platform(broker: AnyBroker, url: str, name: str) -> Platform:
    now = datetime.now(UTC)
    first_hour = now.replace(minute=0, second=0, microsecond=0) - 5 * HOUR
    made = Platform(bootstrap=broker.bootstrap, url=url, name=name, now=now, first_hour=first_hour)
    fill_topic(made)
    fill_ledger(made)
    groups = Groups(Client({"bootstrap.servers": made.bootstrap}))
    groups.commit(GROUP, {(name, 0): 3, (name, 1): CLOSED_HOURS})
    groups.commit(LIVE_GROUP, {(name, partition): len(stamps(made, partition)) for partition in MINUTES})
    return made


def stamps(made: Platform, partition: int) -> list[int]:
    of_hours = [made.at(hour) + timedelta(minutes=minute) for hour in range(CLOSED_HOURS) for minute in MINUTES[partition]]
    return [milliseconds(at) for at in (*of_hours, *([made.now + AHEAD] if partition == 0 else []))]


def fill_topic(made: Platform) -> None:
    retention_ms = int(timedelta(days=RETENTION_DAYS).total_seconds() * 1000)
    create_topic(made.bootstrap, made.name, partitions=len(MINUTES), config={"retention.ms": str(retention_ms)})
    places = [(partition, stamp) for partition in MINUTES for stamp in stamps(made, partition)]
    send(made.bootstrap, made.name, [{"value": b"line", "partition": part, "timestamp": stamp} for part, stamp in places])


def fill_ledger(made: Platform) -> None:
    log, engine = Topics(Client({"bootstrap.servers": made.bootstrap})), connect(made.url)
    mirror = FakeLog()  # the same offsets and timestamps, as the source of loads without Spark
    mirror.fill(made.name, *(stamps(made, partition) for partition in MINUTES))
    world = World(ledger=Ledger(engine), log=mirror)
    world.ledger.register(Pipeline(name=made.name, topic=made.name, table=made.name, parse="lines"), log, made.now)
    hours = [world.ledger.freeze_or_get(made.name, Interval.hour(made.at(hour)), log, made.now) for hour in range(3)]
    Loading(world, made.url, hours[0], bad_offsets=frozenset({1})).load()
    Loading(world, made.url, hours[1]).load()
    audit_window(engine, log, made.name, made.at(0), made.now, sink_for=sink_for)
    failed = world.ledger.begin_attempts(made.name, [made.at(2)], "scheduled__test", 1, made.now)
    world.ledger.fail_attempts(failed, "the warehouse was full", made.now)
    retention = RetentionStore(engine)
    with retention.only_run("retention__test", made.now) as number:
        retention.end_run(number, ["held back for too long"], None, made.now)
    hour = HourAudit(start=made.at(0), records=3, missing=Spans(count=1), foreign=1)
    record_report(engine, TableReport(table="theirs", topic=made.name, hours=[hour], foreign=2, problems=(), notes=()), made.now)
    fill_computed(made, engine)
    engine.dispose()
