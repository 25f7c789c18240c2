"""A platform in every state that the pages can show, reached as in production: by producing, freezing, loading, auditing, failing
and deleting, through the real broker, ledger and warehouse. Only Spark is left out: the code of driver and tasks runs in process.

    access_log    every hour audited, except one with dead letters and the last one, loaded but not yet audited
    app_events    an attempt is running, three later hours wait
    payments      an attempt has failed, two later hours wait
    clickstream   an hour has lost records before it was loaded, the next ones expire soon, the others wait
    search        every hour loaded, small
    crashes       a topic without records
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.loads.audit import audit_window
from logbus.loads.engine import connect
from logbus.loads.ledger import Ledger
from logbus.loads.sinks import sink_for
from logbus.model import HOUR, Attempt, Interval, Pipeline, TaskKey, milliseconds
from logbus_spark.application import Application, WindowOutcome
from sqlalchemy import Engine

from tests.support.in_process import replace_spark
from tests.support.ledgers import remember_dag
from tests.support.topics import create_topic, delete_before, send

DAY_MS = 86_400_000
PARTITIONS = 2
DAY_HOURS = 24
SCRIPT = '<script>alert("not a line of a log")</script>'
NOT_LINES = (SCRIPT, "10.0.2.19 - - [21/Nov/2026:1", '{"level": "warn", "message": "json among lines"}')
RETENTION_HOURS = 24  # of clickstream: hours older than three quarters of it expire soon
HOLDS_ALL = {"retention.ms": "-1"}
HEAD = timedelta(minutes=6)  # from an hour's end to its load
TAKES = timedelta(seconds=31)


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """How one pipeline got into its state. Hours are counted backwards: 0 is the open one."""

    name: str
    per_hour: int
    parse: str = "json"
    bad_hours: frozenset[int] = frozenset()
    loaded_until: int = 1  # the newest hour that is loaded
    audited_until: int = 1
    failed: int | None = None
    running: int | None = None
    cut: int | None = None  # the hour in whose middle the log start offset now is
    has_dag: bool = True
    config: Mapping[str, str] = field(default_factory=lambda: HOLDS_ALL)


STORIES = (
    Story(name="access_log", per_hour=120, parse="combined", bad_hours=frozenset({5}), audited_until=2),
    Story(name="app_events", per_hour=200, loaded_until=5, audited_until=5, running=4),
    Story(name="payments", per_hour=40, bad_hours=frozenset({9}), loaded_until=4, audited_until=4, failed=3),
    Story(
        name="clickstream",
        per_hour=300,
        loaded_until=22,
        audited_until=22,
        cut=21,
        config={"retention.ms": str(RETENTION_HOURS * 3_600_000)},
    ),
    Story(name="search", per_hour=30),
    Story(name="crashes", per_hour=0),
)
FAILURE = "SparkException: Job aborted due to stage failure: Task 3 in stage 0.0 failed 4 times\n\tat org.apache.spark.scheduler"


@dataclass
class SeededPlatform:
    """The platform as of `now`; hours are given by how many hours ago they began."""

    bootstrap: str
    engine: Engine
    now: datetime
    hours: int
    scale: float = 1.0
    stories: Sequence[Story] = STORIES
    consumers: list[Consumer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.client_config = {"bootstrap.servers": self.bootstrap, "log_level": 0}
        self.ledger, self.log = Ledger(self.engine), Topics(Client(self.client_config))

    def start(self, hours_ago: int) -> datetime:
        return self.now.replace(minute=0, second=0, microsecond=0) - hours_ago * HOUR

    def seed(self) -> None:
        for story in self.stories:
            self.tell(story)
        self.consumers = [
            self.group("billing-exporter", "payments", commits=True),
            self.group("notebook", "search", commits=False),
        ]

    def tell(self, story: Story) -> None:
        create_topic(self.bootstrap, story.name, partitions=PARTITIONS, config=dict(story.config))
        if story.per_hour:
            self.produce(story, range(self.hours - 1, -1, -1))
        pipeline = Pipeline(name=story.name, topic=story.name, table=story.name, parse=story.parse, lateness=timedelta(0))
        self.ledger.register(pipeline, self.log, self.start(self.hours))
        remember_dag(self.ledger, story.name, story.name, self.start(self.hours))
        if not story.per_hour:
            return
        self.load(story, range(self.hours - 1, story.loaded_until - 1, -1))
        self.leave_unloaded(story)

    def produce(self, story: Story, hours: Sequence[int]) -> None:
        """Records of these hours, in daily waves, spread over the partitions and, except in the open hour, over the hour. How
        many depends on how long ago the hour was, never on the time of day, so that every run has the same figures."""
        records: list[dict[str, Any]] = []
        for hours_ago in hours:
            start = self.start(hours_ago)
            length = min(HOUR, self.now - start)
            count = max(4, int(self.scale * story.per_hour * (1 + 0.6 * math.sin(hours_ago / DAY_HOURS * math.tau))))
            for number in range(count if hours_ago else count // 2):
                is_bad = hours_ago in story.bad_hours and number % 25 == 7
                value = NOT_LINES[number // 25 % len(NOT_LINES)] if is_bad else line(story, start, number)
                stamp = milliseconds(start + length * (number / count))
                records.append({"value": value, "key": f"web-{number % 3}", "partition": number % PARTITIONS, "timestamp": stamp})
        send(self.bootstrap, story.name, records)

    def freeze(self, story: Story, hours_ago: int) -> None:
        """Freeze an hour, as of its end."""
        start = self.start(hours_ago)
        self.ledger.freeze_or_get(story.name, Interval(start, start + HOUR), self.log, start + HOUR)

    def begin(self, story: Story, hours_ago: int, at: datetime, try_number: int = 1) -> Attempt:
        start = self.start(hours_ago)
        run_id = f"scheduled__{start.isoformat()}" if story.has_dag else "by hand"
        task = TaskKey(dag_id=story.name, task_id="load") if story.has_dag else None
        (attempt,) = self.ledger.begin_attempts(story.name, [start], run_id, try_number, at, task=task)
        return attempt

    def load(self, story: Story, hours: Sequence[int], try_number: int = 1) -> None:
        """What each hour's own run would have done, at its time; in one application, since a reader per hour would be slow."""
        loaded_at = {hours_ago: min(self.start(hours_ago) + HOUR + HEAD, self.now) for hours_ago in hours}
        for hours_ago in hours:
            self.freeze(story, hours_ago)
        tokens = [self.begin(story, hours_ago, at - TAKES, try_number).token for hours_ago, at in loaded_at.items()]
        times = list(loaded_at.values())  # windows are committed in order, and each is reported before the next

        def go_on(outcome: WindowOutcome) -> None:
            times[:] = times[1:] or times

        application = Application(
            ledger=self.ledger,
            log=self.log,
            client=Client(self.client_config),
            now=lambda: times[0],
            report=go_on,
        )
        outcomes = application.load(story.name, tokens)
        assert [outcome.error for outcome in outcomes if outcome.error is not None] == []
        for hours_ago in (found for found in hours if found >= story.audited_until):
            report = audit_window(
                self.engine, self.log, story.name, self.start(hours_ago), loaded_at[hours_ago], sink_for=sink_for
            )
            assert report.ok, report

    def leave_unloaded(self, story: Story) -> None:
        if story.cut is not None:
            self.freeze(story, story.cut)
            self.cut_log(story.name, story.cut)
        if story.failed is not None:
            self.freeze(story, story.failed)
            failed = self.begin(story, story.failed, self.start(story.failed - 1) + HEAD)
            self.ledger.fail_attempts([failed], FAILURE, self.start(story.failed - 1) + 2 * HEAD)
        if story.running is not None:
            for hours_ago in range(story.running, 0, -1):
                self.freeze(story, hours_ago)
            self.begin(story, story.running, self.now)

    def cut_log(self, topic: str, hours_ago: int) -> None:
        """Delete the records up to the middle of the hour's range, as retention would if it did not wait for loads."""
        window = self.ledger.window(topic, self.start(hours_ago))
        for part in window.ranges:
            delete_before(self.bootstrap, topic, part.partition, (part.start_offset + part.end_offset) // 2)

    def group(self, name: str, topic: str, *, commits: bool) -> Consumer:
        """A group with one member, which has committed half of each partition if `commits`."""
        # It does not poll again once it has its partitions, but must stay a member until the platform is closed.
        settings = {"group.id": name, "client.id": f"{name}-1", "enable.auto.commit": False, "max.poll.interval.ms": DAY_MS}
        consumer = Consumer({**self.client_config, **settings})
        consumer.subscribe([topic])
        while not consumer.assignment():
            consumer.poll(0.1)
        if commits:
            ends = {part: consumer.get_watermark_offsets(TopicPartition(topic, part))[1] for part in range(PARTITIONS)}
            consumer.commit(offsets=[TopicPartition(topic, part, end // 2) for part, end in ends.items()], asynchronous=False)
        return consumer

    def close(self) -> None:
        for consumer in self.consumers:
            consumer.close()
        self.engine.dispose()


def line(story: Story, start: datetime, number: int) -> str:
    if story.parse == "combined":
        at = (start + number * timedelta(seconds=20)).strftime("%d/%b/%Y:%H:%M:%S +0000")
        return f'10.0.{number % 7}.{number % 250} - - [{at}] "GET /products/{number % 90} HTTP/1.1" 200 {900 + number} "-" "Mozilla/5.0"'
    values: dict[str, Any] = {"id": f"{start:%m%d%H}-{number}", "user": number % 17, "amount": number * 1.25}
    return json.dumps(values)


@contextmanager
def seeded(
    bootstrap: str,
    warehouse_url: str,
    *,
    hours: int = 30,
    scale: float = 1.0,
    now: datetime | None = None,
    more: Callable[[SeededPlatform], None] = lambda platform: None,
) -> Iterator[SeededPlatform]:
    """The platform, on a running broker and database. `more` seeds whatever else the caller needs."""
    platform = SeededPlatform(
        bootstrap=bootstrap, engine=connect(warehouse_url), now=now or datetime.now(UTC), hours=hours, scale=scale
    )
    with pytest.MonkeyPatch.context() as patched:
        replace_spark(patched)
        platform.seed()
        more(platform)
    try:
        yield platform
    finally:
        platform.close()
