"""What any broker may write at a client's request: topics created, grown and marked for deletion, settings of topics and brokers,
users, ACLs and quotas; and the blocks of producer ids.

Nothing is forwarded to the controller. Each write is one transaction, conditional on what its writer has read, and carries its
log entry. If it is refused because another broker was faster, the script reads again and decides again. If the answer is lost, it
reads the node and compares it with what was to be written: a topic by its id, which is unique, settings by version and values. If
the outcome is still unclear after some attempts, that is RequestTimedOut, as in Kafka: the client retries, or checks.

Each function here is a `Script`. It ends when ZooKeeper has the change; the image has it a moment later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from logbus_broker.cluster import dynamic_config, metadata_image, metadata_log, producer_ids, security_store, znodes
from logbus_broker.cluster.store import (
    TRANSACTION_BYTES_MAX,
    AnswerLost,
    Check,
    Committed,
    Create,
    Delete,
    Node,
    NoNode,
    Operation,
    Script,
    Set,
    Store,
    Unknown,
    commit,
    read_all_twice,
    read_twice,
    run_script,
    transaction_bytes,
)
from logbus_broker.cluster.znodes import PRODUCER_ID_BLOCK, ProducerIdBlock
from logbus_broker.errors import (
    InvalidPartitions,
    InvalidRequest,
    InvalidTopic,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from logbus_broker.security.state import SecurityState

_PARTITIONS_AT_ONCE = 1_000  # created in one transaction: a second of ZooKeeper's time
ATTEMPTS = 5
_NOTHING = SecurityState()
_SECURITY_BYTES_MAX = TRANSACTION_BYTES_MAX - 1_024
_OPERATION_BYTES = 64  # ZooKeeper's own of each operation, at most


def create_topic(topic: metadata_image.ClusterTopic, settings: Mapping[str, str]) -> Script[None]:
    """Create all of a topic's nodes, states included, in one transaction: it is never without leaders. A topic of more than
    PARTITIONS_AT_ONCE partitions starts smaller and is grown by further transactions. TopicAlreadyExists, or InvalidTopic if
    another broker was faster with a colliding name."""
    count = _fitting(topic, topic.states, settings)
    first = replace(topic, replicas=topic.replicas[:count], states=topic.states[:count], version=0)
    for _ in range(ATTEMPTS):
        # Check whether the topic exists after a refusal too, not only after a lost answer: this attempt may have been refused
        # because of an earlier one of ours whose answer was lost. The topic is ours if it has our id.
        outcome = yield from commit((yield from _creation(first, settings)))
        if isinstance(outcome, Committed) or (yield from _is_created(topic)):
            if count < topic.partition_count:
                yield from grow_topic(topic.name, topic.topic_id, count, topic.replicas[count:], topic.states[count:])
            return
    raise _unclear(f"the creation of topic {topic.name!r}")


def _is_created(topic: metadata_image.ClusterTopic) -> Script[bool]:
    """Whether a creation with an unknown outcome has happened. TopicAlreadyExists if the topic is not ours."""
    node = yield from read_twice(znodes.topic_path(topic.name))
    if isinstance(node, NoNode):
        return False
    if znodes.decode_topic(topic.name, node.data, node.version).topic_id != topic.topic_id:
        raise TopicAlreadyExists(f"topic {topic.name!r} exists")
    return True


def _creation(topic: metadata_image.ClusterTopic, settings: Mapping[str, str]) -> Script[list[Operation]]:
    settings_path = znodes.topic_settings_path(topic.name)
    leftover = yield from read_twice(settings_path)  # a tool may have written settings for a topic that does not exist
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
    stored = metadata_image.Settings(values=settings, version=_version_after(leftover))
    operations.append(
        metadata_log.log_entry(
            [
                metadata_image.TopicChange(topic=topic),
                *_state_changes(topic.name, topic.topic_id, topic.states, 0),
                metadata_image.TopicSettingsChange(topic=topic.name, topic_id=topic.topic_id, settings=stored),
            ]
        )
    )
    return operations


def _taking_name(name: str) -> Script[list[Operation]]:
    path = znodes.topic_name_path(name)
    if path is None:
        return []
    name_node = yield from read_twice(path)
    if isinstance(name_node, Node) and (other := name_node.data.decode(errors="replace")) != name:
        raise InvalidTopic(f"topic {name!r} collides with {other!r}: '.' and '_' count as the same")
    return [Create(path=path, data=name.encode())]


def grow_topic(
    name: str, topic_id: UUID, first: int, replicas: Sequence[tuple[int, ...]], states: Sequence[metadata_image.PartitionState]
) -> Script[None]:
    """Add partitions, numbered from `first`. UnknownTopicOrPartition if the topic does not exist, or its name now belongs to
    another; InvalidPartitions if another request grew it in the meantime."""
    end = first + len(replicas)
    done = first
    # Each iteration is one read and one transaction, whose outcome is ignored: the next read shows how many partitions there
    # are. So a refusal, a lost answer and the success of an identical request all end the same way. A large growth takes several
    # transactions, hence more iterations.
    for _ in range(ATTEMPTS + 2 * len(replicas)):
        node = yield from _read_topic(name, topic_id)
        done = len(node.replicas)
        if node.replicas[first:] != tuple(replicas[: done - first]) or done > end:
            raise InvalidPartitions(f"another request already grew topic {name!r} to {done} partitions")
        if done == end:
            return
        begin = done - first
        grown_to_end = replace(node, replicas=(*node.replicas, *replicas[begin:]))
        count = _fitting(grown_to_end, states[begin:], {})
        grown = replace(grown_to_end, replicas=grown_to_end.replicas[: done + count], version=node.version + 1)
        new_states = states[begin : begin + count]
        changes: list[metadata_image.LoggedChange] = [
            metadata_image.TopicChange(topic=grown),
            *_state_changes(name, topic_id, new_states, done),
        ]
        yield from commit(
            [
                Check(path=znodes.topic_id_path(topic_id), version=-1),
                Set(path=znodes.topic_path(name), data=znodes.encode_topic(grown), version=node.version),
                *_partition_nodes(name, new_states, done),
                metadata_log.log_entry(changes),
            ]
        )
    raise _unclear(f"the growth of topic {name!r}")


def delete_topic(name: str, topic_id: UUID) -> Script[None]:
    """Mark it for deletion: it is no longer served, and the controller removes it. Already marked or gone is success, too."""
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
                metadata_log.log_entry([metadata_image.DeletionRequested(topic=name, topic_id=topic_id)]),
            ]
        )
        if isinstance(outcome, Committed):
            return
    raise _unclear(f"the deletion of topic {name!r}")


def change_topic_settings(name: str, topic_id: UUID, rewrite: dynamic_config.Rewrite) -> Script[metadata_image.Settings]:
    """The topic's settings after `rewrite`, which is called again if another broker changed them in the meantime."""
    path = znodes.topic_settings_path(name)
    for _ in range(ATTEMPTS):
        yield from _read_topic(name, topic_id)
        changed, write = yield from _changed_settings(path, rewrite)
        change = metadata_image.TopicSettingsChange(topic=name, topic_id=topic_id, settings=changed)
        is_same_topic = Check(path=znodes.topic_id_path(topic_id), version=-1)
        outcome = yield from commit([is_same_topic, write, metadata_log.log_entry([change])])
        if isinstance(outcome, Committed) or (yield from _holds(path, changed)):
            return changed
    raise _unclear(f"the settings of topic {name!r}")


