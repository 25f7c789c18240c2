"""From the image to what this broker does: which replicas it has, which of them it leads, and whose followers the others are.

Nothing here is a command. After each change of the image every partition of a changed topic is compared with the image and
brought in line with it, whatever state it was in: so nothing can arrive late, twice, or for an earlier process. Per partition:

    not on this disk, and should be     its log is created or opened off the loop; until then it has no role here
    on this disk, and should not be     it is given up: the topic is gone, or replaced by one of the same name, or it moved away
    leader = me                         `Leader.lead`, then `PartitionManager.lead`; leadership in an older epoch is ended first
    leader = another                    any leadership ends, then it is followed: fetched in the state's epoch
    leader = none                       neither
    its topic cannot be read            neither, and its log stays: the topic may still exist
    its log has failed                  neither, and it leaves the in-sync replicas: another broker may lead (`_withdraw`)
    its log is damaged                  once another leads, and nobody counts on it, it is set aside and fetched anew (`_renew`)

A log that is being truncated is left alone: any other change waits until that is done (`_blocked`). A topic that is being deleted
is neither led nor followed. Logs are opened from `open` on, when this process is certain to be the broker; roles are assigned
only from `begin` on, when what it cannot vouch for is settled. A missing log is created only then, too: if it had been created
earlier, by a process that died before it had reported the log missing, the next process would vouch for it. For the same reason a
lost log stays missing until a leader has been elected.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from logbus_broker.clock import Clock
from logbus_broker.cluster import dynamic_config, metadata_image, metadata_log, topic_registry
from logbus_broker.cluster.store import Store
from logbus_broker.errors import BrokerError, NotLeaderOrFollower, StorageError
from logbus_broker.log.manager import PartitionManager
from logbus_broker.log.partition import Partition
from logbus_broker.replication import interfaces, replica_fetcher
from logbus_broker.replication.leader import Leader
from logbus_broker.replication.replicas import (
    AssignedReplica,
    FollowedPartition,
    LogIntegrity,
    OpenedReplica,
    ReplicaLogs,
    state_at_start,
)

logger = logging.getLogger("broker.replication")

REOPEN_SECONDS = 10.0  # before a log that could not be opened is retried
WITHDRAW_SECONDS = 1.0  # before a failed log's withdrawal is proposed again

Moving = Callable[[metadata_image.MetadataImage], Mapping[tuple[str, int], None]]
_Learnt = tuple[metadata_image.PartitionState, tuple[int, ...], int]


@dataclass(slots=True, eq=False)
class LocalReplica:
    """One replica of this broker: what exists of it, and its role."""

    topic: topic_registry.Topic
    index: int
    key: interfaces.TopicIdPartition = field(init=False)
    partition: Partition | None = None  # None: it is still being opened, or that failed
    followed: FollowedPartition | None = None
    is_opening: bool = False
    has_failed: bool = False  # it could not be opened, and is retried later
    is_missing: bool = False  # its directory did not exist when this process looked, before it could be created
    was_on_disk: bool = False  # whether its directory existed when it was opened
    following: tuple[int, int] | None = None  # leader and epoch, while it is fetched
    learnt: _Learnt | None = None  # while it is led: what was last passed to `Leader`

    def __post_init__(self) -> None:
        self.key = self.topic.topic_id.bytes, self.index


class ReplicaManager:
    """See the module docstring. `moving` says which new replicas of reassignments may fetch now."""

    def __init__(
        self,
        me: int,
        *,
        partitions: PartitionManager,
        logs: ReplicaLogs,
        settings: dynamic_config.ImageSettings,
        leader: Leader,
        fetchers: replica_fetcher.ReplicaFetcherManager,
        followed: Callable[[Partition], FollowedPartition],
        moving: Moving,
        store: Store,
        clock: Clock,
    ) -> None:
        self._me = me
        self._store = store
        self._partitions = partitions
        self._logs = logs
        self._settings = settings
        self._leader = leader
        self._fetchers = fetchers
        self._followed = followed
        self._moving_in = moving
        self._clock = clock
        self._image = metadata_image.MetadataImage()
        self._replicas: dict[interfaces.TopicIdPartition, LocalReplica] = {}
        self._of_topic: dict[str, dict[interfaces.TopicIdPartition, LocalReplica]] = {}
        self._marked: dict[str, None] = {}  # topics to look at
        self._left_alone: frozenset[str] = frozenset()
        # Those whose log is being truncated, or whose directory is still taken.
        self._blocked: dict[interfaces.TopicIdPartition, None] = {}
        self._moving: Mapping[tuple[str, int], None] = {}
        self._opening = 0
        self._reopen_at = inf
        self._withdrawn: dict[str, None] = {}  # topics with a replica here that is to leave the in-sync replicas
        self._withdraw_at = inf
        self._may_open = self._is_begun = self._is_over = False

    # Changes

    def image_changed(self, image: metadata_image.MetadataImage, delta: metadata_image.MetadataDelta) -> None:
        """Mark what differs, for this turn's `work`."""
        before, self._image = self._image, image
        if delta.is_everything:
            self._mark((*self._of_topic, *image.topics))
        else:
            for change in delta.changes:
                self._mark(_topics_of(change, image))
        if image.topics is not before.topics or image.brokers is not before.brokers:
            moving = self._moving_in(image)
            self._mark(name for name, _ in (*self._moving, *moving) if moving != self._moving)
            self._moving = moving

    def _mark(self, names: Iterable[str]) -> None:
        self._marked.update(dict.fromkeys(names))

    def open(self) -> None:
        """This process is the broker, and what does not belong on its disk is gone: from now on open what the image shows."""
        self._may_open = True
        # What this process cannot vouch for in unreadable topics was not settled; only the next start can do that.
        self._left_alone = self._image.unreadable

    def begin(self) -> None:
        """What this process cannot vouch for is settled: from now on lead and follow."""
        self._is_begun = True
        self._mark(self._of_topic)

    def stop_following(self) -> None:
        """The broker is being stopped: nothing more is fetched."""
        self._is_over = True
        for replica in self._replicas.values():
            self._stop_fetching(replica)

    def flushed(self, partition: Partition) -> None:
        """A flush of a partition that is not led here has ended."""
        replica = self._replicas.get((partition.topic_id.bytes, partition.index))
        if replica is not None and replica.followed is not None:
            replica.followed.flushed()
            self._fetchers.changed(replica.key)

    def impaired(self, partition: Partition) -> None:
        """A partition that is not led here can no longer be stored, or can be again."""
        self._fetchers.changed((partition.topic_id.bytes, partition.index))

    # Look-ups

    def local_replica(self, topic: metadata_image.ClusterTopic, index: int) -> LocalReplica | None:
        """This broker's replica of it."""
        return self._replicas.get((topic.topic_id.bytes, index))

    @property
    def is_opening(self) -> bool:
        """Whether some log is being opened, or is about to be."""
        return bool(self._opening or self._marked)

    @property
    def lag_max(self) -> int:
        """The largest lag of any replica fetched from a leader."""
        replicas = (replica.followed for replica in self._replicas.values() if replica.following is not None)
        return max((replica.lag for replica in replicas if replica is not None), default=0)

    # The loop

    @property
    def due(self) -> float:
        return -inf if self._marked and self._may_open else min(self._reopen_at, self._withdraw_at)

    def work(self, now: float) -> None:
        """Bring the partitions of each marked topic in line with the image."""
        if not self._may_open:
            return
        if now >= self._reopen_at:
            self._reopen_at = inf
            for replica in self._replicas.values():
                if replica.has_failed:
                    replica.has_failed = False
                    self._marked[replica.topic.name] = None
        if now >= self._withdraw_at:
            self._withdraw_at = inf
            withdrawn, self._withdrawn = self._withdrawn, {}
            self._mark(withdrawn)
        if self._blocked:
            blocked, self._blocked = self._blocked, {}
            self._mark(self._replicas[key].topic.name for key in blocked if key in self._replicas)
        if self._marked:
            marked, self._marked = self._marked, {}
            to_open = [replica for name in marked for replica in self._look(name)]
            if to_open:
                self._opening += len(to_open)
                self._logs.open(to_open, self._opened, may_make=self._is_begun)

    def _look(self, name: str) -> list[AssignedReplica]:
        """Give up what is no longer wanted, then bring the rest in line; returns what has to be opened for that."""
        topic = self._image.topics.get(name)
        if name in self._left_alone or (topic is None and name in self._image.unreadable):
            for replica in self._of_topic.get(name, {}).values():
                self._end_roles(replica)
            return []
        for hosted in list(self._of_topic.get(name, {}).values()):
            if topic is None or not self._is_wanted(topic, hosted):
                self._give_up(hosted, topic)
        if topic is None:
            self._settings.forget(name)
            return []
        config = self._settings.of_topic(self._image, name)
        # An earlier topic of this name whose log is still being opened or truncated keeps the directory until it is given up.
        taken = {hosted.index for hosted in self._of_topic.get(name, {}).values() if hosted.topic.topic_id != topic.topic_id}
        places = []
        for index, replicas in enumerate(topic.replicas):
            if self._me not in replicas:
                continue
            replica = self._replicas.get((topic.topic_id.bytes, index)) or self._add(topic, index)
            if replica.partition is None:
                if (
                    not replica.is_opening
                    and not replica.has_failed
                    and (not replica.is_missing or self._may_make(topic.states[index]))
                ):
                    if index in taken or self._partitions.held(name, index) is not None:
                        self._blocked[replica.key] = None
                    else:
                        replica.is_opening = True
                        places.append(AssignedReplica(topic=replica.topic, index=index, config=config))
            else:
                replica.partition.log.reconfigure(config)
                self._apply(replica, topic)
        return places

    def _may_make(self, state: metadata_image.PartitionState) -> bool:
        """Not if the state says that our log is lost and no other broker has all of it: the next start would take an empty log
        for the lost one found again. Once a leader is elected the state no longer says so."""
        return self._is_begun and not (state.is_lost and self._me in state.isr)

    def _is_wanted(self, topic: metadata_image.ClusterTopic, replica: LocalReplica) -> bool:
        is_same = topic.topic_id == replica.topic.topic_id and replica.index < topic.partition_count
        return is_same and self._me in topic.replicas[replica.index]

    def _add(self, topic: metadata_image.ClusterTopic, index: int) -> LocalReplica:
        local_topic = topic_registry.Topic(name=topic.name, topic_id=topic.topic_id, partition_count=topic.partition_count)
        replica = self._replicas[topic.topic_id.bytes, index] = LocalReplica(local_topic, index)
        self._of_topic.setdefault(topic.name, {})[replica.key] = replica
        return replica

    def _opened(self, opened: OpenedReplica) -> None:
        self._opening -= 1
        assigned = opened.replica
        replica = self._replicas[assigned.topic.topic_id.bytes, assigned.index]
        replica.is_opening = False
        # As long as no roles are assigned, all topics wait for the last log: a topic of thousands of partitions is not looked at
        # again and again, after each few of them.
        if self._is_begun:
            self._mark((assigned.topic.name,))
        elif not self._opening:
            self._mark(self._of_topic)
        if opened.partition is None and opened.error is None:
            replica.is_missing = True
            return
        if opened.partition is None:
            logger.error("could not open %s-%d: %s", assigned.topic.name, assigned.index, opened.error)
            replica.has_failed = True
            self._reopen_at = self._clock.monotonic() + REOPEN_SECONDS
            return
        replica.partition, replica.was_on_disk = opened.partition, opened.was_on_disk
        replica.followed = self._followed(opened.partition)
        self._partitions.install(assigned.topic, opened.partition)

    def _give_up(self, replica: LocalReplica, topic: metadata_image.ClusterTopic | None) -> None:
        """It is no longer a replica of this broker: its topic, now `topic`, was deleted, or its replica moved away."""
        if replica.is_opening:
            return  # looked at again once it is open
        self._stop_fetching(replica)
        if self._defer_if_changing(replica):
            return
        self._end_lead(replica)
        self._take_out(replica, _why_gone(replica, topic))
        self._logs.remove(replica.topic.name, replica.index)

    def _take_out(self, replica: LocalReplica, error: BrokerError) -> None:
        """Close its log; `error` is what requests that wait for it get."""
        del self._replicas[replica.key]
        of_topic = self._of_topic[replica.topic.name]
        del of_topic[replica.key]
        if not of_topic:
            del self._of_topic[replica.topic.name]
        if replica.partition is not None:
            self._partitions.take_out(replica.topic, replica.index, error)
            logger.info("%s", error)

    # Roles

    def _apply(self, replica: LocalReplica, topic: metadata_image.ClusterTopic) -> None:
        partition, state = replica.partition, topic.states[replica.index]
        assert partition is not None
        if not self._is_begun or state.version < 0:  # its znode does not exist: the topic is being deleted
            return
        if state.leader_epoch < partition.leader_epoch and not partition.log.offline_reason:
            partition.log.go_offline(
                f"{partition.name}: its log has records of epoch {partition.leader_epoch}, but the newest in ZooKeeper is "
                f"{state.leader_epoch}: restore ZooKeeper's data, or move the log away"
            )
            logger.critical("%s is offline: %s", partition.name, partition.log.offline_reason)
        if partition.log.offline_reason:
            self._end_roles(replica)
            self._withdraw(topic, replica.index)
        elif state.leader == metadata_image.NO_LEADER or topic.name in self._image.deleting:
            self._end_roles(replica)
        elif state.leader == self._me:
            self._lead(replica, partition, topic)
        elif partition.is_damaged and self._me not in state.isr:
            self._renew(replica, partition, topic)
        else:
            self._follow(replica, partition, topic)

    def _withdraw(self, topic: metadata_image.ClusterTopic, index: int) -> None:
        """Its disk has failed: no broker should count on this replica until this one is restarted. Proposed again until the image
        shows it."""
        state = topic.states[index]
        new = state_at_start(self._me, state, LogIntegrity.GONE, self._settings.insync_min(self._image, topic.name))
        if new == state or topic.name in self._image.deleting:
            return
        new = replace(new, version=state.version + 1)
        change = metadata_image.StateChange(topic=topic.name, topic_id=topic.topic_id, index=index, state=new)
        self._withdrawn[topic.name] = None
        self._withdraw_at = self._clock.monotonic() + WITHDRAW_SECONDS
        self._store.commit(metadata_log.state_writes([change]), lambda outcome: None)

    def _renew(self, replica: LocalReplica, partition: Partition, topic: metadata_image.ClusterTopic) -> None:
        """The leader has all that was acknowledged, so this replica need not stay eligible."""
        self._end_roles(replica)
        if self._me in topic.states[replica.index].eligible:
            self._withdraw(topic, replica.index)
        elif not self._defer_if_changing(replica):
            self._take_out(replica, StorageError(f"{partition.name} is damaged, and is fetched anew from its leader"))
            self._logs.set_damaged_aside(topic.name, replica.index)
            self._mark((topic.name,))

    def went_offline(self, partition: Partition) -> None:
        """The log of one of our replicas has gone offline."""
        self._marked[partition.topic] = None

    def _lead(self, replica: LocalReplica, partition: Partition, topic: metadata_image.ClusterTopic) -> None:
        state = topic.states[replica.index]
        learnt = state, topic.replicas[replica.index], self._settings.insync_min(self._image, topic.name)
        if replica.learnt is not None and partition.is_led and partition.leader_epoch == state.leader_epoch:
            if replica.learnt != learnt:
                replica.learnt = learnt
                self._leader.learn(partition, *learnt)
            return
        self._end_roles(replica)
        if self._defer_if_changing(replica):
            return
        logger.info("%s: led here, epoch %d, in sync: %s", partition.name, state.leader_epoch, list(state.isr))
        replica.learnt = learnt
        self._leader.lead(partition, *learnt)
        self._partitions.lead(partition, state.leader_epoch)

    def _follow(self, replica: LocalReplica, partition: Partition, topic: metadata_image.ClusterTopic) -> None:
        assert replica.followed is not None
        state = topic.states[replica.index]
        replica.followed.is_recovering, replica.followed.is_in_sync = state.is_recovering, self._me in state.isr
        self._end_lead(replica)
        leader_and_epoch = state.leader, state.leader_epoch
        if (partition.leader, partition.leader_epoch) != leader_and_epoch:
            self._stop_fetching(replica)
            self._partitions.follow(partition, *leader_and_epoch)
        if self._is_over or not self._may_fetch(replica, topic):
            self._stop_fetching(replica)
        elif replica.following != leader_and_epoch:
            if self._defer_if_changing(replica):
                return
            logger.info("%s: follows broker %d, epoch %d", partition.name, *leader_and_epoch)
            replica.following = leader_and_epoch
            self._fetchers.follow(replica.followed, state.leader)

    def _may_fetch(self, replica: LocalReplica, topic: metadata_image.ClusterTopic) -> bool:
        """Every replica may, except the new ones of a reassignment whose turn has not come."""
        is_new = self._me in topic.adding.get(replica.index, ()) and self._me not in topic.states[replica.index].isr
        return not is_new or (topic.name, replica.index) in self._moving

    def _defer_if_changing(self, replica: LocalReplica) -> bool:
        """True if its log is being truncated or begun anew: its topic is looked at again once that has ended."""
        if replica.followed is None or not replica.followed.is_changing:
            return False
        self._blocked[replica.key] = None
        return True

    def _end_roles(self, replica: LocalReplica) -> None:
        self._stop_fetching(replica)
        self._end_lead(replica)

    def _stop_fetching(self, replica: LocalReplica) -> None:
        if replica.following is not None:
            replica.following = None
            self._fetchers.forget(replica.key)

    def _end_lead(self, replica: LocalReplica) -> None:
        if replica.learnt is not None and replica.partition is not None:
            replica.learnt = None
            self._partitions.resign(replica.partition)
            self._leader.end(replica.partition)


def _why_gone(replica: LocalReplica, topic: metadata_image.ClusterTopic | None) -> BrokerError:
    """Why a partition is no longer here; `topic` is the one of its name now."""
    name = f"{replica.topic.name}-{replica.index}"
    if topic is not None and topic.topic_id == replica.topic.topic_id:
        return NotLeaderOrFollower(f"this broker no longer has a replica of {name}")
    return StorageError(f"{name} was deleted")


def _topics_of(change: metadata_image.Change, image: metadata_image.MetadataImage) -> Iterable[str]:
    """The topics that a change may affect."""
    match change:
        case metadata_image.TopicChange(topic=node):
            return (node.name,)
        case (
            metadata_image.StateChange(topic=name)
            | metadata_image.TopicSettingsChange(topic=name)
            | metadata_image.TopicDeleted(topic=name)
            | metadata_image.DeletionRequested(topic=name)
        ):
            return (name,)
        case metadata_image.BrokerSettingsChange():
            return image.topics
    return ()
