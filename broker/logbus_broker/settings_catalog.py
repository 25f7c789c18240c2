"""Every setting as the admin protocol shows it: its type, its documentation, and the layers that determine its value.

A topic's setting is looked up in its own overrides, then in what was changed on the running broker (for this broker, then for
every broker), then in the configuration file, then in the defaults. The first layer that has it wins; the whole list is sent to
the client as the setting's synonyms, because tools show nothing without them. Pure: the layers are arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cache
from typing import Any

from logbus_broker import setting_parsers, settings


class ConfigSource(IntEnum):
    """Kafka's numbers for where a value comes from."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class ConfigType(IntEnum):
    """Kafka's numbers for what a value is; that of a PASSWORD is not shown."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


Layer = tuple[ConfigSource, Mapping[str, str]]  # by the broker's setting names; in lists of layers, the strongest comes first

_LISTS = frozenset(
    {
        "log.cleanup.policy", "listeners", "advertised.listeners", "log.dirs", "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas", "ssl.enabled.protocols", "sasl.enabled.mechanisms",
        "sasl.oauthbearer.expected.audience",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Synonym:
    """The value in one layer."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedSetting:
    """One setting and everything known about its value; the first synonym wins."""

    name: str
    config_type: ConfigType
    documentation: str | None
    read_only: bool
    synonyms: tuple[Synonym, ...]

    @property
    def value(self) -> str | None:
        return self.synonyms[0].value

    @property
    def source(self) -> ConfigSource:
        return self.synonyms[0].source


def describe_topic(
    config: settings.LogConfig, layers: Sequence[Layer], overrides: Mapping[str, str]
) -> Iterator[DescribedSetting]:
    """Every setting of a topic; `config` comes from the configuration file."""
    defaults = settings.LogConfig()
    for name, item in settings.topic_fields().items():
        own = [_synonym(name, item, overrides, ConfigSource.DYNAMIC_TOPIC)] if name in overrides else []
        yield _described(name, item, read_only=False, synonyms=[*own, *_broker_synonyms(item, config, defaults, layers)])


def describe_broker(config: settings.BrokerConfig, layers: Sequence[Layer]) -> Iterator[DescribedSetting]:
    """Every setting of the broker; those of its logs may be changed at run time."""
    defaults = settings.BrokerConfig()
    for item in fields(settings.BrokerConfig):
        if item.metadata:
            synonyms = _broker_synonyms(item, config, defaults, ())
            yield _described(item.metadata["name"], item, read_only=True, synonyms=synonyms)
    for name, item in settings.broker_fields().items():
        yield _described(name, item, read_only=False, synonyms=_broker_synonyms(item, config.log, defaults.log, layers))


def describe_layer(layer: Layer) -> Iterator[DescribedSetting]:
    """Only the settings that one layer contains."""
    source, values = layer
    for name, item in settings.broker_fields().items():
        if name in values:
            yield _described(name, item, read_only=False, synonyms=[_synonym(name, item, values, source)])


def list_settings(*, of_topic: bool) -> frozenset[str]:
    """The names of the list settings, the only ones that allow the operations append and subtract."""
    items = settings.topic_fields() if of_topic else settings.broker_fields()
    return frozenset(name for name, item in items.items() if _type_of(item) is ConfigType.LIST)


def _synonym(name: str, item: Any, values: Mapping[str, str], source: ConfigSource) -> Synonym:
    """The value of a layer as Kafka shows it: `true` if it was set as ` TRUE`. One that this release cannot use, which another
    broker of the cluster may have stored, is shown as it is."""
    try:
        value = as_text(item.metadata["parse"](values[name]))
    except ValueError:
        value = values[name]
    return Synonym(name=name, value=value, source=source)


def _broker_synonyms(item: Any, config: object, defaults: object, layers: Sequence[Layer]) -> list[Synonym]:
    name = item.metadata["name"]
    synonyms = [_synonym(name, item, values, source) for source, values in layers if name in values]
    value, default = getattr(config, item.name), getattr(defaults, item.name)
    show = _hidden if item.metadata["is_secret"] else as_text
    if value != default:
        synonyms.append(Synonym(name=name, value=show(value), source=ConfigSource.STATIC_BROKER))
    return [*synonyms, Synonym(name=name, value=show(default), source=ConfigSource.DEFAULT)]


def _hidden(value: object) -> None:
    """What Kafka shows of a secret."""


def _described(name: str, item: Any, *, read_only: bool, synonyms: Sequence[Synonym]) -> DescribedSetting:
    text = DOCUMENTATION.get(item.metadata["name"])
    return DescribedSetting(
        name=name, config_type=_type_of(item), documentation=text, read_only=read_only, synonyms=tuple(synonyms)
    )