def change_broker_settings(name: str, rewrite: dynamic_config.Rewrite) -> Script[metadata_image.Settings]:
    """The same for the settings of one broker, by id, or of all (EVERY_BROKER)."""
    path = znodes.broker_settings_path(name)
    for _ in range(ATTEMPTS):
        changed, write = yield from _changed_settings(path, rewrite)
        change = metadata_image.BrokerSettingsChange(name=name, settings=changed)
        outcome = yield from commit([write, metadata_log.log_entry([change])])
        if isinstance(outcome, Committed) or (yield from _holds(path, changed)):
            return changed
    raise _unclear(f"the settings of broker {name!r}")


def change_security(before: metadata_image.Security, target: SecurityState) -> Script[tuple[int, bool]]:
    """Store `target` in place of `before`, in several transactions if it does not fit into one: the version that the image has to
    show, and whether all is stored. It is not if another broker was faster."""
    target_nodes = security_store.by_znode(target)
    paths = dict.fromkeys((*before.nodes, *target_nodes))
    changed = {path: target_nodes.get(path, _NOTHING) for path in paths if before.nodes.get(path) != target_nodes.get(path)}
    version = before.version
    for nodes in list(_security_batches(changed)):  # nothing is stored if one of them is too large
        version += 1
        writes = yield from _security_writes(nodes)
        entry = metadata_log.log_entry([metadata_image.SecurityChange(version=version, nodes=nodes)])
        outcome = yield from commit([Set(path=security_store.COUNTER, data=b"", version=version - 1), *writes, entry])
        if isinstance(outcome, Committed):
            continue
        counter = yield from read_twice(security_store.COUNTER)
        stored = counter.version if isinstance(counter, Node) else -1
        if stored != version or (yield from _security_writes(nodes)):
            return stored, False
    return version, True


