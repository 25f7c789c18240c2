"""The plugin's only path to a broker: settings, timeouts, retries and error messages, over confluent-kafka.

The classes of this package (`Topics`, `TopicBatches`, `Groups`, the readers, the producers) are given a `Client` and ask through
it. It makes each kind of librdkafka handle from one configuration, which comes from an Airflow connection or a command line and
may hold settings of the other kinds. Building one needs no broker: handles are made on first use.

Each `ask_...` method sends one request and returns futures, keyed by their subject. The caller chooses how to wait: `ask`
waits for all answers, retries while the broker is not ready yet, and raises the error that remains; `outcome` returns
one answer of many, or its error, without retrying. Admin calls can hang, so every wait has a limit: a short one for a broker that
is away, which is usually a wrong address, and a long one for a broker that is only slow (`connecting`). A request is not repeated
while it is slow: an order would be executed twice.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from threading import Lock, Thread
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

from logbus import errors, waiting
from logbus.kafka import client_config
from logbus.kafka.errors import ANYBODY, AWAY, FINAL, ConnectionReports, explain, unavailable

# A partition of a topic: the key of all offsets.
PartitionId = tuple[str, int]

# A broker that is away: as long as a restart takes. Or, for a user who waits for the first answer: a wrong address never answers.
TIMEOUT_SECONDS = 30.0
ANSWER_SECONDS_MAX = 5.0

# A broker that is slow: twice the longest time, a minute, for which a machine that swaps was seen to do nothing.
SLOW_SECONDS_MAX = 120.0
LOOK_EVERY_SECONDS = 0.5  # how often it is checked meanwhile whether the broker has gone away

# A topic just created has no leader yet; this is the pause between tries.
RETRY_PAUSE_SECONDS = 0.1

INTERNAL_PREFIX = "__"  # Kafka's own topics, those that kafka-topics --exclude-internal leaves out
READ_COMMITTED = "read_committed"
ISOLATION_LEVELS = {READ_COMMITTED: IsolationLevel.READ_COMMITTED, "read_uncommitted": IsolationLevel.READ_UNCOMMITTED}
LATEST = "read_uncommitted"  # up to the high watermark, as kafka-topics and kafka-consumer-groups count

# Prefixes of settings for one kind of handle only. Any other kind would log a warning for each.
OF_CONSUMERS = ("group.", "auto.offset.reset", "enable.auto.", "enable.partition.eof", "isolation.level")
OF_PRODUCERS = ("enable.idempotence", "acks", "compression.", "linger.", "partitioner", "queue.buffering.")


class Fallible(Protocol):
    """One reading of many. `error` says which part of it the broker did not return, and why."""

    @property
    def error(self) -> errors.LogbusError | None: ...


Answer = TypeVar("Answer")
Reading = TypeVar("Reading", bound=Fallible)

# librdkafka logs each failed connection, up to twenty a second while a broker is down; the same line is passed on this often.
REPEAT_SECONDS = 60.0
REPEATS_MAX = 1000  # different lines that are remembered


class Repeats(logging.Filter):
    """Passes a line once in `REPEAT_SECONDS`, with how many like it were left out. Lines are alike if they differ only in the
    handle's name and in what librdkafka appends in brackets, such as `(after 3ms in state CONNECT)`."""

    VARIES = re.compile(r"rdkafka#\w+-\d+|\s*\([^()]*(?:\(s\)[^()]*)?\)\s*$")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._passed: dict[str, tuple[float, int]] = {}  # when a line was last passed, and how many were left out since

    def filter(self, record: logging.LogRecord) -> bool:
        text, now = record.getMessage(), self._clock()
        line = self.VARIES.sub("", text)
        passed_at, left_out = self._passed.get(line, (now - REPEAT_SECONDS, 0))
        if now - passed_at < REPEAT_SECONDS:
            self._passed[line] = (passed_at, left_out + 1)
            return False
        if len(self._passed) >= REPEATS_MAX:
            self._passed.clear()
        self._passed[line] = (now, 0)
        if left_out:
            record.msg, record.args = f"{text} [{left_out:,} more since the last such line]", ()
        return True


logger = logging.getLogger("logbus.client")
logger.addHandler(logging.NullHandler())
logger.addFilter(Repeats())


