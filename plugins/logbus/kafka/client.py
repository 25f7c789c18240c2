"""The one way from the plugin to a broker: settings, time limits, patience and errors, over confluent-kafka.

The nouns of this room (`Topics`, `TopicBatches`, `Groups`, the readers, the producers) are given a `Client` and ask through it.
It makes each kind of librdkafka handle from one configuration, which is an Airflow connection's or a command line's and may hold
settings of the other kinds. Safe to build where no broker runs: handles are made on first use.

The `ask_...` methods put one request each and return futures, by what they are about. The caller chooses how to wait: `ask`
waits for all answers, asks again while the broker says that it will know soon, and raises what stays wrong; `outcome` gives one
answer of many, or its error, at once. Admin calls can hang, so nothing is waited for without a limit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from threading import Lock
from typing import Any, Protocol, TypeVar

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from logbus.errors import BrokerNotReady, BrokerUnavailable, LogbusError, TopicMissing, UserError
from logbus.kafka.errors import AWAY, explain, failed_handshake, unavailable

# A partition of a topic: the key of all offsets.
Place = tuple[str, int]

TIMEOUT_SECONDS = 30.0
FIRST_ANSWER_SECONDS_MAX = 5.0  # for a person who waits: a broker that is there answers in milliseconds, a wrong address never

# A topic made a moment ago has no leader yet; this is how long we wait between tries.
RETRY_PAUSE_SECONDS = 0.1

# How long ago a failed handshake may lie that explains why there is no answer; librdkafka repeats it every 30 s at least.
HANDSHAKE_SECONDS_MAX = 60.0

INTERNAL_PREFIX = "__"  # Kafka's own topics, as kafka-topics --exclude-internal knows them
READ_COMMITTED = "read_committed"
ISOLATION_LEVELS = {READ_COMMITTED: IsolationLevel.READ_COMMITTED, "read_uncommitted": IsolationLevel.READ_UNCOMMITTED}
LATEST = "read_uncommitted"  # up to the high watermark, as kafka-topics and kafka-consumer-groups count

# Settings of one kind of handle, by how they begin. Another kind would warn about each.
OF_CONSUMERS = ("group.", "auto.offset.reset", "enable.auto.", "enable.partition.eof", "isolation.level")
OF_PRODUCERS = ("enable.idempotence", "acks", "compression.", "linger.", "partitioner", "queue.buffering.")


class Fallible(Protocol):
    """A reading of one of many. `error` says what of it the broker did not tell, and why."""

    @property
    def error(self) -> LogbusError | None: ...


Answer = TypeVar("Answer")
Reading = TypeVar("Reading", bound=Fallible)

logger = logging.getLogger("logbus.client")
logger.addHandler(logging.NullHandler())


class Client:
    """One broker or cluster. Safe to share between threads.

    `away_seconds_max` is for callers that would rather wait than fail: so long may a broker be away that has answered before, and
    within the time limit a topic may be unknown that was made a moment ago. `first_answer_seconds_max` is for those who would
    rather know: a broker that has not answered yet is given up so much sooner.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        away_seconds_max: float = 0.0,
        first_answer_seconds_max: float = TIMEOUT_SECONDS,
    ) -> None:
        self._config = dict(config)
        self.timeout_seconds = timeout_seconds
        self.away_seconds_max = away_seconds_max
        self.first_answer_seconds_max = first_answer_seconds_max
        self._has_answered = False
        self._making = Lock()
        self._admin: AdminClient | None = None
        self._handshakes: list[tuple[float, KafkaError]] = []  # the last one that failed

    @classmethod
    def of_a_command(cls, config: Mapping[str, Any]) -> Client:
        """For a person who waits, and whose work may take its time once the broker has answered."""
        return cls(config, first_answer_seconds_max=FIRST_ANSWER_SECONDS_MAX)

    @property
    def config(self) -> Mapping[str, Any]:
        """As it was given, for librdkafka."""
        return self._config

    @property
    def address(self) -> str:
        return str(self.config.get("bootstrap.servers", "(no bootstrap.servers given)"))

    # Handles.

    def admin(self) -> AdminClient:
        """One for all threads: a second would take its answers with it when it is dropped."""
        with self._making:
            if self._admin is None:
                self._admin = made(AdminClient, self.settings(OF_CONSUMERS + OF_PRODUCERS))
            self._admin.poll(0)  # log lines and errors of connections: they come by this alone, and pile up until then
            return self._admin

    def consumer(self, settings: Mapping[str, Any]) -> Consumer:
        """A new one, for its caller to close. `settings` go before those that were configured."""
        return made(Consumer, self.settings(OF_PRODUCERS, settings=settings))

    def producer(self, settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> Producer:
        """A new one. `settings` go before those that were configured, `defaults` after."""
        return made(Producer, self.settings(OF_CONSUMERS, defaults, settings))

    def settings(
        self, foreign: tuple[str, ...], defaults: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """What was configured, less the settings of other kinds of handle."""
        own = {name: value for name, value in self.config.items() if not name.startswith(foreign)}
        return {"error_cb": noting(self._handshakes), **(defaults or {}), **own, **(settings or {})}

    # Waiting, and what is wrong.

    def limit_seconds(self) -> float:
        """Of one request now."""
        return self.timeout_seconds if self._has_answered else min(self.timeout_seconds, self.first_answer_seconds_max)

    def limits(self) -> dict[str, float]:
        return {"request_timeout": self.limit_seconds()}

    def ask(
        self,
        question: Callable[[], Mapping[Any, Future[Any]]],
        about: str = "",
        *,
        needs: str = "Describe",
        explained: Mapping[int, Exception] | None = None,
        check: Callable[[Any], None] = lambda answer: None,
    ) -> dict[Any, Any]:
        """All answers of one call about a topic or a group. `explained` goes before the table of errors; `needs` is the ACL
        operation; `check` raises the `KafkaException` that an answer holds."""

        def once() -> dict[Any, Any]:
            try:
                # librdkafka's own limit comes first, and says why
                answers = {key: future.result(self.timeout_seconds + 1) for key, future in question().items()}
                for answer in answers.values():
                    check(answer)
            except KafkaException as error:
                reason = error.args[0]
                raise (explained or {}).get(reason.code()) or self.explain(reason, about, needs) from None
            except TimeoutError:
                raise self.unavailable(f"no answer within {self.timeout_seconds:g} s") from None
            return answers

        return self.patiently(once)

    def patiently(self, question: Callable[[], Answer]) -> Answer:
        """The answer, asked for again within the time limit while the broker says that it will know soon."""
        began_at = time.monotonic()
        while True:
            try:
                answer = question()
                self._has_answered = True
                self._handshakes.clear()
                return answer
            except (BrokerUnavailable, TopicMissing) as error:
                if time.monotonic() - began_at >= self._patience_seconds(error):
                    raise
            time.sleep(RETRY_PAUSE_SECONDS)

    def _patience_seconds(self, error: LogbusError) -> float:
        if isinstance(error, BrokerNotReady):
            return self.timeout_seconds
        if isinstance(error, TopicMissing):
            return self.timeout_seconds if self.away_seconds_max else 0.0
        return self.away_seconds_max if self._has_answered and type(error) is BrokerUnavailable else 0.0

    def settled(self, read: Callable[[], list[Reading]]) -> list[Reading]:
        """What `read` gives, read again within the time limit while something is not known of it yet."""
        deadline = time.monotonic() + self.timeout_seconds
        while True:
            found = read()
            if time.monotonic() > deadline or not any(isinstance(one.error, BrokerNotReady) for one in found):
                return found
            time.sleep(RETRY_PAUSE_SECONDS)

    def outcome(self, future: Future[Any], about: str) -> Any:
        """The answer about a topic or group, or its error (not raised): one of many harms no other.

        Pages show these sentences to people who need not know where the broker is: no address is in them.
        """
        try:
            return future.result(self.timeout_seconds + 1)
        except KafkaException as error:
            return explain(self._reason(error.args[0]), about)
        except TimeoutError:
            return unavailable(f"no answer within {self.timeout_seconds:g} s", about)

    def unavailable(self, reason: str) -> UserError:
        """There was no answer: because of a handshake that failed, where one did."""
        handshake, broker = self._failed_handshake(), f"the broker at {self.address}"
        return unavailable(reason, broker=broker) if handshake is None else explain(handshake, "", broker=broker)

    def explain(self, error: KafkaError, about: str, needs: str = "Describe") -> UserError:
        """The error of a request, with the broker's address."""
        return explain(self._reason(error), about, broker=f"the broker at {self.address}", needs=needs)

    def _reason(self, error: KafkaError) -> KafkaError:
        return (self._failed_handshake() or error) if error.code() in AWAY else error

    def _failed_handshake(self) -> KafkaError | None:
        if self._admin is not None:
            self._admin.poll(0)
        recent = time.monotonic() - HANDSHAKE_SECONDS_MAX
        return next((error for at, error in self._handshakes if at > recent), None)

    # Requests, each in one place. A future's error is librdkafka's `KafkaException`.

    def metadata(self) -> Any:
        """Brokers, topics and partitions of the whole cluster. `BrokerUnavailable` where nobody answers."""
        try:
            found = self.admin().list_topics(timeout=self.limit_seconds())
        except KafkaException as error:
            raise self.explain(error.args[0], "") from None
        self._has_answered = True
        return found

    def ask_topics(self, names: Sequence[str]) -> Mapping[str, Future[Any]]:
        found: Mapping[str, Future[Any]] = self.admin().describe_topics(TopicCollection(list(names)), **self.limits())
        return found

    def ask_offsets(self, wanted: Mapping[Place, OffsetSpec], isolation_level: str = LATEST) -> dict[Place, Future[Any]]:
        """All partitions in one request to each broker that leads some; nothing is asked where nothing is wanted."""
        if not wanted:
            return {}
        specs = {TopicPartition(*place): spec for place, spec in wanted.items()}
        asked = self.admin().list_offsets(specs, **self.limits(), isolation_level=ISOLATION_LEVELS[isolation_level])
        return {(part.topic, part.partition): future for part, future in asked.items()}

    def ask_settings(self, topics: Iterable[str]) -> dict[str, Future[Any]]:
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        asked = self.admin().describe_configs(resources, **self.limits()) if resources else {}
        return {resource.name: future for resource, future in asked.items()}

    def ask_group_names(self) -> Future[Any]:
        """Of every group that a broker of the cluster coordinates."""
        found: Future[Any] = self.admin().list_consumer_groups(**self.limits())
        return found

    def ask_groups(self, names: Sequence[str]) -> Mapping[str, Future[Any]]:
        found: Mapping[str, Future[Any]] = self.admin().describe_consumer_groups(list(names), **self.limits())
        return found

    def ask_committed(self, group: str) -> Mapping[str, Future[Any]]:
        """All offsets of a group; librdkafka takes no more than one group at once."""
        wanted = [ConsumerGroupTopicPartitions(group)]
        found: Mapping[str, Future[Any]] = self.admin().list_consumer_group_offsets(wanted, require_stable=False, **self.limits())
        return found


def made(kind: Callable[..., Any], settings: Mapping[str, Any]) -> Any:
    try:
        return kind(settings, logger=logger)
    except KafkaException as error:
        raise UserError(f"the client settings cannot be used: {error.args[0].str()}") from None


def noting(handshakes: list[tuple[float, KafkaError]]) -> Callable[[KafkaError], None]:
    """Keeps the last failed handshake. A function of the list alone: a handle that holds its client would outlive it."""

    def note(error: KafkaError) -> None:
        if (found := failed_handshake(error)) is not None:
            handshakes[:] = [(time.monotonic(), found)]

    return note
