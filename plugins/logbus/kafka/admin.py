"""Every question that is put to a broker by confluent-kafka's admin client, each in one place; and a change of settings.

What comes back is under way: futures, by what they are about. How long to wait for them, and whether an error is raised or kept
beside the others' answers, is up to those who ask: patiently about one topic or one group (`log_offsets`, `group_offsets`), or at
once about many (`log_batches`, `all_groups`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource, OffsetSpec, ResourceType

from logbus.kafka.requests import AdminRequests

# A partition of a topic: the key of all offsets.
Place = tuple[str, int]

INTERNAL_PREFIX = "__"  # Kafka's own topics, as kafka-topics --exclude-internal knows them
READ_COMMITTED = "read_committed"
ISOLATION_LEVELS = {READ_COMMITTED: IsolationLevel.READ_COMMITTED, "read_uncommitted": IsolationLevel.READ_UNCOMMITTED}
LATEST = "read_uncommitted"  # up to the high watermark, as kafka-topics and kafka-consumer-groups count


class BrokerQuestions(AdminRequests):
    """One broker or cluster. A future's error is the client's `KafkaException`."""

    def metadata(self) -> Any:
        """Brokers, topics and partitions of the whole cluster. `BrokerUnavailable` where nobody answers."""
        try:
            return self.client().list_topics(timeout=self.timeout_seconds)
        except KafkaException as error:
            raise self.unavailable(error.args[0].str()) from None

    def ask_cluster(self) -> Future[Any]:
        found: Future[Any] = self.client().describe_cluster(**self.limits())
        return found

    def ask_topics(self, names: Sequence[str]) -> Mapping[str, Future[Any]]:
        found: Mapping[str, Future[Any]] = self.client().describe_topics(TopicCollection(list(names)), **self.limits())
        return found

    def ask_offsets(self, wanted: Mapping[Place, OffsetSpec], isolation_level: str = LATEST) -> dict[Place, Future[Any]]:
        """All partitions in one request to each broker that leads some; nothing is asked where nothing is wanted."""
        if not wanted:
            return {}
        specs = {TopicPartition(*place): spec for place, spec in wanted.items()}
        asked = self.client().list_offsets(specs, **self.limits(), isolation_level=ISOLATION_LEVELS[isolation_level])
        return {(part.topic, part.partition): future for part, future in asked.items()}

    def ask_settings(self, topics: Iterable[str]) -> dict[str, Future[Any]]:
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        asked = self.client().describe_configs(resources, **self.limits()) if resources else {}
        return {resource.name: future for resource, future in asked.items()}

    def ask_change(self, topic: str, values: Mapping[str, str], deleted: Iterable[str] = ()) -> Mapping[Any, Future[Any]]:
        """Sets some settings, takes others back to what the broker has for all topics, leaves the rest."""
        entries = [entry(name, value, AlterConfigOpType.SET) for name, value in values.items()]
        entries += [entry(name, None, AlterConfigOpType.DELETE) for name in deleted]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        found: Mapping[Any, Future[Any]] = self.client().incremental_alter_configs([resource], **self.limits())
        return found

    def ask_group_names(self) -> Future[Any]:
        """Of every group that a broker of the cluster coordinates."""
        found: Future[Any] = self.client().list_consumer_groups(**self.limits())
        return found

    def ask_groups(self, names: Sequence[str]) -> Mapping[str, Future[Any]]:
        found: Mapping[str, Future[Any]] = self.client().describe_consumer_groups(list(names), **self.limits())
        return found

    def ask_committed(self, group: str) -> Mapping[str, Future[Any]]:
        """All offsets of a group; the client takes no more than one group at once."""
        wanted = [ConsumerGroupTopicPartitions(group)]
        found: Mapping[str, Future[Any]] = self.client().list_consumer_group_offsets(
            wanted, require_stable=False, **self.limits()
        )
        return found


def entry(name: str, value: str | None, operation: AlterConfigOpType) -> ConfigEntry:
    return ConfigEntry(name, value, ConfigSource.DYNAMIC_TOPIC_CONFIG, incremental_operation=operation)


def to_committed(answer: ConsumerGroupTopicPartitions) -> dict[Place, int]:
    """The offsets in an answer of `ask_committed`: those of partitions for which the group has committed one."""
    parts = answer.topic_partitions or []
    return {(part.topic, part.partition): part.offset for part in parts if part.offset >= 0 and part.error is None}
