"""From a properties file and `--override key=value` to a BrokerConfig; errors name the setting, and suggest similar names.

A value that is wrong on its own is rejected where it is parsed (`setting_parsers.py`). Here each rule about several settings
returns a sentence, or None. Topic settings are checked by `check_new_topic` in a cluster, because only there is the number of
replicas known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from logbus_broker.errors import ConfigError, InvalidConfig
from logbus_broker.setting_parsers import nearest, protocols_by_name, whole_number
from logbus_broker.settings import BrokerConfig, LogConfig


def settings() -> Iterable[Any]:
    """Every field with a name that a configuration file or --override may use."""
    yield from (item for item in fields(BrokerConfig) if item.metadata)
    yield from fields(LogConfig)


def parse_properties(text: str, *, source: str) -> dict[str, str]:
    """Read Java-properties style `key=value` lines; `#` and `!` begin comments."""
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        name, separator, value = line.partition("=")
        if not separator:
            raise ConfigError(f"{source}, line {number}: expected key=value, found {line!r}")
        values[name.strip()] = value.strip()
    return values


def build_config(values: Mapping[str, str]) -> BrokerConfig:
    """Turn texts under Kafka's names into a BrokerConfig; ConfigError names the first that cannot be used. Names that nobody
    knows are noted in it."""
    values = _with_hours_and_minutes(values)
    fields_by_name = {item.metadata["name"]: item for item in settings()}
    log_names = {item.name for item in fields(LogConfig)}
    own: dict[str, Any] = {}
    log: dict[str, Any] = {}
    by_listener: dict[str, dict[str, Any]] = {}
    unknown: list[str] = []
    for name, text in values.items():
        if name.startswith(_LISTENER_PREFIX):
            listener, item = _of_listener(name)
            into = by_listener.setdefault(listener, {})
        elif name in fields_by_name:
            item = fields_by_name[name]
            into = log if item.name in log_names else own
        elif name == "security.inter.broker.protocol":
            raise ConfigError(f"{name}: name the brokers' listener instead, with inter.broker.listener.name={text}")
        else:
            hint = nearest(name, fields_by_name) or "; `python -m logbus_broker settings` lists them"
            if name.startswith(_OURS) or _is_misspelt(name, fields_by_name):
                raise ConfigError(f"unknown setting {name!r}{hint}")
            unknown.append(f"{name!r} is no setting of this broker, and has no effect{hint}")
            continue
        try:
            into[item.name] = item.metadata["parse"](text)
        except ValueError as error:
            raise ConfigError(f"{name}{'' if item.metadata['is_secret'] else f'={text}'}: {error}") from None
    config = BrokerConfig(**own, log=LogConfig(**log), listener_settings=by_listener, unknown_settings=tuple(unknown))
    validate(config)
    return config


_OURS = "logbus."
# Names that are not known are passed over with a warning, as in Kafka: files made for Kafka have many. But not where one mistyped
# letter would leave a door open.
_GUARDS = ("allow.", "authorizer.", "sasl.", "security.", "ssl.", "super.", "zookeeper.ssl.", "zookeeper.set.")
_MISSPELT = 0.92  # one letter wrong, missing or too many; two that changed places


def _is_misspelt(name: str, names: Iterable[str]) -> bool:
    return name.startswith(_GUARDS) and bool(get_close_matches(name, names, n=1, cutoff=_MISSPELT))


_LISTENER_PREFIX = "listener.name."


def _of_listener(name: str) -> tuple[str, Any]:
    """`listener.name.internal.ssl.client.auth` is the setting ssl.client.auth of listener INTERNAL. The name of a listener may
    have dots, so the longest setting that ends the text counts."""
    per_listener = {item.metadata["name"]: item for item in fields(BrokerConfig) if item.metadata.get("per_listener")}
    ending = [setting for setting in per_listener if name.endswith(f".{setting}")]
    if name.endswith(".sasl.jaas.config"):
        raise ConfigError(f"{name}: users are added by clients (kafka-configs), or named in the file of logbus.users.file")
    if not ending:
        raise ConfigError(f"{name}: after listener.name.NAME. only these can be set: {', '.join(sorted(per_listener))}")
    longest = max(ending, key=len)
    return name[len(_LISTENER_PREFIX) : -len(longest) - 1].upper(), per_listener[longest]


def _with_hours_and_minutes(values: Mapping[str, str]) -> dict[str, str]:
    """Kafka's coarser spellings of the two settings that have them, and its name for a single directory; the finer one wins, as
    in Kafka."""
    coarser = (
        ("log.retention.hours", "log.retention.ms", 3_600_000),
        ("log.retention.minutes", "log.retention.ms", 60_000),
        ("log.roll.hours", "log.roll.ms", 3_600_000),
    )
    result = dict(values)
    converted: dict[str, str] = {"log.dirs": result.pop("log.dir")} if "log.dir" in result else {}
    for name, finer, factor in coarser:
        if name in result:
            text = result.pop(name)
            try:
                value = whole_number(text)
            except ValueError as error:
                raise ConfigError(f"{name}={text}: {error}") from None
            converted[finer] = str(value * factor if value >= 0 else -1)
    return {**converted, **result}


def load_config(file: str | None, overrides: Iterable[str]) -> BrokerConfig:
    """A configuration file, if any, with `key=value` overrides applied."""
    values: dict[str, str] = {}
    if file is not None:
        try:
            values = parse_properties(Path(file).read_text(), source=file)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the configuration file {file}: {error}") from None
    for override in overrides:
        values.update(parse_properties(override, source=f"--override {override}"))
    return build_config(values)


_Rule = Callable[[BrokerConfig], str | None]


def validate(config: BrokerConfig) -> None:
    """Raises ConfigError with the first contradiction."""
    for rule in _RULES:
        sentence = rule(config)
        if sentence:
            raise ConfigError(sentence)


def check_new_topic(log: LogConfig, replication_factor: int) -> None:
    """InvalidConfig if acks=all could never be answered because the topic has too few replicas. Kafka creates such a topic, and
    its first producer finds out."""
    if log.min_insync_replicas > replication_factor:
        raise InvalidConfig(
            f"min.insync.replicas={log.min_insync_replicas} is more than the topic's {replication_factor} replicas: acks=all "
            "would never be answered"
        )


def _protocols(config: BrokerConfig) -> str | None:
    protocols = protocols_by_name(config.listener_protocols)
    for listener in config.listeners:
        if listener.name not in protocols:
            name = listener.name
            return f"listener {name} has no protocol: add {name}:SSL or another to listener.security.protocol.map"
    return None


_SEEN_ON_THE_WAY = ("PLAIN", "OAUTHBEARER")  # what these send lets anybody log in who has read it


def _logins(config: BrokerConfig) -> str | None:
    for listener in config.listeners:
        protocol, settings = config.protocol_of(listener.name), config.at_listener(listener.name)
        if not protocol.has_login:
            continue
        exposed = [name for name in settings.sasl_enabled_mechanisms if name in _SEEN_ON_THE_WAY]
        if exposed and not protocol.has_tls and not settings.allow_cleartext_passwords:
            return (
                f"sasl.enabled.mechanisms has {exposed[0]}, and listeners={listener} no TLS: others could read the "
                "password. Use SASL_SSL, or only SCRAM; if the network is trusted, set logbus.allow.cleartext.passwords=true"
            )
        if "OAUTHBEARER" in settings.sasl_enabled_mechanisms:
            required = {
                "sasl.oauthbearer.jwks.endpoint.url": settings.oauthbearer_jwks_url,
                "sasl.oauthbearer.expected.issuer": settings.oauthbearer_issuer,
                "sasl.oauthbearer.expected.audience": settings.oauthbearer_audiences,
            }
            missing = [name for name, value in required.items() if not value]
            if missing:
                return f"sasl.enabled.mechanisms has OAUTHBEARER: set {' and '.join(missing)}, or others' tokens would be taken"
    return None


def _listener_settings(config: BrokerConfig) -> str | None:
    names = [listener.name for listener in config.listeners]
    unknown = next((name for name in config.listener_settings if name not in names), None)
    if unknown is None:
        return None
    return f"listener.name.{unknown.lower()}.: {unknown} is not one of the listeners {', '.join(names)}"


def _keystores(config: BrokerConfig) -> str | None:
    for listener in config.listeners:
        settings = config.at_listener(listener.name)
        if not config.protocol_of(listener.name).has_tls:
            continue
        if not settings.ssl_keystore_location and not (settings.ssl_keystore_chain and settings.ssl_keystore_key):
            return (
                f"listeners={listener} needs a certificate: set ssl.keystore.location to a PEM file that holds the key and the "
                "certificate with its chain, or ssl.keystore.key and ssl.keystore.certificate.chain to their texts"
            )
        if settings.ssl_client_auth != "none" and not (settings.ssl_truststore_location or settings.ssl_truststore_certificates):
            return (
                f"listeners={listener} has ssl.client.auth={settings.ssl_client_auth}: set ssl.truststore.location to a PEM file "
                "with the certificates of the authorities that sign those of clients"
            )
    return None


def _advertised(config: BrokerConfig) -> str | None:
    names = [listener.name for listener in config.listeners]
    advertised = [listener.name for listener in config.advertised_listeners or ()]
    for name in advertised:
        if name not in names:
            return f"advertised.listeners: {name} is not one of the listeners {', '.join(names)}"
    for name in names:
        if advertised and name not in advertised:
            return f"advertised.listeners has no address for listener {name}: it must have one for each listener"
    for listener in config.advertised_at({}).values():
        if listener.is_every_interface:
            source = "advertised.listeners" if advertised else "listeners"
            return f"{source}={listener} is every interface: set advertised.listeners to an address that clients can reach"
    return None


def _inter_broker(config: BrokerConfig) -> str | None:
    names = [listener.name for listener in config.listeners]
    if config.inter_broker_listener not in names:
        return f"inter.broker.listener.name={config.inter_broker_listener_name} is not one of the listeners {', '.join(names)}"
    if config.is_clustered and not config.inter_broker_listener_name and len(names) > 1 and "PLAINTEXT" not in names:
        return f"several listeners, none of them called PLAINTEXT: set inter.broker.listener.name to one of {', '.join(names)}"
    return None


def _between_brokers(config: BrokerConfig) -> str | None:
    if not config.is_clustered:
        return None
    name, mechanism = config.inter_broker_listener, config.inter_broker_mechanism
    protocol, settings = config.protocol_of(name), config.at_listener(name)
    if protocol.has_tls and not (settings.ssl_truststore_location or settings.ssl_truststore_certificates):
        return f"brokers verify each other's certificates at listener {name} ({protocol}): set ssl.truststore.location"
    if protocol.has_login and not (config.inter_broker_user and config.users_file):
        return f"brokers log in at each other's listener {name}: set logbus.inter.broker.user and logbus.users.file"
    if protocol.has_login and mechanism not in settings.sasl_enabled_mechanisms:
        return f"sasl.mechanism.inter.broker.protocol={mechanism} is not one of listener {name}'s sasl.enabled.mechanisms"
    return None


def _zookeeper_access(config: BrokerConfig) -> str | None:
    for name, value in (
        ("zookeeper.ssl.truststore.location", config.zookeeper_truststore),
        ("zookeeper.ssl.keystore.location", config.zookeeper_keystore),
    ):
        if value and not config.zookeeper_tls:
            return f"{name}={value} has no effect without zookeeper.ssl.client.enable=true"
    if config.zookeeper_set_acl and not (config.zookeeper_auth_file or config.zookeeper_keystore):
        return (
            "zookeeper.set.acl=true, but the brokers have no identity in ZooKeeper: set logbus.zookeeper.auth.file, or "
            "zookeeper.ssl.keystore.location"
        )
    return None


def _one_broker_keeps_one(config: BrokerConfig) -> str | None:
    if config.is_clustered:
        return None
    replica_counts = {
        "default.replication.factor": config.default_replication_factor,
        "min.insync.replicas": config.log.min_insync_replicas,
    }
    return next(
        (
            f"{name}={count} with one broker: more than one needs zookeeper.connect"
            for name, count in replica_counts.items()
            if count > 1
        ),
        None,
    )


def _min_insync_fits(config: BrokerConfig) -> str | None:
    least, factor = config.log.min_insync_replicas, config.default_replication_factor
    if least > factor:
        return f"min.insync.replicas={least} is more than default.replication.factor={factor}: acks=all would never be answered"
    return None


def _audit(config: BrokerConfig) -> str | None:
    for name, is_set in (("logbus.audit.log", config.audit_log), ("logbus.audit.topic.enable", config.audit_topic_enable)):
        if is_set and not config.authorizer_class_name:
            return f"{name} says who was allowed what: set authorizer.class.name too, or leave it out"
    return None


_RULES: tuple[_Rule, ...] = (
    _protocols,
    _listener_settings,
    _logins,
    _keystores,
    _advertised,
    _inter_broker,
    _between_brokers,
    _zookeeper_access,
    _one_broker_keeps_one,
    _min_insync_fits,
    _audit,
)
