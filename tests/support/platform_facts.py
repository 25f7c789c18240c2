"""What ledger, warehouse, broker and disk hold, read by means that the pages do not use: plain SQL, stock clients, the files.

Read once; what a page must show at an instant is derived from it (tests/support/expected_hours.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType
from logbus.waiting import PATIENCE_SECONDS
from sqlalchemy import Engine, text

from tests.support.topics import admin, read_partition

Row = Mapping[str, Any]
Value = TypeVar("Value")
TABLES = ("pipeline", "window", "window_range", "attempt", "dead_letter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """`stamps` are (offset, milliseconds) of every record, `size_bytes` is the size of its segments on disk."""

    start: int
    end: int
    stamps: Sequence[tuple[int, int]]
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    committed: Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """`tables` are the ledger's, `rows` counts the rows of each window and partition in the pipeline's table."""

    tables: Mapping[str, Sequence[Row]]
    rows: Mapping[tuple[int, int], int]
    topics: Mapping[str, Mapping[int, Partition]]
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    groups: Mapping[str, Group] = field(default_factory=dict)
    at: datetime  # when it was read
    has_broker: bool = True
    worked_out: dict[str, Any] = field(default_factory=dict)

    def without_broker(self) -> Facts:
        return replace(self, topics={}, settings={}, groups={}, has_broker=False, worked_out={})

    def kept(self, name: str, work_out: Callable[[], Value]) -> Value:
        """Cache of values that are slow to compute."""
        if name not in self.worked_out:
            self.worked_out[name] = work_out()
        found: Value = self.worked_out[name]
        return found

    @property
    def pipelines(self) -> list[str]:
        return sorted(row["name"] for row in self.tables["pipeline"])

    def pipeline(self, name: str) -> Row:
        (found,) = [row for row in self.tables["pipeline"] if row["name"] == name]
        return found

    def windows(self, name: str) -> list[Row]:
        return self.kept(f"windows {name}", lambda: by(self.tables["window"], "pipeline", "starts_at").get(name, []))

    def window(self, name: str, start: datetime) -> Row | None:
        return next((row for row in self.windows(name) if row["starts_at"] == start), None)

    def of_window(self, table: str, window: Row, order: str) -> list[Row]:
        """Rows of a table that belong to a window, in the order of a column."""
        return self.kept(f"{table} {order}", lambda: by(self.tables[table], "window_id", order)).get(window["id"], [])


def by(rows: Sequence[Row], key: str, order: str) -> dict[Any, list[Row]]:
    found: dict[Any, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row[order]):
        found.setdefault(row[key], []).append(row)
    return found


def read_facts(engine: Engine, bootstrap: str, data: Path) -> Facts:
    tables = {name: select(engine, f'select * from logbus."{name}"') for name in TABLES}
    client = admin(bootstrap)
    names = sorted(name for name in client.list_topics(timeout=PATIENCE_SECONDS).topics if not name.startswith("__"))
    return Facts(
        at=datetime.now(UTC),
        tables=tables,
        rows=table_rows(engine, tables["pipeline"]),
        topics={name: read_topic(client, bootstrap, data, name) for name in names},
        settings=settings_of(client, names),
        groups=groups_of(client),
    )


def select(engine: Engine, query: str) -> list[Row]:
    with engine.connect() as connection:
        return [dict(row) for row in connection.execute(text(query)).mappings()]


def table_rows(engine: Engine, pipelines: Sequence[Row]) -> dict[tuple[int, int], int]:
    """Row counts by window and partition; a pipeline that has loaded nothing has no table yet."""
    found = {}
    for row in pipelines:
        if not select(engine, f"select 1 from pg_tables where tablename = '{row['table_name']}'"):
            continue
        query = f"""select id, _partition, count(*) from {row["table_name"]} join logbus."window" on starts_at = _window_start
            where pipeline = '{row["name"]}' group by 1, 2"""
        found |= {(one["id"], one["_partition"]): one["count"] for one in select(engine, query)}
    return found


def read_topic(client: AdminClient, bootstrap: str, data: Path, name: str) -> dict[int, Partition]:
    described = client.list_topics(name, timeout=PATIENCE_SECONDS).topics[name].partitions
    found = {}
    for number in described:
        start, end = (offset(client, name, number, spec) for spec in (OffsetSpec.earliest(), OffsetSpec.latest()))
        records = read_partition(bootstrap, name, number, offset=start) if end > start else []
        found[number] = Partition(
            start=start,
            end=end,
            stamps=[(record.offset(), record.timestamp()[1]) for record in records],
            size_bytes=sum(path.stat().st_size for path in (data / f"{name}-{number}").glob("*.log")),
        )
    return found


def offset(client: AdminClient, topic: str, partition: int, spec: OffsetSpec) -> int:
    place = TopicPartition(topic, partition)
    return int(client.list_offsets({place: spec})[place].result(PATIENCE_SECONDS).offset)


def settings_of(client: AdminClient, names: Sequence[str]) -> dict[str, dict[str, str]]:
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    answers = client.describe_configs(resources) if resources else {}
    return {
        resource.name: {name: entry.value for name, entry in future.result(PATIENCE_SECONDS).items()}
        for resource, future in answers.items()
    }


def groups_of(client: AdminClient) -> dict[str, Group]:
    names = [one.group_id for one in client.list_consumer_groups().result(PATIENCE_SECONDS).valid]
    return {name: group_of(client, name) for name in names}


def group_of(client: AdminClient, name: str) -> Group:
    listed = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)])[name].result(PATIENCE_SECONDS)
    return Group(committed={(one.topic, one.partition): one.offset for one in listed.topic_partitions if one.offset >= 0})