def _security_batches(changed: Mapping[str, SecurityState]) -> Iterator[dict[str, SecurityState]]:
    """A transaction contains everything twice: as nodes and in the log entry."""
    batch: dict[str, SecurityState] = {}
    size = 0
    for path, content in changed.items():
        added = 2 * (len(znodes.encode_security(path, content)) + len(path)) + _OPERATION_BYTES
        if added > _SECURITY_BYTES_MAX:
            raise InvalidRequest(f"{path} would hold more than a znode can: use fewer ACLs with prefixed names or `*`")
        if size + added > _SECURITY_BYTES_MAX:
            yield batch
            batch, size = {}, 0
        batch[path] = content
        size += added
    if batch:
        yield batch


def _security_writes(nodes: Mapping[str, SecurityState]) -> Script[list[Operation]]:
    """What is left to do until the nodes hold this."""
    writes: list[Operation] = []
    for (path, content), node in zip(nodes.items(), (yield from read_all_twice(list(nodes))), strict=True):
        data = znodes.encode_security(path, content)
        if content == _NOTHING:
            writes += [Delete(path=path, version=node.version)] if isinstance(node, Node) else []
        elif isinstance(node, NoNode) or node.data != data:
            writes.append(_write(path, data, node))
    return writes


def _read_topic(name: str, topic_id: UUID) -> Script[metadata_image.TopicNode]:
    node = yield from read_twice(znodes.topic_path(name))
    if isinstance(node, Node):
        topic = znodes.decode_topic(name, node.data, node.version)
        if topic.topic_id == topic_id:
            return topic
    raise UnknownTopicOrPartition(f"no topic {name!r}")


def _changed_settings(path: str, rewrite: dynamic_config.Rewrite) -> Script[tuple[metadata_image.Settings, Operation]]:
    """What the settings of a node become, and how to write them there."""
    stored = yield from read_twice(path)
    values = znodes.decode_settings(stored.data, stored.version).values if isinstance(stored, Node) else {}
    changed = metadata_image.Settings(values=dict(rewrite(values)), version=_version_after(stored))
    return changed, _write(path, znodes.encode_settings(changed.values), stored)


def _version_after(node: Node | NoNode) -> int:
    return node.version + 1 if isinstance(node, Node) else 0


def _write(path: str, data: bytes, node: Node | NoNode) -> Operation:
    """Conditional on what was found there."""
    return Set(path=path, data=data, version=node.version) if isinstance(node, Node) else Create(path=path, data=data)


