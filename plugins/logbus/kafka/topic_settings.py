"""What managed retention orders of a broker, besides what the ledger asks: delete records, read and change a topic's settings.

`LogAdmin` is the list; `TopicAdmin` asks a real broker, the tests' fake log answers from memory; one contract suite
runs over both and over Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from confluent_kafka import KafkaError, TopicPartition

from logbus.errors import UserError
from logbus.kafka.topics import LogOffsets, OffsetLog


class SettingsLog(OffsetLog, Protocol):
    """The ledger's questions, and that for a topic's settings: all that lag needs."""

    def settings(self, topic: str, names: Sequence[str]) -> dict[str, str]: ...


class LogAdmin(SettingsLog, Protocol):
    """The questions, and the orders."""

    def delete_before(self, topic: str, offsets: Mapping[int, int]) -> dict[int, int]: ...

    def change_settings(self, topic: str, values: Mapping[str, str]) -> None: ...


class TopicAdmin(LogOffsets):
    """The orders put to a real broker."""

    def delete_before(self, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
        """Deletes what lies before an offset in each partition; returns where each partition begins then.

        `UserError` where the topic may not lose records (compacted, or not ours to change) or the offset lies behind
        its end. Deleting what is deleted already changes nothing.
        """
        if not offsets:
            return {}
        self.topic(topic)  # a topic that is not there has no leader to ask: the client would say that instead
        wanted = [TopicPartition(topic, partition, offset) for partition, offset in sorted(offsets.items())]
        limits = {**self.limits(), "operation_timeout": self.timeout_seconds}
        answers = self.ask(lambda: self.client().delete_records(wanted, **limits), topic, refusals(topic))
        return {part.partition: answer.low_watermark for part, answer in answers.items()}

    def settings(self, topic: str, names: Sequence[str]) -> dict[str, str]:
        """Those settings of the topic that the broker knows, as they are in force, wherever they come from."""
        found = self.ask(lambda: self.ask_settings([topic]), topic, refusals(topic))[topic]
        return {name: str(entry.value) for name, entry in found.items() if name in names}

    def change_settings(self, topic: str, values: Mapping[str, str]) -> None:
        """Sets these and leaves the others as they are."""
        self.ask(lambda: self.ask_change(topic, values), topic, refusals(topic))


def refusals(topic: str) -> dict[int, Exception]:
    """Errors that no retry mends, in our words."""
    return {
        KafkaError.POLICY_VIOLATION: UserError(f"topic {topic} may not lose records by order: its cleanup.policy is compact"),
        KafkaError.TOPIC_AUTHORIZATION_FAILED: UserError(
            f"this user may not change topic {topic}: grant it DELETE and ALTER_CONFIGS"
        ),
        KafkaError.OFFSET_OUT_OF_RANGE: UserError(f"topic {topic} ends before the offset up to which records were to be deleted"),
        KafkaError.INVALID_CONFIG: UserError(f"the broker takes no such setting for topic {topic}"),
    }
