"""What a broker of a cluster has in the places of what one that is alone keeps on its own disk: topics, settings, producer ids,
the view of clients, and who makes and changes topics. All of it follows the image.

It is told of each change before the roles are, since a partition that is led belongs to a topic that can be found.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.config import BrokerConfig
from broker.coordination.broker_overrides import ImageOverrides
from broker.coordination.changes import BrokerSettingsChange
from broker.coordination.follow import News
from broker.coordination.image import Image
from broker.coordination.image_topics import ImageTopics
from broker.coordination.image_view import ImageView
from broker.coordination.member import ClusterMember
from broker.coordination.producer_id_blocks import ProducerIdBlocks
from broker.errors import InvalidConfig
from broker.handlers.cluster_topics import ClusterTopics
from broker.partitions.manager import PartitionManager

if TYPE_CHECKING:
    from broker.handlers.context import Context

logger = logging.getLogger("broker.coordination")


class ClusterCoordination:
    """See the file's theory. `new_id` gives topics their ids, each once."""

    def __init__(self, member: ClusterMember, config: BrokerConfig, new_id: Callable[[], uuid.UUID]) -> None:
        self.member = member
        self.topics = ImageTopics(new_id)
        self.overrides = ImageOverrides(lambda: member.image, config.broker_id)
        self.producer_ids = ProducerIdBlocks(member.store, config.broker_id)
        self._config = config

    def open(self, partitions: PartitionManager) -> None:
        """Which logs this broker should have is only known when it has entered the cluster."""

    def view(self, partitions: PartitionManager) -> ImageView:
        return ImageView(lambda: self.member.image)

    def topic_admin(self, partitions: PartitionManager) -> ClusterTopics:
        return ClusterTopics(self.member, self.topics, partitions, self.overrides, self._config)

    def follow(self, context: Context) -> None:
        """From now on, and at once where the image is known."""

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
    except InvalidConfig as error:  # no broker of this version wrote it
        logger.error("the brokers' settings in ZooKeeper are passed over: %s", error)
