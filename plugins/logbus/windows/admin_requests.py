"""Questions and orders to a broker through confluent-kafka's admin client, each with a time limit, each error in our words.

Admin calls can hang, answer "not yet" for a topic made a moment ago, or name an error by number only. `ask` waits for
all answers of one call, asks again while the broker says that it will know soon, and turns what stays wrong into a
`UserError` that says what to do. Safe to build where no broker runs: the client is made on first use.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from logbus.errors import BrokerUnavailable, TopicMissing, UserError

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
        deadline = time.monotonic() + self.timeout_seconds
        while True:
            try:
                answers = {key: future.result(self.timeout_seconds) for key, future in question().items()}
                for answer in answers.values():
                    check(answer)
                return answers
            except KafkaException as error:
                reason = error.args[0]
                if explain and reason.code() in explain:
                    raise explanation(explain[reason.code()], reason) from None
                if reason.code() in MISSING:
                    raise TopicMissing(
                        f"the broker at {self.address} has no topic {topic!r}: create it, or ship something to it first"
                    ) from None
                if not will_come(reason) or time.monotonic() > deadline:
                    raise self.unavailable(reason.str()) from None
            except TimeoutError:
                raise self.unavailable(f"no answer within {self.timeout_seconds:g} s") from None
            time.sleep(RETRY_PAUSE_SECONDS)

    @property
    def address(self) -> str:
        return str(self.client_config.get("bootstrap.servers", "(no bootstrap.servers given)"))

    def unavailable(self, reason: str) -> BrokerUnavailable:
        return BrokerUnavailable(
            f"the broker at {self.address} did not answer what was asked: {reason}. "
            "Check that it runs and that bootstrap.servers is right"
        )


def explanation(wanted: Exception | Callable[[str], Exception], reason: KafkaError) -> Exception:
    """The caller's error, which may quote the broker."""
    return wanted if isinstance(wanted, Exception) else wanted(reason.str())


def will_come(reason: KafkaError) -> bool:
    """Whether asking again soon may well be answered."""
    return bool(reason.retriable()) or reason.code() in COMING