@cache
def _type_of(item: Any) -> ConfigType:
    """A number is INT if its parser accepts nothing beyond 32 bits."""
    if item.metadata["is_secret"]:
        return ConfigType.PASSWORD
    if item.metadata["name"] in _LISTS:
        return ConfigType.LIST
    if isinstance(item.default, bool):
        return ConfigType.BOOLEAN
    if isinstance(item.default, float):
        return ConfigType.DOUBLE
    if not isinstance(item.default, int):
        return ConfigType.STRING
    try:
        item.metadata["parse"](str(setting_parsers.INT32_MAX + 1))
    except ValueError:
        return ConfigType.INT
    return ConfigType.LONG


def as_text(value: Any) -> str | None:
    """A value as it is written in a configuration file."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value)


_IGNORED = tuple(item.metadata["name"] for item in fields(settings.IgnoredSettings))

# One line each: what DescribeConfigs returns to admin tools.
DOCUMENTATION = {
    "broker.id": "The id of this broker, unique in its cluster; the data directory remembers it.",
    "cluster.id": "The id of the cluster; generated at the first start if empty.",
    "broker.rack": "The rack of this broker; the replicas of a partition are spread over racks.",
    "listeners": "NAME://host:port,...; without a host every interface. PLAINTEXT asks for no login: the default is loopback.",
    "advertised.listeners": "The addresses advertised to clients; required where a listener is bound to every interface.",
    "listener.security.protocol.map": "The protocol of each listener, NAME:PROTOCOL,...; a protocol's own name needs no entry.",
    "logbus.allow.unauthenticated": "Whether listeners that others can reach may serve clients without a login or certificate.",
    "logbus.metrics.allow.unauthenticated": "Whether the listener for metrics, which has no login, may be one that others reach.",
    "sasl.enabled.mechanisms": "How clients may log in: SCRAM-SHA-256, SCRAM-SHA-512, PLAIN, OAUTHBEARER.",
    "sasl.server.max.receive.size": "The largest request before the login; a larger one closes its connection.",
    "logbus.allow.cleartext.passwords": "Whether a listener without TLS takes passwords (PLAIN) and tokens (OAUTHBEARER).",
    "connections.max.reauth.ms": "How long a login lasts until the client has to log in again; 0 means without end.",
    "connection.failed.authentication.delay.ms": "How long a refused login waits; doubled each time, up to 10 s. 0: not at all.",
    "logbus.users.file": "A file of NAME=PASSWORD lines, for its owner only: users without a credential get one at each start.",
    "sasl.oauthbearer.jwks.endpoint.url": "Where the issuer of tokens publishes its keys, https:// or file://.",
    "sasl.oauthbearer.expected.issuer": "The issuer that tokens must name.",
    "sasl.oauthbearer.expected.audience": "The audiences of which tokens must name one, separated by commas.",
    "sasl.oauthbearer.sub.claim.name": "The claim of a token that is the name of its user.",
    "sasl.oauthbearer.clock.skew.seconds": "How much the clocks of the issuer and the broker may disagree.",
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": "How often the issuer's keys are read again.",
    "ssl.keystore.type": "PEM or PKCS12; a JKS file has to be converted.",
    "ssl.keystore.location": "The file with the broker's key and certificate with its chain; read again when it changes.",
    "ssl.keystore.password": "The password of a PKCS12 keystore.",
    "ssl.keystore.certificate.chain": "The certificate and its chain as PEM text, instead of a file.",
    "ssl.keystore.key": "The key as PEM text, instead of a file.",
    "ssl.key.password": "The password of an encrypted key.",
    "ssl.truststore.type": "PEM or PKCS12; a JKS file has to be converted.",
    "ssl.truststore.location": "The file with the authorities that sign clients' certificates; read again when it changes.",
    "ssl.truststore.password": "The password of a PKCS12 truststore.",
    "ssl.truststore.certificates": "The authorities' certificates as PEM text, instead of a file.",
    "ssl.client.auth": "Whether clients need a certificate: none, requested or required.",
    "ssl.enabled.protocols": "The versions of TLS: TLSv1.2, TLSv1.3 or both.",
    "ssl.principal.mapping.rules": "RULE:regex/replacement/[LU],...,DEFAULT: from a certificate's name to a principal's.",
    "inter.broker.listener.name": "The listener that brokers use among themselves; if empty, the one named PLAINTEXT.",
    "sasl.mechanism.inter.broker.protocol": "How brokers log in at each other: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.",
    "logbus.inter.broker.user": "The user that brokers log in as at each other; its password is in logbus.users.file.",
    "zookeeper.connect": "The ZooKeeper of the cluster, host:port,host:port/chroot. If empty, the broker runs alone.",
    "zookeeper.session.timeout.ms": "How long a broker that stopped responding keeps its place; a dead process loses it at once.",
    "zookeeper.connection.timeout.ms": "Has no effect: a start waits for ZooKeeper as long as it takes, and logs it.",
    "zookeeper.ssl.client.enable": "Whether connections to ZooKeeper are encrypted.",
    "zookeeper.ssl.truststore.location": "The certificates (PEM) that sign ZooKeeper's; if empty, those of the system.",
    "zookeeper.ssl.keystore.location": "Key and certificate (PEM) that this broker shows to ZooKeeper; if empty, none.",
    "zookeeper.ssl.endpoint.identification.algorithm": "HTTPS: ZooKeeper's certificate must name its host; empty: any name does.",
    "logbus.zookeeper.auth.file": "A file, mode 600, with NAME=PASSWORD: who the brokers are for ZooKeeper (scheme digest).",
    "zookeeper.set.acl": "Whether what the brokers create in ZooKeeper can be read and changed by them only.",
    "offsets.topic.replication.factor": "The replication factor of __consumer_offsets in a cluster; lower with fewer brokers.",
    "offsets.topic.num.partitions": "The partitions of __consumer_offsets in a cluster, fixed forever; a broker alone has one.",
    "replica.lag.time.max.ms": "A follower that has not caught up for this long is removed from the in-sync replicas.",
    "logbus.replica.gone.ms": "A disconnected follower that has not fetched for this long is removed from the in-sync replicas.",
    "logbus.replica.flush.max.ms": "A replica with a longer flush gives its lead away and leaves the in-sync replicas.",
    "logbus.leader.confirm.ms": "A leader unconfirmed for this long, or for half a session, acknowledges nothing.",
    "replica.fetch.max.bytes": "The most a follower requests of one partition per fetch; a single larger batch is still sent.",
    "replica.fetch.response.max.bytes": "The most a follower requests per fetch; a single larger batch is still sent.",
    "replica.fetch.wait.max.ms": "How long a leader may hold a follower's fetch while there is nothing new.",
    "replica.fetch.backoff.ms": "The longest a follower waits before it retries a failed fetch.",
    "replica.socket.timeout.ms": "How long to wait for another broker's response before the connection is closed.",
    "num.replica.fetchers": "The number of connections from a follower to each leader.",
    "auto.leader.rebalance.enable": "Whether the controller returns partitions to their preferred leaders by itself.",
    "leader.imbalance.per.broker.percentage": "It does so where more of a broker's preferred partitions are led elsewhere.",
    "leader.imbalance.check.interval.seconds": "How often it looks.",
    "controlled.shutdown.enable": "Whether a broker that is being stopped hands over its leaderships first.",
    "logbus.controlled.shutdown.max.ms": "How long a broker being stopped waits for others to take its leaderships.",
    "authorizer.class.name": "Whether ACLs are enforced: the name of one of Kafka's authorizers; empty: everything is allowed.",
    "super.users": "Principals that may do everything, whatever the ACLs say: User:ann;User:bob.",
    "allow.everyone.if.no.acl.found": "Whether everybody may use what has no ACLs, except users, ACLs and quotas themselves.",
    "logbus.audit.log": "A file for changes and refusals, one JSON line for each; none if empty.",
    "logbus.audit.topic.enable": "Whether these lines are also records of the internal topic __logbus_audit.",
    "log.dirs": "The directory of all partitions' logs.",
    "num.partitions": "The default number of partitions of a new topic.",
    "default.replication.factor": "The default replication factor of a new topic; more than one needs zookeeper.connect.",
    "auto.create.topics.enable": "Whether a metadata request for an unknown topic creates it.",
    "delete.topic.enable": "Whether topics may be deleted.",
    "logbus.partitions.max": "The most partitions this broker holds; each keeps a file open.",
    "log.retention.check.interval.ms": "How often the broker checks for segments to delete.",
    "log.flush.offset.checkpoint.interval.ms": "How often flushed offsets are checkpointed; recovery starts reading there.",
    "logbus.acks.all.waits.for.flush": "Whether acks=all also waits for the disk: safe from power cuts, at the cost of latency.",
    "logbus.fast.path": "Whether common Produce and Fetch requests take the short code path; results are the same without.",
    "logbus.flush.in.kernel": "Whether flushes are submitted to the kernel where supported; otherwise threads wait for them.",
    "logbus.flush.threads": "The number of threads that flush files.",
    "background.threads": "The number of threads that search by time and remove files.",
    "socket.request.max.bytes": "The largest request; a larger one closes its connection before memory is allocated.",
    "max.connections": "The most connections; beyond it, silent ones and idle ones of a crowded address are closed.",
    "max.connections.per.ip": "The most connections from one address.",
    "queued.max.request.bytes": "Memory for partial requests and unread responses; beyond it the slowest client is closed.",
    "logbus.control.request.max.bytes": "The largest request other than Produce.",
    "logbus.metrics.listener": "Where metrics and health are served, http://host:port; not at all if empty.",
    "logbus.log.format": "The format of the broker's own log: keyvalue or json.",
    "logbus.first.request.max.ms": "How long a new connection may take to send its first request.",
    "quota.window.num": "The number of samples that the rate of a client quota is measured over.",
    "quota.window.size.seconds": "The length of each of these samples.",
    "connections.max.idle.ms": "Idle connections are closed after this time.",
    "logbus.frame.read.max.ms": "How long a request may take to arrive once its first byte has.",
    "logbus.output.queue.max.bytes": "How many response bytes may wait for a slow client until nothing more is read from it.",
    "logbus.pipelined.requests.max": "How many requests of one connection may be in flight.",
    "fetch.max.bytes": "The most one fetch returns, whatever it asks for.",
    "logbus.send.max.bytes.per.turn": "The most sent to one connection before the others get their turn.",
    "group.initial.rebalance.delay.ms": "How long the first members of an empty group wait for more members.",
    "group.min.session.timeout.ms": "The smallest session timeout a member may ask for.",
    "group.max.session.timeout.ms": "The largest session timeout a member may ask for.",
    "group.max.size": "The most members of one group.",
    "logbus.groups.max": "The most groups this broker coordinates.",
    "logbus.groups.max.bytes": "The memory for the members of all groups.",
    "offsets.retention.minutes": "Committed offsets that are not used are discarded after this time.",
    "offsets.retention.check.interval.ms": "How often the broker checks for expired offsets and groups.",
    "offsets.topic.segment.bytes": "The segment size of __consumer_offsets; all but the last segment are compacted.",
    "offset.metadata.max.bytes": "The longest metadata of a committed offset, in characters.",
    "logbus.producer.ids.max": "The most idempotent producers remembered for each partition.",
    "log.segment.bytes": "The largest segment; before it would grow beyond this, a new one is rolled.",
    "log.roll.ms": "A segment whose records span more than this is rolled, so that retention can delete it.",
    "log.index.interval.bytes": "The bytes of records between two index entries.",
    "log.retention.ms": "Records older than this are deleted, a whole segment at a time; -1 keeps them forever.",
    "log.retention.bytes": "The oldest segments of a partition larger than this are deleted; -1 means no limit.",
    "message.max.bytes": "The largest record batch accepted.",
    "log.flush.interval.messages": "The most records left unflushed while no request waits for them.",
    "log.flush.interval.ms": "The longest records stay unflushed while no request waits for them.",
    "log.message.timestamp.before.max.ms": "How far a record's timestamp may be before the broker's clock.",
    "log.message.timestamp.after.max.ms": "How far a record's timestamp may be ahead of the broker's clock.",
    "log.message.timestamp.type": "Whose clock stamps records: CreateTime is the producer's, LogAppendTime the broker's.",
    "log.cleanup.policy": "What happens to old segments: delete removes them, compact keeps the last record of each key.",
    "producer.id.expiration.ms": "An idempotent producer that has been silent for this long is forgotten.",
    "producer.id.expiration.check.interval.ms": "How often the broker checks for silent producers.",
    "log.cleaner.enable": "Whether topics with cleanup.policy=compact are compacted.",
    "log.cleaner.dedupe.buffer.size": "The memory for the map of keys while a log is compacted.",
    "log.cleaner.backoff.ms": "How long the cleaner waits when there was nothing to compact.",
    "log.cleaner.min.cleanable.ratio": "A log is compacted once more than this share of it is dirty.",
    "log.cleaner.delete.retention.ms": "How long a tombstone is kept after compaction first met it.",
    "log.cleaner.min.compaction.lag.ms": "Records younger than this are not compacted.",
    "log.cleaner.max.compaction.lag.ms": "A log with a dirty record older than this is compacted at once.",
    "min.insync.replicas": "The in-sync replicas that acks=all requires; ignored without zookeeper.connect.",
    **dict.fromkeys(_IGNORED, "Accepted and shown, but ignored: it means nothing for this broker."),
    "unclean.leader.election.enable": "Whether an out-of-sync replica may lead if no other is left; that may lose records.",
}
