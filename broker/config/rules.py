"""Which settings contradict each other: each rule returns a sentence, or None.

A value that is wrong on its own is rejected where it is parsed (`config/fields.py`). Topic settings are checked by
`check_new_topic` in a cluster, because only there is the number of replicas known.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.config.listeners import OFFERED_PROTOCOL, mapped_names
from broker.config.settings import BrokerConfig, LogConfig
from broker.errors import ConfigError, InvalidConfig

Rule = Callable[[BrokerConfig], str | None]
_OTHER_PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")


def check_together(config: BrokerConfig) -> None:
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
    told = [listener.name for listener in config.advertised_listeners or ()]
    for name in told:
        if name not in names:
            return f"advertised.listeners names {name}, which listeners does not: there is {', '.join(names)}"
    for name in names:
        if told and name not in told:
            return f"advertised.listeners says nothing of listener {name}: give it one address for each listener"
    for listener in config.advertised_at({}).values():
        if listener.is_every_interface:
            source = "advertised.listeners" if told else "listeners"
            return f"{source}={listener} is every interface: set advertised.listeners to an address that clients can reach"
    return None


def _inter_broker(config: BrokerConfig) -> str | None:
    names = [listener.name for listener in config.listeners]
    if config.inter_broker_listener not in names:
        return f"inter.broker.listener.name={config.inter_broker_listener_name} is no listener: there is {', '.join(names)}"
    if config.is_clustered and not config.inter_broker_listener_name and len(names) > 1 and "PLAINTEXT" not in names:
        return f"several listeners, none of them called PLAINTEXT: set inter.broker.listener.name to one of {', '.join(names)}"
    return None


def _one_broker_keeps_one(config: BrokerConfig) -> str | None:
    if config.is_clustered:
        return None
    wanted = {
        "default.replication.factor": config.default_replication_factor,
        "min.insync.replicas": config.log.min_insync_replicas,
    }
    return next(
        (f"{name}={count} with one broker: more than one needs zookeeper.connect" for name, count in wanted.items() if count > 1),
        None,
    )


def _min_insync_fits(config: BrokerConfig) -> str | None:
    least, factor = config.log.min_insync_replicas, config.default_replication_factor
    if least > factor:
        return f"min.insync.replicas={least} is more than default.replication.factor={factor}: acks=all would never be answered"
    return None


_RULES: tuple[Rule, ...] = (
    _protocols,
    _advertised,
    _inter_broker,
    _one_broker_keeps_one,
    _min_insync_fits,
)
