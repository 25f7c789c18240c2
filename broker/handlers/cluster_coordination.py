"""A clustered broker's counterpart to what a standalone broker keeps on its own disk: topics, settings, producer ids, the view of
clients, and the making and changing of topics. All of it follows the image.

It is notified of each change before the roles are, because the topic of a led partition must be known.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.config.settings import BrokerConfig
from broker.coordination.broker_overrides import ImageOverrides
from broker.coordination.changes import BrokerSettingsChange
from broker.coordination.follow import News
from broker.coordination.image import Image
from broker.coordination.image_topics import ImageTopics
from broker.coordination.image_view import ImageView
from broker.coordination.member import ClusterMember
from broker.coordination.producer_id_blocks import cluster_producer_ids
from broker.errors import InvalidConfig
from broker.handlers.cluster_topics import ClusterTopics
from broker.partitions.manager import PartitionManager

if TYPE_CHECKING:
    from broker.handlers.context import Context

logger = logging.getLogger("broker.coordination")


class ClusterCoordination:
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

        def changed(image: Image, news: News) -> None:
            self.topics.image_changed(image, news)
            if news.is_everything or any(isinstance(change, BrokerSettingsChange) for change in news.changes):
                _refresh_settings(context)
            if news.is_everything or news.changes:
                context.metadata_cache.clear()

        self.member.follower.listen(changed)


def _refresh_settings(context: Context) -> None:
    try:
        context.partitions.settings.refresh()
    except InvalidConfig as error:  # not written by a broker of this version
        logger.error("the brokers' settings in ZooKeeper are passed over: %s", error)
