"""Helpers that build the initial state of a controller test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from logbus_broker.cluster.leader_election import NO_REQUESTS, Decision, ElectionRequests, Presence, decide
from logbus_broker.cluster.metadata_image import ClusterTopic, PartitionState


def state(leader: int, isr: tuple[int, ...], **others: Any) -> PartitionState:
    return PartitionState(leader=leader, leader_epoch=others.pop("epoch", 7), isr=isr, version=others.pop("version", 3), **others)


def topic(replicas: tuple[int, ...], *states: PartitionState, name: str = "t", **others: Any) -> ClusterTopic:
    """All partitions have the same replicas."""
    return ClusterTopic(
        name=name,
        topic_id=UUID(int=1),
        replicas=(replicas,) * len(states),
        states=states,
        version=others.pop("version", 0),
        **others,
    )


def with_state(partitioned: ClusterTopic, index: int, new: PartitionState) -> ClusterTopic:
    """The topic with one partition's state replaced."""
    return replace(partitioned, states=(*partitioned.states[:index], new, *partitioned.states[index + 1 :]))


def apply(topics: Mapping[str, ClusterTopic], decisions: Iterable[Decision]) -> dict[str, ClusterTopic]:
    """The topics after all decisions have been stored."""
    by_name = dict(topics)
    for decision in decisions:
        by_name[decision.topic] = with_state(by_name[decision.topic], decision.index, decision.state)
    return by_name


def present(*able: int, registered: tuple[int, ...] = (), leaving: tuple[int, ...] = (), is_settling: bool = False) -> Presence:
    return Presence(
        registered=frozenset({*able, *registered}), able=frozenset(able), leaving=frozenset(leaving), is_settling=is_settling
    )


def decisions(
    topics: list[ClusterTopic],
    live: Presence,
    *,
    minimum: int = 1,
    is_unclean_allowed: bool = False,
    now: float = 0.0,
    requests: ElectionRequests = NO_REQUESTS,
) -> list[Decision]:
    return decide(
        topics,
        live,
        minimum_of=lambda _topic: minimum,
        is_unclean_allowed=lambda _topic: is_unclean_allowed,
        now=now,
        requests=requests,
    )


def decided(partition: ClusterTopic, live: Presence, **others: Any) -> PartitionState | None:
    """The new state of the only partition, or None."""
    changes = decisions([partition], live, **others)
    assert len(changes) <= 1
    for decision in changes:
        assert (decision.topic, decision.index) == (partition.name, 0)
        assert decision.state.version == partition.states[0].version + 1
    return changes[0].state if changes else None


def changed(partition: ClusterTopic, live: Presence, **others: Any) -> PartitionState:
    """The same where it must change."""
    state = decided(partition, live, **others)
    assert state is not None
    return state


def named(topics: list[ClusterTopic]) -> Mapping[str, ClusterTopic]:
    return {topic.name: topic for topic in topics}
