"""What can change in the image, and what the image is afterwards.

Every change carries the version of the znode it concerns, and `apply` skips what the image already has. So changes may be applied
twice, and those made while an image was being read may be applied to it afterwards: the result is the same. For this a change of
a topic carries the topic's id, too, since versions restart when a topic is deleted and recreated. A change of another topic with
the same name is skipped: it is older than what the image holds, since an image is never ahead of the deletion of a topic in it
(`full_read.py` reads a topic's node before everything else that belongs to the topic).

Ephemeral state (brokers, the controller, leaving brokers) vanishes without a transaction of ours. It is read from its own
znodes, and represented here by changes that no journal entry holds, so that listeners learn of everything in one way. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from broker.coordination.image import BrokerNode, Controller, Image, PartitionState, Settings
from broker.coordination.znodes import TopicNode


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChange:
    """A topic was created, has grown or is being reassigned. The states of new partitions follow in the same entry."""

    topic: TopicNode


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """One partition's state was created or replaced; its version is the one after the change."""

    topic: str
    topic_id: UUID
    index: int
    state: PartitionState


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettingsChange:
    topic: str
    topic_id: UUID
    settings: Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettingsChange:
    """`name` is a broker's id, or znodes.EVERY_BROKER."""

    name: str
    settings: Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionAsked:
    """The topic is marked for deletion: it is no longer served, and the controller removes it."""

    topic: str
    topic_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicGone:
    """The last of the topic's znodes was deleted, with its settings and its mark."""

    topic: str
    topic_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class IncarnationRaised:
    """A new process has the broker's id; the fetches of earlier ones no longer count."""

    broker_id: int
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokersChanged:
    """Which brokers are registered; never in an entry."""

    brokers: Mapping[int, BrokerNode]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerChanged:
    """Which broker is the controller; never in an entry."""

    controller: Controller


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingChanged:
    """Which brokers are being stopped; never in an entry."""

    leaving: frozenset[int]


Journaled = TopicChange | StateChange | TopicSettingsChange | BrokerSettingsChange | DeletionAsked | TopicGone | IncarnationRaised
Change = Journaled | BrokersChanged | ControllerChanged | LeavingChanged


def apply(image: Image, changes: Iterable[Change]) -> tuple[Image, tuple[Change, ...]]:
    """The image after the changes, applied in order, and those of them that were new to it."""
    draft = _Draft(image)
    news = tuple(change for change in changes if draft.take(change))
    return (draft.image() if news else image), news


class _Draft:
    """An image being changed. Large parts are copied once, however many changes are applied."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._topics = dict(image.topics)
        self._states: dict[str, list[PartitionState]] = {}  # of topics in which some have changed
        self._topic_settings = dict(image.topic_settings)
        self._broker_settings = dict(image.broker_settings)
        self._incarnations = dict(image.incarnations)
        self._deleting = set(image.deleting)

    def image(self) -> Image:
        for name, states in self._states.items():
            self._topics[name] = replace(self._topics[name], states=tuple(states))
        return replace(
            self._image,
            topics=self._topics,
            topic_settings=self._topic_settings,
            broker_settings=self._broker_settings,
            incarnations=self._incarnations,
            deleting=frozenset(self._deleting),
        )

    def take(self, change: Change) -> bool:
        """Apply one change; whether it was new."""
        match change:
            case StateChange():
                return self._state(change)
            case TopicChange():
                return self._topic(change.topic)
            case TopicSettingsChange():
                is_of_it = self._holds(change.topic, change.topic_id)
                return is_of_it and _replace_older(self._topic_settings, change.topic, change.settings)
            case BrokerSettingsChange():
                return _replace_older(self._broker_settings, change.name, change.settings)
            case DeletionAsked():
                if not self._holds(change.topic, change.topic_id) or change.topic in self._deleting:
                    return False
                self._deleting.add(change.topic)
            case TopicGone():
                return self._gone(change)
            case IncarnationRaised():
                if self._incarnations.get(change.broker_id, -1) >= change.incarnation:
                    return False
                self._incarnations[change.broker_id] = change.incarnation
            case BrokersChanged():
                return self._now(replace(self._image, brokers=change.brokers))
            case ControllerChanged():
                return self._now(replace(self._image, controller=change.controller))
            case LeavingChanged():
                return self._now(replace(self._image, leaving=change.leaving))
        return True

    def _holds(self, topic: str, topic_id: UUID) -> bool:
        known = self._topics.get(topic)
        return known is not None and known.topic_id == topic_id

    def _state(self, change: StateChange) -> bool:
        if not self._holds(change.topic, change.topic_id):
            return False
        states = self._states.get(change.topic) or list(self._topics[change.topic].states)
        if change.index >= len(states) or states[change.index].version >= change.state.version:
            return False
        states[change.index] = change.state
        self._states[change.topic] = states
        return True

    def _topic(self, node: TopicNode) -> bool:
        known = self._topics.get(node.name)
        if known is None:
            self._topics[node.name] = node.with_states(())
            return True
        if known.topic_id != node.topic_id or known.version >= node.version:
            return False
        self._topics[node.name] = node.with_states(self._states.pop(node.name, known.states))
        return True

    def _gone(self, change: TopicGone) -> bool:
        known = self._topics.get(change.topic)
        if known is not None and known.topic_id != change.topic_id:
            return False
        self._states.pop(change.topic, None)
        self._topic_settings.pop(change.topic, None)
        self._deleting.discard(change.topic)
        return self._topics.pop(change.topic, None) is not None

    def _now(self, image: Image) -> bool:
        is_news = image != self._image
        self._image = image
        return is_news


def _replace_older(known: dict[str, Settings], name: str, settings: Settings) -> bool:
    if name in known and known[name].version >= settings.version:
        return False
    known[name] = settings
    return True
