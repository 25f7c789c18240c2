"""The brokers of a cluster: which requests they support, how full their disks are, and which of them has which partition.

These are requests that librdkafka does not have, so kafka-python's admin client sends them; only these and reassignments.py need
a second library. The admin client of confluent-kafka 2.16 lacks ApiVersions, DescribeLogDirs, ListPartitionReassignments and
DescribeTopicPartitions (eligible leader replicas), and leaves the offline replicas out of a topic's description. Everything else
goes through `Client`. What needs a newer broker or another kind of cluster is asked last, and is unknown where it is refused.

A setting that decides how to connect is translated, or what would be asked is unknown (`NotAskable`): left out in silence, it
would make a broker that answers look like one that is away. Settings that only tune librdkafka are left out.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

from logbus.errors import LogbusError, NotAskable, UserError
from logbus.kafka import errors
from logbus.kafka.client import Client, PartitionId
from logbus.kafka.client_config import OAUTHBEARER, token_function, token_recipe
from logbus.waiting import announced

# librdkafka's names, and kafka-python's for the same.
NAMES: Mapping[str, str] = {
    "bootstrap.servers": "bootstrap_servers",
    "client.id": "client_id",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
}
UPPER_CASE = ("security_protocol", "sasl_mechanism")
# What `tls_context` is made of.
OF_TLS = (
    *("ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem", "ssl.key.location", "ssl.key.pem"),
    *("ssl.key.password", "ssl.cipher.suites", "ssl.crl.location"),
    *("ssl.endpoint.identification.algorithm", "enable.ssl.certificate.verification"),
)
OF_TOKENS = "sasl.oauthbearer.config"  # is passed to what makes the tokens
# What decides how to connect, where the protocol or the mechanism is this one.
OF_CONNECTING: Mapping[str, tuple[str, ...]] = {
    "SSL": ("ssl.", "enable.ssl."),
    OAUTHBEARER: ("sasl.oauthbearer.", "enable.sasl.oauthbearer."),
    "GSSAPI": ("sasl.kerberos.",),
}
FALSE = ("false", "f", "0")  # as librdkafka reads it
OFFSETS_TOPIC = "__consumer_offsets"
_IMPORTING = Lock()


def kafka_python() -> Any:
    """kafka-python, imported when it is first needed. Its modules import each other: where two threads began with different ones,
    each would wait for the other, and one would get half a module."""
    with _IMPORTING:
        import kafka.admin
        import kafka.errors
    return kafka


@contextmanager
def admin_client(client: Client) -> Iterator[Any]:
    """A `KafkaAdminClient` connected to the client's broker; its errors are raised as logbus errors."""
    kafka = kafka_python()
    client.ask(client.ask_cluster)
    limit_ms = int(client.slow_seconds_max * 1000)
    with announced(f"the broker at {client.address}", client.say):
        try:
            admin = kafka.admin.KafkaAdminClient(
                **translated(client.config), bootstrap_timeout_ms=limit_ms, request_timeout_ms=limit_ms
            )
        except (kafka.errors.KafkaError, OSError, ValueError, AssertionError) as error:
            not_to_it = f"unknown: the broker at {client.address} answers, but not to kafka-python with these settings: {error}"
            raise explained(client, error, NotAskable(not_to_it)) from None
        try:
            yield admin
        except kafka.errors.KafkaError as error:
            raise explained(client, error) from None
        finally:
            admin.close()


def explained(client: Client, error: Exception, otherwise: UserError | None = None) -> UserError:
    """kafka-python gives the broker's own errors Kafka's codes; other failures have none and mean an unavailable broker, or
    what is given."""
    code: int = 0 if isinstance(error, OSError) else getattr(error, "errno", 0)
    if code in errors.MEANINGS:
        return errors.explain_code(code, str(error), broker=f"the broker at {client.address}", user=client.user)
    return otherwise or client.unavailable(str(error))


