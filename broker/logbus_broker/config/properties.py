"""From a properties file and `--override key=value` to a BrokerConfig; errors name the setting, and suggest similar names.

A value that is wrong on its own is rejected where it is parsed (`parsers.py`). Here each rule about several settings returns a
sentence, or None. Topic settings are checked by `check_new_topic` in a cluster, because only there is the number of replicas
known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from logbus_broker.config.parsers import OFFERED_PROTOCOL, mapped_names, nearest, whole_number
from logbus_broker.config.settings import BrokerConfig, LogConfig
from logbus_broker.errors import ConfigError, InvalidConfig


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
    """Turn texts under Kafka's names into a BrokerConfig; ConfigError names the first that cannot be used."""
    values = _with_hours_and_minutes(values)
    fields_by_name = {item.metadata["name"]: item for item in settings()}
    log_names = {item.name for item in fields(LogConfig)}
    own: dict[str, Any] = {}
    log: dict[str, Any] = {}
    for name, text in values.items():
        if name not in fields_by_name:
            hint = nearest(name, fields_by_name) or "; `python -m logbus_broker settings` lists them"
            raise ConfigError(f"unknown setting {name!r}{hint}")
        item = fields_by_name[name]
        try:
            value = item.metadata["parse"](text)
        except ValueError as error:
            raise ConfigError(f"{name}={text}: {error}") from None
        (log if item.name in log_names else own)[item.name] = value
    config = BrokerConfig(**own, log=LogConfig(**log))
    validate(config)
    return config


def _with_hours_and_minutes(values: Mapping[str, str]) -> dict[str, str]:
    """Kafka's coarser spellings of the two settings that have them; the finer one wins, as in Kafka."""
    coarser = (
        ("log.retention.hours", "log.retention.ms", 3_600_000),
        ("log.retention.minutes", "log.retention.ms", 60_000),
        ("log.roll.hours", "log.roll.ms", 3_600_000),
    )
    result = dict(values)
    converted: dict[str, str] = {}
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
_OTHER_PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")


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
    mapped = mapped_names(config.listener_protocols)
    for listener in config.listeners:
        if listener.name in _OTHER_PROTOCOLS and listener.name not in mapped:
            return f"listeners={listener}: protocol {listener.name} is not offered, only {OFFERED_PROTOCOL}"
        if listener.name not in mapped:
            return f"listener {listener.name} has no protocol: add {listener.name}:PLAINTEXT to listener.security.protocol.map"
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


_RULES: tuple[_Rule, ...] = (
    _protocols,
    _advertised,
    _inter_broker,
    _one_broker_keeps_one,
    _min_insync_fits,
)
