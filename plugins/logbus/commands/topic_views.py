"""How topics are shown: the lines of kafka-topics for people, plain values for programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from logbus.commands.output import Table
from logbus.kafka.topic_list import TopicReading
from logbus.kafka.topics import TopicSetting


def headline(topic: TopicReading, own: Iterable[TopicSetting]) -> str:
    """The first line of kafka-topics --describe."""
    configs = ",".join(f"{setting.name}={setting.value}" for setting in own)
    counts = f"PartitionCount: {len(topic.partitions)}  ReplicationFactor: {topic.replication_factor}"
    return f"Topic: {topic.name}  TopicId: {topic.topic_id}  {counts}  Configs: {configs}"


def partition_table(topic: TopicReading) -> Table:
    table = Table("Partition", "Leader", "Replicas", "Isr", "Start-Offset", "End-Offset", "Records", "Bytes")
    for part in topic.partitions:
        nodes = (text(part.leader), *(",".join(map(str, found)) for found in (part.replicas, part.in_sync)))
        number = part.partition
        offsets = (topic.starts.get(number), topic.ends.get(number), topic.records_in(number))
        table.add_row(str(number), *nodes, *map(text, offsets), text(topic.sizes.get(number)))
    return table


def summary(topic: TopicReading) -> dict[str, Any]:
    """As JSON-ready values."""
    return {
        "topic": topic.name,
        "topic_id": topic.topic_id,
        "replication_factor": topic.replication_factor,
        "records": topic.records,
        "size_bytes": topic.size_bytes,
        "partitions": [
            {
                "partition": part.partition,
                "leader": part.leader,
                "replicas": list(part.replicas),
                "isr": list(part.in_sync),
                "start_offset": topic.starts.get(part.partition),
                "end_offset": topic.ends.get(part.partition),
                "size_bytes": topic.sizes.get(part.partition),
            }
            for part in topic.partitions
        ],
    }


def setting_summary(setting: TopicSetting) -> dict[str, Any]:
    value = None if setting.is_sensitive else setting.value
    return {"name": setting.name, "value": value, "source": setting.source, "is_sensitive": setting.is_sensitive}


def by_name(settings: Iterable[TopicSetting]) -> dict[str, str | None]:
    return {setting.name: setting.value for setting in settings if not setting.is_sensitive}


def secret_or_value(setting: TopicSetting) -> str:
    return "(secret)" if setting.is_sensitive else text(setting.value)


def text(value: Any) -> str:
    return "-" if value is None else str(value)