def translated(client_config: Mapping[str, Any]) -> dict[str, Any]:
    """kafka-python's settings for the same connection. `NotAskable` names what has no counterpart there."""
    settings = {NAMES[name]: value for name, value in client_config.items() if name in NAMES}
    settings = {name: str(value).upper() if name in UPPER_CASE else value for name, value in settings.items()}
    protocol, mechanism = settings.get("security_protocol", "PLAINTEXT"), settings.get("sasl_mechanism", "GSSAPI")
    parts = [*(["SSL"] if protocol.endswith("SSL") else []), *([mechanism] if protocol.startswith("SASL") else [])]
    deciding = tuple(prefix for part in parts for prefix in OF_CONNECTING.get(part, ()))
    recipe = token_recipe(client_config)
    translatable = OF_TLS if recipe is None else (*OF_TLS, OF_TOKENS)
    unknown = sorted(name for name in client_config if name.startswith(deciding) and name not in translatable)
    if unknown:
        raise NotAskable(f"unknown: this setting has no counterpart in kafka-python, which would ask: {', '.join(unknown)}")
    if recipe is not None:
        settings["sasl_oauth_token_provider"] = token_provider(recipe, str(client_config.get(OF_TOKENS, "")))
    return settings | ({"ssl_context": tls_context(client_config)} if "SSL" in parts else {})


def token_provider(recipe: str, config: str) -> Any:
    """What kafka-python asks for tokens; one connection needs no second one."""
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return token_function(recipe)(config)[0]

    return TokenProvider()


def tls_context(client_config: Mapping[str, Any]) -> ssl.SSLContext:
    """What librdkafka makes of its `ssl.` settings, for Python. `OSError` where a file or what is in it cannot be used."""
    of = client_config.get
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = of("ssl.endpoint.identification.algorithm", "https") != "none"
    if str(of("enable.ssl.certificate.verification", True)).lower() in FALSE:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    authorities = of("ssl.ca.location", "probe")
    if authorities != "probe":
        context.load_verify_locations(**{"capath" if Path(authorities).is_dir() else "cafile": authorities})
    elif not of("ssl.ca.pem"):
        context.load_default_certs()
    if of("ssl.ca.pem"):
        context.load_verify_locations(cadata=of("ssl.ca.pem"))
    if of("ssl.crl.location"):
        context.load_verify_locations(of("ssl.crl.location"))
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    if ciphers := of("ssl.cipher.suites"):
        context.set_ciphers(ciphers)
    with TemporaryDirectory() as directory:  # Python loads keys from files only; its mode is 0700

        def file_of(part: str) -> str | None:
            if text := of(f"ssl.{part}.pem"):
                path = Path(directory, part)
                path.write_text(text)
                return str(path)
            location: str | None = of(f"ssl.{part}.location")
            return location

        if (certificate := file_of("certificate")) is not None:
            context.load_cert_chain(certificate, file_of("key"), of("ssl.key.password"))
    return context


