"""What holds for a topic by the image: its own settings over those of the brokers over the configuration file.

Two questions are answered differently. What a log does (segments, retention, flushes) is each broker's own affair, so a setting
of one broker counts there. What brokers must agree on is asked without it: a leader that counts with another
min.insync.replicas than the controller would acknowledge what the controller may give up. Where they agree, the configuration
files have to agree as well.
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
# Of those that decide what is deleted, one that cannot be used was perhaps to keep what the setting below it would delete.
_DECIDES_ON_DELETION = ("retention.ms", "retention.bytes", "cleanup.policy")
_KEEPS_ALL = {"retention.ms": "-1", "retention.bytes": "-1"}
_Sources = tuple[Settings | None, ...]


class ImageSettings:
    """See the file's theory. Answers are remembered as long as what they were made from is the same."""

    def __init__(self, static: LogConfig, broker_id: int) -> None:
        self._static = static
        self._own = str(broker_id)
        self._logs: dict[str, tuple[_Sources, LogConfig]] = {}
        self._agreed: dict[str, tuple[_Sources, LogConfig]] = {}

    def of_topic(self, image: Image, topic: str) -> LogConfig:
        """What holds for its logs on this broker."""
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
        """It is gone."""
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
        """What cannot be used was written by a newer broker or by hand: all else of it still holds, and nothing is deleted where
        that was what it said."""
        for name, value in values.items():
            try:
                config = config.with_topic_overrides({name: value}) if is_topics else config.with_broker_overrides({name: value})
            except InvalidConfig as error:
                logger.error("%s setting is passed over: %s", whose, error)
                if name.removeprefix("log.") in _DECIDES_ON_DELETION:
                    config = config.with_topic_overrides(_KEEPS_ALL)
        return config