# The lost answer is the case that makes all of this long: the connection broke after the request was sent, and the write may or
# may not have happened. Reading is the only way to find out, and what is compared has to be something that no other writer would
# have written.
def _holds(path: str, settings: metadata_image.Settings) -> Script[bool]:
    """Whether a write with an unknown outcome has happened. Equal settings by another writer are just as good."""
    node = yield from read_twice(path)
    return isinstance(node, Node) and znodes.decode_settings(node.data, node.version) == settings


def _partition_nodes(name: str, states: Sequence[metadata_image.PartitionState], first: int) -> list[Create]:
    nodes = []
    for index, state in enumerate(states, first):
        nodes.append(Create(path=znodes.partition_path(name, index)))
        nodes.append(Create(path=znodes.state_path(name, index), data=znodes.encode_state(state)))
    return nodes


def _state_changes(
    name: str, topic_id: UUID, states: Sequence[metadata_image.PartitionState], first: int
) -> list[metadata_image.LoggedChange]:
    new_states = [replace(state, version=0) for state in states]
    return [
        metadata_image.StateChange(topic=name, topic_id=topic_id, index=index, state=state)
        for index, state in enumerate(new_states, first)
    ]


def _fitting(
    topic: metadata_image.TopicNode, states: Sequence[metadata_image.PartitionState], settings: Mapping[str, str]
) -> int:
    """How many of the partitions with these states, the topic's last ones, can be created in one transaction. It contains
    everything twice: as a node and in the log entry."""
    candidates = states[:_PARTITIONS_AT_ONCE]
    # Measured on the encoded nodes, not estimated from counts: ZooKeeper closes the connection on a request larger than
    # jute.maxbuffer, which ends this broker's session.
    fixed = 2 * len(znodes.encode_topic(topic)) + 2 * len(znodes.encode_settings(settings)) + 4 * len(topic.name) + 1_024
    each = 2 * transaction_bytes(_partition_nodes(topic.name, candidates, len(topic.replicas))) // len(candidates) + 1
    count = min(len(candidates), (TRANSACTION_BYTES_MAX - fixed) // each)
    if count < 1:
        raise InvalidPartitions(f"{len(topic.replicas)} partitions with their replicas are more than the topic's znode can hold")
    return count


def _unclear(what: str) -> RequestTimedOut:
    return RequestTimedOut(f"ZooKeeper did not confirm {what}: check, and retry")


_BLOCK_ATTEMPTS = 20  # how often other brokers may be faster in a row


def cluster_producer_ids(store: Store, broker_id: int) -> producer_ids.ProducerIds:
    """Each is assigned once in the life of the cluster."""
    return producer_ids.ProducerIds(lambda reserved: run_script(store, _take_block(broker_id), reserved))


def _take_block(broker_id: int) -> Script[range]:
    """Reserve a block of producer ids for this broker alone, from /latest_producer_id_block, as Kafka's brokers do. A block that
    may or may not have been taken is abandoned: there are 2^63 ids, while two producers with the same id would mix up their
    sequences."""
    for _ in range(_BLOCK_ATTEMPTS):
        node = yield from read_twice(PRODUCER_ID_BLOCK)
        if isinstance(node, NoNode):
            raise AnswerLost(f"{PRODUCER_ID_BLOCK} does not exist")
        start = znodes.decode_producer_id_block(node.data).end if node.data else 0
        block = ProducerIdBlock(broker_id=broker_id, start=start, end=start + producer_ids.BLOCK_IDS)
        data = znodes.encode_producer_id_block(block)
        outcome = yield from commit([Set(path=PRODUCER_ID_BLOCK, data=data, version=node.version)])
        if isinstance(outcome, Committed):
            return range(block.start, block.end)
        if isinstance(outcome, Unknown):
            raise RequestTimedOut("ZooKeeper did not confirm a new block of producer ids: retry")
    raise RequestTimedOut("other brokers were faster to take each block of producer ids: retry")
