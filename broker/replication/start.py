"""How a broker joins its cluster: in this order, each step once the previous one is done.

1. cluster id and incarnation (registration.py); a new data directory joins the cluster
2. the image, with the incarnation in it: so everything decided about this broker before that is known
3. the logs of its replicas are opened and recovered; data of topics that no longer exist is removed from the disk
4. what it cannot vouch for is reported, by compare-and-set on each partition's state (vouching.py); then the data directory notes
   in which boot of the machine that was settled
5. it is registered: from now on it may be elected, and other brokers count on it
6. roles are assigned, and the listener answers

Until then no client can reach it. While ZooKeeper is away it waits, and logs that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from math import inf

from broker.clock import Clock
from broker.coordination.asking import ask, commit
from broker.coordination.changes import StateChange
from broker.coordination.image import ClusterTopic, Image
from broker.coordination.image_settings import ImageSettings
from broker.coordination.journal import STATES_MAX, state_writes
from broker.coordination.local import Topic
from broker.coordination.member import ClusterMember
from broker.errors import BrokerError, StartupError
from broker.helpers import Helpers
from broker.partitions.partition import Partition
from broker.replication.local_logs import LocalLogs, Place
from broker.replication.replica import Key
from broker.replication.roles import Roles
from broker.replication.vouching import Kept, state_at_start
from broker.storage.log_directory import LogDirectory

logger = logging.getLogger("broker.replication")

SAY_SECONDS_FIRST = 2.0  # before the first log line about waiting
SAY_SECONDS = 30.0  # between two of these lines
RETRY_SECONDS = 1.0

Then = Callable[[BrokerError | None], None]


class _Step(Enum):
    ENTERING = "asking for the cluster's id"
    READING = "reading what the brokers agree on"
    OPENING = "opening logs"
    SETTLING = "saying what cannot be vouched for"
    NOTING = "noting that in the data directory"
    REGISTERING = "registering"
    OVER = "there"


class Start:
    """See the module docstring. `then` is called once: with None when the broker is up, or with the reason why it cannot be."""

    def __init__(
        self,
        member: ClusterMember,
        roles: Roles,
        logs: LocalLogs,
        directory: LogDirectory,
        settings: ImageSettings,
        helpers: Helpers,
        clock: Clock,
        *,
        connect: str,
        then: Then,
    ) -> None:
        self._member = member
        self._roles = roles
        self._logs = logs
        self._directory = directory
        self._settings = settings
        self._helpers = helpers
        self._connect = connect  # for messages
        self._then = then
        self._step = _Step.ENTERING
        self._say_at = clock.monotonic() + SAY_SECONDS_FIRST
        self._raised: dict[Key, int] = {}  # leader epochs that this process began itself
        self._asked_of: Image | None = None  # the image the last write was based on
        self._ask_again_at = -inf
        member.registration.enter(self._entered)

    @property
    def is_over(self) -> bool:
        return self._step is _Step.OVER

    @property
    def due(self) -> float:
        """When `work` has something to do even if nothing else happens."""
        if self.is_over:
            return inf
        return min(self._say_at, self._ask_again_at) if self._step is _Step.SETTLING else self._say_at

    def work(self, now: float) -> None:
        """At the end of a turn: continue if the current step is done."""
        if now >= self._say_at:
            self._say_at = now + SAY_SECONDS
            if self._member.away_since is not None:
                logger.warning("waiting for ZooKeeper at %s: it does not answer", self._connect)
            else:
                why = self._member.follower.unanswered
                logger.warning("not there yet, still %s%s", self._step.value, f": {why}" if why else "")
        image = self._member.image
        if self._step is _Step.READING and self._has_read(image):
            try:
                self._begin_opening(image)
            except OSError as error:  # what was done so far can safely be repeated
                self._fail(StartupError(f"the data directory: {error}"))
        if self._step is _Step.OPENING and not self._roles.is_opening:
            self._step = _Step.SETTLING
        if self._step is _Step.SETTLING and (image is not self._asked_of or now >= self._ask_again_at):
            self._settle(image, now)

    def _fail(self, error: BrokerError) -> None:
        self._step = _Step.OVER
        self._then(error)

    # 1: who we are

    def _entered(self, error: BrokerError | None) -> None:
        if error is not None:
            self._fail(error)
            return
        cluster_id = self._member.registration.cluster_id
        self._helpers.store(lambda: self._directory.join(cluster_id), self._joined)

    def _joined(self, _: object, error: BaseException | None) -> None:
        if error is not None:
            self._fail(error if isinstance(error, BrokerError) else StartupError(f"the data directory: {error!r}"))
        else:
            self._step = _Step.READING
            self._member.follower.tick()  # without a cluster id nothing could be read until now

    # 2 and 3: what is on this disk

    def _has_read(self, image: Image) -> bool:
        registration = self._member.registration
        return self._member.follower.is_known and image.incarnations.get(self._member.broker_id, -1) >= registration.incarnation

    def _begin_opening(self, image: Image) -> None:
        found = self._logs.found()
        wanted = {
            (topic.name, index): topic
            for topic in image.topics.values()
            for index, replicas in enumerate(topic.replicas)
            if self._member.broker_id in replicas
        }
        # That an incarnation was raised here proves nothing: a start that is refused raises it, too, and may be repeated.
        was_member = self._member.registration.was_member
        if not was_member and found and not any((name, index) in wanted for name, index, _ in found):
            self._fail(
                StartupError(
                    f"ZooKeeper at {self._connect} knows neither this broker nor any of the {len(found)} partitions in "
                    f"{self._directory.path}: set zookeeper.connect to the servers and the path of their cluster, restore "
                    "ZooKeeper's data, or set log.dirs to an empty directory"
                )
            )
            return
        names = {topic.topic_id.bytes: topic.name for topic in image.topics.values()}
        for name, index, topic_id in found:
            if name in image.unreadable:
                logger.error("%s-%d: its topic in ZooKeeper cannot be read; restore it and start this broker again", name, index)
                continue
            topic = wanted.get((name, index))
            if topic is None or topic_id not in (None, topic.topic_id.bytes):
                # Without a topic id, with that of a topic of another name (a copy), or with one unknown to a ZooKeeper that has
                # never seen this broker: not ours to remove.
                is_gone = topic_id is not None and (names[topic_id] == name if topic_id in names else was_member)
                (self._logs.remove if is_gone else self._logs.set_aside)(name, index)
        places = [
            Place(topic=_as_topic(topic), index=index, config=self._settings.of_topic(image, name))
            for (name, index), topic in wanted.items()
        ]
        self._logs.forget_missing(places, ((name, index) for name, index, _ in found))
        self._roles.open()
        self._step = _Step.OPENING

    # 4: what we cannot vouch for

    def _settle(self, image: Image, now: float) -> None:
        changes = self._changes(image)
        self._asked_of, self._ask_again_at = image, now + RETRY_SECONDS
        if not changes:
            self._step = _Step.NOTING
            self._ask_again_at = inf
            self._helpers.store(self._directory.note_boot, self._noted)
        else:
            self._commit(changes[:STATES_MAX])

    def _commit(self, changes: list[StateChange]) -> None:
        for change in changes:
            if change.state.leader == self._member.broker_id:
                self._raised[change.topic_id.bytes, change.index] = change.state.leader_epoch

        # Whatever the outcome, the image will show it, or the same is proposed again.
        ask(self._member.store, commit(state_writes(changes)), lambda outcome, error: None)

    def _changes(self, image: Image) -> list[StateChange]:
        me, changes = self._member.broker_id, []
        for topic in image.topics.values():
            if topic.name in image.deleting:
                continue
            minimum = self._settings.insync_min(image, topic.name)
            for index, state in enumerate(topic.states):
                if me not in topic.replicas[index] or state.version < 0:
                    continue
                if state.leader == me and self._raised.get((topic.topic_id.bytes, index)) == state.leader_epoch:
                    continue
                here = self._roles.here(topic, index)
                kept = self._kept(None if here is None else here.partition, was_there=here is not None and here.was_there)
                new = state_at_start(me, state, kept, minimum)
                if new != state:
                    if kept is not Kept.WHOLE and me in state.isr:
                        _say_what_is_missing(topic.name, index, kept, is_last=new.isr == state.isr)
                    new = replace(new, version=state.version + 1)
                    changes.append(StateChange(topic=topic.name, topic_id=topic.topic_id, index=index, state=new))
        return changes

    def _kept(self, partition: Partition | None, *, was_there: bool) -> Kept:
        if partition is None or not was_there or partition.log.offline_reason:
            return Kept.GONE
        if self._directory.kept_writes or partition.log.config.acks_all_waits_for_flush:
            return Kept.WHOLE
        return Kept.PERHAPS_LESS

    def _noted(self, _: object, error: BaseException | None) -> None:
        if error is not None:
            self._fail(error if isinstance(error, BrokerError) else StartupError(f"the data directory: {error!r}"))
        else:
            self._step = _Step.REGISTERING
            self._member.registration.register(self._registered)

    # 5 and 6: registered, with roles

    def _registered(self, error: BrokerError | None) -> None:
        if error is not None:
            self._fail(error)
            return
        self._step = _Step.OVER
        self._roles.begin()
        self._then(None)


def _as_topic(topic: ClusterTopic) -> Topic:
    return Topic(name=topic.name, topic_id=topic.topic_id, partition_count=topic.partition_count)


def _say_what_is_missing(topic: str, index: int, kept: Kept, *, is_last: bool) -> None:
    if not is_last:
        logger.warning("%s-%d: %s after the last stop, so this broker leaves its in-sync set", topic, index, kept.value)
    elif kept is Kept.GONE:
        logger.critical(
            "%s-%d: its log is gone, and no other broker has all of it: it has no leader until one that was in sync returns, "
            "or until an unclean election",
            topic,
            index,
        )
    else:
        logger.error(
            "%s-%d: %s after the last stop, and no other broker has more: what only this one had acknowledged may be lost",
            topic,
            index,
            kept.value,
        )
