"""Topics of a broker: their partitions, offsets, first records after an instant and settings; and the requests that change them.

`OffsetLog`, `SettingsLog` and `LogAdmin` list what the ledger, lag and managed retention ask; `Topics` asks a real
broker, the tests' fake answers from memory; one contract suite runs over both and over Apache Kafka. Offsets and timestamps only:
no record's value is kept, a witness holds its hash. Timestamps are milliseconds since the epoch, as on the wire. A refusal is
raised with a message from `logbus.kafka.errors` that says what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol

from confluent_kafka import KafkaError, TopicPartition
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

from logbus import errors, fingerprint, model
from logbus.kafka.acls import operation_words
from logbus.kafka.client import LATEST, Client
from logbus.kafka.exact_reader import SingleRecords, read_range

REQUESTS_IN_FLIGHT_MAX = 100  # timestamps of one topic asked for at once
BROKERS_CHOICE = -1  # as a count: the broker applies num.partitions or default.replication.factor


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """A topic as it is now. The id changes if the topic is deleted and created again."""

    name: str
    topic_id: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAndTimestamp:
    """A record's offset and timestamp."""

    offset: int
    timestamp_ms: int
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSetting:
    """One setting in force. `source` is Kafka's name for where it is set, such as DYNAMIC_TOPIC_CONFIG."""

    name: str
    value: str | None
    source: str
    is_sensitive: bool = False

    @property
    def is_own(self) -> bool:
        """Whether it is set on this topic, not inherited from the broker."""
        return self.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.name


class OffsetLog(Protocol):
    """What the ledger asks. A partition absent from an answer of found records has no such record."""

    def topic(self, name: str) -> TopicFacts: ...

    def start_offsets(self, topic: str, partitions: Iterable[int]) -> dict[int, int]: ...

    def end_offsets(self, topic: str, partitions: Iterable[int], isolation_level: str) -> dict[int, int]: ...

    def first_at_or_after(self, topic: str, partitions: Iterable[int], timestamp_ms: int) -> dict[int, OffsetAndTimestamp]: ...

    def first_at_or_after_each(
        self, topic: str, partitions: Sequence[int], timestamps_ms: Iterable[int]
    ) -> dict[int, dict[int, OffsetAndTimestamp]]: ...

    def records(self, topic: str, partition: int, start_offset: int, end_offset: int) -> Iterator[OffsetAndTimestamp]: ...

    def last_records(self, topic: str, ranges: Mapping[int, tuple[int, int]]) -> dict[int, model.Witness]: ...

    def cluster_id(self) -> str | None: ...


class SettingsLog(OffsetLog, Protocol):
    """The same, and a topic's settings: all that lag needs."""

    def settings(self, topic: str, names: Sequence[str]) -> dict[str, str]: ...


class LogAdmin(SettingsLog, Protocol):
    """The same, what managed retention changes, and what the user may do."""

    def lacking(self, topic: str, operations: Iterable[str]) -> dict[str, errors.UserError]: ...

    def delete_before(self, topic: str, offsets: Mapping[int, int]) -> dict[int, int]: ...

    def change_settings(self, topic: str, values: Mapping[str, str]) -> None: ...


