"""What clients ask of topics and settings, and who does it: a broker alone (`topic_changes.py`) or one of many.

Every method is a chore (`broker/chores.py`). What cannot be done for one topic is that topic's error; the others of the same
request are done. `timeout_ms` is how long somebody waits: a broker alone needs its own disk only, and takes as long as that does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from broker.chores import Steps
from broker.coordination.broker_overrides import Scope
from broker.coordination.local import Topic
from broker.errors import BrokerError

TIMEOUT_MS = 30_000  # where the request does not say: Kafka's default.api.timeout.ms, halved
DEFAULT = -1  # partitions: num.partitions; replicas: default.replication.factor

Outcomes = Steps  # a generator that returns a list of Topic or BrokerError, in the order in which they were asked for
Failures = Steps  # a generator that returns the BrokerErrors by the names of their topics
Moves = Mapping[int, tuple[int, ...] | None]  # by partition, to which brokers; None: back to where it was
Rewrite = Callable[[Mapping[str, str]], Mapping[str, str]]  # from the settings that are to those that shall be


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to be made. `assignments` say which brokers get each partition; then the other two do not count."""

    name: str
    partition_count: int = DEFAULT
    replication_factor: int = DEFAULT
    overrides: Mapping[str, str]
    assignments: Mapping[int, Sequence[int]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A topic to be given `count` partitions; `assignments` say which brokers get each new one, in their order."""

    name: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSettings:
    """A topic's settings: those of now become `rewrite` of them. It may be called more than once, and raises what is wrong."""

    topic: Topic
    rewrite: Rewrite


class TopicAdmin(Protocol):
    """See the file's theory."""

    def validate(self, wanted: Iterable[NewTopic | BrokerError]) -> Outcomes:
        """What `create` would return; nothing is made, and nothing has an id."""

    def create(self, wanted: Iterable[NewTopic | BrokerError], timeout_ms: int = TIMEOUT_MS) -> Outcomes:
        """Make topics with empty partitions. What is refused already stays as it is."""

    def check_growth(self, growth: Growth, *, planned: int = 0) -> int:
        """How many partitions the topic would get, beside `planned` ones of other topics; raises what is wrong with it."""

    def grow(self, wanted: Mapping[str, Growth], timeout_ms: int = TIMEOUT_MS) -> Failures:
        """Add empty partitions to topics, which may have them (`check_growth`)."""

    def delete(self, topics: Sequence[Topic], timeout_ms: int = TIMEOUT_MS) -> Failures:
        """Nobody finds the topics any more when it returns."""

    def reassign(self, topic: Topic, wanted: Moves, timeout_ms: int = TIMEOUT_MS) -> Steps:
        """Begin to move partitions of the topic, to other brokers or back to where they were. Returns the BrokerErrors of those
        that cannot be, by partition."""

    def change_topics(self, changes: Sequence[NewSettings]) -> Failures:
        """Give topics other settings; they hold for open logs when it returns."""

    def change_broker(self, scope: Scope, rewrite: Rewrite) -> Steps:
        """Give this broker, or every broker, other settings below those of the topics. Raises what is wrong with them."""
