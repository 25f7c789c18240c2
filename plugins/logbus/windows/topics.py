"""Topics as a broker keeps them: which there are, what they hold, how they are set; orders to make, change and delete them.

All partitions of all topics are asked for in two requests for each broker, however many there are. A broker's refusal comes
back in our words, with what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from logbus.errors import UserError
from logbus.windows.admin_requests import AdminRequests, Explanations

INTERNAL_PREFIX = "__"  # __consumer_offsets and its like: the brokers' own
BROKERS_CHOICE = -1  # partitions or replicas: what num.partitions and default.replication.factor say


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """One partition as it is now; `end_offset` is exclusive. Offsets are None while it has no leader."""

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    start_offset: int | None = None
    end_offset: int | None = None

    @property
    def records(self) -> int | None:
        """Offsets between start and end; compaction and markers may have left fewer records."""
        return None if self.start_offset is None or self.end_offset is None else self.end_offset - self.start_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDetails:
    """A topic with all its partitions, in order."""

    name: str
    topic_id: str
    partitions: tuple[PartitionFacts, ...]

    @property
    def records(self) -> int | None:
        known = [part.records for part in self.partitions if part.records is not None]
        return sum(known) if len(known) == len(self.partitions) else None

    @property
    def replication_factor(self) -> int:
        return max((len(part.replicas) for part in self.partitions), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSetting:
    """One setting in force. `source` is where it comes from, in Kafka's words, such as DYNAMIC_TOPIC_CONFIG."""

    name: str
    value: str | None
    source: str
    is_sensitive: bool = False

    @property
    def is_own(self) -> bool:
        """Set for this topic, not for all."""
        return self.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.name


class Topics(AdminRequests):
    """Questions and orders about topics."""

    def names(self, *, with_internal: bool = False) -> list[str]:
        try:
            found = self.client().list_topics(timeout=self.timeout_seconds).topics
        except KafkaException as error:
            raise self.unavailable(error.args[0].str()) from None
        return sorted(name for name in found if with_internal or not name.startswith(INTERNAL_PREFIX))

    def details(self, names: Sequence[str]) -> list[TopicDetails]:
        """In the order of the names; `TopicMissing` where one of them is not there."""
        if not names:
            return []
        wanted = TopicCollection(list(names))
        answers = self.ask(lambda: self.client().describe_topics(wanted, **self.limits()), ", ".join(names))
        starts, ends = (self.offsets(answers, spec) for spec in (OffsetSpec.earliest(), OffsetSpec.latest()))
        return [topic_details(answers[name], starts, ends) for name in names]

    def offsets(self, topics: Mapping[str, Any], spec: OffsetSpec) -> dict[tuple[str, int], int]:
        """Start or end of every partition that has a leader."""
        wanted = {
            TopicPartition(name, part.id): spec
            for name, topic in topics.items()
            for part in topic.partitions
            if part.leader is not None
        }
        if not wanted:
            return {}
        answers = self.ask(lambda: self.client().list_offsets(wanted, **self.limits()), ", ".join(topics))
        return {(part.topic, part.partition): info.offset for part, info in answers.items()}

    def create(
        self,
        name: str,
        *,
        partitions: int = BROKERS_CHOICE,
        replication_factor: int = BROKERS_CHOICE,
        settings: Mapping[str, str] | None = None,
        if_not_exists: bool = False,
    ) -> bool:
        """Whether it was made now. `UserError` where it is there already, unless that is as good."""
        wanted = NewTopic(name, num_partitions=partitions, replication_factor=replication_factor, config=dict(settings or {}))
        there = _AlreadyThere(f"topic {name} is there already; --if-not-exists leaves it as it is")
        refused = {**refusals(name), KafkaError.TOPIC_ALREADY_EXISTS: there}
        try:
            self.ask(lambda: self.client().create_topics([wanted], **self.limits()), name, refused)
        except _AlreadyThere:
            if not if_not_exists:
                raise
            return False
        return True

    def add_partitions(self, name: str, count: int) -> None:
        """`count` is how many it has then; partitions never become fewer."""
        wanted = [NewPartitions(name, count)]
        self.ask(lambda: self.client().create_partitions(wanted, **self.limits()), name, refusals(name))

    def delete(self, names: Sequence[str]) -> None:
        """Deletes the topics with all their records."""
        for name in names:
            self.ask(partial(self.client().delete_topics, [name], **self.limits()), name, refusals(name))

    def settings(self, names: Sequence[str]) -> dict[str, list[TopicSetting]]:
        """Everything that is in force for the topics, which are there, by name; asked for in one request."""
        if not names:
            return {}
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        several = ", ".join(names)
        answers = self.ask(lambda: self.client().describe_configs(resources, **self.limits()), several, refusals(several))
        found = {resource.name: map(topic_setting, entries.values()) for resource, entries in answers.items()}
        return {name: sorted(found[name], key=lambda setting: setting.name) for name in names}

    def change(self, name: str, values: Mapping[str, str], deleted: Sequence[str] = ()) -> None:
        """Sets some settings, takes others back to what the broker has for all topics, leaves the rest."""
        entries = [entry(name_, value, AlterConfigOpType.SET) for name_, value in values.items()]
        entries += [entry(name_, None, AlterConfigOpType.DELETE) for name_ in deleted]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        self.ask(lambda: self.client().incremental_alter_configs([resource], **self.limits()), name, refusals(name))


