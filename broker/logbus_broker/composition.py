"""What handlers use, built and connected in one place: flushes, waiting requests, groups and offsets.

Lower packages know nothing of higher ones: they call a hook, and this is the only place that connects the hooks.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable

from logbus_broker import logs
from logbus_broker.api import groups, handler, metadata, produce
from logbus_broker.api.groups import GroupLoader
from logbus_broker.api.metadata_source import MetadataSource
from logbus_broker.api.produce_turn import ProduceTurn
from logbus_broker.api.purgatory import Deadlines, Purgatory
from logbus_broker.clock import Clock
from logbus_broker.cluster import cluster_view, local_files
from logbus_broker.errors import BrokerError
from logbus_broker.groups import committed_offsets, coordinator, rebalance
from logbus_broker.health import Counters, Health
from logbus_broker.log import background_tasks, manager
from logbus_broker.log.flusher import Flusher
from logbus_broker.log.high_watermark import HighWatermark, ReplicatedHighWatermark, Watermarks
from logbus_broker.log.partition import Partition
from logbus_broker.log.thread_pool import ThreadPool
from logbus_broker.security.quotas import ClientQuotas
from logbus_broker.settings import BrokerConfig


def build_context(
    config: BrokerConfig,
    metadata_source: MetadataSource,
    partitions: manager.PartitionManager,
    *,
    watermarks: Watermarks | None,
    view: cluster_view.ClusterView,
    counters: Counters,
    health: Health,
    clock: Clock,
    thread_pool: ThreadPool,
    tasks: background_tasks.BackgroundTasks,
    checkpoints: local_files.GroupedWrites,
    new_id: Callable[[], uuid.UUID],
) -> handler.Context:
    """`watermarks` reports how far led partitions are safe on other replicas; None: there are no others."""
    flusher = Flusher(thread_pool, clock, counters.flushes)
    high_watermark = HighWatermark(flusher) if watermarks is None else ReplicatedHighWatermark(flusher, watermarks)
    deadlines = Deadlines()
    purgatory = Purgatory(deadlines)
    metadata_cache = metadata.MetadataCache()
    offsets = committed_offsets.OffsetStore(partitions, clock, groups_max=config.groups_max)
    produce_turn = ProduceTurn(high_watermark, purgatory.has_waiters, functools.partial(produce.fail, counters=counters))
    group_rules = coordinator.CoordinatorRules(
        group=rebalance.GroupRules(initial_delay_ms=config.group_initial_rebalance_delay_ms, size_max=config.group_size_max),
        session_ms_min=config.group_session_ms_min,
        session_ms_max=config.group_session_ms_max,
        groups_max=config.groups_max,
        bytes_max=config.groups_bytes_max,
    )
    context = handler.Context(
        config=config,
        counters=counters,
        health=health,
        clock=clock,
        partitions=partitions,
        producer_ids=metadata_source.producer_ids,
        groups=coordinator.GroupCoordinator(group_rules, lambda: str(new_id()), offsets.readable),
        offsets=offsets,
        flusher=flusher,
        high_watermark=high_watermark,
        purgatory=purgatory,
        deadlines=deadlines,
        produce_turn=produce_turn,
        thread_pool=thread_pool,
        tasks=tasks,
        topic_changes=metadata_source.topic_admin(partitions),
        checkpoints=checkpoints,
        view=view,
        metadata_cache=metadata_cache,
        security=metadata_source.security,
        quotas=ClientQuotas(lambda: metadata_source.security.state, config.quota_windows, config.quota_window_seconds),
        cluster=metadata_source.member,
    )
    if config.authorizer_class_name:
        from logbus_broker.api.authorization import Authorizer  # most brokers have none

        context.authorizer = Authorizer(context.security, config)
        context.security.on_change = functools.partial(context.authorizer.acls_changed, purgatory)
    if config.audit_topic_enable:
        from logbus_broker.api.internal_topics import AuditTopic  # nor this

        logs.set_up_audit_log(AuditTopic(context))
    context.groups.on_unstored = functools.partial(groups.store_group, context=context)
    group_loader = GroupLoader(context)
    connect_partition_hooks(context, group_loader)
    if watermarks is None:
        group_loader.own_all()  # no other broker will ever coordinate one of them
    return context


def connect_partition_hooks(context: handler.Context, group_loader: GroupLoader) -> None:
    """What becomes of a partition (new records, a new leader, its removal) reaches those who wait for it, and its groups."""
    partitions, high_watermark, purgatory = context.partitions, context.high_watermark, context.purgatory

    # Requests wait for a partition in three places: for its flush (high watermark), for new records (purgatory), for its write in
    # this turn (produce_turn). Anything that ends a partition here must notify each of them, or a client waits until its own
    # timeout.
    def removed(partition: Partition, error: BrokerError) -> None:
        context.counters.deleted.add(partition.traffic)
        high_watermark.forget(partition, error)
        purgatory.wake(partition)

    def lost(partition: Partition, error: BrokerError) -> None:
        context.produce_turn.lose(partition, error)
        high_watermark.lost(partition, error)
        purgatory.wake(partition)
        group_loader.lost(partition)

    partitions.on_change = context.metadata_cache.clear
    partitions.on_removed = removed
    partitions.on_lead_lost = lost
    partitions.on_rolled = lambda partition: context.flusher.appended(partition, 0)
    high_watermark.on_advanced = purgatory.exposed
    high_watermark.on_offline = purgatory.wake
    if not isinstance(high_watermark, ReplicatedHighWatermark):
        return
    replicated = high_watermark

    def won(partition: Partition) -> None:
        replicated.lead(partition)
        group_loader.won(partition)

    partitions.on_lead_won = won
