"""What clients can request for topics and settings: implemented by a single broker (`topic_changes.py`) or one in a cluster.

Every method is a chore (`broker/chores.py`). What cannot be done for one topic is that topic's error; the others of the same
request are done. `timeout_ms` is how long the client waits: a single broker waits for its own disk only, as long as that takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from broker.chores import Steps
from broker.coordination.broker_overrides import Rewrite, Scope
from broker.coordination.local import Topic
from broker.errors import BrokerError

TIMEOUT_MS = 30_000  # if the request has none: half of Kafka's default.api.timeout.ms
DEFAULT = -1  # partitions: num.partitions; replicas: default.replication.factor

Outcomes = Steps  # a generator that returns a list of Topic or BrokerError, in the order of the request
Failures = Steps  # a generator that returns BrokerErrors by topic name
Moves = Mapping[int, tuple[int, ...] | None]  # target brokers by partition; None: back to where it was


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create. `assignments` say which brokers get each partition; then the two counts are ignored."""

    name: str
    partition_count: int = DEFAULT
    replication_factor: int = DEFAULT
    overrides: Mapping[str, str]
    assignments: Mapping[int, Sequence[int]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A topic to grow to `count` partitions; `assignments` say which brokers get each new one, in order."""

    name: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSettings:
    """A topic's new settings: `rewrite` of the current ones. It may be called more than once, and raises what is wrong."""

    topic: Topic
    rewrite: Rewrite


class TopicAdmin(Protocol):
    """See the module docstring."""

    def validate(self, wanted: Iterable[NewTopic | BrokerError]) -> Outcomes:
        """What `create` would return; nothing is created, and the topics have no id."""

    def create(self, wanted: Iterable[NewTopic | BrokerError], timeout_ms: int = TIMEOUT_MS) -> Outcomes:
        """Create topics with empty partitions. Errors in `wanted` are passed through."""

    def check_growth(self, growth: Growth, *, planned: int = 0) -> int:
        """How many partitions the topic would get, with `planned` ones for other topics; raises what is wrong with it."""

    def grow(self, wanted: Mapping[str, Growth], timeout_ms: int = TIMEOUT_MS) -> Failures:
        """Add empty partitions to topics that may have them (`check_growth`)."""

    def delete(self, topics: Sequence[Topic], timeout_ms: int = TIMEOUT_MS) -> Failures:
        """The topics can no longer be found when it returns."""

    def reassign(self, topic: Topic, wanted: Moves, timeout_ms: int = TIMEOUT_MS) -> Steps:
        """Begin to move partitions of the topic, to other brokers or back to where they were. Returns BrokerErrors by partition
        for those that cannot be moved."""

    def change_topics(self, changes: Sequence[NewSettings]) -> Failures:
        """Give topics other settings; they apply to open logs when it returns."""

    def change_broker(self, scope: Scope, rewrite: Rewrite) -> Steps:
        """Give this broker, or every broker, other settings below those of the topics. Raises what is wrong with them."""


def plan_each(wanted: Iterable[NewTopic | BrokerError], plan: Callable[[NewTopic], Any]) -> Steps:
    """The plan of each topic, or its error. Errors in `wanted` are passed through."""
    outcomes: list[Any] = []
    for one in wanted:
        try:
            outcomes.append(one if isinstance(one, BrokerError) else plan(one))
        except BrokerError as error:
            outcomes.append(error)
        yield None
    return outcomes
