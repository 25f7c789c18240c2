"""The source of topics, settings, producer ids and other brokers, in one interface with two implementations.

A standalone broker keeps all of it on its own disk: `LocalMetadata`. A broker in a cluster gets it from ZooKeeper
(`cluster_metadata.py`). The engine is built around either, and handlers do not depend on which.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from logbus_broker.api.handler import Context
from logbus_broker.cluster import cluster_view, dynamic_config, security_store, topic_registry
from logbus_broker.cluster.producer_ids import ProducerIds, local_producer_ids
from logbus_broker.filesystem import FileSystem
from logbus_broker.log import log_directory, manager
from logbus_broker.log.thread_pool import ThreadPool
from logbus_broker.log.topic_admin import TopicAdmin, TopicChanges
from logbus_broker.settings import BrokerConfig

if TYPE_CHECKING:
    from logbus_broker.cluster.membership import ClusterMember


class MetadataSource(Protocol):
    """See the module docstring."""

    @property
    def topics(self) -> topic_registry.KnownTopics: ...

    @property
    def overrides(self) -> dynamic_config.Overrides: ...

    @property
    def producer_ids(self) -> ProducerIds: ...

    @property
    def security(self) -> security_store.SecurityStore: ...

    @property
    def member(self) -> ClusterMember | None:
        """None: there are no other brokers."""

    def open(self, partitions: manager.PartitionManager) -> None:
        """Open the logs that this broker is known to have."""

    def view(self, partitions: manager.PartitionManager) -> cluster_view.ClusterView:
        """The view of the cluster that clients are given."""

    def topic_admin(self, partitions: manager.PartitionManager) -> TopicAdmin:
        """Creates and changes topics."""

    def follow(self, context: Context) -> None:
        """Apply changes made by other brokers from now on."""


class LocalMetadata:
    """The one of a standalone broker."""

    member = None

    def __init__(
        self,
        config: BrokerConfig,
        directory: log_directory.LogDirectory,
        *,
        filesystem: FileSystem,
        thread_pool: ThreadPool,
        new_id: Callable[[], uuid.UUID],
        ports: Mapping[str, int],
        remove_files: Callable[[list[Path]], None],
    ) -> None:
        self.topics = topic_registry.TopicRegistry(directory, new_id)
        self.overrides = dynamic_config.BrokerOverrides(directory)
        self.producer_ids = local_producer_ids(directory, thread_pool.store)
        self.security = security_store.LocalSecurity(directory)
        self._config = config
        self._directory = directory
        self._filesystem = filesystem
        self._thread_pool = thread_pool
        self._ports = ports
        self._remove_files = remove_files

    def open(self, partitions: manager.PartitionManager) -> None:
        partitions.open_all(self.topics, self._thread_pool)

    def view(self, partitions: manager.PartitionManager) -> cluster_view.LocalView:
        return cluster_view.LocalView(
            broker_id=self._config.broker_id,
            cluster_id=self._directory.cluster_id,
            advertised=self._config.advertised_at(self._ports),
            leader_epoch=lambda topic, index: partitions.get(topic, index).leader_epoch,
        )

    def topic_admin(self, partitions: manager.PartitionManager) -> TopicChanges:
        return TopicChanges(
            partitions,
            self.topics,
            self._directory,
            self._filesystem,
            self._remove_files,
            self.overrides,
            broker_id=self._config.broker_id,
        )

    def follow(self, context: Context) -> None:
        """No other broker changes anything."""
