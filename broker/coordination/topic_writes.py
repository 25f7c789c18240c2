"""What any broker may write when a client asks: topics made, grown and marked for deletion, settings of topics and brokers.

Nobody forwards to the controller. Each write is one transaction, conditional on what its writer saw, and carries its journal
entry. Where it is refused because somebody was quicker, the script looks again and decides anew. Where the answer is lost, it
looks at the node and compares with what was wanted: a topic by its id, which nobody else has, settings by version and values.
What still cannot be told after some attempts is RequestTimedOut, as with Kafka: the client asks again, or looks.

Each function here is a script (asking.py). It ends when ZooKeeper has the change; the image has it a moment later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from broker.coordination import znodes
from broker.coordination.asking import Script, commit, read_twice
from broker.coordination.changes import (
    BrokerSettingsChange,
    DeletionAsked,
    Journaled,
    StateChange,
    TopicChange,
    TopicSettingsChange,
)
from broker.coordination.image import ClusterTopic, PartitionState, Settings
from broker.coordination.journal import journal_entry
from broker.coordination.store import (
    TRANSACTION_BYTES_MAX,
    Check,
    Committed,
    Create,
    Node,
    NoNode,
    Operation,
    Set,
    transaction_bytes,
)
from broker.coordination.znodes import TopicNode
from broker.errors import InvalidPartitions, InvalidTopic, RequestTimedOut, TopicAlreadyExists, UnknownTopicOrPartition

PARTITIONS_AT_ONCE = 1_000  # made in one transaction: a second of ZooKeeper's time
ATTEMPTS = 5

Rewrite = Callable[[Mapping[str, str]], Mapping[str, str]]  # from the settings that are to those that shall be


def create_topic(topic: ClusterTopic, settings: Mapping[str, str]) -> Script[None]:
    """All of a topic's nodes, states included, in one transaction: there is no moment at which it has no leaders. A topic of more
    than PARTITIONS_AT_ONCE begins smaller and is grown by the transactions that follow. TopicAlreadyExists, or InvalidTopic where
    another broker was quicker with a name that collides."""
    count = _fitting(TopicNode.of(topic), topic.states, settings)
    first = replace(topic, replicas=topic.replicas[:count], states=topic.states[:count], version=0)
    for _ in range(ATTEMPTS):
        # Also after a refusal we look whether the topic is made, and not only after a lost answer: what refuses this attempt may
        # be an earlier one of ours whose answer was lost. Ours it is if the id is.
        outcome = yield from commit((yield from _creation(first, settings)))
        if isinstance(outcome, Committed) or (yield from _is_made(topic)):
            if count < topic.partition_count:
                yield from grow_topic(topic.name, topic.topic_id, count, topic.replicas[count:], topic.states[count:])
            return
    raise _unclear(f"the creation of topic {topic.name!r}")


def _is_made(topic: ClusterTopic) -> Script[bool]:
    """Whether a creation of which we know nothing has happened. TopicAlreadyExists if there is one that is not ours."""
    found = yield from read_twice(znodes.topic_path(topic.name))
    if isinstance(found, NoNode):
        return False
    if znodes.decode_topic(topic.name, found.data, found.version).topic_id != topic.topic_id:
        raise TopicAlreadyExists(f"topic {topic.name!r} exists")
    return True


def _creation(topic: ClusterTopic, settings: Mapping[str, str]) -> Script[list[Operation]]:
    settings_path = znodes.topic_settings_path(topic.name)
    leftover = yield from read_twice(settings_path)  # a tool may have written settings of a topic that there is not
    data = znodes.encode_settings(settings)
    names = yield from _taking_name(topic.name)
    operations: list[Operation] = [
        *names,
        Create(path=znodes.topic_id_path(topic.topic_id)),
        Create(path=znodes.topic_path(topic.name), data=znodes.encode_topic(topic)),
        Create(path=znodes.partitions_path(topic.name)),
        *_partition_nodes(topic.name, topic.states, 0),
        _write(settings_path, data, leftover),
    ]
    stored = Settings(values=settings, version=_version_after(leftover))
    operations.append(
        journal_entry(
            [
                TopicChange(topic=TopicNode.of(topic)),
                *_state_changes(topic.name, topic.topic_id, topic.states, 0),
                TopicSettingsChange(topic=topic.name, topic_id=topic.topic_id, settings=stored),
            ]
        )
    )
    return operations


def _taking_name(name: str) -> Script[list[Operation]]:
    path = znodes.topic_name_path(name)
    if path is None:
        return []
    found = yield from read_twice(path)
    if isinstance(found, Node) and (other := found.data.decode(errors="replace")) != name:
        raise InvalidTopic(f"topic {name!r} collides with {other!r}: '.' and '_' count as the same")
    return [Create(path=path, data=name.encode())]


def grow_topic(
    name: str, topic_id: UUID, first: int, replicas: Sequence[tuple[int, ...]], states: Sequence[PartitionState]
) -> Script[None]:
    """Add partitions, of which `first` is the first. UnknownTopicOrPartition if there is no such topic, or another of its name;
    InvalidPartitions if somebody else grew it meanwhile."""
    end = first + len(replicas)
    done = first
    # Each turn of this loop is one look and one transaction, whose outcome is not even asked for: the next look shows how many
    # partitions there are. So a refusal, a lost answer and a success of somebody's identical request all end the same way. A
    # large growth takes several transactions, hence more turns.
    for _ in range(ATTEMPTS + 2 * len(replicas)):
        node = yield from _read_topic(name, topic_id)
        done = len(node.replicas)
        if node.replicas[first:] != tuple(replicas[: done - first]) or done > end:
            raise InvalidPartitions(f"topic {name!r} has got {done} partitions meanwhile, by another request")
        if done == end:
            return
        begin = done - first
        wanted = replace(node, replicas=(*node.replicas, *replicas[begin:]))
        count = _fitting(wanted, states[begin:], {})
        grown = replace(wanted, replicas=wanted.replicas[: done + count], version=node.version + 1)
        made = states[begin : begin + count]
        changes: list[Journaled] = [TopicChange(topic=grown), *_state_changes(name, topic_id, made, done)]
        yield from commit(
            [
                Check(path=znodes.topic_id_path(topic_id), version=-1),
                Set(path=znodes.topic_path(name), data=znodes.encode_topic(grown), version=node.version),
                *_partition_nodes(name, made, done),
                journal_entry(changes),
            ]
        )
    raise _unclear(f"the growth of topic {name!r}")


def delete_topic(name: str, topic_id: UUID) -> Script[None]:
    """Mark it: it serves nobody any more, and the controller removes it. That it was marked or is gone already is as good."""
    for _ in range(ATTEMPTS):
        topic = yield from read_twice(znodes.topic_path(name))
        if isinstance(topic, NoNode) or znodes.decode_topic(name, topic.data, topic.version).topic_id != topic_id:
            return
        if isinstance((yield from read_twice(znodes.deletion_path(name))), Node):
            return
        outcome = yield from commit(
            [
                Check(path=znodes.topic_id_path(topic_id), version=-1),
                Create(path=znodes.deletion_path(name)),
                journal_entry([DeletionAsked(topic=name, topic_id=topic_id)]),
            ]
        )
        if isinstance(outcome, Committed):
            return
    raise _unclear(f"the deletion of topic {name!r}")


def change_topic_settings(name: str, topic_id: UUID, rewrite: Rewrite) -> Script[Settings]:
    """The topic's settings after `rewrite`, which is asked again if somebody else changed them meanwhile."""
    path = znodes.topic_settings_path(name)
    for _ in range(ATTEMPTS):
        yield from _read_topic(name, topic_id)
        found = yield from read_twice(path)
        wanted = Settings(values=dict(rewrite(_values(found))), version=_version_after(found))
        entry = journal_entry([TopicSettingsChange(topic=name, topic_id=topic_id, settings=wanted)])
        operations = [
            Check(path=znodes.topic_id_path(topic_id), version=-1),
            _write(path, znodes.encode_settings(wanted.values), found),
            entry,
        ]
        outcome = yield from commit(operations)
        if isinstance(outcome, Committed) or (yield from _holds(path, wanted)):
            return wanted
    raise _unclear(f"the settings of topic {name!r}")