TRIES = 10  # with one broker of three dead, every try picks it once in 60,000 times


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryReading:
    """One log directory of one broker. Bytes of the whole file system are None where the broker does not report them."""

    broker_id: int
    path: str
    total_bytes: int | None
    usable_bytes: int | None
    partition_bytes: Mapping[tuple[str, int], int]

    @property
    def usable_share(self) -> float | None:
        """0.1 where a tenth of the file system is free."""
        return None if not self.total_bytes or self.usable_bytes is None else self.usable_bytes / self.total_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBroker:
    """A live broker and its address."""

    broker_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReplicas:
    """The brokers of one partition. `leader` is None where it has none, `eligible` where the broker does not report it."""

    topic: str
    partition: int
    leader: int | None
    replicas: Sequence[int]
    in_sync: Sequence[int]
    offline: Sequence[int] = ()
    eligible: Sequence[int] | None = None
    adding: Sequence[int] = ()
    removing: Sequence[int] = ()

    @property
    def is_offline(self) -> bool:
        """No client can read or write it."""
        return self.leader is None

    @property
    def is_under_replicated(self) -> bool:
        """A replica is not in sync. Replicas still being added by a reassignment do not count."""
        return any(broker not in self.in_sync for broker in self.replicas if broker not in self.adding)

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def partition_id(self) -> PartitionId:
        return self.topic, self.partition

    @property
    def targets(self) -> tuple[int, ...]:
        """The replicas, or those that it will have once its move has ended; the preferred leader first."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """A cluster as one of its brokers describes it."""

    cluster_id: str | None
    controller: int | None
    brokers: Sequence[LiveBroker]
    partitions: Sequence[PartitionReplicas]
    directories: Sequence[DirectoryReading] = ()
    unreachable: Sequence[int] = ()  # registered brokers that accept no connection
    insync_min: Mapping[str, int] = field(default_factory=dict)  # min.insync.replicas of topics that lack replicas
    offsets_factor: int | None = None  # offsets.topic.replication.factor

    @property
    def gone(self) -> list[int]:
        """Brokers that have replicas and are not there."""
        live = {broker.broker_id for broker in self.brokers}
        return sorted({broker for part in self.partitions for broker in part.replicas} - live)

    @property
    def below_insync_min(self) -> list[PartitionReplicas]:
        """Those that refuse acks=all."""
        return [part for part in self.partitions if len(part.in_sync) < self.insync_min.get(part.topic, 0)]

    @property
    def offline(self) -> list[PartitionReplicas]:
        return [part for part in self.partitions if part.is_offline]

    @property
    def under_replicated(self) -> list[PartitionReplicas]:
        return [part for part in self.partitions if part.is_under_replicated]

    @property
    def moving(self) -> list[PartitionReplicas]:
        return [part for part in self.partitions if part.is_moving]

    def counts(self, broker_id: int) -> tuple[int, int, int]:
        """How many partitions the broker has a replica of, how many of these it leads, and in how many it is not in sync."""
        replicas = [part for part in self.partitions if broker_id in part.replicas]
        behind = [part for part in replicas if broker_id not in part.in_sync]
        return len(replicas), sum(part.leader == broker_id for part in replicas), len(behind)


def api_versions(client: Client) -> dict[str, tuple[int, int]]:
    """The first and last version that the broker supports, by the request's protocol name (`Produce`, `ListOffsets`)."""
    with admin_client(client) as broker:
        return {key.name: (first, last) for key, (first, last) in broker.api_versions().items()}


def log_directories(client: Client) -> list[DirectoryReading]:
    """Every log directory of every broker, with the bytes that each partition takes up."""
    with admin_client(client) as broker:
        answers = broker.describe_log_dirs()
    return [log_directory(answer["broker"], directory) for answer in answers for directory in answer["log_dirs"]]


def log_directory(broker_id: int, described: Mapping[str, Any]) -> DirectoryReading:
    sizes = {
        (topic["name"], partition["partition_index"]): partition["partition_size"]
        for topic in described["topics"]
        for partition in topic["partitions"]
    }
    total, usable = (_reported(described.get(name)) for name in ("total_bytes", "usable_bytes"))
    return DirectoryReading(
        broker_id=broker_id, path=described["log_dir"], total_bytes=total, usable_bytes=usable, partition_bytes=sizes
    )


def partition_bytes(directories: list[DirectoryReading]) -> dict[tuple[str, int], int]:
    """The size of each partition: that of its largest replica, where several brokers have one."""
    sizes: dict[tuple[str, int], int] = {}
    for directory in directories:
        for partition_id, size in directory.partition_bytes.items():
            sizes[partition_id] = max(size, sizes.get(partition_id, 0))
    return sizes


