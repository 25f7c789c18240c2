"""Questions and orders to a broker through confluent-kafka's admin client, each with a time limit, each error in our words.

Admin calls can hang, answer "not yet" for a topic made a moment ago, or name an error by number only. `ask` waits for
all answers of one call, asks again while the broker says that it will know soon, and turns what stays wrong into a
`UserError` that says what to do; `outcome` gives one answer of many, or its error, at once. Safe to build where no
broker runs: the client is made on first use.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from logbus.errors import BrokerNotReady, BrokerUnavailable, LogbusError, TopicMissing, UserError

TIMEOUT_SECONDS = 30.0

# A topic made a moment ago has no leader yet; the client says "retriable" and this is how long we wait between tries.
RETRY_PAUSE_SECONDS = 0.1

# Settings of other kinds of client that may stand in a connection's configuration; the admin client would warn about each.
NOT_FOR_ADMIN = (
    "group.",
    "auto.offset.reset",
    "enable.auto.",
    "enable.partition.eof",
    "isolation.level",
    "enable.idempotence",
    "acks",
)
MISSING: Sequence[int] = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
# A group's coordinator that is starting or moving; librdkafka does not call these retriable.
COMING: Sequence[int] = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)

Explanations = Mapping[int, Exception | Callable[[str], Exception]]


class Fallible(Protocol):
    """A reading of one of many. `error` says what of it the broker did not tell, and why."""

    @property
    def error(self) -> LogbusError | None: ...


Answer = TypeVar("Answer")
Reading = TypeVar("Reading", bound=Fallible)

logger = logging.getLogger("logbus.client")
logger.addHandler(logging.NullHandler())


class AdminRequests:
    """Base of the rooms' own question lists. One broker or cluster, one client, used by one thread at a time."""

    def __init__(self, client_config: Mapping[str, Any], *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.client_config = dict(client_config)
        self.timeout_seconds = timeout_seconds
        self._admin: AdminClient | None = None

    def client(self) -> AdminClient:
        if self._admin is None:
            config = {key: value for key, value in self.client_config.items() if not key.startswith(NOT_FOR_ADMIN)}
            try:
                self._admin = AdminClient(config, logger=logger)
            except KafkaException as error:
                raise UserError(f"the client settings cannot be used: {error.args[0].str()}") from None
        return self._admin

    def limits(self) -> dict[str, float]:
        return {"request_timeout": self.timeout_seconds}

    def ask(
        self,
        question: Callable[[], Mapping[Any, Future[Any]]],
        topic: str,
        explain: Explanations | None = None,
        check: Callable[[Any], None] = lambda answer: None,
    ) -> dict[Any, Any]:
        """All answers of one call about `topic`.

        `explain` gives errors of the caller's for some codes, or makes one of the broker's own sentence; `check` raises the
        `KafkaException` that an answer holds.
        """

        def once() -> dict[Any, Any]:
            try:
                answers = {key: future.result(self.timeout_seconds) for key, future in question().items()}
                for answer in answers.values():
                    check(answer)
            except KafkaException as error:
                raise self.explained(error.args[0], topic, explain or {}) from None
            except TimeoutError:
                raise self.unavailable(f"no answer within {self.timeout_seconds:g} s") from None
            return answers

        return self.patiently(once)

    def patiently(self, question: Callable[[], Answer]) -> Answer:
        """The answer, asked for again within the time limit while the broker says that it will know soon."""
        deadline = time.monotonic() + self.timeout_seconds
        while True:
            try:
                return question()
            except BrokerNotReady:
                if time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_PAUSE_SECONDS)

    def settled(self, read: Callable[[], list[Reading]]) -> list[Reading]:
        """What `read` gives, read again within the time limit while something is not known of it yet."""
        deadline = time.monotonic() + self.timeout_seconds
        while True:
            found = read()
            if time.monotonic() > deadline or not any(isinstance(one.error, BrokerNotReady) for one in found):
                return found
            time.sleep(RETRY_PAUSE_SECONDS)

    def outcome(self, future: Future[Any], about: str, explain: Explanations | None = None) -> Any:
        """The answer about a topic or group, or its error in our words (not raised): one of many harms no other.

        Pages show these sentences to people who need not know where the broker is: no address is in them.
        """
        try:
            return future.result(self.timeout_seconds + 1)  # the client's own limit comes first
        except KafkaException as error:
            reason = error.args[0]
            if explain and reason.code() in explain:
                return explanation(explain[reason.code()], reason)
            if reason.code() in MISSING:
                return TopicMissing(f"the broker has no topic {about!r}")
            return kind_of(reason)(f"the broker does not tell about {about!r}: {reason.str()}")
        except TimeoutError:
            return BrokerUnavailable(f"the broker does not tell about {about!r} within {self.timeout_seconds:g} s")

    def explained(self, reason: KafkaError, topic: str, explain: Explanations) -> Exception:
        if reason.code() in explain:
            return explanation(explain[reason.code()], reason)
        if reason.code() in MISSING:
            return TopicMissing(f"the broker at {self.address} has no topic {topic!r}: create it, or ship something to it first")
        return self.unavailable(reason.str(), kind_of(reason))

    @property
    def address(self) -> str:
        return str(self.client_config.get("bootstrap.servers", "(no bootstrap.servers given)"))

    def unavailable(self, reason: str, kind: type[BrokerUnavailable] = BrokerUnavailable) -> BrokerUnavailable:
        return kind(
            f"the broker at {self.address} did not answer what was asked: {reason}. "
            "Check that it runs and that bootstrap.servers is right"
        )


def explanation(wanted: Exception | Callable[[str], Exception], reason: KafkaError) -> Exception:
    """The caller's error, which may quote the broker."""
    return wanted if isinstance(wanted, Exception) else wanted(reason.str())


def kind_of(reason: KafkaError) -> type[BrokerUnavailable]:
    """Whether asking again soon may well be answered."""
    return BrokerNotReady if reason.retriable() or reason.code() in COMING else BrokerUnavailable
