"""What is lost if a state of ZooKeeper is accepted that is older than a broker's disk, and the acceptance itself.

A broker refuses such a state (metadata_history.py). The operator sees here, for one broker's directory, how far the two are apart
and which partitions the next start would set aside, before anything is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from logbus_broker.cluster import metadata_image, metadata_log, metadata_watcher, producer_ids, store, znodes
from logbus_broker.cluster.metadata_history import Seen
from logbus_broker.errors import StartupError
from logbus_broker.log.log_directory import LogDirectory

_ID_BITS = 24  # more producer ids than a cluster hands out in a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """ZooKeeper's newest state beside what one data directory has seen and holds. `unknown` are its partitions that ZooKeeper
    does not assign to this broker: a start sets them aside, and keeps them."""

    in_zookeeper: Seen
    newest_seen: Seen | None
    topics: int
    unknown: Sequence[str]

    @property
    def is_older(self) -> bool:
        """Whether ZooKeeper's log certainly lacks something that this directory has seen. A log that has gone on since it was
        restored does not look older; a broker's start finds that out by the entry itself."""
        if self.newest_seen is None:
            return False
        return self.in_zookeeper.place < self.newest_seen.place

    def lines(self) -> list[str]:
        lines = [
            f"ZooKeeper:       {_entry_text(self.in_zookeeper)}, {self.topics} topics",
            f"this directory:  has seen {'nothing yet' if self.newest_seen is None else _entry_text(self.newest_seen)}",
        ]
        if self.unknown:
            lines.append(f"{len(self.unknown)} partitions here are unknown to ZooKeeper, or not this broker's:")
            lines += [f"    {name}" for name in self.unknown]
        return lines


def compare(image: metadata_image.MetadataImage, in_zookeeper: Seen, directory: LogDirectory, broker_id: int) -> Comparison:
    """What a start with this image would do. Pure, but for the names read from the directory."""
    assigned = {
        (topic.name, index): topic.topic_id
        for topic in image.topics.values()
        for index, replicas in enumerate(topic.replicas)
        if broker_id in replicas
    }
    unknown = [
        path.name
        for name, index, path in sorted(directory.partitions())
        if assigned.get((name, index)) != directory.topic_id(name, index)
    ]
    newest_seen = Seen.from_json(directory.metadata_seen) if directory.metadata_seen else None
    return Comparison(in_zookeeper=in_zookeeper, newest_seen=newest_seen, topics=len(image.topics), unknown=unknown)


def newest() -> store.Script[tuple[metadata_image.MetadataImage, Seen]]:
    """What ZooKeeper holds, and its newest entry."""
    generation = yield from store.read(znodes.GENERATION)
    positions = metadata_log.entry_positions((yield from store.children(znodes.CHANGES)))
    position = positions[-1] if positions else -1
    entry = yield from store.read(metadata_log.entry_path(max(0, position)))
    image = yield from metadata_watcher.read_image(position)
    number = znodes.decode_generation(generation.data) if isinstance(generation, store.Node) else 0
    birth = entry.birth if isinstance(entry, store.Node) else (0, 0)
    return image, Seen(position=position, birth=birth, generation=number)


def accept(now_seconds: int) -> store.Script[int]:
    """Make ZooKeeper's state the one that brokers obey; returns its generation. Producer ids jump ahead: those handed out after
    the backup are in the logs, and their producers' batches would be taken for duplicates."""
    generation, block = yield from store.read_all([znodes.GENERATION, znodes.PRODUCER_ID_BLOCK])
    if isinstance(generation, store.NoNode) or isinstance(block, store.NoNode):
        raise StartupError("there is no cluster at this path of ZooKeeper: set zookeeper.connect to its servers and path")
    # Seconds, so that it is higher than any earlier one, also where ZooKeeper has forgotten that.
    number = max(now_seconds, znodes.decode_generation(generation.data) + 1)
    start = number << _ID_BITS
    ids = znodes.ProducerIdBlock(broker_id=-1, start=start, end=start + producer_ids.BLOCK_IDS)
    outcome = yield from store.commit(
        [
            store.Set(path=znodes.GENERATION, data=znodes.encode_generation(number), version=generation.version),
            store.Set(path=znodes.PRODUCER_ID_BLOCK, data=znodes.encode_producer_id_block(ids), version=block.version),
        ]
    )
    if not isinstance(outcome, store.Committed):
        raise StartupError(f"ZooKeeper did not take it: {outcome}; try again")
    return number


def _entry_text(entry: Seen) -> str:
    generation = f" of generation {entry.generation}" if entry.generation else ""
    if entry.position < 0:
        return f"no entry of a metadata log{generation}"
    at = datetime.fromtimestamp(entry.birth[1] / 1000, UTC)
    return f"metadata up to entry {entry.position}{generation}, of {at:%Y-%m-%d %H:%M:%S} UTC"