def change_broker_settings(name: str, rewrite: Rewrite) -> Script[Settings]:
    """The same for those of a broker, by id, or of all (znodes.EVERY_BROKER)."""
    path = znodes.broker_settings_path(name)
    for _ in range(ATTEMPTS):
        found = yield from read_twice(path)
        wanted = Settings(values=dict(rewrite(_values(found))), version=_version_after(found))
        entry = journal_entry([BrokerSettingsChange(name=name, settings=wanted)])
        outcome = yield from commit([_write(path, znodes.encode_settings(wanted.values), found), entry])
        if isinstance(outcome, Committed) or (yield from _holds(path, wanted)):
            return wanted
    raise _unclear(f"the settings of broker {name!r}")


def _read_topic(name: str, topic_id: UUID) -> Script[TopicNode]:
    found = yield from read_twice(znodes.topic_path(name))
    if isinstance(found, Node):
        node = znodes.decode_topic(name, found.data, found.version)
        if node.topic_id == topic_id:
            return node
    raise UnknownTopicOrPartition(f"no topic {name!r}")


def _values(found: Node | NoNode) -> Mapping[str, str]:
    return znodes.decode_settings(found.data, found.version).values if isinstance(found, Node) else {}


def _version_after(found: Node | NoNode) -> int:
    return found.version + 1 if isinstance(found, Node) else 0


