"""The metadata source of a broker in a cluster: topics, settings, users and ACLs, producer ids, the view of clients; and the
changes to a cluster's topics and settings, which clients may request from any broker. All of it follows the image.

The broker that gets the request writes to ZooKeeper (`metadata_writes.py`), and answers once its own image shows the change:
later answers of this broker about the topic then agree with it. Only ZooKeeper can decide whether a name is free. Nothing waits
in a queue, because brokers change the same things concurrently anyway, and each write applies only to the state that its writer
saw. The controller and other brokers need a moment longer. Clients retry with a leader that does not have its partition yet, as
with one that has just changed.

A deleted topic's name is free again when the controller has removed all of the topic, and only then is the request answered.

All partitions of a topic that a reassignment names (KIP-455) are moved with one conditional write of the topic's node. If another
broker wrote first, its change is examined once the image shows it, and everything is decided again. The controller does the rest;
the answer only means that the reassignment has begun.

It is notified of each change before the roles are, because the topic of a led partition must be known.
"""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from logbus_broker import errors, logs
from logbus_broker.api import handler, internal_topics
from logbus_broker.cluster import (
    cluster_view,
    controller,
    dynamic_config,
    membership,
    metadata_image,
    metadata_writes,
    security_store,
    store,
    topic_registry,
)
from logbus_broker.cluster.assignment import check_assignments, is_reassigned, originals, place_replicas, reassign
from logbus_broker.errors import (
    BrokerError,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    NoReassignmentInProgress,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from logbus_broker.log import background_tasks, manager, thread_pool, topic_admin
from logbus_broker.log.manager import PartitionManager
from logbus_broker.properties import check_new_topic
from logbus_broker.security.state import SecurityState
from logbus_broker.settings import BrokerConfig

_ATTEMPTS = 5  # to move partitions, while other brokers change the topic
_AT_ONCE = 50  # concurrent scripts: ZooKeeper's answer to the last of them must arrive before a request's deadline

Begin = Callable[[thread_pool.Outcome], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """A topic as it would be created."""

    topic: topic_registry.Topic
    cluster_topic: metadata_image.ClusterTopic


class ClusterTopics:
    """The `TopicAdmin` of a broker in a cluster."""

    def __init__(
        self,
        member: membership.ClusterMember,
        topics: topic_registry.ImageTopics,
        partitions: manager.PartitionManager,
        overrides: dynamic_config.ImageOverrides,
        config: BrokerConfig,
    ) -> None:
        self._member = member
        self._topics = topics
        self._partitions = partitions
        self._overrides = overrides
        self._config = config
        self._counts: tuple[Mapping[str, metadata_image.ClusterTopic], Mapping[int, int]] = ({}, {})

    # Creating

    def validate(self, requests: Iterable[topic_admin.NewTopic | BrokerError]) -> topic_admin.Outcomes:
        plans = yield from self._plans(requests)
        return [
            plan if isinstance(plan, BrokerError) else replace(plan.topic, topic_id=topic_registry.NO_TOPIC_ID) for plan in plans
        ]

    def create(
        self, requests: Iterable[topic_admin.NewTopic | BrokerError], timeout_ms: int = topic_admin.TIMEOUT_MS
    ) -> topic_admin.Outcomes:
        plans: list[_Plan | BrokerError] = yield from self._plans(requests)
        begins = [partial(self._make, plan, timeout_ms) for plan in plans if isinstance(plan, _Plan)]
        errors = iter((yield from _together(begins)))
        return [plan if isinstance(plan, BrokerError) else next(errors) or plan.topic for plan in plans]

    def _plans(self, requests: Iterable[topic_admin.NewTopic | BrokerError]) -> background_tasks.Steps:
        # One `_Room` for the whole request: each of its topics may fit alone, while all of them together do not.
        room = self._room()
        return (yield from topic_admin.plan_each(requests, lambda request: self._plan(request, room)))

    def _plan(self, request: topic_admin.NewTopic, room: _Room) -> _Plan:
        count, factor, overrides = request.partition_count, request.replication_factor, request.overrides
        if request.name in topic_registry.INTERNAL_TOPICS:
            # All of its replicas from the start, as in Kafka: created by the first of several brokers, with itself alone, the
            # topic would have a single replica forever.
            is_of_offsets = request.name == topic_registry.OFFSETS_TOPIC
            count = self._config.offsets_partitions if is_of_offsets else topic_registry.AUDIT_PARTITIONS
            factor = self._config.offsets_replication_factor
            overrides = self._partitions.internal_settings[request.name]
            if (live := len(self._member.image.brokers)) < factor:
                raise InvalidReplicationFactor(
                    f"offsets.topic.replication.factor={factor} needs as many live brokers, not {live}"
                )
        count = self._config.num_partitions if count == topic_admin.DEFAULT else count
        # Checked against our image, which may be slightly out of date. The transaction decides: it contains the topic's name and
        # id, and fails if either is taken by then.
        topic = self._topics.new(request.name, count, overrides)
        log = self._partitions.settings.of_topic(overrides)
        if request.assignments is not None:
            replicas = check_assignments(request.assignments, self._racks())
        else:
            factor = self._config.default_replication_factor if factor == topic_admin.DEFAULT else factor
            replicas = place_replicas(count, factor, self._candidates(factor), seed=topic.topic_id.int)
        check_new_topic(log, len(replicas[0]))
        room.take(replicas)
        cluster_topic = metadata_image.ClusterTopic(
            name=topic.name, topic_id=topic.topic_id, replicas=replicas, states=self._states(replicas), version=0
        )
        return _Plan(
            topic=replace(topic, partition_count=len(replicas), replication_factor=len(replicas[0])), cluster_topic=cluster_topic
        )

    def _racks(self) -> dict[int, str]:
        return {broker_id: node.rack for broker_id, node in sorted(self._member.image.brokers.items())}

    def _candidates(self, factor: int) -> dict[int, str]:
        """Brokers that are shutting down get replicas only if there would be too few brokers otherwise: they will return."""
        racks = self._racks()
        staying = {broker_id: rack for broker_id, rack in racks.items() if broker_id not in self._member.image.leaving}
        return staying if len(staying) >= factor else racks

    def _room(self) -> _Room:
        topics = self._member.image.topics
        # Compared by identity: an image is immutable, each change creates a new one. Counting all replicas of a cluster takes
        # some milliseconds.
        if self._counts[0] is not topics:  # a request may name a thousand topics
            self._counts = topics, _counted(brokers for topic in topics.values() for brokers in topic.replicas)
        return _Room(self._counts[1], self._config.partitions_max)

    def _states(self, replicas: Iterable[tuple[int, ...]]) -> tuple[metadata_image.PartitionState, ...]:
        image = self._member.image

        def state(brokers: tuple[int, ...]) -> metadata_image.PartitionState:
            isr = tuple(broker for broker in brokers if broker in image.brokers)
            # The initial state is written here and not by the controller: a topic can be written to as soon as it exists,
            # whichever broker is the controller, and even while there is none.
            leader = next((broker for broker in isr if broker not in image.leaving), isr[0])
            return metadata_image.PartitionState(leader=leader, leader_epoch=0, isr=isr, version=0)

        return tuple(map(state, replicas))

    def _make(self, plan: _Plan, timeout_ms: int, go_on: thread_pool.Outcome) -> None:
        cluster_topic = plan.cluster_topic

        def is_there(image: metadata_image.MetadataImage) -> bool:
            current = image.topics.get(cluster_topic.name)
            # Larger topics are created in several transactions (metadata_writes.py): the image shows some of the partitions
            # before the rest.
            return (
                current is not None
                and current.topic_id == cluster_topic.topic_id
                and current.partition_count >= cluster_topic.partition_count
            )

        self._write(metadata_writes.create_topic(cluster_topic, plan.topic.overrides), lambda _: is_there, timeout_ms, go_on)

    # Growing

    def check_growth(self, growth: topic_admin.Growth, *, planned: int = 0) -> int:
        topic = self._topics.get(growth.name)
        added = growth.count - topic.partition_count
        if added <= 0:
            raise InvalidPartitions(f"topic {topic.name!r} has {topic.partition_count} partitions: {growth.count} are not more")
        current = self._member.image.topics.get(topic.name)
        if current is not None and (current.adding or current.removing):
            raise InvalidReplicaAssignment(f"partitions of topic {topic.name!r} are being reassigned: grow it when that is done")
        self._new_replicas(growth, topic, self._room())
        return added

    def _new_replicas(self, growth: topic_admin.Growth, topic: topic_registry.Topic, room: _Room) -> tuple[tuple[int, ...], ...]:
        first = topic.partition_count
        if growth.assignments is None:
            racks = self._candidates(topic.replication_factor)
            seed = topic.topic_id.int
            replicas = place_replicas(growth.count - first, topic.replication_factor, racks, seed=seed, first=first)
        else:
            if len(growth.assignments) != growth.count - first:
                raise InvalidReplicaAssignment(f"assignments must be those of the {growth.count - first} new partitions")
            assigned = dict(enumerate(growth.assignments, first))
            replicas = check_assignments(assigned, self._racks(), first=first)
            if len(replicas[0]) != topic.replication_factor:
                raise InvalidReplicaAssignment(f"the other partitions have {topic.replication_factor} replicas each")
        room.take(replicas)
        return replicas

    def grow(self, growths: Mapping[str, topic_admin.Growth], timeout_ms: int = topic_admin.TIMEOUT_MS) -> topic_admin.Failures:
        return (yield from _failures(growths, [partial(self._grow, growth, timeout_ms) for growth in growths.values()]))

    def _grow(self, growth: topic_admin.Growth, timeout_ms: int, go_on: thread_pool.Outcome) -> None:
        try:
            topic = self._topics.get(growth.name)
            replicas = self._new_replicas(growth, topic, self._room())
        except BrokerError as error:  # the topic has changed since the check
            go_on(None, error)
            return
        topic_id, first = topic.topic_id, topic.partition_count
        script = metadata_writes.grow_topic(growth.name, topic_id, first, replicas, self._states(replicas))

        def has_grown(image: metadata_image.MetadataImage) -> bool:
            current = image.topics.get(growth.name)
            return current is None or current.topic_id != topic_id or current.partition_count >= growth.count

        self._write(script, lambda _: has_grown, timeout_ms, go_on)

    # Deleting

    def delete(self, topics: Sequence[topic_registry.Topic], timeout_ms: int = topic_admin.TIMEOUT_MS) -> topic_admin.Failures:
        begins = [partial(self._delete, topic, timeout_ms) for topic in topics]
        return (yield from _failures([topic.name for topic in topics], begins))

    def _delete(self, topic: topic_registry.Topic, timeout_ms: int, go_on: thread_pool.Outcome) -> None:
        def is_gone(image: metadata_image.MetadataImage) -> bool:
            current = image.topics.get(topic.name)
            return current is None or current.topic_id != topic.topic_id

        self._write(metadata_writes.delete_topic(topic.name, topic.topic_id), lambda _: is_gone, timeout_ms, go_on)

    # Moving

    def reassign(
        self, topic: topic_registry.Topic, moves: topic_admin.Moves, timeout_ms: int = topic_admin.TIMEOUT_MS
    ) -> background_tasks.Steps:
        member = self._member
        for _ in range(_ATTEMPTS):
            current = member.image.topics.get(topic.name)
            if current is None or current.topic_id != topic.topic_id:
                return dict.fromkeys(moves, UnknownTopicOrPartition(f"no topic {topic.name!r}"))
            failed, targets = _checked(current, moves, member.image, self._insync_min(topic))
            step = reassign(current, targets)
            if step is None:
                return failed
            script = controller.write_reassigned(step, None)
            try:
                is_stored = yield background_tasks.Until(partial(self._run, script))
                is_other = partial(_is_other, current, step.topic.version if is_stored else current.version + 1)
                yield background_tasks.Until(partial(self._wait_until, is_other, timeout_ms))
            except BrokerError as error:
                return {**dict.fromkeys(targets, error), **failed}
            if is_stored:
                return failed
        late = RequestTimedOut(f"other brokers keep changing topic {topic.name!r}: retry")
        return {**dict.fromkeys(targets, late), **failed}

    def _insync_min(self, topic: topic_registry.Topic) -> int:
        return self._partitions.settings.of_topic(topic.overrides).min_insync_replicas

    def _wait_until(
        self, is_so: Callable[[metadata_image.MetadataImage], bool], timeout_ms: int, go_on: thread_pool.Outcome
    ) -> None:
        self._member.when_seen(is_so, partial(go_on, None), timeout_ms)

    # Settings

    def change_topics(self, changes: Sequence[topic_admin.NewSettings]) -> topic_admin.Failures:
        begins = [partial(self._change_topic, change) for change in changes]
        return (yield from _failures([change.topic.name for change in changes], begins))

    def _change_topic(self, change: topic_admin.NewSettings, go_on: thread_pool.Outcome) -> None:
        topic = change.topic

        def rewrite(now: Mapping[str, str]) -> Mapping[str, str]:
            # Called with what ZooKeeper holds now, and again if another broker has changed it in the meantime: two clients that
            # change different settings of one topic at the same time both succeed.
            values = change.rewrite(now)
            if not topic.is_internal:
                check_new_topic(self._partitions.settings.of_topic(values), topic.replication_factor)
            return values

        def is_so(stored: Any, image: metadata_image.MetadataImage) -> bool:
            settings, current = image.topic_settings.get(topic.name), image.topics.get(topic.name)
            is_gone = current is None or current.topic_id != topic.topic_id
            return is_gone or (settings is not None and settings.version >= stored.version)

        script = metadata_writes.change_topic_settings(topic.name, topic.topic_id, rewrite)
        self._write(script, lambda stored: partial(is_so, stored), topic_admin.TIMEOUT_MS, go_on)

    def change_broker(self, scope: dynamic_config.Scope, rewrite: dynamic_config.Rewrite) -> background_tasks.Steps:
        name = self._overrides.name(scope)

        def is_so(stored: Any, image: metadata_image.MetadataImage) -> bool:
            settings = image.broker_settings.get(name)
            return settings is not None and settings.version >= stored.version

        script = metadata_writes.change_broker_settings(name, rewrite)
        yield background_tasks.Until(partial(self._write, script, lambda stored: partial(is_so, stored), topic_admin.TIMEOUT_MS))

    # Writing

    def _write(
        self,
        script: store.Script[Any],
        expected: Callable[[Any], Callable[[metadata_image.MetadataImage], bool]],
        timeout_ms: int,
        go_on: thread_pool.Outcome,
    ) -> None:
        """Run a script, then wait until the image satisfies the condition that `expected` derives from its result."""

        def written(result: Any, error: BaseException | None) -> None:
            if error is not None:
                go_on(None, error)
            else:
                # Not answered before our own image shows it: a client that has created a topic and then requests metadata from
                # this broker must not get an unknown topic.
                self._wait_until(expected(result), timeout_ms, go_on)

        self._run(script, written)

    def _run(self, script: store.Script[Any], go_on: thread_pool.Outcome) -> None:
        store.run_script(self._member.store, script, go_on)


class _Room:
    """How many more partitions each broker may be assigned."""

    def __init__(self, counts: Mapping[int, int], partitions_max: int) -> None:
        self._counts = dict(counts)
        self._max = partitions_max

    def take(self, replicas: Iterable[Sequence[int]]) -> None:
        """InvalidPartitions: a broker would have too many, and nothing is assigned."""
        added = _counted(replicas)
        for broker, count in added.items():
            before = self._counts.get(broker, 0)
            if before + count > self._max:
                raise InvalidPartitions(
                    f"broker {broker} has {before} replicas, {count} more would pass logbus.partitions.max={self._max}"
                )
        self._counts.update({broker: self._counts.get(broker, 0) + count for broker, count in added.items()})


def _counted(replicas: Iterable[Sequence[int]]) -> dict[int, int]:
    """How many replicas each broker has."""
    counts: dict[int, int] = {}
    for brokers in replicas:
        for broker in brokers:
            counts[broker] = counts.get(broker, 0) + 1
    return counts


def _together(begins: Sequence[Begin]) -> background_tasks.Steps:
    """Run all, a limited number at a time; returns the error of each, or None."""
    errors: list[BaseException | None] = []
    # Not one after another, which would take a round trip each, and not all at once: ZooKeeper would answer the last one after
    # its client's deadline.
    for first in range(0, len(begins), _AT_ONCE):
        errors += yield background_tasks.Until(partial(_begin_all, begins[first : first + _AT_ONCE]))
    return errors


def _begin_all(begins: Sequence[Begin], go_on: thread_pool.Outcome) -> None:
    errors: list[BaseException | None] = [None] * len(begins)
    left = len(begins)

    def ended(index: int, _: object, error: BaseException | None) -> None:
        nonlocal left
        errors[index] = error
        left -= 1
        if not left:
            go_on(errors, None)

    for index, begin in enumerate(begins):
        begin(partial(ended, index))


def _failures(names: Iterable[str], begins: Sequence[Begin]) -> topic_admin.Failures:
    errors = yield from _together(begins)
    return {name: error for name, error in zip(names, errors, strict=True) if error is not None}


def _checked(
    current: metadata_image.ClusterTopic, moves: topic_admin.Moves, image: metadata_image.MetadataImage, insync_min: int
) -> tuple[dict[int, BrokerError], dict[int, tuple[int, ...]]]:
    """The partitions that cannot be moved, with the reason, and the target replicas of the others."""
    failed: dict[int, BrokerError] = {}
    targets: dict[int, tuple[int, ...]] = {}
    for index, target in moves.items():
        try:
            targets[index] = _target(current, index, target, image, insync_min)
        except BrokerError as error:
            failed[index] = error
    return failed, targets


def _target(
    current: metadata_image.ClusterTopic,
    index: int,
    target: tuple[int, ...] | None,
    image: metadata_image.MetadataImage,
    insync_min: int,
) -> tuple[int, ...]:
    name = f"{current.name}-{index}"
    if not 0 <= index < current.partition_count:
        raise UnknownTopicOrPartition(f"no partition {name}")
    if target is None:
        if not is_reassigned(current, index):
            raise NoReassignmentInProgress(f"{name} is not being reassigned")
        return originals(current, index)
    if not target or len(set(target)) != len(target):
        raise InvalidReplicaAssignment(f"{name}: {list(target)} is empty or names a broker twice")
    missing = [broker for broker in target if broker not in image.brokers and broker not in current.replicas[index]]
    if missing:
        raise InvalidReplicaAssignment(f"{name}: no live broker has the id {missing[0]}")
    if len(target) < insync_min and len(target) < len(originals(current, index)):
        raise InvalidReplicaAssignment(
            f"{name}: fewer replicas ({len(target)}) than min.insync.replicas={insync_min}: acks=all would never be answered. "
            "Lower that setting first"
        )
    return target


def _is_other(current: metadata_image.ClusterTopic, version: int, image: metadata_image.MetadataImage) -> bool:
    """Whether the topic has at least this version, or is gone or a different one."""
    topic = image.topics.get(current.name)
    return topic is None or topic.topic_id != current.topic_id or topic.version >= version


# The metadata source of a broker in a cluster: topics, settings, users and ACLs, producer ids, the view of clients, and the
# making and changing of topics. All of it follows the image.


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

    def topic_admin(self, partitions: PartitionManager) -> ClusterTopics:
        return ClusterTopics(self.member, self.topics, partitions, self.overrides, self._config)

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
        context.tasks.begin(internal_topics.remove_offsets_of_topics(is_gone, context), _failed)


def _is_gone_from(image: metadata_image.MetadataImage) -> Callable[[str], bool]:
    return lambda topic: topic not in image.topics or topic in image.deleting


def _failed() -> None:
    """Called inside an exception handler."""
    logs.log_bug("removing the committed offsets of deleted topics failed")
