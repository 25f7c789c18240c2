"""A platform as large as the pages must cope with: topics with a record each hour, windows loaded except the last, groups.

Records go through the broker and pipelines through the `Ledger` class; windows are inserted into its tables as a week of hourly
runs would have left them, because real runs would take a week.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.loads.ledger import Ledger
from logbus.model import HOUR, Pipeline, milliseconds
from logbus.waiting import PATIENCE_SECONDS
from sqlalchemy import Engine, text

TOPICS, HOURS, GROUPS = 50, 168, 20
TOPICS_PER_GROUP = 5
UNLOADED_HOURS = 3
VALUE = b"x" * 200

WINDOWS = text("""
    insert into logbus.window (pipeline, topic_id, starts_at, ends_at, frozen_at, last_attempt, loaded_attempt, loaded_at,
        audited_at, read_count, loaded_count, dead_lettered_count, filtered_count, late_count, early_count, lost_count,
        byte_count, fingerprint)
    select p.name, p.topic_id, begins, begins + interval '1 hour', begins + interval '65 minutes', is_loaded::int,
        case when is_loaded then 1 end, case when is_loaded then begins + interval '70 minutes' end,
        case when is_loaded then begins + interval '71 minutes' end, counted, counted, 0, 0, 0, 0, 0, counted * 203, '00'
    from logbus.pipeline p, generate_series(0, cast(:hours as int) - 1) as hour,
        lateral (select cast(:begin as timestamptz) + hour * interval '1 hour' as begins,
            hour < cast(:hours as int) - cast(:unloaded as int) as is_loaded) w,
        lateral (select case when is_loaded then cast(:partitions as bigint) end as counted) c
""")
RANGES = text("""
    insert into logbus.window_range (window_id, partition, start_offset, end_offset, lost)
    select w.id, part, hour, hour + 1, 0
    from (select id, row_number() over (partition by pipeline order by starts_at) - 1 as hour from logbus.window) w,
        generate_series(0, cast(:partitions as int) - 1) as part
""")
ATTEMPTS = text("""
    insert into logbus.attempt (window_id, number, key, state, run_id, try_number, staging_table, dead_letter_table, cleaned,
        began_at, heartbeat_at, ended_at)
    select id, 1, md5(id::text), 'committed', 'scheduled', 1, 's', 'd', true, loaded_at, loaded_at, loaded_at
    from logbus.window where loaded_attempt is not null
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """What the seeding needs. `begin` is the start of the first hour."""

    engine: Engine
    bootstrap: str
    partitions: int
    begin: datetime

    def seed(self) -> None:
        self.make_topics()
        self.produce()
        self.fill_ledger()
        self.commit_offsets()

    @property
    def topics(self) -> list[str]:
        return [f"topic_{number:02d}" for number in range(TOPICS)]

    def make_topics(self) -> None:
        config = {"retention.ms": "-1", "message.timestamp.before.max.ms": str(2**63 - 1)}
        wanted = [NewTopic(name, num_partitions=self.partitions, config=config) for name in self.topics]
        client = self.admin()
        for future in client.create_topics(wanted).values():
            future.result(PATIENCE_SECONDS)

    def produce(self) -> None:
        """Produces a record for each hour of each partition."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 20})
        for hour in range(HOURS):
            stamp = milliseconds(self.begin + hour * HOUR + timedelta(minutes=30))
            for topic in self.topics:
                for partition in range(self.partitions):
                    producer.produce(topic, VALUE, key=b"key", partition=partition, timestamp=stamp)
            producer.poll(0)
        if producer.flush(PATIENCE_SECONDS):
            raise RuntimeError("the broker did not take all records")

    def fill_ledger(self) -> None:
        ledger, log = Ledger(self.engine), Topics(Client({"bootstrap.servers": self.bootstrap}))
        for name in self.topics:
            pipeline = Pipeline(name=name, topic=name, table=name, parse="lines", starts_at=self.begin)
            ledger.register(pipeline, log, self.begin + HOURS * HOUR)
        values: dict[str, Any] = {"hours": HOURS, "unloaded": UNLOADED_HOURS, "begin": self.begin, "partitions": self.partitions}
        with self.engine.begin() as connection:
            connection.execute(WINDOWS, values)
            connection.execute(RANGES, {"partitions": self.partitions})
            connection.execute(ATTEMPTS)
            connection.execute(text('update logbus.anchor set "offset" = 0'))
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("analyze"))

    def commit_offsets(self) -> None:
        client = self.admin()
        for number in range(GROUPS):
            chosen = [self.topics[(number + one) % TOPICS] for one in range(TOPICS_PER_GROUP)]
            parts = [TopicPartition(topic, part, HOURS // 2) for topic in chosen for part in range(self.partitions)]
            name = f"group_{number:02d}"
            offsets = ConsumerGroupTopicPartitions(name, parts)
            client.alter_consumer_group_offsets([offsets])[name].result(PATIENCE_SECONDS)

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap})
