"""Orders about topics: make, change and delete them; and their settings with where each comes from.

A broker's refusal comes back in our words, with what to do about it. What topics are and hold is read by `all_topics`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from confluent_kafka import KafkaError
from confluent_kafka.admin import ConfigSource, NewPartitions, NewTopic

from logbus.errors import UserError
from logbus.kafka.batches import TopicBatches
from logbus.kafka.requests import Explanations

BROKERS_CHOICE = -1  # partitions or replicas: what num.partitions and default.replication.factor say


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


class TopicOrders(TopicBatches):
    """The orders, beside the questions about many topics."""

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
        several = ", ".join(names)
        answers = self.ask(lambda: self.ask_settings(names), several, refusals(several))
        return {name: sorted(map(topic_setting, answers[name].values()), key=lambda setting: setting.name) for name in names}

    def change(self, name: str, values: Mapping[str, str], deleted: Sequence[str] = ()) -> None:
        """Sets some settings, takes others back to what the broker has for all topics, leaves the rest."""
        self.ask(lambda: self.ask_change(name, values, deleted), name, refusals(name))


class _AlreadyThere(UserError):
    """A topic of that name."""


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
