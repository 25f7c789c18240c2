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

from broker.config.fields import INT32_MAX
from broker.config.settings import BrokerConfig, LogConfig, broker_fields, topic_fields
from broker.config.texts import DOCUMENTATION


class ConfigSource(IntEnum):
    """Kafka's numbers for where a value comes from."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class ConfigType(IntEnum):
    """Kafka's numbers for what a value is."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


Layer = tuple[ConfigSource, Mapping[str, str]]  # by the broker's setting names; in lists of layers, the strongest comes first

_LISTS = frozenset(
    {
        "log.cleanup.policy", "listeners", "advertised.listeners", "log.dirs", "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
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


def describe_topic(config: LogConfig, layers: Sequence[Layer], overrides: Mapping[str, str]) -> Iterator[DescribedSetting]:
    """Every setting of a topic; `config` comes from the configuration file."""
    defaults = LogConfig()
    for name, item in topic_fields().items():
        own = [_synonym(name, item, overrides, ConfigSource.DYNAMIC_TOPIC)] if name in overrides else []
        yield _described(name, item, read_only=False, synonyms=[*own, *_broker_synonyms(item, config, defaults, layers)])


def describe_broker(config: BrokerConfig, layers: Sequence[Layer]) -> Iterator[DescribedSetting]:
    """Every setting of the broker; those of its logs may be changed at run time."""
    defaults = BrokerConfig()
    for item in fields(BrokerConfig):
        if item.metadata:
            synonyms = _broker_synonyms(item, config, defaults, ())
            yield _described(item.metadata["name"], item, read_only=True, synonyms=synonyms)
    for name, item in broker_fields().items():
        yield _described(name, item, read_only=False, synonyms=_broker_synonyms(item, config.log, defaults.log, layers))


def describe_layer(layer: Layer) -> Iterator[DescribedSetting]:
    """Only the settings that one layer contains."""
    source, values = layer
    for name, item in broker_fields().items():
        if name in values:
            yield _described(name, item, read_only=False, synonyms=[_synonym(name, item, values, source)])


def list_settings(*, of_topic: bool) -> frozenset[str]:
    """The names of the list settings, the only ones that allow the operations append and subtract."""
    items = topic_fields() if of_topic else broker_fields()
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
    found = [_synonym(name, item, values, source) for source, values in layers if name in values]
    value, default = getattr(config, item.name), getattr(defaults, item.name)
    if value != default:
        found.append(Synonym(name=name, value=as_text(value), source=ConfigSource.STATIC_BROKER))
    return [*found, Synonym(name=name, value=as_text(default), source=ConfigSource.DEFAULT)]


def _described(name: str, item: Any, *, read_only: bool, synonyms: Sequence[Synonym]) -> DescribedSetting:
    text = DOCUMENTATION.get(item.metadata["name"])
    return DescribedSetting(
        name=name, config_type=_type_of(item), documentation=text, read_only=read_only, synonyms=tuple(synonyms)
    )


@cache
def _type_of(item: Any) -> ConfigType:
    """A number is INT if its parser accepts nothing beyond 32 bits."""
    if item.metadata["name"] in _LISTS:
        return ConfigType.LIST
    if isinstance(item.default, bool):
        return ConfigType.BOOLEAN
    if isinstance(item.default, float):
        return ConfigType.DOUBLE
    if not isinstance(item.default, int):
        return ConfigType.STRING
    try:
        item.metadata["parse"](str(INT32_MAX + 1))
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
