"""A pipeline to which everything has happened that leaves a figure on the page of an hour, and whose lag cannot be determined.
Its state is reached as in production; nothing is written into the ledger by hand.

    orders    loaded into another table, without a DAG; a record from the future hides where its hours end: lag unknown
              hour 9    retention was faster than the load, and the loss was accepted
              hour 8    more dead letters than a page shows, among them long ones and one that is not text
              hour 6    dead letters that were redriven, some of which became rows
              hour 4    loaded twice
              hour 3    records that arrived after their hour, and before it
              hour 2    a row was deleted from the table without the ledger's knowledge, and the audit found it
    sleepers  a group with an offset in one of two partitions, and no members
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from logbus.loads.audit import audit_window
from logbus.loads.redrive import Redrive
from logbus.loads.sinks import sink_for
from logbus.model import HOUR, Interval, Pipeline, milliseconds
from logbus.parsing import parser_for
from logbus.status.retention_plan import RetentionPolicy
from logbus.status.retention_run import RetentionStore
from logbus.waiting import PATIENCE_SECONDS
from logbus.windows import recovery
from sqlalchemy import text

from tests.support.seeded_platform import HEAD, PARTITIONS, SeededPlatform, Story
from tests.support.topics import admin, create_topic, send

NAME, TABLE, SLEEPERS = "orders", "orders_rows", "sleepers"
CUT, MANY_DEAD, REDRIVEN, TWICE, ODD_TIMES, SPOILT = 9, 8, 6, 4, 3, 2
PER_HOUR = 12
FROM_THE_FUTURE = timedelta(days=30)
STRICT, LAX = r"(?P<word>[a-z]+)", r"(?P<word>[a-z0-9]+)"
LONG = "x" + "\u00e9" * 3_000  # a page shows 2,000 bytes, which cuts a character in half
STORY = Story(name=NAME, per_hour=PER_HOUR, parse="regex", audited_until=CUT + 1, has_dag=False)
CONFIG = {
    "retention.ms": str(90 * 86_400_000),
    "retention.bytes": str(3 * 2**30),
    "message.timestamp.after.max.ms": str(90 * 86_400_000),  # otherwise the broker refuses records from the future
}
SLEPT_AT = 100


def tell(platform: SeededPlatform) -> None:
    create_topic(platform.bootstrap, NAME, partitions=PARTITIONS, config=CONFIG)
    produce(platform)
    register(platform, STRICT)
    platform.freeze(STORY, CUT)
    platform.cut_log(NAME, CUT)
    lost = Interval(platform.start(CUT), platform.start(CUT) + HOUR)
    recovery.accept_loss(platform.ledger.engine, NAME, lost, platform.log, platform.now, by="mary", reason="retention was faster")
    platform.load(STORY, range(CUT, 0, -1))
    platform.load(STORY, [TWICE], try_number=2)
    for hours_ago in (MANY_DEAD, REDRIVEN, TWICE, ODD_TIMES):
        assert audit(platform, hours_ago) == ()
    spoil(platform)
    redrive(platform)
    RetentionStore(platform.engine).set_policy(RetentionPolicy(topic="search", retain=timedelta(days=7)), platform.now)
    fall_asleep(platform)


def values(hours_ago: int) -> list[bytes]:
    """The values of an hour's records, in order."""
    plain = [f"word{chr(97 + number)}".encode() for number in range(PER_HOUR)]
    more = {
        MANY_DEAD: [LONG.encode(), b"\xff\xfe no text", *(f"{number} is no word".encode() for number in range(28))],
        REDRIVEN: [b"a1", b"b2", b"c3", b"#4", b"#5"],
    }
    return plain + more.get(hours_ago, [])


def produce(platform: SeededPlatform) -> None:
    records: list[dict[str, Any]] = []
    for hours_ago in range(CUT, 0, -1):
        of_hour = values(hours_ago)
        stamps = [platform.start(hours_ago) + HOUR * (number / len(of_hour)) for number in range(len(of_hour))]
        if hours_ago == ODD_TIMES:
            stamps[4] -= 2 * HOUR
            stamps[6] -= HOUR
            stamps[8] = platform.now + FROM_THE_FUTURE
        records += [
            {"value": value, "key": f"key-{number}", "partition": number % PARTITIONS, "timestamp": milliseconds(stamp)}
            for number, (value, stamp) in enumerate(zip(of_hour, stamps, strict=True))
        ]
    send(platform.bootstrap, NAME, records)


def register(platform: SeededPlatform, pattern: str) -> None:
    settings = {"pattern": pattern, "max_error_rate": 0.9}
    pipeline = Pipeline(name=NAME, topic=NAME, table=TABLE, parse="regex", lateness=timedelta(0), settings=settings)
    platform.ledger.register(pipeline, platform.log, platform.start(CUT + 1))


def audit(platform: SeededPlatform, hours_ago: int) -> tuple[str, ...]:
    """The problems that the audit found."""
    start = platform.start(hours_ago)
    return audit_window(platform.engine, platform.log, NAME, start, start + HOUR + 2 * HEAD, sink_for=sink_for).problems


def spoil(platform: SeededPlatform) -> None:
    one = f"select min(_offset) from {TABLE} where _window_start = :start and _partition = 0"
    statement = text(f"delete from {TABLE} where _window_start = :start and _partition = 0 and _offset = ({one})")
    with platform.engine.begin() as connection:
        assert connection.execute(statement, {"start": platform.start(SPOILT)}).rowcount == 1
    assert audit(platform, SPOILT) != ()


def redrive(platform: SeededPlatform) -> None:
    register(platform, LAX)
    pipeline = platform.ledger.pipeline(NAME)
    done = Redrive(
        engine=platform.engine,
        pipeline=pipeline,
        parser=parser_for(pipeline.parse, pipeline.settings),
        run_id="redrive by hand",
        now=lambda: platform.now,
    ).run(platform.ledger.window(NAME, platform.start(REDRIVEN)))
    assert (done.tried, done.loaded) == (5, 3)


def fall_asleep(platform: SeededPlatform) -> None:
    client = admin(platform.bootstrap)
    offsets = ConsumerGroupTopicPartitions(SLEEPERS, [TopicPartition("access_log", 1, SLEPT_AT)])
    client.alter_consumer_group_offsets([offsets])[SLEEPERS].result(PATIENCE_SECONDS)
