"""What the brokers of a cluster agree on, as frozen values: which brokers and topics exist, which broker leads what; and what can
change in it.

ZooKeeper is authoritative, and this is a copy of it in the memory of every broker: decisions are pure functions of an image, and
brokers act on the states they see here, never on commands. A value carries the version of the znode it was read from, since every
write is conditional on the version that its writer has read.

Nothing here does I/O. `znodes.py` turns these values into Kafka's JSON and back, `metadata_watcher.py` keeps an image up to date.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

from logbus_broker.security.state import SecurityState

EVERY_BROKER = "<default>"  # below /config/brokers: the settings that apply to all of them


NO_LEADER = -1
NO_CONTROLLER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address of one listener of a broker."""

    host: str
    port: int
    security_protocol: str = "PLAINTEXT"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerNode:
    """A registered broker: its ephemeral znode exists. `incarnation` counts the processes that had this id; each raises it."""

    broker_id: int
    incarnation: int
    endpoints: Mapping[str, Endpoint]  # by listener name
    rack: str = ""
    directory_id: str = ""  # of its data directory: shows whether a registration is our own predecessor's


class LogEnd(NamedTuple):
    """How far a broker's log goes: the leader epoch of its last batch, and the offset after it. Of two logs of one partition the
    one with the later epoch, and then with the later offset, has more."""

    broker: int
    leader_epoch: int
    end_offset: int

    @property
    def reach(self) -> tuple[int, int]:
        return self.leader_epoch, self.end_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """Kafka's state znode of one partition, with our additions.

    `version` is the znode's: Kafka's partition epoch. The in-sync set (`isr`) is never empty and a subset of the replicas.
    `eligible` are those that left the set when that made it smaller than min.insync.replicas (KIP-966's eligible leader
    replicas): they have everything acknowledged or visible. `handover_to` asks the leader to hand over to that broker once it
    has everything. `is_recovering` follows an unclean election: followers may truncate below what was visible. `is_lost`: the log
    of the set's only member is gone. It stays listed, since no other broker has everything it had, but it must not lead.
    `withdrawn` are the ends of replicas that left because they could not vouch for their logs, until somebody leads: if nobody
    can, the longest log does."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    version: int
    controller_epoch: int = 0
    eligible: tuple[int, ...] = ()
    handover_to: int | None = None
    is_recovering: bool = False
    is_lost: bool = False
    withdrawn: tuple[LogEnd, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicNode:
    """What the znode of a topic holds: for each partition its replicas in order of preference. `adding` and `removing` are those
    of a reassignment in progress, by partition. The id is never that of an earlier topic of the same name."""

    name: str
    topic_id: uuid.UUID
    replicas: tuple[tuple[int, ...], ...]
    version: int
    adding: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    removing: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def partition_count(self) -> int:
        return len(self.replicas)

    def with_states(self, states: Sequence[PartitionState]) -> ClusterTopic:
        """The topic; a partition without a state has NO_STATE."""
        missing = len(self.replicas) - len(states)
        return ClusterTopic(
            name=self.name,
            topic_id=self.topic_id,
            replicas=self.replicas,
            # A topic is read znode by znode while other brokers write: parts of one being deleted may be gone already, and for
            # one recreated with fewer partitions there may be more states than it has.
            states=(*states[: len(self.replicas)], *(NO_STATE,) * missing),
            version=self.version,
            adding=self.adding,
            removing=self.removing,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTopic(TopicNode):
    """A topic with the states of its partitions, which have znodes of their own."""

    states: tuple[PartitionState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The overrides of one topic or broker, as its /config znode holds them."""

    values: Mapping[str, str]
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Users' credentials, ACLs and quotas: what each of their znodes holds, by path, and in `state` all of it together.

    `version` is not that of these nodes but of one that each change of any of them raises. So a change is decided on everything
    that its writer has seen, and the nodes themselves may be deleted and created again."""

    version: int = -1
    nodes: Mapping[str, SecurityState] = field(default_factory=dict)
    state: SecurityState = field(default_factory=SecurityState)

    def after(self, version: int, nodes: Mapping[str, SecurityState]) -> Security:
        """With other contents of some nodes; empty: the node is gone."""
        kept, acls = dict(self.nodes), set(self.state.acls)
        credentials, quotas = dict(self.state.credentials), dict(self.state.quotas)
        nobody_key = self.state.nobody_key
        for path, content in nodes.items():
            previous = kept.pop(path, None)
            if previous is not None:
                acls -= previous.acls
                nobody_key = b"" if previous.nobody_key else nobody_key
                for user in previous.credentials:
                    del credentials[user]
                for entity in previous.quotas:
                    del quotas[entity]
            if content != SecurityState():
                kept[path] = content
                acls |= content.acls
                credentials.update(content.credentials)
                quotas.update(content.quotas)
                nobody_key = content.nobody_key or nobody_key
        state = SecurityState(credentials=credentials, acls=frozenset(acls), quotas=quotas, nobody_key=nobody_key)
        return Security(version=version, nodes=kept, state=state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """Which broker is the controller, and in which epoch."""

    broker_id: int = NO_CONTROLLER
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataImage:
    """The complete state, as of the log entry `position`."""

    cluster_id: str = ""
    brokers: Mapping[int, BrokerNode] = field(default_factory=dict)
    incarnations: Mapping[int, int] = field(default_factory=dict)  # of every broker that ever existed, live or not
    controller: Controller = field(default_factory=Controller)
    topics: Mapping[str, ClusterTopic] = field(default_factory=dict)
    topic_settings: Mapping[str, Settings] = field(default_factory=dict)
    broker_settings: Mapping[str, Settings] = field(default_factory=dict)  # by broker id, "<default>" for all
    security: Security = field(default_factory=Security)
    deleting: frozenset[str] = frozenset()  # topics marked for deletion
    leaving: frozenset[int] = frozenset()  # brokers that are being stopped
    unreadable: frozenset[str] = frozenset()  # topics whose nodes cannot be decoded: they exist, whatever `topics` holds
    position: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChange:
    """A topic was created, has grown or is being reassigned. The states of new partitions follow in the same entry."""

    topic: TopicNode


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """One partition's state was created or replaced; its version is the one after the change."""

    topic: str
    topic_id: UUID
    index: int
    state: PartitionState


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettingsChange:
    topic: str
    topic_id: UUID
    settings: Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettingsChange:
    """`name` is a broker's id, or znodes.EVERY_BROKER."""

    name: str
    settings: Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityChange:
    """What some of the nodes of users, ACLs and quotas hold from `version` on; empty: the node is gone."""

    version: int
    nodes: Mapping[str, SecurityState]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionRequested:
    """The topic is marked for deletion: it is no longer served, and the controller removes it."""

    topic: str
    topic_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeleted:
    """The last of the topic's znodes was deleted, with its settings and its mark."""

    topic: str
    topic_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class IncarnationRaised:
    """A new process has the broker's id; the fetches of earlier ones no longer count."""

    broker_id: int
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokersChanged:
    """Which brokers are registered; never in an entry."""

    brokers: Mapping[int, BrokerNode]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerChanged:
    """Which broker is the controller; never in an entry."""

    controller: Controller


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingChanged:
    """Which brokers are being stopped; never in an entry."""

    leaving: frozenset[int]