class Topics:
    """The topics of a real broker; for one thread at a time. `TopicMissing` where the topic does not exist."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._single_records = SingleRecords(client)

    def topic(self, name: str) -> TopicFacts:
        """Id and partitions."""
        described = self.client.ask(lambda: self.client.ask_topics([name]), name)[name]
        return TopicFacts(
            name=name, topic_id=str(described.topic_id), partitions=tuple(sorted(part.id for part in described.partitions))
        )

    def lacking(self, topic: str, operations: Iterable[str]) -> dict[str, errors.UserError]:
        """Of these operations, as kafka-acls writes them (`DescribeConfigs`), those that this user may not do on the topic, each
        with the sentence on how to grant it. None where the broker does not say."""
        described = self.client.ask(lambda: self.client.ask_topics([topic], with_operations=True), topic)[topic]
        allowed, denied = allowed_operations(described), KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "")
        if allowed is None:
            return {}
        return {needs: self.client.explain(denied, topic, needs) for needs in operations if needs not in allowed}

    def start_offsets(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """The log start offset of each partition."""
        offsets = self._list(topic, partitions, OffsetSpec.earliest())
        return {partition: info.offset for partition, info in offsets.items()}

    def end_offsets(self, topic: str, partitions: Iterable[int], isolation_level: str) -> dict[int, int]:
        """High watermark, or last stable offset under read_committed; exclusive."""
        offsets = self._list(topic, partitions, OffsetSpec.latest(), isolation_level)
        return {partition: info.offset for partition, info in offsets.items()}

    def first_at_or_after(self, topic: str, partitions: Iterable[int], timestamp_ms: int) -> dict[int, OffsetAndTimestamp]:
        """By partition the first record, in offset order, whose timestamp is `timestamp_ms` or later."""
        return to_offsets_and_timestamps(self._list(topic, partitions, OffsetSpec.for_timestamp(timestamp_ms)))

    def first_at_or_after_each(
        self, topic: str, partitions: Sequence[int], timestamps_ms: Iterable[int]
    ) -> dict[int, dict[int, OffsetAndTimestamp]]:
        """The same for many timestamps, by timestamp; the requests are in flight together."""
        # In portions: each timestamp is a separate request to the leader, a backlog may have thousands of hours, and the
        # client's queue is bounded.
        records: dict[int, dict[int, OffsetAndTimestamp]] = {stamp: {} for stamp in timestamps_ms}
        stamps = list(records)
        for begin in range(0, len(stamps), REQUESTS_IN_FLIGHT_MAX):
            portion = stamps[begin : begin + REQUESTS_IN_FLIGHT_MAX]
            for (stamp, part), info in self.client.ask(partial(self._ask_each, topic, partitions, portion), topic).items():
                records[stamp] |= to_offsets_and_timestamps({part: info})
        return records

    def _ask_each(self, topic: str, partitions: Sequence[int], stamps: Iterable[int]) -> Mapping[tuple[int, int], Future[Any]]:
        return {
            (stamp, part): future
            for stamp in stamps
            for (_, part), future in self.client.ask_offsets(
                {(topic, partition): OffsetSpec.for_timestamp(stamp) for partition in partitions}
            ).items()
        }

    def newest(self, topic: str, partitions: Iterable[int]) -> dict[int, OffsetAndTimestamp]:
        """By partition the record with the largest timestamp."""
        return to_offsets_and_timestamps(self._list(topic, partitions, OffsetSpec.max_timestamp()))

    def records(self, topic: str, partition: int, start_offset: int, end_offset: int) -> Iterator[OffsetAndTimestamp]:
        """Reads a range, for the rare search that the time index cannot answer."""
        for message in read_range(self.client.config, topic, partition, start_offset, end_offset, say=self.client.say):
            yield OffsetAndTimestamp(offset=message.offset(), timestamp_ms=message.timestamp()[1])

    def last_records(self, topic: str, ranges: Mapping[int, tuple[int, int]]) -> dict[int, model.Witness]:
        """By partition the last record in the offsets [start, end), whether its transaction committed or aborted. A partition
        with no record there is not in the answer, nor is one whose log does not, or no longer, contain the offset `start`."""
        return {part: to_witness(part, message) for part, message in self._single_records.last(topic, ranges).items()}

    def cluster_id(self) -> str | None:
        """The id of the cluster that answers; None where it has none."""
        cluster_id = self.client.ask(self.client.ask_cluster)[""].cluster_id
        return None if cluster_id is None else str(cluster_id)

    def _list(self, topic: str, partitions: Iterable[int], spec: OffsetSpec, isolation_level: str = LATEST) -> dict[int, Any]:
        specs = {(topic, partition): spec for partition in partitions}
        answers = self.client.ask(lambda: self.client.ask_offsets(specs, isolation_level), topic)
        return {partition: info for (_, partition), info in answers.items()}

    # Settings.

    def settings(self, topic: str, names: Sequence[str]) -> dict[str, str]:
        """Those of the named settings that the broker has, with the values in force, wherever they are set."""
        return {setting.name: str(setting.value) for setting in self.settings_in_force([topic])[topic] if setting.name in names}

    def settings_in_force(self, topics: Sequence[str]) -> dict[str, list[TopicSetting]]:
        """All settings of each topic, sorted by name; read in one request."""
        if not topics:
            return {}
        answers = self.client.ask(partial(self.client.ask_settings, topics), ", ".join(topics), needs="DescribeConfigs")
        return {topic: sorted(map(_topic_setting, answers[topic].values()), key=lambda setting: setting.name) for topic in topics}

    def change_settings(self, topic: str, values: Mapping[str, str], deleted: Sequence[str] = ()) -> None:
        """Sets `values`, resets the `deleted` ones to the broker's defaults, leaves the others as they are."""
        change_settings(self.client, ResourceType.TOPIC, topic, values, deleted)

    # Changes.

    def create(
        self,
        name: str,
        *,
        partitions: int = BROKERS_CHOICE,
        replication_factor: int = BROKERS_CHOICE,
        settings: Mapping[str, str] | None = None,
        if_not_exists: bool = False,
    ) -> bool:
        """Whether it was created now. `UserError` where it exists already, unless `if_not_exists`."""
        topic = NewTopic(name, num_partitions=partitions, replication_factor=replication_factor, config=dict(settings or {}))
        # Create and handle the refusal, not look up first: of two callers that create it at once, one gets the error.
        exists = _TopicExists(f"topic {name} already exists; --if-not-exists leaves it as it is")
        try:
            self.client.ask(
                lambda: self.client.admin().create_topics([topic], **self.client.limits()),
                name,
                needs="Create",
                explained={KafkaError.TOPIC_ALREADY_EXISTS: exists},
            )
        except _TopicExists:
            if not if_not_exists:
                raise
            return False
        return True

    def add_partitions(self, name: str, count: int) -> None:
        """`count` is the new total; a topic's partitions never become fewer."""
        request = [NewPartitions(name, count)]
        self.client.ask(lambda: self.client.admin().create_partitions(request, **self.client.limits()), name, needs="Alter")

    def delete(self, names: Sequence[str]) -> None:
        """Deletes the topics with all their records."""
        for name in names:
            request = partial(self.client.admin().delete_topics, [name], **self.client.limits())
            self.client.ask(request, name, needs="Delete")

    def delete_before(self, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
        """Deletes the records before an offset in each partition; returns the resulting log start offsets.

        `UserError` where the topic may not lose records (compacted, or not ours to change) or the offset is after
        its end. Deleting what is already deleted changes nothing.
        """
        if not offsets:
            return {}
        # Some of the broker's error codes mean something else here than elsewhere, so their messages are passed with the request.
        self.topic(topic)  # raises `TopicMissing`; without this the client would report a missing leader instead
        request = [TopicPartition(topic, partition, offset) for partition, offset in sorted(offsets.items())]
        # Two limits: how long the client waits for the response, and how long the broker may wait for its followers before it
        # responds.
        limits = {**self.client.limits(), "operation_timeout": self.client.timeout_seconds}
        compacted = errors.UserError(f"topic {topic} does not allow records to be deleted: its cleanup.policy is compact")
        too_far = errors.UserError(f"topic {topic} ends before the offset up to which records were to be deleted")
        answers = self.client.ask(
            lambda: self.client.admin().delete_records(request, **limits),
            topic,
            needs="Delete",
            explained={KafkaError.POLICY_VIOLATION: compacted, KafkaError.OFFSET_OUT_OF_RANGE: too_far},
        )
        return {part.partition: answer.low_watermark for part, answer in answers.items()}


def allowed_operations(described: Any) -> frozenset[str] | None:
    """Of a description that was asked for with its operations, these as kafka-acls writes them (`DESCRIBE_CONFIGS` is
    `DescribeConfigs`); None where the broker does not say."""
    operations: Iterable[Any] = described.authorized_operations or ()
    return frozenset(map(operation_words, operations)) or None


class _TopicExists(errors.UserError):
    """A topic of that name exists."""


def change_settings(
    client: Client, kind: ResourceType, name: str, values: Mapping[str, str], deleted: Sequence[str] = ()
) -> None:
    """Those of a topic or of a broker, one by one."""
    entries = [_config_entry(setting, value, AlterConfigOpType.SET) for setting, value in values.items()]
    entries += [_config_entry(setting, None, AlterConfigOpType.DELETE) for setting in deleted]
    request = [ConfigResource(kind, name, incremental_configs=entries)]
    client.ask(lambda: client.admin().incremental_alter_configs(request, **client.limits()), name, needs="AlterConfigs")


def _config_entry(name: str, value: str | None, operation: AlterConfigOpType) -> ConfigEntry:
    return ConfigEntry(name, value, incremental_operation=operation)


def _topic_setting(entry: Any) -> TopicSetting:
    """The admin client gives the source as a number or as its own enumeration."""
    value = None if entry.value is None else str(entry.value)
    return TopicSetting(
        name=entry.name, value=value, source=ConfigSource(entry.source).name, is_sensitive=bool(entry.is_sensitive)
    )


def to_witness(partition: int, message: Any) -> model.Witness:
    offset, stamp = message.offset(), message.timestamp()[1]
    hashed = fingerprint.as_signed(
        fingerprint.record_hash(partition, offset, stamp, message.key(), message.value(), fingerprint.headers_of(message))
    )
    return model.Witness(offset=offset, timestamp_ms=stamp, hash=hashed, leader_epoch=message.leader_epoch())


def to_offsets_and_timestamps(answers: Mapping[int, Any]) -> dict[int, OffsetAndTimestamp]:
    """The found records; the client marks "no match" as offset -1, which must never be taken for an offset."""
    return {
        partition: OffsetAndTimestamp(offset=info.offset, timestamp_ms=info.timestamp, leader_epoch=info.leader_epoch)
        for partition, info in answers.items()
        if info.offset >= 0
    }


# What the broker itself deletes of a topic, by age or by size. A topic has both limits whatever its `cleanup.policy`, but where
# that is `compact` alone neither is applied: the last record of each key stays, whatever its age. So no code should read
# `retention.ms` directly.
CLEANUP_POLICY, DELETE_POLICY = "cleanup.policy", "delete"
RETENTION_MS, RETENTION_BYTES = RETENTION_LIMITS = ("retention.ms", "retention.bytes")

# The settings to read from a topic to compute its limits.
LIMIT_SETTINGS = (*RETENTION_LIMITS, CLEANUP_POLICY)

NO_LIMIT = "-1"  # Kafka's value for it
LONGEST_MS = 10**14  # three thousand years; a longer one is as good as none, and would overflow a datetime


def deletes(settings: Mapping[str, str]) -> bool:
    """Whether records are deleted by age, size or DeleteRecords. If the policy is unknown the answer is yes, Kafka's default."""
    return DELETE_POLICY in settings.get(CLEANUP_POLICY, DELETE_POLICY).split(",")


def limits_in_force(settings: Mapping[str, str]) -> dict[str, int]:
    """The limits that the broker applies, milliseconds and bytes per partition, under Kafka's names."""
    limits = {name: int(settings.get(name, NO_LIMIT)) for name in RETENTION_LIMITS if deletes(settings)}
    return {name: limit for name, limit in limits.items() if limit >= 0 and not (name == RETENTION_MS and limit > LONGEST_MS)}


def age_kept(settings: Mapping[str, str]) -> timedelta | None:
    """The age at which the broker deletes the topic's records; None where there is no such limit."""
    milliseconds = limits_in_force(settings).get(RETENTION_MS)
    return None if milliseconds is None else timedelta(milliseconds=milliseconds)


def end_of(since: datetime, kept: timedelta) -> datetime | None:
    """When what is kept for this long is deleted; None, meaning never, past the last possible datetime."""
    try:
        return since + kept
    except OverflowError:
        return None
