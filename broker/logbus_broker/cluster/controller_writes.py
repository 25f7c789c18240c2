"""What the controller writes: its claim, and its decisions as transactions. Each is valid only in the controller's own epoch and
for the versions it was decided on.

None of the outcomes needs to be remembered. Committed: every broker, ourselves included, learns it from the metadata log. Refused
because of the epoch: another broker is the controller, and everything else is up to it. Refused because of a node: it was changed
in the meantime; that one is left out, the others are written, and it is decided again from the next image. Unknown: AnswerLost;
whatever is decided again from an image older than the write is refused by its versions.

Versions of a topic's znodes restart when it is deleted and recreated, so everything written below one checks its id, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from logbus_broker.cluster import assignment, leader_election, metadata_image, metadata_log, znodes
from logbus_broker.cluster.store import (
    AnswerLost,
    Check,
    Committed,
    Create,
    Delete,
    Node,
    NoNode,
    Operation,
    Reason,
    Script,
    Set,
    Store,
    Unknown,
    children,
    commit,
    in_batches,
    read,
    read_all,
)
from logbus_broker.errors import BrokerError, MalformedNode

_ENTRIES_KEPT = 2_000  # of the metadata log; a broker further behind reads everything, which is cheaper than that many entries


class Deposed(BrokerError):
    """Another broker is the controller."""


def write_states(
    mandate: Mandate, decisions: Sequence[leader_election.Decision], ids: Mapping[str, UUID]
) -> Script[list[leader_election.Decision]]:
    """Store up to STATES_MAX decisions; returns those that were stored. `ids` are those of their topics."""
    remaining = list(decisions)
    while remaining:
        changes = [
            _state_change(decision.topic, ids[decision.topic], decision.index, decision.state, mandate) for decision in remaining
        ]
        refused = yield from _fenced(mandate, metadata_log.state_writes(changes))
        if refused is None:
            break
        # The checks that the topics are still the same come first, then the states, in the order of `remaining`.
        topics = list(dict.fromkeys(change.topic_id for change in changes))
        if refused < len(topics):
            remaining = [decision for decision in remaining if ids[decision.topic] != topics[refused]]
        else:
            del remaining[refused - len(topics)]
    return remaining


def write_reassigned(step: assignment.Reassigned, mandate: Mandate | None) -> Script[bool]:
    """Store one step of a topic's reassignments: the replica lists and the in-sync replicas in one transaction. False: part of it
    has changed since. Without a mandate the caller is a broker asked to begin or cancel some, which moves no leader."""
    topic = step.topic
    changes = [_state_change(topic.name, topic.topic_id, index, topic.states[index], mandate) for index in step.moved]
    operations: list[Operation] = [
        Check(path=znodes.topic_id_path(topic.topic_id), version=-1),
        Set(path=znodes.topic_path(topic.name), data=znodes.encode_topic(topic), version=topic.version - 1),
        *(
            Set(
                path=znodes.state_path(topic.name, change.index),
                data=znodes.encode_state(change.state),
                version=change.state.version - 1,
            )
            for change in changes
        ),
        metadata_log.log_entry([metadata_image.TopicChange(topic=topic), *changes]),
    ]
    return (yield from _fenced(mandate, operations)) is None


def delete_topic(mandate: Mandate, name: str, topic_id: UUID) -> Script[None]:
    """Remove all znodes of a topic marked for deletion, those of its partitions first.

    Repeated until its last transaction, so a controller that ends halfway leaves nothing behind. Each transaction checks that the
    topic is still marked: the name may already belong to another topic."""
    mark = Check(path=znodes.deletion_path(name), version=-1)
    node = yield from read(znodes.topic_path(name))
    if not isinstance(node, NoNode):
        topic_id = znodes.decode_topic(name, node.data, node.version).topic_id
    indexes = sorted(int(partition) for partition in (yield from children(znodes.partitions_path(name))))
    for batch in in_batches(indexes, metadata_log.STATES_MAX):
        nodes = [path for index in batch for path in (znodes.state_path(name, index), znodes.partition_path(name, index))]
        if not (yield from _delete(mandate, [mark], nodes, ())):
            return
    last = [
        znodes.partitions_path(name),
        znodes.topic_path(name),
        znodes.topic_id_path(topic_id),
        znodes.topic_settings_path(name),
    ]
    name_path = znodes.topic_name_path(name)
    if name_path is not None:
        last.append(name_path)
    end = (
        Delete(path=znodes.deletion_path(name)),
        metadata_log.log_entry([metadata_image.TopicDeleted(topic=name, topic_id=topic_id)]),
    )
    yield from _delete(mandate, [mark], last, end)


def trim_journal(mandate: Mandate, old: int) -> Script[int]:
    """Remove entries up to position `old`, except the newest _ENTRIES_KEPT of them. Returns the newest position, which is `old`
    a minute later; -1 if there is none."""
    positions = metadata_log.entry_positions((yield from children(znodes.CHANGES)))
    gone = [position for position in positions if position <= old][:-_ENTRIES_KEPT]
    for batch in in_batches(gone, metadata_log.STATES_MAX):
        yield from _delete(mandate, (), map(metadata_log.entry_path, batch), ())
    return positions[-1] if positions else -1


def _delete(mandate: Mandate, before: Sequence[Operation], paths: Iterable[str], after: Sequence[Operation]) -> Script[bool]:
    """Remove nodes in one transaction, leaving out those that do not exist. False: `before` or `after` was refused."""
    left = list(paths)
    while True:
        refused = yield from _fenced(mandate, [*before, *(Delete(path=path) for path in left), *after])
        if refused is None:
            return True
        if not len(before) <= refused < len(before) + len(left):
            return False
        del left[refused - len(before)]


def _fenced(mandate: Mandate | None, operations: Sequence[Operation]) -> Script[int | None]:
    """Commit in the mandate's epoch. None: committed; otherwise the index of the refused operation. Deposed: the epoch is now
    another controller's. AnswerLost: the outcome is unknown."""
    fence = [] if mandate is None else [Check(path=znodes.CONTROLLER_EPOCH, version=mandate.epoch_version)]
    outcome = yield from commit([*fence, *operations])
    if isinstance(outcome, Committed):
        return None
    if isinstance(outcome, Unknown):
        raise AnswerLost(outcome.detail)
    if outcome.reason is Reason.OTHER or outcome.reason is Reason.NOT_EMPTY:
        raise AnswerLost(f"refused: {outcome.reason.value} {outcome.detail}")
    if mandate is not None and outcome.index == 0:
        raise Deposed(f"another broker became the controller after epoch {mandate.epoch}")
    return outcome.index - len(fence)


