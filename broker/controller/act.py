"""Turns decisions into transactions: each is valid only in the controller's own epoch and for the versions it was decided on.

None of the outcomes needs to be remembered. Committed: every broker, ourselves included, learns it from the journal. Refused
because of the epoch: another broker is the controller, and everything else is up to it. Refused because of a node: it was changed
in the meantime; that one is left out, the others are written, and it is decided again from the next image. Unknown: AnswerLost;
whatever is decided again from an image older than the write is refused by its versions.

Versions of a topic's znodes restart when it is deleted and recreated, so everything written below one checks its id, too.

Deletion is repeated until its last transaction, so a controller that ends halfway leaves nothing behind. Each of its transactions
checks that the topic is still marked: the name may already belong to another topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from broker.controller.claim import Mandate
from broker.controller.decide import Decision
from broker.controller.reassign import Reassigned
from broker.coordination.asking import AnswerLost, Script, children, commit, read
from broker.coordination.changes import StateChange, TopicChange, TopicGone
from broker.coordination.image import PartitionState
from broker.coordination.journal import STATES_MAX, entry_path, entry_positions, journal_entry, state_writes
from broker.coordination.store import Check, Committed, Delete, NoNode, Operation, Reason, Set, Unknown
from broker.coordination.znodes import (
    CHANGES,
    CONTROLLER_EPOCH,
    TopicNode,
    decode_topic,
    deletion_path,
    encode_state,
    encode_topic,
    partition_path,
    partitions_path,
    state_path,
    topic_id_path,
    topic_name_path,
    topic_path,
    topic_settings_path,
)
from broker.errors import BrokerError

ENTRIES_KEPT = 2_000  # of the journal; a broker further behind reads everything, which is cheaper than that many entries


class Deposed(BrokerError):
    """Another broker is the controller."""


def batches(decisions: Sequence[Decision]) -> list[Sequence[Decision]]:
    """Batches of one transaction each."""
    return [decisions[begin : begin + STATES_MAX] for begin in range(0, len(decisions), STATES_MAX)]


def write_states(mandate: Mandate, decisions: Sequence[Decision], ids: Mapping[str, UUID]) -> Script[list[Decision]]:
    """Store up to STATES_MAX decisions; returns those that were stored. `ids` are those of their topics."""
    wanted = list(decisions)
    while wanted:
        changes = [_state_change(one.topic, ids[one.topic], one.index, one.state, mandate) for one in wanted]
        refused = yield from _fenced(mandate, state_writes(changes))
        if refused is None:
            break
        # The checks that the topics are still the same come first, then the states, in the order of `wanted`.
        topics = list(dict.fromkeys(change.topic_id for change in changes))
        if refused < len(topics):
            wanted = [decision for decision in wanted if ids[decision.topic] != topics[refused]]
        else:
            del wanted[refused - len(topics)]
    return wanted


def write_reassigned(step: Reassigned, mandate: Mandate | None) -> Script[bool]:
    """Store one step of a topic's reassignments: the replica lists and the in-sync replicas in one transaction. False: part of it
    has changed since. Without a mandate the caller is a broker asked to begin or cancel some, which moves no leader."""
    topic = step.topic
    changes = [_state_change(topic.name, topic.topic_id, index, topic.states[index], mandate) for index in step.moved]
    operations: list[Operation] = [
        Check(path=topic_id_path(topic.topic_id), version=-1),
        Set(path=topic_path(topic.name), data=encode_topic(topic), version=topic.version - 1),
        *(
            Set(path=state_path(topic.name, change.index), data=encode_state(change.state), version=change.state.version - 1)
            for change in changes
        ),
        journal_entry([TopicChange(topic=TopicNode.of(topic)), *changes]),
    ]
    return (yield from _fenced(mandate, operations)) is None


def delete_topic(mandate: Mandate, name: str, topic_id: UUID) -> Script[None]:
    """Remove all znodes of a topic marked for deletion, those of its partitions first."""
    mark = Check(path=deletion_path(name), version=-1)
    found = yield from read(topic_path(name))
    if not isinstance(found, NoNode):
        topic_id = decode_topic(name, found.data, found.version).topic_id
    indexes = sorted(int(partition) for partition in (yield from children(partitions_path(name))))
    for begin in range(0, len(indexes), STATES_MAX):
        nodes = [
            path
            for index in indexes[begin : begin + STATES_MAX]
            for path in (state_path(name, index), partition_path(name, index))
        ]
        if not (yield from _delete(mandate, [mark], nodes, ())):
            return
    last = [partitions_path(name), topic_path(name), topic_id_path(topic_id), topic_settings_path(name)]
    name_path = topic_name_path(name)
    if name_path is not None:
        last.append(name_path)
    end = (Delete(path=deletion_path(name)), journal_entry([TopicGone(topic=name, topic_id=topic_id)]))
    yield from _delete(mandate, [mark], last, end)


def trim_journal(mandate: Mandate, old: int) -> Script[int]:
    """Remove entries up to position `old`, except the newest ENTRIES_KEPT of them. Returns the newest position, which is `old`
    a minute later; -1 if there is none."""
    positions = entry_positions((yield from children(CHANGES)))
    gone = [position for position in positions if position <= old][:-ENTRIES_KEPT]
    for begin in range(0, len(gone), STATES_MAX):
        yield from _delete(mandate, (), [entry_path(position) for position in gone[begin : begin + STATES_MAX]], ())
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
    fence = [] if mandate is None else [Check(path=CONTROLLER_EPOCH, version=mandate.epoch_version)]
    outcome = yield from commit([*fence, *operations])
    if isinstance(outcome, Committed):
        return None
    if isinstance(outcome, Unknown):
        raise AnswerLost(outcome.detail)
    if outcome.reason is Reason.OTHER or outcome.reason is Reason.NOT_EMPTY:
        raise AnswerLost(f"refused: {outcome.reason.value} {outcome.detail}")
    if mandate is not None and outcome.index == 0:
        raise Deposed(f"another broker took over after epoch {mandate.epoch}")
    return outcome.index - len(fence)


def _state_change(topic: str, topic_id: UUID, index: int, state: PartitionState, mandate: Mandate | None) -> StateChange:
    if mandate is not None:
        state = replace(state, controller_epoch=mandate.epoch)
    return StateChange(topic=topic, topic_id=topic_id, index=index, state=state)
