"""The controller: the one broker that decides who leads what. Its claim, what it watches, and its decisions, written as
transactions.

None of the outcomes needs to be remembered. Committed: every broker, ourselves included, learns it from the metadata log. Refused
because of the epoch: another broker is the controller, and everything else is up to it. Refused because of a node: it was changed
in the meantime; that one is left out, the others are written, and it is decided again from the next image. Unknown: AnswerLost;
whatever is decided again from an image older than the write is refused by its versions.

Versions of a topic's znodes restart when it is deleted and recreated, so everything written below one checks its id, too.

The controller checks after each change of the image or of the suspects, and once a second, on the loop's thread. It keeps nothing
that another controller would need: when the mandate ends, all of it is discarded.

A decision whose transaction is in flight, or which the image does not show yet, is not made again: `_awaited` holds the version
that its partition will have. Whatever else goes wrong (refused, answer lost) only leaves the partition to the next check, which
comes with the next entry of the metadata log or the next second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any
from uuid import UUID

from logbus_broker.clock import Clock
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
    StoreEvents,
    Unknown,
    children,
    commit,
    in_batches,
    read,
    read_all,
    run_script,
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


# A broker's part as the controller, or as a candidate for it: when to claim, when to decide, and the controller's other
# tasks.


logger = logging.getLogger("broker.cluster")

LOOK_SECONDS = 1.0  # between two checks if nothing changes
_TRIM_SECONDS = 60.0  # an entry is old if it already existed at the last trim


class ClusterController(StoreEvents):
    """See the module docstring. `minimum_of` returns a topic's min.insync.replicas, `is_unclean_allowed` its
    unclean.leader.election.enable."""

    _balance_at: float
    _trim_at: float

    def __init__(
        self,
        store: Store,
        broker_id: int,
        clock: Clock,
        *,
        session_timeout_ms: int,
        minimum_of: Callable[[str], int],
        is_unclean_allowed: Callable[[str], bool],
        balancing: leader_election.LeaderBalancing = leader_election.KAFKAS_BALANCING,
    ) -> None:
        self._store = store
        self._broker_id = broker_id
        self._clock = clock
        self._settling_seconds = session_timeout_ms / 1000
        self._minimum_of = minimum_of
        self._is_unclean_allowed = is_unclean_allowed
        self._balancing = balancing
        self._image = metadata_image.MetadataImage()
        self._is_known = False
        self._suspects: dict[int, None] = {}
        self._settled_at = inf
        self.mandate: Mandate | None = None
        self._is_claiming = False
        self._preferred: dict[leader_election.TopicPartition, None] = {}
        self._unclean: dict[leader_election.TopicPartition, None] = {}
        self._term = 0
        self.elections = self.unclean_elections = 0  # decided by this broker since its start
        self.due = inf  # when `work` has something to do, by the monotonic clock
        self._begin_term(None)

    # Events

    def image_changed(self, image: metadata_image.MetadataImage) -> None:
        self._image = image
        self._is_known = True
        self.due = -inf

    def suspect(self, suspects: Collection[int]) -> None:
        """These brokers refuse connections. A broker is no longer suspected once it answers."""
        if self._suspects.keys() != set(suspects):
            self._suspects = dict.fromkeys(sorted(suspects))
            self.due = -inf

    def elect(self, keys: Iterable[leader_election.TopicPartition], *, is_unclean: bool) -> None:
        """ElectLeaders: elect the preferred leaders; or, unclean, any live replica of partitions that have no leader."""
        (self._unclean if is_unclean else self._preferred).update(dict.fromkeys(keys))
        self.due = -inf

    def connected(self, session_id: int) -> None:
        # Nothing ends with a connection that is lost: what is written meanwhile has an unknown outcome, and is refused if another
        # broker has become the controller.
        if self.mandate is not None and self.mandate.session_id != session_id:
            self._resign("its ZooKeeper session was replaced")
        # For one session timeout no broker counts as dead: after a ZooKeeper outage all sessions may be new, and brokers that
        # have not reconnected yet are not gone.
        self._settled_at = self._clock.monotonic() + self._settling_seconds
        self.due = -inf

    # The loop

    def work(self) -> None:
        """Check everything that may have changed."""
        now = self._clock.monotonic()
        self.due = now + LOOK_SECONDS
        if not self._is_known:
            return
        image = self._image
        if self.mandate is not None and image.controller.epoch > self.mandate.epoch:
            self._resign(f"broker {image.controller.broker_id} is the controller")
        if self.mandate is None:
            self._maybe_claim()
            return
        if now >= self._balance_at:
            self._balance_at = now + self._balancing.interval_seconds
            self._preferred.update(dict.fromkeys(leader_election.out_of_balance(image, self._balancing.percentage)))
        self._decide(self.mandate, now)
        self._reassign(self.mandate)
        self._delete(self.mandate)
        self._maybe_trim(self.mandate, now)

    # The mandate

    def _maybe_claim(self) -> None:
        holder = self._image.controller.broker_id
        is_vacant = holder in (metadata_image.NO_CONTROLLER, self._broker_id) or holder in self._suspects
        # Only a registered broker claims: registration ensures that no other process has our id.
        if not is_vacant or self._is_claiming or self._broker_id not in self._image.brokers:
            return
        self._is_claiming = True
        script = claim(self._store, self._broker_id, tuple(self._suspects), self._clock.now_ms())
        run_script(self._store, script, self._claimed)

    def _claimed(self, mandate: Mandate | None, error: BrokerError | None) -> None:
        self._is_claiming = False
        if error is not None and not isinstance(error, AnswerLost):
            logger.error("cannot become the controller: %s", error)
        if mandate is not None and mandate.session_id == self._store.session_id:
            logger.info("broker %d is the controller in epoch %d", self._broker_id, mandate.epoch)
            self._begin_term(mandate)
            self.due = -inf

    def _resign(self, why: str) -> None:
        logger.info("broker %d is no longer the controller: %s", self._broker_id, why)
        self._begin_term(None)

    def _begin_term(self, mandate: Mandate | None) -> None:
        """Discard everything of the earlier term; answers still in flight are ignored, since their term is over."""
        self.mandate = mandate
        self._term += 1
        now = self._clock.monotonic()
        # By partition: its topic's id and the expected version.
        self._awaited: dict[leader_election.TopicPartition, tuple[UUID, int]] = {}
        self._handovers: dict[leader_election.TopicPartition, leader_election.HandoverRequest] = {}
        self._settled_topics: dict[str, metadata_image.ClusterTopic] = {}
        self._seen_presence: tuple[object, ...] = ()
        self._at_work: dict[str, None] = {}  # topics that are being moved or deleted
        self._balance_at = now + self._balancing.interval_seconds
        self._trim_at = now
        self._is_trimming = False
        self._old_position = -1

    def _act(self, script: Script[Any], then: Callable[[Any], None]) -> None:
        """Run one or more transactions; `then` gets None if they failed, and is not called if our term is over."""
        term = self._term

        def answered(result: Any, error: BrokerError | None) -> None:
            if term != self._term:
                return
            if isinstance(error, Deposed):
                self._resign(str(error))
                return
            if error is not None and not isinstance(error, AnswerLost):
                logger.error("the controller could not write: %s", error)
            then(result)

        run_script(self._store, script, answered)

    # Leaders

    def _decide(self, mandate: Mandate, now: float) -> None:
        image = self._image
        live = leader_election.presence(image, self._suspects, is_settling=now < self._settled_at)
        topics = self._worth_a_look(image, live)
        self._handovers = leader_election.handovers(topics, self._handovers, now)
        requests = leader_election.ElectionRequests(preferred=self._preferred, unclean=self._unclean, handovers=self._handovers)
        decisions = leader_election.decide(
            topics,
            live,
            minimum_of=self._minimum_of,
            is_unclean_allowed=self._is_unclean_allowed,
            now=now,
            requests=requests,
        )
        self._remember_settled(topics, decisions)
        self._awaited = {key: coming for key, coming in self._awaited.items() if self._is_awaited(image, key, *coming)}
        fresh = [decision for decision in decisions if (decision.topic, decision.index) not in self._awaited]
        # Each request has been met, is in flight, or cannot be met now; the client may ask again.
        self._preferred, self._unclean = {}, {}
        self._count_elections(fresh)
        for batch in in_batches(fresh, metadata_log.STATES_MAX):
            ids = {decision.topic: image.topics[decision.topic].topic_id for decision in batch}
            for decision in batch:
                self._awaited[decision.topic, decision.index] = ids[decision.topic], decision.state.version
            self._act(write_states(mandate, batch, ids), partial(self._written, batch))

    def _count_elections(self, decisions: Iterable[leader_election.Decision]) -> None:
        for decision in decisions:
            before, after = self._image.topics[decision.topic].states[decision.index], decision.state
            if after.leader_epoch == before.leader_epoch or after.leader == metadata_image.NO_LEADER:
                continue
            self.elections += 1
            if after.leader not in before.eligible and (before.is_lost or after.leader not in before.isr):
                self.unclean_elections += 1
                name = f"{decision.topic}-{decision.index}"
                logger.critical("unclean election: broker %d leads %s and may lack acknowledged records", after.leader, name)

    def _worth_a_look(
        self, image: metadata_image.MetadataImage, live: leader_election.Presence
    ) -> list[metadata_image.ClusterTopic]:
        """All topics except those that needed nothing last time, if neither they nor the live brokers have changed since."""
        inputs = (live, image.topic_settings, image.broker_settings, image.deleting)
        if self._preferred or self._unclean or inputs != self._seen_presence:
            self._settled_topics = {}
        self._seen_presence = inputs
        return [
            topic
            for name, topic in image.topics.items()
            if self._settled_topics.get(name) is not topic and name not in image.deleting
        ]

    def _remember_settled(self, topics: list[metadata_image.ClusterTopic], decisions: list[leader_election.Decision]) -> None:
        restless = {decision.topic for decision in decisions}
        for topic in topics:
            is_asked = any(state.handover_to is not None for state in topic.states)
            if topic.name not in restless and not topic.adding and not topic.removing and not is_asked:
                self._settled_topics[topic.name] = topic

    @staticmethod
    def _is_awaited(
        image: metadata_image.MetadataImage, key: leader_election.TopicPartition, topic_id: UUID, version: int
    ) -> bool:
        topic = image.topics.get(key[0])
        return topic is not None and topic.topic_id == topic_id and topic.states[key[1]].version < version

    def _written(self, batch: Collection[leader_election.Decision], stored: list[leader_election.Decision] | None) -> None:
        done = {(decision.topic, decision.index) for decision in stored or ()}
        for decision in batch:
            if (decision.topic, decision.index) not in done:
                self._awaited.pop((decision.topic, decision.index), None)

    # Moves, deletions, the metadata log

    def _reassign(self, mandate: Mandate) -> None:
        image = self._image
        for topic in [topic for topic in image.topics.values() if topic.adding or topic.removing]:
            if topic.name in self._at_work or topic.name in image.deleting:
                continue
            busy = [index for name, index in self._awaited if name == topic.name]
            step = assignment.finish(topic, self._minimum_of(topic.name), busy=busy)
            if step is None:
                continue
            self._at_work[topic.name] = None
            for index in step.moved:
                self._awaited[topic.name, index] = topic.topic_id, step.topic.states[index].version
            keys = [(topic.name, index) for index in step.moved]
            self._act(write_reassigned(step, mandate), partial(self._moved, topic.name, keys))

    def _moved(self, name: str, keys: list[leader_election.TopicPartition], is_stored: bool | None) -> None:
        del self._at_work[name]
        if not is_stored:
            for key in keys:
                self._awaited.pop(key, None)

    def _delete(self, mandate: Mandate) -> None:
        for name in sorted(self._image.deleting):
            topic = self._image.topics.get(name)
            if topic is not None and name not in self._at_work:
                self._at_work[name] = None
                self._act(delete_topic(mandate, name, topic.topic_id), partial(self._deleted, name))

    def _deleted(self, name: str, _: None) -> None:
        del self._at_work[name]

    def _maybe_trim(self, mandate: Mandate, now: float) -> None:
        if now < self._trim_at or self._is_trimming:
            return
        self._trim_at = now + _TRIM_SECONDS
        self._is_trimming = True
        self._act(trim_journal(mandate, self._old_position), self._trimmed)

    def _trimmed(self, newest: int | None) -> None:
        self._is_trimming = False
        self._old_position = self._old_position if newest is None else newest