def _write(path: str, data: bytes, found: Node | NoNode) -> Operation:
    """Conditional on what was found there."""
    return Set(path=path, data=data, version=found.version) if isinstance(found, Node) else Create(path=path, data=data)


# A lost answer is the case that makes all of this long: the connection broke after the request had left, and the write has
# happened or has not. Looking is the only way to know, and what is compared has to be something that nobody else would have
# written.
def _holds(path: str, wanted: Settings) -> Script[bool]:
    """Whether a write of which we know nothing has happened. Equal settings of another writer are as good."""
    found = yield from read_twice(path)
    return isinstance(found, Node) and znodes.decode_settings(found.data, found.version) == wanted


def _partition_nodes(name: str, states: Sequence[PartitionState], first: int) -> list[Create]:
    nodes = []
    for index, state in enumerate(states, first):
        nodes.append(Create(path=znodes.partition_path(name, index)))
        nodes.append(Create(path=znodes.state_path(name, index), data=znodes.encode_state(state)))
    return nodes


def _state_changes(name: str, topic_id: UUID, states: Sequence[PartitionState], first: int) -> list[Journaled]:
    made = [replace(state, version=0) for state in states]
    return [StateChange(topic=name, topic_id=topic_id, index=index, state=state) for index, state in enumerate(made, first)]


def _fitting(topic: TopicNode, states: Sequence[PartitionState], settings: Mapping[str, str]) -> int:
    """How many of the topic's last partitions, of which these are the states, may be made in one transaction. Everything stands
    in it twice: as a node and in the journal's entry."""
    some = states[:PARTITIONS_AT_ONCE]
    # Measured on the encoded nodes and not estimated from counts: ZooKeeper closes the connection of a request that is larger
    # than jute.maxbuffer, which ends this broker's session.
    fixed = 2 * len(znodes.encode_topic(topic)) + 2 * len(znodes.encode_settings(settings)) + 4 * len(topic.name) + 1_024
    each = 2 * transaction_bytes(_partition_nodes(topic.name, some, len(topic.replicas))) // len(some) + 1
    count = min(len(some), (TRANSACTION_BYTES_MAX - fixed) // each)
    if count < 1:
        raise InvalidPartitions(f"{len(topic.replicas)} partitions with their replicas are more than one topic can have")
    return count


def _unclear(what: str) -> RequestTimedOut:
    return RequestTimedOut(f"ZooKeeper did not say what became of {what}: look, and ask again")
