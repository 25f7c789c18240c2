"""Reassignments in a cluster, begun and cancelled at any broker: one conditional write of the topic's node (KIP-455).

All partitions of a topic that a request names are moved with one write. If another broker wrote first, its change is examined
once the image shows it, and everything is decided again. The controller does the rest (`controller/reassign.py`); the answer
only means that the reassignment has begun.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from broker.chores import Steps, Until
from broker.controller.act import write_reassigned
from broker.controller.reassign import Reassigned, is_reassigned, originals, reassign
from broker.coordination.asking import ask
from broker.coordination.image import ClusterTopic, Image
from broker.coordination.local import Topic
from broker.coordination.member import ClusterMember
from broker.errors import (
    BrokerError,
    InvalidReplicaAssignment,
    NoReassignmentInProgress,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from broker.helpers import Outcome
from broker.partitions.topic_admin import Moves

_ATTEMPTS = 5


def move_partitions(member: ClusterMember, topic: Topic, wanted: Moves, timeout_ms: int) -> Steps:
    """Implements `TopicAdmin.reassign`."""
    for _ in range(_ATTEMPTS):
        known = member.image.topics.get(topic.name)
        if known is None or known.topic_id != topic.topic_id:
            return dict.fromkeys(wanted, UnknownTopicOrPartition(f"no topic {topic.name!r}"))
        failed, targets = _checked(known, wanted, member.image)
        step = reassign(known, targets)
        if step is None:
            return failed
        try:
            is_stored = yield Until(partial(_write, member, step))
            is_other = partial(_is_other, known, step.topic.version if is_stored else known.version + 1)
            yield Until(partial(_wait_until, member, is_other, timeout_ms))
        except BrokerError as error:
            return {**dict.fromkeys(targets, error), **failed}
        if is_stored:
            return failed
    late = RequestTimedOut(f"other brokers change topic {topic.name!r} all the time: ask again")
    return {**dict.fromkeys(targets, late), **failed}


def _write(member: ClusterMember, step: Reassigned, go_on: Outcome) -> None:
    ask(member.store, write_reassigned(step, None), go_on)


def _wait_until(member: ClusterMember, is_so: Callable[[Image], bool], timeout_ms: int, go_on: Outcome) -> None:
    member.when_seen(is_so, partial(go_on, None), timeout_ms)


def _checked(known: ClusterTopic, wanted: Moves, image: Image) -> tuple[dict[int, BrokerError], dict[int, tuple[int, ...]]]:
    """The partitions that cannot be moved, with the reason, and the target replicas of the others."""
    failed: dict[int, BrokerError] = {}
    targets: dict[int, tuple[int, ...]] = {}
    for index, target in wanted.items():
        try:
            targets[index] = _target(known, index, target, image)
        except BrokerError as error:
            failed[index] = error
    return failed, targets


def _target(known: ClusterTopic, index: int, target: tuple[int, ...] | None, image: Image) -> tuple[int, ...]:
    name = f"{known.name}-{index}"
    if not 0 <= index < known.partition_count:
        raise UnknownTopicOrPartition(f"no partition {name}")
    if target is None:
        if not is_reassigned(known, index):
            raise NoReassignmentInProgress(f"{name} is not being moved")
        return originals(known, index)
    if not target or len(set(target)) != len(target):
        raise InvalidReplicaAssignment(f"{name}: {list(target)} is empty or names a broker twice")
    missing = [broker for broker in target if broker not in image.brokers and broker not in known.replicas[index]]
    if missing:
        raise InvalidReplicaAssignment(f"{name}: no live broker has the id {missing[0]}")
    return target


def _is_other(known: ClusterTopic, version: int, image: Image) -> bool:
    """Whether the topic has at least this version, or is gone or a different one."""
    topic = image.topics.get(known.name)
    return topic is None or topic.topic_id != known.topic_id or topic.version >= version