# Ephemeral state (brokers, the controller, leaving brokers) vanishes without a transaction of ours. It is read from its own
# znodes, and represented by changes that no log entry holds, so that listeners learn of everything in one way.
LoggedChange = (
    TopicChange
    | StateChange
    | TopicSettingsChange
    | BrokerSettingsChange
    | SecurityChange
    | DeletionRequested
    | TopicDeleted
    | IncarnationRaised
)
Change = LoggedChange | BrokersChanged | ControllerChanged | LeavingChanged


def apply(image: MetadataImage, changes: Iterable[Change]) -> tuple[MetadataImage, tuple[Change, ...]]:
    """The image after the changes, applied in order, and those of them that were new to it.

    Every change carries the version of the znode it concerns, and what the image already has is skipped. So changes may be
    applied twice, and those made while an image was being read may be applied to it afterwards: the result is the same. For this
    a change of a topic carries the topic's id, too, since versions restart when a topic is deleted and recreated. A change of
    another topic with the same name is skipped: it is older than what the image holds, since an image is never ahead of the
    deletion of a topic in it (`read_image` reads a topic's node before everything else that belongs to the topic)."""
    draft = _Draft(image)
    new = tuple(change for change in changes if draft.take(change))
    return (draft.image() if new else image), new


class _Draft:
    """An image being changed. Large parts are copied once, however many changes are applied."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._topics = dict(image.topics)
        self._states: dict[str, list[PartitionState]] = {}  # of topics in which some have changed
        self._topic_settings = dict(image.topic_settings)
        self._broker_settings = dict(image.broker_settings)
        self._incarnations = dict(image.incarnations)
        self._deleting = set(image.deleting)

    def image(self) -> MetadataImage:
        for name, states in self._states.items():
            self._topics[name] = replace(self._topics[name], states=tuple(states))
        return replace(
            self._image,
            topics=self._topics,
            topic_settings=self._topic_settings,
            broker_settings=self._broker_settings,
            incarnations=self._incarnations,
            deleting=frozenset(self._deleting),
        )

    def take(self, change: Change) -> bool:
        """Apply one change; whether it was new."""
        match change:
            case StateChange():
                return self._state(change)
            case TopicChange():
                return self._topic(change.topic)
            case TopicSettingsChange():
                is_of_it = self._holds(change.topic, change.topic_id)
                return is_of_it and _replace_older(self._topic_settings, change.topic, change.settings)
            case BrokerSettingsChange():
                return _replace_older(self._broker_settings, change.name, change.settings)
            case SecurityChange():
                security = self._image.security
                is_new = change.version > security.version
                return is_new and self._now(replace(self._image, security=security.after(change.version, change.nodes)))
            case DeletionRequested():
                if not self._holds(change.topic, change.topic_id) or change.topic in self._deleting:
                    return False
                self._deleting.add(change.topic)
            case TopicDeleted():
                return self._gone(change)
            case IncarnationRaised():
                if self._incarnations.get(change.broker_id, -1) >= change.incarnation:
                    return False
                self._incarnations[change.broker_id] = change.incarnation
            case BrokersChanged():
                return self._now(replace(self._image, brokers=change.brokers))
            case ControllerChanged():
                return self._now(replace(self._image, controller=change.controller))
            case LeavingChanged():
                return self._now(replace(self._image, leaving=change.leaving))
        return True

    def _holds(self, topic: str, topic_id: UUID) -> bool:
        current = self._topics.get(topic)
        return current is not None and current.topic_id == topic_id

    def _state(self, change: StateChange) -> bool:
        if not self._holds(change.topic, change.topic_id):
            return False
        states = self._states.get(change.topic) or list(self._topics[change.topic].states)
        if change.index >= len(states) or states[change.index].version >= change.state.version:
            return False
        states[change.index] = change.state
        self._states[change.topic] = states
        return True

    def _topic(self, node: TopicNode) -> bool:
        current = self._topics.get(node.name)
        if current is None:
            self._topics[node.name] = node.with_states(())
            return True
        if current.topic_id != node.topic_id or current.version >= node.version:
            return False
        self._topics[node.name] = node.with_states(self._states.pop(node.name, current.states))
        return True

    def _gone(self, change: TopicDeleted) -> bool:
        current = self._topics.get(change.topic)
        if current is not None and current.topic_id != change.topic_id:
            return False
        self._states.pop(change.topic, None)
        self._topic_settings.pop(change.topic, None)
        self._deleting.discard(change.topic)
        return self._topics.pop(change.topic, None) is not None

    def _now(self, image: MetadataImage) -> bool:
        is_news = image != self._image
        self._image = image
        return is_news


def _replace_older(stored: dict[str, Settings], name: str, settings: Settings) -> bool:
    if name in stored and stored[name].version >= settings.version:
        return False
    stored[name] = settings
    return True


# The state of a partition whose znode does not exist: its topic is being deleted, piece by piece. Any real state is newer.
# A real version is 0 or more, so whatever the metadata log later says about this partition replaces it.
NO_STATE = PartitionState(leader=NO_LEADER, leader_epoch=-1, isr=(), version=-1)


def eligible_after(state: PartitionState, isr: Collection[int], minimum: int) -> tuple[int, ...]:
    """Eligible leaders (KIP-966's ELR) once the in-sync set of `state` has become `isr`: which other replicas have everything
    acknowledged or visible.

    Below min.insync.replicas the watermarks do not move. So a replica that leaves the in-sync set in the write by which the set
    gets, or stays, smaller than that has everything that was ever visible or acknowledged, and keeps having it: nothing is added
    to that until the set is large enough again. It may lead if no member of the set is live; without this rule all data would
    depend on the last member's disk. The leader (which shrinks the set) and the controller (which removes dead members) must
    apply exactly the same rule."""
    if len(isr) >= minimum:
        return ()
    return tuple(sorted({*state.eligible, *state.isr}.difference(isr)))


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataDelta:
    """What has changed in the image since the last call: `changes` in their order, or, if `is_everything`, possibly anything."""

    changes: tuple[Change, ...] = ()
    is_everything: bool = False
