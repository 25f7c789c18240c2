"""How topics are shown: the lines of kafka-topics for people, plain values for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table

from logbus.windows.topics import TopicDetails, TopicSetting

Sizes = Mapping[tuple[str, int], int]


def headline(topic: TopicDetails, own: Iterable[TopicSetting]) -> str:
    """The first line of kafka-topics --describe."""
    configs = ",".join(f"{setting.name}={setting.value}" for setting in own)
    counts = f"PartitionCount: {len(topic.partitions)}  ReplicationFactor: {topic.replication_factor}"
    return f"Topic: {topic.name}  TopicId: {topic.topic_id}  {counts}  Configs: {configs}"


def partition_table(topic: TopicDetails, sizes: Sizes | None) -> Table:
    table = Table("Partition", "Leader", "Replicas", "Isr", "Start-Offset", "End-Offset", "Records", "Bytes")
    for part in topic.partitions:
        nodes = (text(part.leader), *(",".join(map(str, found)) for found in (part.replicas, part.in_sync)))
        numbers = (part.start_offset, part.end_offset, part.records, (sizes or {}).get((topic.name, part.partition)))
        table.add_row(str(part.partition), *nodes, *map(text, numbers))
    return table


def size_of(topic: TopicDetails, sizes: Sizes | None) -> int | None:
    return None if sizes is None else sum(sizes.get((topic.name, part.partition), 0) for part in topic.partitions)


def summary(topic: TopicDetails, sizes: Sizes | None) -> dict[str, Any]:
    """As JSON-ready values."""
    return {
        "topic": topic.name,
        "topic_id": topic.topic_id,
        "replication_factor": topic.replication_factor,
        "records": topic.records,
        "size_bytes": size_of(topic, sizes),
        "partitions": [
            {
                "partition": part.partition,
                "leader": part.leader,
                "replicas": list(part.replicas),
                "isr": list(part.in_sync),
                "start_offset": part.start_offset,
                "end_offset": part.end_offset,
                "size_bytes": (sizes or {}).get((topic.name, part.partition)),
            }
            for part in topic.partitions
        ],
    }


def setting_summary(setting: TopicSetting) -> dict[str, Any]:
    value = None if setting.is_sensitive else setting.value
    return {"name": setting.name, "value": value, "source": setting.source, "is_sensitive": setting.is_sensitive}


def named(settings: Iterable[TopicSetting]) -> dict[str, str | None]:
    return {setting.name: setting.value for setting in settings if not setting.is_sensitive}


def secret_or_value(setting: TopicSetting) -> str:
    return "(secret)" if setting.is_sensitive else text(setting.value)


def text(value: Any) -> str:
    return "-" if value is None else str(value)
