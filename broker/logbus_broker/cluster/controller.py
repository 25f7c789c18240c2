"""A broker's part as the controller, or as a candidate for it: when to claim, when to decide, and the controller's other tasks.

It checks after each change of the image or of the suspects, and once a second, on the loop's thread. It keeps nothing that
another controller would need: when the mandate ends, all of it is discarded.

A decision whose transaction is in flight, or which the image does not show yet, is not made again: `_awaited` holds the version
that its partition will have. Whatever else goes wrong (refused, answer lost) only leaves the partition to the next check, which
comes with the next entry of the metadata log or the next second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from functools import partial
from math import inf
from typing import Any
from uuid import UUID

from logbus_broker.clock import Clock
from logbus_broker.cluster import assignment, controller_writes, leader_election, metadata_image, metadata_log
from logbus_broker.cluster.store import AnswerLost, Script, Store, StoreEvents, in_batches, run_script
from logbus_broker.errors import BrokerError

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
        self.mandate: controller_writes.Mandate | None = None
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
        script = controller_writes.claim(self._store, self._broker_id, tuple(self._suspects), self._clock.now_ms())
        run_script(self._store, script, self._claimed)

    def _claimed(self, mandate: controller_writes.Mandate | None, error: BrokerError | None) -> None:
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

    def _begin_term(self, mandate: controller_writes.Mandate | None) -> None:
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
            if isinstance(error, controller_writes.Deposed):
                self._resign(str(error))
                return
            if error is not None and not isinstance(error, AnswerLost):
                logger.error("the controller could not write: %s", error)
            then(result)

        run_script(self._store, script, answered)

    # Leaders

    def _decide(self, mandate: controller_writes.Mandate, now: float) -> None:
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
            self._act(controller_writes.write_states(mandate, batch, ids), partial(self._written, batch))

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

    def _reassign(self, mandate: controller_writes.Mandate) -> None:
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
            self._act(controller_writes.write_reassigned(step, mandate), partial(self._moved, topic.name, keys))

    def _moved(self, name: str, keys: list[leader_election.TopicPartition], is_stored: bool | None) -> None:
        del self._at_work[name]
        if not is_stored:
            for key in keys:
                self._awaited.pop(key, None)

    def _delete(self, mandate: controller_writes.Mandate) -> None:
        for name in sorted(self._image.deleting):
            topic = self._image.topics.get(name)
            if topic is not None and name not in self._at_work:
                self._at_work[name] = None
                self._act(controller_writes.delete_topic(mandate, name, topic.topic_id), partial(self._deleted, name))

    def _deleted(self, name: str, _: None) -> None:
        del self._at_work[name]

    def _maybe_trim(self, mandate: controller_writes.Mandate, now: float) -> None:
        if now < self._trim_at or self._is_trimming:
            return
        self._trim_at = now + _TRIM_SECONDS
        self._is_trimming = True
        self._act(controller_writes.trim_journal(mandate, self._old_position), self._trimmed)

    def _trimmed(self, newest: int | None) -> None:
        self._is_trimming = False
        self._old_position = self._old_position if newest is None else newest
