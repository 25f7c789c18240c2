"""The metadata source of a broker in a cluster: topics, settings, users and ACLs, producer ids, the view of clients, and the
making and changing of topics. All of it follows the image.

It is notified of each change before the roles are, because the topic of a led partition must be known.
"""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Callable

from logbus_broker import errors, logs
from logbus_broker.api import cluster_topics, handler, offsets_topic
from logbus_broker.cluster import (
    cluster_view,
    dynamic_config,
    membership,
    metadata_image,
    metadata_writes,
    security_store,
    store,
    topic_registry,
)
from logbus_broker.config.settings import BrokerConfig
from logbus_broker.log import background_tasks, thread_pool, topic_admin
from logbus_broker.log.manager import PartitionManager
from logbus_broker.security.state import SecurityState

logger = logging.getLogger("broker.cluster")


class ClusterMetadata:
    """See the module docstring. `new_id` returns ids for topics, each of them unique."""

    def __init__(self, member: membership.ClusterMember, config: BrokerConfig, new_id: Callable[[], uuid.UUID]) -> None:
        self.member = member
        self.topics = topic_registry.ImageTopics(new_id)
        self.overrides = dynamic_config.ImageOverrides(lambda: member.image, config.broker_id)
        self.security = ClusterSecurity(member)
        self.producer_ids = metadata_writes.cluster_producer_ids(member.store, config.broker_id)
        self._config = config

    def open(self, partitions: PartitionManager) -> None:
        """Nothing to open yet: which logs this broker should have is known only after it has joined the cluster."""

    def view(self, partitions: PartitionManager) -> cluster_view.ImageView:
        return cluster_view.ImageView(lambda: self.member.image)

    def topic_admin(self, partitions: PartitionManager) -> cluster_topics.ClusterTopics:
        return cluster_topics.ClusterTopics(self.member, self.topics, partitions, self.overrides, self._config)

    def follow(self, context: handler.Context) -> None:
        """Follow the image from now on, starting at once if it is already known."""

        def changed(image: metadata_image.MetadataImage, delta: metadata_image.MetadataDelta) -> None:
            self.topics.image_changed(image, delta)
            if delta.is_everything or any(isinstance(change, metadata_image.BrokerSettingsChange) for change in delta.changes):
                _refresh_settings(context)
            if delta.is_everything or delta.changes:
                context.metadata_cache.clear()

        self.member.watcher.listen(changed)


class ClusterSecurity:
    """The `SecurityStore` of a broker in a cluster: part of the metadata image. Any broker may change it, with transactions that
    apply only to what the image showed; if another broker was faster, its change is looked at first."""

    def __init__(self, member: membership.ClusterMember) -> None:
        self._member = member
        self.state = SecurityState()
        self.on_change: Callable[[], None] = lambda: None
        member.watcher.listen(self._image_changed)

    def _image_changed(self, image: metadata_image.MetadataImage, _: metadata_image.MetadataDelta) -> None:
        # An image that has been read anew holds equal values in other objects.
        if image.security.state is not self.state and image.security.state != self.state:
            self.state = image.security.state
            self.on_change()

    def change(self, edit: security_store.Edit) -> background_tasks.Steps:
        member = self._member
        for _ in range(metadata_writes.ATTEMPTS):
            before = member.image.security
            changed = edit(before.state)
            if changed == before.state:
                return
            script = metadata_writes.change_security(before, changed)
            version, is_stored = yield background_tasks.Until(functools.partial(self._run, script))
            yield background_tasks.Until(functools.partial(self._wait_until_seen, version))
            if is_stored:
                return
        raise errors.RequestTimedOut("other brokers keep changing users, ACLs and quotas: retry")

    def _run(self, script: store.Script[tuple[int, bool]], go_on: thread_pool.Outcome) -> None:
        store.run_script(self._member.store, script, go_on)

    def _wait_until_seen(self, version: int, go_on: thread_pool.Outcome) -> None:
        self._member.when_seen(
            lambda image: image.security.version >= version, functools.partial(go_on, None), topic_admin.TIMEOUT_MS
        )


def _refresh_settings(context: handler.Context) -> None:
    try:
        context.partitions.settings.refresh()
    except errors.InvalidConfig as error:  # not written by a broker of this version
        logger.error("ignoring the brokers' settings in ZooKeeper: %s", error)


def forget_offsets(context: handler.Context, image: metadata_image.MetadataImage, delta: metadata_image.MetadataDelta) -> None:
    """The image has changed: each coordinator forgets what its groups have committed for topics that are deleted. Offsets that a
    coordinator has not loaded yet are forgotten with the next sweep."""
    names = {
        change.topic
        for change in delta.changes
        if isinstance(change, metadata_image.DeletionRequested | metadata_image.TopicDeleted)
    }
    if names or delta.is_everything:
        is_gone = _is_gone_from(image) if delta.is_everything else names.__contains__
        context.tasks.begin(offsets_topic.remove_offsets_of_topics(is_gone, context), _failed)


def _is_gone_from(image: metadata_image.MetadataImage) -> Callable[[str], bool]:
    return lambda topic: topic not in image.topics or topic in image.deleting


def _failed() -> None:
    """Called inside an exception handler."""
    logs.log_bug("removing the committed offsets of deleted topics failed")