def _state_change(
    topic: str, topic_id: UUID, index: int, state: metadata_image.PartitionState, mandate: Mandate | None
) -> metadata_image.StateChange:
    if mandate is not None:
        state = replace(state, controller_epoch=mandate.epoch)
    return metadata_image.StateChange(topic=topic, topic_id=topic_id, index=index, state=state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mandate:
    """The right to decide, while `/controller_epoch` has this version. It ends with the session at the latest."""

    session_id: int
    epoch: int
    epoch_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The transaction that takes the seat, and the epoch it begins."""

    operations: tuple[Operation, ...]
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The broker that claims the seat. `timestamp_ms` is only for people who look at the node."""

    broker_id: int
    session_id: int
    timestamp_ms: int


def judge(epoch: Node | NoNode, seat: Node | NoNode, candidate: Candidate, suspects: Collection[int]) -> Mandate | Claim | None:
    """What the two nodes, read in this order, mean: the seat is ours, may be taken, or is another broker's."""
    if isinstance(epoch, NoNode):
        raise MalformedNode(f"{znodes.CONTROLLER_EPOCH} is missing in ZooKeeper: restore it with a higher number than any before")
    number = znodes.decode_controller_epoch(epoch.data)
    operations: list[Operation] = []
    if isinstance(seat, Node):
        if seat.ephemeral_owner == candidate.session_id:
            return Mandate(session_id=candidate.session_id, epoch=number, epoch_version=epoch.version)
        # The seat is taken from a controller whose port refuses connections, since its process is gone and only its session still
        # lives; and from ourselves in an earlier session or process: registration ensures that no other process has our id.
        holder = znodes.decode_controller(seat.data)
        if holder != candidate.broker_id and holder not in suspects:
            return None
        operations.append(Delete(path=znodes.CONTROLLER, version=seat.version))
    data = znodes.encode_controller(candidate.broker_id, candidate.timestamp_ms)
    operations.append(Create(path=znodes.CONTROLLER, data=data, is_ephemeral=True))
    operations.append(Set(path=znodes.CONTROLLER_EPOCH, data=znodes.encode_controller_epoch(number + 1), version=epoch.version))
    return Claim(operations=tuple(operations), epoch=number + 1)


def claim(store: Store, broker_id: int, suspects: Collection[int], timestamp_ms: int) -> Script[Mandate | None]:
    """Become the controller: the broker that holds `/controller`, in the epoch that it set in the same transaction. None: another
    broker is. AnswerLost: try again, and the seat is ours if our session owns the node.

    Each claim raises `/controller_epoch` by compare-and-set, and each write of a controller checks that node's version. So a
    deposed controller that is not aware of it can write nothing (KAFKA-6082), and of two concurrent claims only one succeeds."""
    # The epoch first and the owner second. The other way round, another broker could take the seat between the two reads, and we
    # would consider ours valid in the other's epoch.
    epoch, seat = yield from read_all([znodes.CONTROLLER_EPOCH, znodes.CONTROLLER])
    candidate = Candidate(broker_id=broker_id, session_id=store.session_id, timestamp_ms=timestamp_ms)
    step = judge(epoch, seat, candidate, suspects)
    if not isinstance(step, Claim):
        return step
    outcome = yield from commit(step.operations)
    if isinstance(outcome, Unknown):
        raise AnswerLost(outcome.detail)
    if not isinstance(outcome, Committed):  # another broker was faster
        return None
    # Still the session of the request: an answer never arrives after the next connection.
    return Mandate(session_id=store.session_id, epoch=step.epoch, epoch_version=outcome.versions[-1])