class Client:
    """One broker or cluster. Safe to share between threads.

    `timeout_seconds` is the limit for a broker that is away or not ready yet, `slow_seconds_max` that for one that is slow; `say`
    is told what is being waited for. `away_seconds_max` is for callers that would rather wait than fail: it is how long a broker
    that has answered before may be away, and where it is set, an unknown topic is asked for again until the time limit, as it may
    just have been created. `first_answer_seconds_max` is for callers that would rather fail early: the limit where the broker is
    away and has not answered yet.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        slow_seconds_max: float = SLOW_SECONDS_MAX,
        away_seconds_max: float = 0.0,
        first_answer_seconds_max: float = TIMEOUT_SECONDS,
        say: waiting.Say = waiting.say_nothing,
    ) -> None:
        self.config: Mapping[str, Any] = dict(config)  # as given
        self.broker_config = {name: value for name, value in config.items() if name not in client_config.OF_REGISTRY}
        self.timeout_seconds = timeout_seconds
        self.slow_seconds_max = slow_seconds_max
        self.away_seconds_max = away_seconds_max
        self.first_answer_seconds_max = first_answer_seconds_max
        self.say = say
        self._has_answered = False
        self._asked_at = 0.0  # the last request
        self._making = Lock()
        self._admin: AdminClient | None = None
        self._connections = ConnectionReports(logger, str(config.get("security.protocol", "PLAINTEXT")).upper())

    @classmethod
    def for_command(cls, config: Mapping[str, Any]) -> Client:
        """For a command line: a broker that is away and has not answered yet is soon given up."""
        return cls(config, first_answer_seconds_max=ANSWER_SECONDS_MAX, say=waiting.on_stderr)

    @classmethod
    def for_question(cls, config: Mapping[str, Any]) -> Client:
        """For a user who waits for a few answers: a broker that is away is always given up soon."""
        return cls(config, timeout_seconds=ANSWER_SECONDS_MAX, say=waiting.on_stderr)

    @classmethod
    def for_page(cls, config: Mapping[str, Any], seconds_max: float) -> Client:
        """For what shows the last answer with its age and asks again by itself: there a slow broker has no longer limit."""
        return cls(config, timeout_seconds=seconds_max, slow_seconds_max=seconds_max)

    @property
    def address(self) -> str:
        return str(self.config.get("bootstrap.servers", "(no bootstrap.servers given)"))

    @property
    def user(self) -> str:
        """The name in the broker's ACLs, where the settings have it: certificates and tokens are named by the broker."""
        return str(self.config.get("sasl.username") or ANYBODY)

    # Handles.

    def admin(self) -> AdminClient:
        """One for all threads: a second one would lose its pending answers when it is dropped."""
        with self._making:
            if self._admin is None:
                self._admin = self._made(AdminClient, self.settings(OF_CONSUMERS + OF_PRODUCERS))
            self._admin.poll(0)  # only this delivers log lines and connection errors; they pile up until then
            return self._admin

    def consumer(self, settings: Mapping[str, Any]) -> Consumer:
        """A new one, for the caller to close. `settings` override those that were configured."""
        return self._made(Consumer, self.settings(OF_PRODUCERS, settings=settings))

    def producer(self, settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> Producer:
        """A new one. `settings` override those that were configured, which override `defaults`."""
        return self._made(Producer, self.settings(OF_CONSUMERS, defaults, settings))

    def settings(
        self, foreign: tuple[str, ...], defaults: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The configured settings without those for other kinds of handle."""
        own = {name: value for name, value in self.config.items() if not name.startswith((*foreign, *client_config.OF_REGISTRY))}
        if (recipe := client_config.token_recipe(self.config)) is not None:
            own[client_config.RECIPE] = client_config.token_function(recipe)
        return {"error_cb": self._connections.note, **(defaults or {}), **own, **(settings or {})}

    def _made(self, kind: Callable[..., Any], settings: Mapping[str, Any]) -> Any:
        try:
            return kind(settings, logger=self._connections)
        except KafkaException as error:
            raise errors.UserError(f"the client settings cannot be used: {error.args[0].str()}") from None
        except (TypeError, ValueError) as error:  # a function's name where a function is expected
            raise errors.UserError(f"the client settings cannot be used: {error}") from None

    # Waiting and errors.

    def limits(self) -> dict[str, float]:
        """For a request that is sent now."""
        self._asked_at = time.monotonic()
        return {"request_timeout": self.slow_seconds_max}

    def _answer(self, future: Future[Any]) -> Any:
        """The answer, or librdkafka's error; `TimeoutError` with the reason where the broker is away or slow for too long."""

        def is_over() -> bool:
            return bool(wait([future], LOOK_EVERY_SECONDS).done) or self._why_away(self._asked_at) is not None

        # one second more: librdkafka's own limit expires first, and its error has the reason
        limit = self.slow_seconds_max + 1
        if not future.done():
            with suppress(errors.NotInTime):
                waiting.wait_until(
                    is_over, what=f"the broker at {self.address}", timeout_seconds=limit, poll_seconds=0, say=self.say
                )
        if not future.done():
            raise TimeoutError(self._why_away(self._asked_at) or f"no answer within {self.slow_seconds_max:g} s")
        answer = future.result()
        self._has_answered = True
        return answer

    def _why_away(self, since: float) -> str | None:
        """Why the broker is taken to be away after a silence since then; None while it may only be slow. A login that it refuses
        needs no waiting: it will not accept it later, nor speak another protocol."""
        handshake = self._failed_handshake()
        if handshake is not None and handshake.code() in FINAL:
            return handshake.str()
        limit = self.timeout_seconds if self._has_answered else min(self.timeout_seconds, self.first_answer_seconds_max)
        if time.monotonic() - since < limit:
            return None
        if handshake is not None:
            return handshake.str()
        # Until one has answered, any of the named servers may.
        reasons = self._connections.away()
        needed = 1 if self._has_answered else self.address.count(",") + 1
        return reasons[0] if len(reasons) >= needed else None

    def raise_if_silent(self, since: float, subject: str) -> None:
        """`BrokerUnavailable` where a consumer has received nothing of `subject` since then, for longer than it may wait."""
        seconds = time.monotonic() - since
        if seconds > self.slow_seconds_max or self._why_away(since) is not None:
            raise self.unavailable(f"received nothing of {subject} for {seconds:.0f} s")

    def ask(
        self,
        question: Callable[[], Mapping[Any, Future[Any]]],
        about: str = "",
        *,
        needs: str = "Describe",
        explained: Mapping[int, Exception] | None = None,
        check: Callable[[Any], None] = lambda answer: None,
    ) -> dict[Any, Any]:
        """All answers of one call about a topic or a group. `explained` overrides the table of errors; `needs` is the ACL
        operation that the call requires; `check` raises the `KafkaException` that an answer holds."""

        def once() -> dict[Any, Any]:
            try:
                answers = {key: self._answer(future) for key, future in question().items()}
                for answer in answers.values():
                    check(answer)
            except KafkaException as error:
                reason = error.args[0]
                raise (explained or {}).get(reason.code()) or self.explain(reason, about, needs) from None
            except TimeoutError as silence:
                raise self.unavailable(str(silence)) from None
            return answers

        return self.patiently(once)

    def patiently(self, question: Callable[[], Answer]) -> Answer:
        """The answer; the question is asked again while its error may pass, for as long as `_patience_seconds` allows."""
        began_at = time.monotonic()
        while True:
            try:
                answer = question()
                self._has_answered = True
                self._connections.forget()
                return answer
            except (errors.BrokerUnavailable, errors.TopicMissing) as error:
                if time.monotonic() - began_at >= self._patience_seconds(error):
                    raise
            time.sleep(RETRY_PAUSE_SECONDS)

    def _patience_seconds(self, error: errors.LogbusError) -> float:
        if isinstance(error, errors.BrokerNotReady):
            return self.timeout_seconds
        if isinstance(error, errors.TopicMissing):
            return self.timeout_seconds if self.away_seconds_max else 0.0
        return self.away_seconds_max if self._has_answered and type(error) is errors.BrokerUnavailable else 0.0

    def settled(self, read: Callable[[], list[Reading]]) -> list[Reading]:
        """What `read` returns, read again within the time limit while the broker is not ready to answer part of it."""
        deadline = time.monotonic() + self.timeout_seconds
        while True:
            readings = read()
            if time.monotonic() > deadline or not any(isinstance(reading.error, errors.BrokerNotReady) for reading in readings):
                return readings
            time.sleep(RETRY_PAUSE_SECONDS)

    def outcome(self, future: Future[Any], about: str, needs: str = "Describe") -> Any:
        """The answer about a topic or group, or its error, returned and not raised: one failure must not hide the other answers.

        Pages show these messages to users who need not know where the broker is: they contain no address.
        """
        try:
            return self._answer(future)
        except KafkaException as error:
            return explain(self._reason(error.args[0]), about, needs=needs, user=self.user)
        except TimeoutError as silence:
            handshake = self._failed_handshake()
            return unavailable(str(silence), about) if handshake is None else explain(handshake, about)

    def unavailable(self, reason: str) -> errors.UserError:
        """The error for a missing answer; a handshake that failed recently is given as its cause."""
        handshake, broker = self._failed_handshake(), f"the broker at {self.address}"
        return unavailable(reason, broker=broker) if handshake is None else explain(handshake, "", broker=broker)

    def explain(self, error: KafkaError, about: str, needs: str = "Describe") -> errors.UserError:
        """The error of a request, with the broker's address."""
        return explain(self._reason(error), about, broker=f"the broker at {self.address}", needs=needs, user=self.user)

    def _reason(self, error: KafkaError) -> KafkaError:
        return (self._failed_handshake() or error) if error.code() in AWAY else error

    def _failed_handshake(self) -> KafkaError | None:
        if self._admin is not None:
            self._admin.poll(0)
        return self._connections.failed_handshake()

    # Requests, one method each. A future's error is librdkafka's `KafkaException`.

    def metadata(self) -> Any:
        """Brokers, topics and partitions of the whole cluster. `BrokerUnavailable` where no broker answers."""
        admin, future, limit = self.admin(), Future[Any](), self.limits()["request_timeout"]

        def ask() -> None:
            try:
                future.set_result(admin.list_topics(timeout=limit + 2))  # its own error would have no reason
            except Exception as error:
                future.set_exception(error)

        # The client has no future for it; a call on this thread could neither be interrupted nor given up.
        Thread(target=ask, name="metadata", daemon=True).start()
        try:
            return self._answer(future)
        except KafkaException as error:
            raise self.explain(error.args[0], "") from None
        except TimeoutError as silence:
            raise self.unavailable(str(silence)) from None

    def ask_cluster(self, *, with_operations: bool = False) -> Mapping[str, Future[Any]]:
        return {"": self.admin().describe_cluster(include_authorized_operations=with_operations, **self.limits())}

    def ask_topics(self, names: Sequence[str], *, with_operations: bool = False) -> Mapping[str, Future[Any]]:
        return self.admin().describe_topics(
            TopicCollection(list(names)), include_authorized_operations=with_operations, **self.limits()
        )

    def ask_offsets(
        self, specs: Mapping[PartitionId, OffsetSpec], isolation_level: str = LATEST
    ) -> dict[PartitionId, Future[Any]]:
        """All partitions, in one request to each broker that leads some of them; none if `specs` is empty. A partition without a
        leader fails: librdkafka sends no request for it, and returns -1001, which it calls INVALID, as if that were an answer."""
        if not specs:
            return {}
        request = {TopicPartition(*partition_id): spec for partition_id, spec in specs.items()}
        futures = self.admin().list_offsets(request, **self.limits(), isolation_level=ISOLATION_LEVELS[isolation_level])
        return {(part.topic, part.partition): _of_a_leader(future) for part, future in futures.items()}

    def ask_settings(self, topics: Iterable[str]) -> dict[str, Future[Any]]:
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        futures = self.admin().describe_configs(resources, **self.limits()) if resources else {}
        return {resource.name: future for resource, future in futures.items()}

    def ask_broker_settings(self, broker_id: int) -> Future[Any]:
        resource = ConfigResource(ResourceType.BROKER, str(broker_id))
        return self.admin().describe_configs([resource], **self.limits())[resource]

    def ask_group_names(self) -> Future[Any]:
        """The names of all groups that any broker of the cluster coordinates."""
        return self.admin().list_consumer_groups(**self.limits())

    def ask_groups(self, names: Sequence[str], *, with_operations: bool = False) -> Mapping[str, Future[Any]]:
        return self.admin().describe_consumer_groups(list(names), include_authorized_operations=with_operations, **self.limits())

    def ask_committed(self, group: str) -> Mapping[str, Future[Any]]:
        """All committed offsets of a group; librdkafka takes only one group per call."""
        request = [ConsumerGroupTopicPartitions(group)]
        return self.admin().list_consumer_group_offsets(request, require_stable=False, **self.limits())


NO_RECORD = -1  # the broker's own answer where no record is found: the lowest offset that is one
NONE_OF_ALL_LEADERS = KafkaError._NOENT  # if no partition of a request has one


def _of_a_leader(future: Future[Any]) -> Future[Any]:
    checked = Future[Any]()

    def check(answered: Future[Any]) -> None:
        error = answered.exception()
        is_leaderless = error is None and answered.result().offset < NO_RECORD
        if is_leaderless or (isinstance(error, KafkaException) and error.args[0].code() == NONE_OF_ALL_LEADERS):
            error = KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        if error is None:
            checked.set_result(answered.result())
        else:
            checked.set_exception(error)

    future.add_done_callback(check)
    return checked
