"""Which broker is the controller: the one that holds `/controller`, in the epoch that it set in the same transaction.

Each claim raises `/controller_epoch` by compare-and-set, and each write of a controller checks that node's version. So a
deposed controller that is not aware of it can write nothing (KAFKA-6082), and of two concurrent claims only one succeeds.

The seat is free if the node is missing. It is taken from a controller whose port refuses connections, since its process is gone
and only its session still lives; and from ourselves in an earlier session or process: registration ensures that no other process
has our id. After a lost answer the nodes are read again: the seat is ours if our session owns the node.

The epoch is read first and the owner second. The other way round, another broker could take the seat between the two reads, and
we would consider ours valid in the other's epoch.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from broker.coordination.asking import AnswerLost, Script, commit, read_all
from broker.coordination.store import Committed, Create, Delete, Node, NoNode, Operation, Set, Store, Unknown
from broker.coordination.znodes import (
    CONTROLLER,
    CONTROLLER_EPOCH,
    decode_controller,
    decode_controller_epoch,
    encode_controller,
    encode_controller_epoch,
)
from broker.errors import MalformedNode


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
        raise MalformedNode(f"{CONTROLLER_EPOCH} is missing in ZooKeeper: restore it with a higher number than any before")
    number = decode_controller_epoch(epoch.data)
    operations: list[Operation] = []
    if isinstance(seat, Node):
        if seat.ephemeral_owner == candidate.session_id:
            return Mandate(session_id=candidate.session_id, epoch=number, epoch_version=epoch.version)
        holder = decode_controller(seat.data)
        if holder != candidate.broker_id and holder not in suspects:
            return None
        operations.append(Delete(path=CONTROLLER, version=seat.version))
    data = encode_controller(candidate.broker_id, candidate.timestamp_ms)
    operations.append(Create(path=CONTROLLER, data=data, is_ephemeral=True))
    operations.append(Set(path=CONTROLLER_EPOCH, data=encode_controller_epoch(number + 1), version=epoch.version))
    return Claim(operations=tuple(operations), epoch=number + 1)


def claim(store: Store, broker_id: int, suspects: Collection[int], timestamp_ms: int) -> Script[Mandate | None]:
    """Become the controller if the seat may be taken; None: another broker is. AnswerLost: try again."""
    epoch, seat = yield from read_all([CONTROLLER_EPOCH, CONTROLLER])
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
