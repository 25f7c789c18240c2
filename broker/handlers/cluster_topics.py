"""Changes to a cluster's topics and settings, which clients may request from any broker.

The broker that gets the request writes to ZooKeeper (`topic_writes.py`), and answers once its own image shows the change: later
answers of this broker about the topic then agree with it. Only ZooKeeper can decide whether a name is free. Nothing waits in a
queue, because brokers change the same things concurrently anyway, and each write applies only to the state that its writer saw.

A deleted topic's name is free again when the controller has removed all of the topic, and only then is the request answered.

The controller and other brokers need a moment longer. Clients retry with a leader that does not have its partition yet, as with
one that has just changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from broker.chores import Steps, Until
from broker.config.rules import check_new_topic
from broker.config.settings import BrokerConfig
from broker.controller.place import check_assignments, place
from broker.coordination import topic_writes
from broker.coordination.asking import Script, ask
from broker.coordination.broker_overrides import ImageOverrides, Rewrite, Scope
from broker.coordination.image import ClusterTopic, Image, PartitionState
from broker.coordination.image_topics import ImageTopics
from broker.coordination.local import INTERNAL_TOPICS, NO_TOPIC_ID, Topic
from broker.coordination.member import ClusterMember
from broker.errors import BrokerError, InvalidPartitions, InvalidReplicaAssignment
from broker.handlers.cluster_moves import move_partitions
from broker.helpers import Outcome
from broker.partitions.manager import PartitionManager
from broker.partitions.topic_admin import DEFAULT, TIMEOUT_MS, Failures, Growth, Moves, NewSettings, NewTopic, Outcomes, plan_each

_AT_ONCE = 50  # concurrent scripts: ZooKeeper's answer to the last of them must arrive before a request's deadline

Begin = Callable[[Outcome], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """A topic as it would be created."""

    topic: Topic
    made: ClusterTopic


class ClusterTopics:
    """The `TopicAdmin` of a broker in a cluster."""

    def __init__(
        self,
        member: ClusterMember,
        topics: ImageTopics,
        partitions: PartitionManager,
        overrides: ImageOverrides,
        config: BrokerConfig,
    ) -> None:
        self._member = member
        self._topics = topics
        self._partitions = partitions
        self._overrides = overrides
        self._config = config
        self._held: tuple[Mapping[str, ClusterTopic], Mapping[int, int]] = ({}, {})

    # Creating

    def validate(self, wanted: Iterable[NewTopic | BrokerError]) -> Outcomes:
        plans = yield from self._plans(wanted)
        return [plan if isinstance(plan, BrokerError) else replace(plan.topic, topic_id=NO_TOPIC_ID) for plan in plans]

    def create(self, wanted: Iterable[NewTopic | BrokerError], timeout_ms: int = TIMEOUT_MS) -> Outcomes:
        plans: list[_Plan | BrokerError] = yield from self._plans(wanted)
        begins = [partial(self._make, plan, timeout_ms) for plan in plans if isinstance(plan, _Plan)]
        made = iter((yield from _together(begins)))
        return [plan if isinstance(plan, BrokerError) else next(made) or plan.topic for plan in plans]

    def _plans(self, wanted: Iterable[NewTopic | BrokerError]) -> Steps:
        # One `_Room` for the whole request: each of its topics may fit alone, while all of them together do not.
        room = self._room()
        return (yield from plan_each(wanted, lambda one: self._plan(one, room)))

    def _plan(self, wanted: NewTopic, room: _Room) -> _Plan:
        count, factor, overrides = wanted.partition_count, wanted.replication_factor, wanted.overrides
        if wanted.name in INTERNAL_TOPICS:
            count, factor = self._config.offsets_partitions, self._offsets_factor()
            overrides = self._partitions.internal_settings[wanted.name]
        count = self._config.num_partitions if count == DEFAULT else count
        # Checked against our image, which may be slightly out of date. The transaction decides: it contains the topic's name and
        # id, and fails if either is taken by then.
        topic = self._topics.new(wanted.name, count, overrides)
        log = self._partitions.settings.of_topic(overrides)
        if wanted.assignments is not None:
            replicas = check_assignments(wanted.assignments, self._racks())
        else:
            factor = self._config.default_replication_factor if factor == DEFAULT else factor
            replicas = place(count, factor, self._candidates(factor), seed=topic.topic_id.int)
        check_new_topic(log, len(replicas[0]))
        room.take(replicas)
        made = ClusterTopic(name=topic.name, topic_id=topic.topic_id, replicas=replicas, states=self._states(replicas), version=0)
        return _Plan(topic=replace(topic, partition_count=len(replicas), replication_factor=len(replicas[0])), made=made)

    def _offsets_factor(self) -> int:
        """Less than configured only if the cluster never had that many brokers. Known brokers that are currently down count: the
        first client after a restart must not leave all offsets with a single replica forever."""
        return min(self._config.offsets_replication_factor, max(1, len(self._member.image.incarnations)))

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
        if self._held[0] is not topics:  # a request may name a thousand topics
            self._held = topics, _counted(brokers for topic in topics.values() for brokers in topic.replicas)
        return _Room(self._held[1], self._config.partitions_max)

    def _states(self, replicas: Iterable[tuple[int, ...]]) -> tuple[PartitionState, ...]:
        image = self._member.image

        def state(brokers: tuple[int, ...]) -> PartitionState:
            isr = tuple(broker for broker in brokers if broker in image.brokers)
            # The initial state is written here and not by the controller: a topic can be written to as soon as it exists,
            # whichever broker is the controller, and even while there is none.
            leader = next((broker for broker in isr if broker not in image.leaving), isr[0])
            return PartitionState(leader=leader, leader_epoch=0, isr=isr, version=0)

        return tuple(map(state, replicas))

    def _make(self, plan: _Plan, timeout_ms: int, go_on: Outcome) -> None:
        made = plan.made

        def is_there(image: Image) -> bool:
            known = image.topics.get(made.name)
            # Larger topics are created in several transactions (topic_writes.py): the image shows some of the partitions before
            # the rest.
            return known is not None and known.topic_id == made.topic_id and known.partition_count >= made.partition_count

        self._write(topic_writes.create_topic(made, plan.topic.overrides), lambda _: is_there, timeout_ms, go_on)

    # Growing

    def check_growth(self, growth: Growth, *, planned: int = 0) -> int:
        topic = self._topics.get(growth.name)
        added = growth.count - topic.partition_count
        if added <= 0:
            raise InvalidPartitions(f"topic {topic.name!r} has {topic.partition_count} partitions: {growth.count} are not more")
        if topic.name in self._member.image.topics and self._is_moving(topic.name):
            raise InvalidReplicaAssignment(f"partitions of topic {topic.name!r} are being reassigned: grow it when that is done")
        self._new_replicas(growth, topic, self._room())
        return added

    def _is_moving(self, name: str) -> bool:
        known = self._member.image.topics[name]
        return bool(known.adding or known.removing)

    def _new_replicas(self, growth: Growth, topic: Topic, room: _Room) -> tuple[tuple[int, ...], ...]:
        first = topic.partition_count
        if growth.assignments is None:
            racks = self._candidates(topic.replication_factor)
            seed = topic.topic_id.int
            replicas = place(growth.count - first, topic.replication_factor, racks, seed=seed, first=first)
        else:
            if len(growth.assignments) != growth.count - first:
                raise InvalidReplicaAssignment(f"assignments must be those of the {growth.count - first} new partitions")
            assigned = dict(enumerate(growth.assignments, first))
            replicas = check_assignments(assigned, self._racks(), first=first)
            if len(replicas[0]) != topic.replication_factor:
                raise InvalidReplicaAssignment(f"the other partitions have {topic.replication_factor} replicas each")
        room.take(replicas)
        return replicas

    def grow(self, wanted: Mapping[str, Growth], timeout_ms: int = TIMEOUT_MS) -> Failures:
        return (yield from _failures(wanted, [partial(self._grow, growth, timeout_ms) for growth in wanted.values()]))

    def _grow(self, growth: Growth, timeout_ms: int, go_on: Outcome) -> None:
        try:
            topic = self._topics.get(growth.name)
            replicas = self._new_replicas(growth, topic, self._room())
        except BrokerError as error:  # the topic has changed since the check
            go_on(None, error)
            return
        topic_id, first = topic.topic_id, topic.partition_count
        script = topic_writes.grow_topic(growth.name, topic_id, first, replicas, self._states(replicas))

        def has_grown(image: Image) -> bool:
            known = image.topics.get(growth.name)
            return known is None or known.topic_id != topic_id or known.partition_count >= growth.count

        self._write(script, lambda _: has_grown, timeout_ms, go_on)

    # Deleting

    def delete(self, topics: Sequence[Topic], timeout_ms: int = TIMEOUT_MS) -> Failures:
        begins = [partial(self._delete, topic, timeout_ms) for topic in topics]
        return (yield from _failures([topic.name for topic in topics], begins))

    def _delete(self, topic: Topic, timeout_ms: int, go_on: Outcome) -> None:
        def is_gone(image: Image) -> bool:
            known = image.topics.get(topic.name)
            return known is None or known.topic_id != topic.topic_id

        self._write(topic_writes.delete_topic(topic.name, topic.topic_id), lambda _: is_gone, timeout_ms, go_on)

    # Moving

    def reassign(self, topic: Topic, wanted: Moves, timeout_ms: int = TIMEOUT_MS) -> Steps:
        return (yield from move_partitions(self._member, topic, wanted, timeout_ms))

    # Settings

    def change_topics(self, changes: Sequence[NewSettings]) -> Failures:
        begins = [partial(self._change_topic, change) for change in changes]
        return (yield from _failures([change.topic.name for change in changes], begins))

    def _change_topic(self, change: NewSettings, go_on: Outcome) -> None:
        topic = change.topic

        def rewrite(now: Mapping[str, str]) -> Mapping[str, str]:
            # Called with what ZooKeeper holds now, and again if another broker has changed it in the meantime: two clients that
            # change different settings of one topic at the same time both succeed.
            values = change.rewrite(now)
            if not topic.is_internal:
                check_new_topic(self._partitions.settings.of_topic(values), topic.replication_factor)
            return values

        def is_so(stored: Any, image: Image) -> bool:
            settings, known = image.topic_settings.get(topic.name), image.topics.get(topic.name)
            is_gone = known is None or known.topic_id != topic.topic_id
            return is_gone or (settings is not None and settings.version >= stored.version)

        script = topic_writes.change_topic_settings(topic.name, topic.topic_id, rewrite)
        self._write(script, lambda stored: partial(is_so, stored), TIMEOUT_MS, go_on)

    def change_broker(self, scope: Scope, rewrite: Rewrite) -> Steps:
        name = self._overrides.name(scope)

        def is_so(stored: Any, image: Image) -> bool:
            settings = image.broker_settings.get(name)
            return settings is not None and settings.version >= stored.version

        script = topic_writes.change_broker_settings(name, rewrite)
        yield Until(partial(self._write, script, lambda stored: partial(is_so, stored), TIMEOUT_MS))

    # Writing

    def _write(
        self, script: Script[Any], expected: Callable[[Any], Callable[[Image], bool]], timeout_ms: int, go_on: Outcome
    ) -> None:
        """Run a script, then wait until the image satisfies the condition that `expected` derives from its result."""

        def written(result: Any, error: BrokerError | None) -> None:
            if error is not None:
                go_on(None, error)
            else:
                # Not answered before our own image shows it: a client that has created a topic and then requests metadata from
                # this broker must not get an unknown topic.
                self._member.when_seen(expected(result), partial(go_on, None), timeout_ms)

        ask(self._member.store, script, written)


class _Room:
    """How many more partitions each broker may be assigned."""

    def __init__(self, held: Mapping[int, int], partitions_max: int) -> None:
        self._held = dict(held)
        self._max = partitions_max

    def take(self, replicas: Iterable[Sequence[int]]) -> None:
        """InvalidPartitions: a broker would have too many, and nothing is assigned."""
        added = _counted(replicas)
        for broker, count in added.items():
            before = self._held.get(broker, 0)
            if before + count > self._max:
                raise InvalidPartitions(
                    f"broker {broker} has {before} replicas, {count} more would pass logbus.partitions.max={self._max}"
                )
        self._held.update({broker: self._held.get(broker, 0) + count for broker, count in added.items()})


def _counted(replicas: Iterable[Sequence[int]]) -> dict[int, int]:
    """How many replicas each broker has."""
    held: dict[int, int] = {}
    for brokers in replicas:
        for broker in brokers:
            held[broker] = held.get(broker, 0) + 1
    return held


def _together(begins: Sequence[Begin]) -> Steps:
    """Run all, a limited number at a time; returns the error of each, or None."""
    errors: list[BaseException | None] = []
    # Not one after another, which would take a round trip each, and not all at once: ZooKeeper would answer the last one after
    # its client's deadline.
    for first in range(0, len(begins), _AT_ONCE):
        errors += yield Until(partial(_begin_all, begins[first : first + _AT_ONCE]))
    return errors


def _begin_all(begins: Sequence[Begin], go_on: Outcome) -> None:
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


def _failures(names: Iterable[str], begins: Sequence[Begin]) -> Failures:
    errors = yield from _together(begins)
    return {name: error for name, error in zip(names, errors, strict=True) if error is not None}
