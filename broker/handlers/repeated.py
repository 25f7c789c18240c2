"""What a request names more than once: topics, partitions, groups and resources have one row in its answer.

Clients read an answer into a map by name, and librdkafka rejects one that has a topic twice. Entries that only read are merged;
of entries that change something none is carried out, since the outcome would depend on their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from broker.errors import InvalidRequest

K = TypeVar("K")
T = TypeVar("T")


def by_name(entries: Iterable[T], name_of: Callable[[T], K]) -> dict[K, list[T]]:
    """The entries of each name, in the order in which the names first occur."""
    named: dict[K, list[T]] = {}
    for entry in entries:
        named.setdefault(name_of(entry), []).append(entry)
    return named


def by_partition(topics: Iterable[Any]) -> dict[tuple[str, int], list[Any]]:
    """The same for a request's partitions, by topic and index."""
    named: dict[tuple[str, int], list[Any]] = {}
    for topic in topics:
        for part in topic.partitions:
            named.setdefault((topic.name, part.partition_index), []).append(part)
    return named


def only_one(entries: Sequence[T], what: str) -> T:
    """Raises InvalidRequest if there are several entries for `what`."""
    if len(entries) > 1:
        raise InvalidRequest(f"{what} is named more than once in one request: name it once")
    return entries[0]