def cluster_facts(client: Client, begin: Callable[[Client], AbstractContextManager[Any]] = admin_client) -> ClusterFacts:
    """`BrokerUnavailable` where no broker answers."""
    error_classes = kafka_python().errors
    tries_left = TRIES
    while True:
        with begin(client) as broker:
            try:
                return with_settings(client, describe_cluster(broker, needs_moves=tries_left > TRIES // 2))
            except error_classes.KafkaConnectionError as refused:
                tries_left -= 1
                if not tries_left:
                    raise explained(client, refused) from None


def with_settings(client: Client, facts: ClusterFacts) -> ClusterFacts:
    """With the settings by which a number of replicas is too low; those that the user may not see stay unknown."""
    insync_min = insync_minima(
        client, sorted({part.topic for part in facts.partitions if len(part.in_sync) < len(part.replicas)})
    )
    factor = None
    if len(facts.brokers) > 1 and any(part.topic == OFFSETS_TOPIC for part in facts.partitions):
        future = client.ask_broker_settings(facts.brokers[0].broker_id)
        factor = _number(client.outcome(future, OFFSETS_TOPIC), "offsets.topic.replication.factor")
    return replace(facts, insync_min=insync_min, offsets_factor=factor)


def insync_minima(client: Client, topics: Sequence[str]) -> dict[str, int]:
    """The min.insync.replicas of those whose settings the user may see."""
    settings_by_topic = {topic: client.outcome(future, topic) for topic, future in client.ask_settings(topics).items()}
    numbers = ((topic, _number(settings, "min.insync.replicas")) for topic, settings in settings_by_topic.items())
    return {topic: number for topic, number in numbers if number is not None}


def _number(settings: Any, name: str) -> int | None:
    return None if isinstance(settings, LogbusError) or name not in settings else int(settings[name].value)


def describe_cluster(client: Any, *, needs_moves: bool = True) -> ClusterFacts:
    """The cluster, read in one conversation. Only the controller knows what is being moved, and it may be dead."""
    error_classes = kafka_python().errors
    cluster = client.describe_cluster()
    topics = client.describe_topics()
    try:
        moves = client.list_partition_reassignments()
    except error_classes.KafkaConnectionError:
        if needs_moves:
            raise
        moves = {}
    try:
        eligible = eligible_replicas(client, [topic["name"] for topic in topics])
    except error_classes.KafkaError:
        eligible = {}
    brokers = [
        LiveBroker(broker_id=row["broker_id"], host=row["host"], port=row["port"], rack=row["rack"]) for row in cluster["brokers"]
    ]
    directories, unreachable = list[DirectoryReading](), list[int]()
    for broker in brokers:
        try:
            (answer,) = client.describe_log_dirs(brokers=[broker.broker_id])
            directories += [log_directory(broker.broker_id, described) for described in answer["log_dirs"]]
        except error_classes.KafkaConnectionError:
            unreachable.append(broker.broker_id)
        except error_classes.KafkaError:  # a right that is lacking
            break
    controller = cluster.get("controller_id", -1)
    moving = {(part.topic, part.partition): move for part, move in moves.items()}
    return ClusterFacts(
        cluster_id=cluster.get("cluster_id"),
        controller=None if controller < 0 else controller,
        brokers=sorted(brokers, key=lambda broker: broker.broker_id),
        partitions=list(partition_replicas(topics, eligible, moving)),
        directories=directories,
        unreachable=unreachable,
    )


def eligible_replicas(client: Any, names: Sequence[str]) -> dict[PartitionId, Sequence[int]]:
    """The eligible leader replicas by partition; the broker answers in pages."""
    replicas: dict[PartitionId, Sequence[int]] = {}
    cursor = None
    while names:
        page = client.describe_topic_partitions(names, cursor=cursor)
        for topic in page["topics"]:
            for part in topic["partitions"]:
                replicas[topic["name"], part["partition_index"]] = tuple(part["eligible_leader_replicas"] or ())
        cursor = page["next_cursor"]
        if cursor is None:
            break
    return replicas


def partition_replicas(
    topics: Iterable[Mapping[str, Any]],
    eligible: Mapping[PartitionId, Sequence[int]],
    moving: Mapping[PartitionId, Mapping[str, Any]],
) -> Iterable[PartitionReplicas]:
    """All partitions, ordered by topic and number."""
    for topic in sorted(topics, key=lambda topic: str(topic["name"])):
        for part in sorted(topic["partitions"], key=lambda part: int(part["partition_index"])):
            partition_id = (topic["name"], part["partition_index"])
            move = moving.get(partition_id, {})
            yield PartitionReplicas(
                topic=partition_id[0],
                partition=partition_id[1],
                leader=None if part["leader_id"] < 0 else part["leader_id"],
                replicas=tuple(part["replica_nodes"]),
                in_sync=tuple(part["isr_nodes"]),
                offline=tuple(part.get("offline_replicas") or ()),
                eligible=eligible.get(partition_id),
                adding=tuple(move.get("adding_replicas", ())),
                removing=tuple(move.get("removing_replicas", ())),
            )


def _reported(count: int | None) -> int | None:
    """The count, or None for -1, with which a broker marks a value that it does not have."""
    return None if count is None or count < 0 else count
