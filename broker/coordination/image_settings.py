"""A topic's effective settings by the image: its own settings over those of the brokers over the configuration file.

There are two kinds. What a log does (segments, retention, flushes) is each broker's own business, so a per-broker setting applies
there. What brokers must agree on is determined without it: a leader that uses another min.insync.replicas than the controller
would acknowledge what the controller may give up. For these settings the configuration files of all brokers must agree, too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from broker.config.settings import LogConfig
from broker.coordination.image import Image, Settings
from broker.coordination.znodes import EVERY_BROKER
from broker.errors import InvalidConfig

logger = logging.getLogger("broker.coordination")

_NOTHING: Mapping[str, str] = {}
# An unusable value of one of these may have been meant to keep what the setting below it would delete.
_DECIDES_ON_DELETION = ("retention.ms", "retention.bytes", "cleanup.policy")
_KEEPS_ALL = {"retention.ms": "-1", "retention.bytes": "-1"}
_Sources = tuple[Settings | None, ...]


class ImageSettings:
    """See the module docstring. Results are cached until one of their sources changes."""

    def __init__(self, static: LogConfig, broker_id: int) -> None:
        self._static = static
        self._own = str(broker_id)
        self._logs: dict[str, tuple[_Sources, LogConfig]] = {}
        self._agreed: dict[str, tuple[_Sources, LogConfig]] = {}

    def of_topic(self, image: Image, topic: str) -> LogConfig:
        """The settings of its logs on this broker."""
        brokers = image.broker_settings
        sources = brokers.get(EVERY_BROKER), brokers.get(self._own), image.topic_settings.get(topic)
        return self._remembered(self._logs, topic, sources)

    def insync_min(self, image: Image, topic: str) -> int:
        """Its min.insync.replicas, the same for every broker."""
        return self._agreed_on(image, topic).min_insync_replicas

    def is_unclean_allowed(self, image: Image, topic: str) -> bool:
        """Its unclean.leader.election.enable, likewise."""
        return self._agreed_on(image, topic).unclean_leader_election_enable

    def forget(self, topic: str) -> None:
        """The topic is gone."""
        self._logs.pop(topic, None)
        self._agreed.pop(topic, None)

    def _agreed_on(self, image: Image, topic: str) -> LogConfig:
        sources = image.broker_settings.get(EVERY_BROKER), None, image.topic_settings.get(topic)
        return self._remembered(self._agreed, topic, sources)

    def _remembered(self, known: dict[str, tuple[_Sources, LogConfig]], topic: str, sources: _Sources) -> LogConfig:
        found = known.get(topic)
        if found is not None and all(old is new for old, new in zip(found[0], sources, strict=True)):
            return found[1]
        config = self._made(topic, sources)
        known[topic] = sources, config
        return config

    def _made(self, topic: str, sources: _Sources) -> LogConfig:
        config = self._static
        every, own, of_topic = (_NOTHING if source is None else source.values for source in sources)
        for values in (every, own):
            config = self._over(config, values, "the brokers'", is_topics=False)
        return self._over(config, of_topic, f"topic {topic}'s", is_topics=True)

    @staticmethod
    def _over(config: LogConfig, values: Mapping[str, str], whose: str, *, is_topics: bool) -> LogConfig:
        """An unusable value was written by a newer broker or by hand: the others still apply, and if it was to decide on
        deletion, nothing is deleted."""
        for name, value in values.items():
            try:
                config = config.with_topic_overrides({name: value}) if is_topics else config.with_broker_overrides({name: value})
            except InvalidConfig as error:
                logger.error("%s setting is passed over: %s", whose, error)
                if name.removeprefix("log.") in _DECIDES_ON_DELETION:
                    config = config.with_topic_overrides(_KEEPS_ALL)
        return config
