"""The topic registry of a broker in a cluster: names, ids, partition counts and overrides, from the image.

It has the same read side as `TopicRegistry`, so look-ups need not know which of the two they use. The difference is how it
changes: here from the journal, whichever broker wrote, and nothing is planned, since names are reserved in ZooKeeper.

A topic marked for deletion is no longer served, so it is not shown here, though its name is still taken.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping

from broker.coordination.changes import Change, DeletionAsked, TopicChange, TopicGone, TopicSettingsChange
from broker.coordination.follow import News
from broker.coordination.image import Image
from broker.coordination.local import INTERNAL_TOPICS, ShownTopics, Topic, check_topic_name, folded
from broker.errors import InvalidTopic, TopicAlreadyExists


class ImageTopics(ShownTopics):
    """See the module docstring."""

    def __init__(self, new_id: Callable[[], uuid.UUID]) -> None:
        super().__init__()
        self._new_id = new_id
        self._image = Image()
        self._names_folded: dict[str, dict[str, None]] = {}  # of all topics in the image, including marked ones

    def new(self, name: str, partition_count: int, overrides: Mapping[str, str]) -> Topic:
        """A topic with a new id; raises what is wrong with its name, as far as this broker knows. ZooKeeper has the final say on
        whether it is taken."""
        check_topic_name(name)
        if name in self._image.topics:
            is_marked = name not in self._topics
            raise TopicAlreadyExists(f"topic {name!r} is being deleted" if is_marked else f"topic {name!r} exists")
        others = self._names_folded.get(
            folded(name), dict.fromkeys(own for own in INTERNAL_TOPICS if folded(own) == folded(name))
        )
        other = next((other for other in others if other != name), name)
        if other != name and name not in INTERNAL_TOPICS:
            raise InvalidTopic(f"topic {name!r} collides with {other!r}: '.' and '_' count as the same")
        return Topic(name=name, topic_id=self._new_id(), partition_count=partition_count, overrides=dict(overrides))

    def image_changed(self, image: Image, news: News) -> list[Topic]:
        """Apply what is new. Returns the shown topics that are new or have changed: created, grown or given other settings."""
        self._image = image
        if news.is_everything:
            names = dict.fromkeys((*self._names_known(), *image.topics))
        else:
            names = dict.fromkeys(name for change in news.changes if (name := _topic_of(change)) is not None)
        return [topic for name in names if (topic := self._take(name)) is not None]

    def _names_known(self) -> list[str]:
        return [name for names in self._names_folded.values() for name in names]

    def _take(self, name: str) -> Topic | None:
        known, topic = self._topics.get(name), _shown(name, self._image)
        if name in self._image.topics:
            self._names_folded.setdefault(folded(name), {})[name] = None
        else:
            self._forget_name(name)
        if topic == known:
            return None
        if known is not None:
            del self._topics[name], self._by_id[known.topic_id]
        if topic is not None:
            self._topics[name] = self._by_id[topic.topic_id] = topic
        return topic

    def _forget_name(self, name: str) -> None:
        names = self._names_folded.get(folded(name), {})
        names.pop(name, None)
        if not names:
            self._names_folded.pop(folded(name), None)


def _topic_of(change: Change) -> str | None:
    """The topic that the change affects, None for partition states: leadership is not part of the registry."""
    match change:
        case TopicChange(topic=node):
            return node.name
        case TopicSettingsChange(topic=name) | DeletionAsked(topic=name) | TopicGone(topic=name):
            return name
    return None


def _shown(name: str, image: Image) -> Topic | None:
    """The topic as clients see it."""
    found = image.topics.get(name)
    if found is None or name in image.deleting or not found.replicas:
        return None
    settings = image.topic_settings.get(name)
    return Topic(
        name=name,
        topic_id=found.topic_id,
        partition_count=found.partition_count,
        overrides={} if settings is None else settings.values,
        replication_factor=len(found.replicas[0]) - len(found.adding.get(0, ())),
    )
