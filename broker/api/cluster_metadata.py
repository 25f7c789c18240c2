"""The metadata source of a broker in a cluster: topics, settings, producer ids, the view of clients, and the making and changing
of topics. All of it follows the image.

It is notified of each change before the roles are, because the topic of a led partition must be known.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.api.cluster_topics import ClusterTopics
from broker.api.context import Context
from broker.api.offsets_topic import remove_offsets_of_topics
from broker.cluster.cluster_view import ImageView
from broker.cluster.dynamic_config import ImageOverrides
from broker.cluster.membership import ClusterMember
from broker.cluster.metadata_image import BrokerSettingsChange, DeletionRequested, MetadataDelta, MetadataImage, TopicDeleted
from broker.cluster.metadata_writes import cluster_producer_ids
from broker.cluster.topic_registry import ImageTopics
from broker.config.settings import BrokerConfig
from broker.errors import InvalidConfig
from broker.log.manager import PartitionManager
from broker.logs import log_bug

if TYPE_CHECKING:
    from broker.api.context import Context

logger = logging.getLogger("broker.cluster")


class ClusterMetadata:
    """See the module docstring. `new_id` returns ids for topics, each of them unique."""

    def __init__(self, member: ClusterMember, config: BrokerConfig, new_id: Callable[[], uuid.UUID]) -> None:
        self.member = member
        self.topics = ImageTopics(new_id)
        self.overrides = ImageOverrides(lambda: member.image, config.broker_id)
        self.producer_ids = cluster_producer_ids(member.store, config.broker_id)
        self._config = config

    def open(self, partitions: PartitionManager) -> None:
        """Nothing to open yet: which logs this broker should have is known only after it has joined the cluster."""

    def view(self, partitions: PartitionManager) -> ImageView:
        return ImageView(lambda: self.member.image)

    def topic_admin(self, partitions: PartitionManager) -> ClusterTopics:
        return ClusterTopics(self.member, self.topics, partitions, self.overrides, self._config)

    def follow(self, context: Context) -> None:
        """Follow the image from now on, starting at once if it is already known."""

        def changed(image: MetadataImage, delta: MetadataDelta) -> None:
            self.topics.image_changed(image, delta)
            if delta.is_everything or any(isinstance(change, BrokerSettingsChange) for change in delta.changes):
                _refresh_settings(context)
            if delta.is_everything or delta.changes:
                context.metadata_cache.clear()

        self.member.watcher.listen(changed)


def _refresh_settings(context: Context) -> None:
    try:
        context.partitions.settings.refresh()
    except InvalidConfig as error:  # not written by a broker of this version
        logger.error("ignoring the brokers' settings in ZooKeeper: %s", error)


def forget_offsets(context: Context, image: MetadataImage, delta: MetadataDelta) -> None:
    """The image has changed: each coordinator forgets what its groups have committed for topics that are deleted. Offsets that a
    coordinator has not loaded yet are forgotten with the next sweep."""
    names = {change.topic for change in delta.changes if isinstance(change, DeletionRequested | TopicDeleted)}
    if names or delta.is_everything:
        is_gone = _is_gone_from(image) if delta.is_everything else names.__contains__
        context.tasks.begin(remove_offsets_of_topics(is_gone, context), _failed)


def _is_gone_from(image: MetadataImage) -> Callable[[str], bool]:
    return lambda topic: topic not in image.topics or topic in image.deleting


def _failed() -> None:
    """Called inside an exception handler."""
    log_bug("removing the committed offsets of deleted topics failed")
