"""Which topics there are: the one interface of the two registries, that of a broker alone (`local.py`) and that of a cluster
(`image_topics.py`)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Protocol

from broker.coordination.local import Topic


class Topics(Protocol):
    """Every topic that clients may see, by name and by id."""

    def __iter__(self) -> Iterator[Topic]: ...

    def __contains__(self, name: str) -> bool: ...

    def __len__(self) -> int: ...

    def names(self) -> list[str]:
        """In their order."""

    def get(self, name: str) -> Topic:
        """UnknownTopicOrPartition."""

    def get_by_id(self, topic_id: uuid.UUID) -> Topic:
        """UnknownTopicId."""

    def new(self, name: str, partition_count: int, overrides: Mapping[str, str]) -> Topic:
        """A topic that is not there yet, with an id of its own; raises what is wrong with its name."""