class _AlreadyThere(UserError):
    """A topic of that name."""


def entry(name: str, value: str | None, operation: AlterConfigOpType) -> ConfigEntry:
    return ConfigEntry(name, value, ConfigSource.DYNAMIC_TOPIC_CONFIG, incremental_operation=operation)


def topic_details(described: Any, starts: Mapping[tuple[str, int], int], ends: Mapping[tuple[str, int], int]) -> TopicDetails:
    parts = [
        PartitionFacts(
            partition=part.id,
            leader=None if part.leader is None else part.leader.id,
            replicas=tuple(node.id for node in part.replicas),
            in_sync=tuple(node.id for node in part.isr),
            start_offset=starts.get((described.name, part.id)),
            end_offset=ends.get((described.name, part.id)),
        )
        for part in sorted(described.partitions, key=lambda part: part.id)
    ]
    return TopicDetails(name=described.name, topic_id=str(described.topic_id), partitions=tuple(parts))


def topic_setting(found: Any) -> TopicSetting:
    """The admin client gives the source as a number or as its own enumeration."""
    value = None if found.value is None else str(found.value)
    return TopicSetting(
        name=found.name, value=value, source=ConfigSource(found.source).name, is_sensitive=bool(found.is_sensitive)
    )


def refusals(topic: str) -> Explanations:
    """Errors that no retry mends, in our words, most of them with the broker's behind."""
    sentences = {
        KafkaError.TOPIC_EXCEPTION: f"{topic!r} is no name for a topic: at most 249 of a-z, A-Z, 0-9, '.', '_' and '-'",
        KafkaError.INVALID_PARTITIONS: f"topic {topic} cannot have that many partitions: at least one, never fewer than it has",
        KafkaError.INVALID_REPLICATION_FACTOR: f"topic {topic} cannot have that many replicas: leave --replication-factor out",
        KafkaError.INVALID_CONFIG: f"topic {topic} takes no such setting: `logbus topic config TOPIC --all` lists them",
        KafkaError.TOPIC_DELETION_DISABLED: "the broker deletes no topics: set its delete.topic.enable=true",
        KafkaError.TOPIC_AUTHORIZATION_FAILED: f"this user may not do that to topic {topic}",
        KafkaError.CLUSTER_AUTHORIZATION_FAILED: "this user may not do that on this cluster",
        KafkaError.POLICY_VIOLATION: f"a policy of the broker forbids that for topic {topic}",
        KafkaError.INVALID_REQUEST: f"the broker does not do that to topic {topic}",
    }
    return {code: quoting(sentence) for code, sentence in sentences.items()}


def quoting(sentence: str) -> Callable[[str], Exception]:
    return lambda said: UserError(f"{sentence} (the broker: {said})")
