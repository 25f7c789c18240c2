"""Settings changed at run time: those of brokers (for all of them, and for one), and the effective settings of a topic.

A broker's own scope takes precedence over that of all, as in Kafka. Values are checked before they are stored, and apply once
they are on disk. A single broker keeps its own in one small JSON file.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import Enum

from logbus_broker.cluster.local_files import Files, reading
from logbus_broker.cluster.metadata_image import EVERY_BROKER, MetadataImage, Settings
from logbus_broker.errors import InvalidConfig
from logbus_broker.settings import LogConfig

BROKER_CONFIGS_FILE = "broker-configs.json"

Rewrite = Callable[[Mapping[str, str]], Mapping[str, str]]  # from the current settings to the wanted ones


class Scope(Enum):
    """Which brokers a setting applies to; the value is the key in the file."""

    THIS_BROKER = "broker"
    EVERY_BROKER = "default"


class Overrides(ABC):
    """The changed settings of both scopes, under the broker's names, wherever they are kept."""

    @abstractmethod
    def of(self, scope: Scope) -> Mapping[str, str]:
        """What a scope sets."""

    def with_change(self, scope: Scope, values: Mapping[str, str]) -> dict[str, str]:
        """The effective settings if `values` were the scope's."""
        changed = {each: values if each is scope else self.of(each) for each in Scope}
        return {**changed[Scope.EVERY_BROKER], **changed[Scope.THIS_BROKER]}

    def merged(self) -> dict[str, str]:
        """The effective settings of both scopes."""
        return self.with_change(Scope.THIS_BROKER, self.of(Scope.THIS_BROKER))


class BrokerOverrides(Overrides):
    """Those of a single broker, in its file."""

    def __init__(self, files: Files) -> None:
        self._files = files
        stored = files.read_json(BROKER_CONFIGS_FILE)
        with reading(BROKER_CONFIGS_FILE):
            self._values: dict[Scope, Mapping[str, str]] = {
                scope: {} if stored is None else dict(stored.get(scope.value, {})) for scope in Scope
            }
            if not all(isinstance(value, str) for values in self._values.values() for value in values.values()):
                raise TypeError("a value is not a string")

    def of(self, scope: Scope) -> Mapping[str, str]:
        return self._values[scope]

    def write_job(self, scope: Scope, values: Mapping[str, str]) -> Callable[[], None]:
        """A job for any thread that stores `values` as the scope's."""
        changed = {**self._values, scope: values}
        stored = {scope.value: dict(rows) for scope, rows in changed.items()}
        return lambda: self._files.write_json_atomic(BROKER_CONFIGS_FILE, stored)

    def replace(self, scope: Scope, values: Mapping[str, str]) -> None:
        """They apply from now on."""
        self._values = {**self._values, scope: dict(values)}


class ImageOverrides(Overrides):
    """Those of a cluster, from the image as it is at each call."""

    def __init__(self, image: Callable[[], MetadataImage], broker_id: int) -> None:
        self._image = image
        self._names = {Scope.EVERY_BROKER: EVERY_BROKER, Scope.THIS_BROKER: str(broker_id)}

    def name(self, scope: Scope) -> str:
        """The scope's node name below /config/brokers."""
        return self._names[scope]

    def of(self, scope: Scope) -> Mapping[str, str]:
        settings = self._image().broker_settings.get(self._names[scope])
        return {} if settings is None else settings.values


logger = logging.getLogger("broker.cluster")

_NOTHING: Mapping[str, str] = {}
# An unusable value of one of these may have been meant to keep what the setting below it would delete.
_DECIDES_ON_DELETION = ("retention.ms", "retention.bytes", "cleanup.policy")
_KEEPS_ALL = {"retention.ms": "-1", "retention.bytes": "-1"}
_Sources = tuple[Settings | None, ...]


class ImageSettings:
    """A topic's effective settings by the metadata image: its own over those of the brokers over the configuration file. Results
    are cached until one of their sources changes.

    There are two kinds. What a log does (segments, retention, flushes) is each broker's own business, so a per-broker setting
    applies there. What brokers must agree on is determined without it: a leader that uses another min.insync.replicas than the
    controller would acknowledge what the controller may give up. For these settings the configuration files of all brokers must
    agree, too."""

    def __init__(self, static: LogConfig, broker_id: int) -> None:
        self._static = static
        self._own = str(broker_id)
        self._logs: dict[str, tuple[_Sources, LogConfig]] = {}
        self._agreed: dict[str, tuple[_Sources, LogConfig]] = {}

    def of_topic(self, image: MetadataImage, topic: str) -> LogConfig:
        """The settings of its logs on this broker."""
        brokers = image.broker_settings
        sources = brokers.get(EVERY_BROKER), brokers.get(self._own), image.topic_settings.get(topic)
        return self._remembered(self._logs, topic, sources)

    def insync_min(self, image: MetadataImage, topic: str) -> int:
        """Its min.insync.replicas, the same for every broker."""
        return self._agreed_on(image, topic).min_insync_replicas

    def is_unclean_allowed(self, image: MetadataImage, topic: str) -> bool:
        """Its unclean.leader.election.enable, likewise."""
        return self._agreed_on(image, topic).unclean_leader_election_enable

    def forget(self, topic: str) -> None:
        """The topic is gone."""
        self._logs.pop(topic, None)
        self._agreed.pop(topic, None)

    def _agreed_on(self, image: MetadataImage, topic: str) -> LogConfig:
        sources = image.broker_settings.get(EVERY_BROKER), None, image.topic_settings.get(topic)
        return self._remembered(self._agreed, topic, sources)

    def _remembered(self, cache: dict[str, tuple[_Sources, LogConfig]], topic: str, sources: _Sources) -> LogConfig:
        cached = cache.get(topic)
        if cached is not None and all(old is new for old, new in zip(cached[0], sources, strict=True)):
            return cached[1]
        config = self._made(topic, sources)
        cache[topic] = sources, config
        return config

    def _made(self, topic: str, sources: _Sources) -> LogConfig:
        config = self._static
        every, own, of_topic = (_NOTHING if source is None else source.values for source in sources)
        for values in (every, own):
            config = self._over(config, values, "the brokers", is_topics=False)
        return self._over(config, of_topic, f"topic {topic}", is_topics=True)

    @staticmethod
    def _over(config: LogConfig, values: Mapping[str, str], whose: str, *, is_topics: bool) -> LogConfig:
        """An unusable value was written by a newer broker or by hand: the others still apply, and if it was to decide on
        deletion, nothing is deleted."""
        for name, value in values.items():
            try:
                config = config.with_topic_overrides({name: value}) if is_topics else config.with_broker_overrides({name: value})
            except InvalidConfig as error:
                logger.error("ignoring a setting of %s: %s", whose, error)
                if name.removeprefix("log.") in _DECIDES_ON_DELETION:
                    config = config.with_topic_overrides(_KEEPS_ALL)
        return config
