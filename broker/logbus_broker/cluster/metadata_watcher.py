"""Keeps the metadata image of one broker up to date, and calls listeners with what has changed.

Persistent state comes from the metadata log: a watch on its directory, then the entries after `position`, in order. If that is
not possible (the first time, after a gap, or for an entry that a newer broker wrote) everything is read. Ephemeral state
(registered brokers, the controller, leaving brokers) is watched directly: its nodes are removed when sessions end, without a
transaction of ours that could log it.

A watch only means "read again"; one that fires while its node is being read causes another read. Watches are lost with the
connection, so every new connection reads everything again. What was not answered is requested again then, or in the next `tick`.

The image never moves backwards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from logbus_broker import errors, logs
from logbus_broker.cluster import metadata_image, metadata_log, security_store, znodes
from logbus_broker.cluster.store import (
    READS_AT_ONCE,
    AnswerLost,
    Node,
    NoNode,
    RunningScript,
    Script,
    Store,
    StoreEvents,
    children,
    in_batches,
    read,
    read_all,
    run_script,
)
from logbus_broker.security.state import SecurityState

logger = logging.getLogger("broker.cluster")

# One turn of the loop handles as many answers as fit in two milliseconds (see also READS_AT_ONCE).
_ENTRIES_AT_ONCE = 2  # of at most 250 states, one millisecond each


Listener = Callable[[metadata_image.MetadataImage, metadata_image.MetadataDelta], None]


class MetadataWatcher(StoreEvents):
    """See the module docstring. It listens to the store (StoreEvents); `listen` registers for changes."""

    def __init__(self, store: Store) -> None:
        self.image = metadata_image.MetadataImage()
        self.newest_entry_birth = (0, 0)  # when ZooKeeper made the entry at the image's position (`Node.birth`)
        self.is_known = False  # until then the image is empty, and no listener has been called
        self._listeners: list[Listener] = []
        self._owed: dict[Listener, None] = {}  # listeners that failed on some news: their next call says `is_everything`
        self._session_id = 0
        self._must_read_all = True
        # An image being read, which does not yet match any state that existed.
        self._draft: metadata_image.MetadataImage | None = None
        self._draft_birth = (0, 0)
        self._looks: Mapping[str, _Look] = {
            znodes.BROKERS: _Look(store, self._look_at_brokers),
            znodes.LEAVING: _Look(store, self._look_at_leaving),
            znodes.CONTROLLER: _Look(store, self._look_at_controller),
            znodes.CHANGES: _Look(store, self._look_at_journal),
        }
        self._unseen = dict.fromkeys(self._looks)

    def listen(self, listener: Listener) -> None:
        """Call `listener(image, news)` after every change, the first time with everything, once the image is known."""
        self._listeners.append(listener)
        if self.is_known:
            listener(self.image, metadata_image.MetadataDelta(is_everything=True))

    @property
    def unanswered(self) -> str:
        """Why part of the image is missing; empty: every read was answered."""
        return "; ".join(dict.fromkeys(look.unanswered for look in self._looks.values() if look.unanswered))

    # Events of the store

    def connected(self, session_id: int) -> None:
        # Within a session the metadata log alone brings the image up to date. Between sessions
        # entries may have been trimmed, and tools may have written changes without an entry.
        self._must_read_all |= session_id != self._session_id
        self._session_id = session_id
        for look in self._looks.values():
            look.begin()

    def suspended(self) -> None:
        """The image stays as it is: it may be out of date from now on, as it may be at any time."""

    def changed(self, path: str) -> None:
        if path in self._looks:
            self._looks[path].look_again()

    def tick(self) -> None:
        """About once a second: repeat reads that were not answered, and call listeners that failed again."""
        for listener in list(self._owed):
            self._tell_one(listener, metadata_image.MetadataDelta(is_everything=True))
        for look in self._looks.values():
            look.tick()

    # Ephemeral state

    def _look_at_brokers(self) -> Script[None]:
        names = [name for name in (yield from children(znodes.BROKERS, watch=True)) if name.isdecimal()]
        nodes = yield from read_all([f"{znodes.BROKERS}/{name}" for name in names])
        brokers: dict[int, metadata_image.BrokerNode] = {}
        for name, node in zip(names, nodes, strict=True):
            if isinstance(node, Node):
                try:
                    brokers[int(name)] = znodes.decode_broker(int(name), node.data)
                except errors.MalformedNode as error:
                    logger.error("ignoring broker %s: %s", name, error)
        self._saw(znodes.BROKERS, metadata_image.BrokersChanged(brokers=dict(sorted(brokers.items()))))

    def _look_at_leaving(self) -> Script[None]:
        names = yield from children(znodes.LEAVING, watch=True)
        self._saw(
            znodes.LEAVING, metadata_image.LeavingChanged(leaving=frozenset(int(name) for name in names if name.isdecimal()))
        )

    def _look_at_controller(self) -> Script[None]:
        self._saw(znodes.CONTROLLER, metadata_image.ControllerChanged(controller=(yield from read_controller())))

    def _saw(self, path: str, change: metadata_image.Change) -> None:
        self.image, news = metadata_image.apply(self.image, (change,))
        was_known = self.is_known
        self._seen(path)
        if news and was_known:
            self._tell(metadata_image.MetadataDelta(changes=news))

    # Persistent state

    def _look_at_journal(self) -> Script[None]:
        self._draft = None
        if znodes.CHANGES not in self._unseen and not (yield from self._catch_up()):
            self._must_read_all = True
        while self._must_read_all:
            positions = metadata_log.entry_positions((yield from children(znodes.CHANGES, watch=True)))
            position = positions[-1] if positions else -1
            if position < self.image.position:
                # A lagging server of the ensemble may show a new session an older log: the image stays as it is until it moves.
                logger.error(
                    "the metadata log in ZooKeeper ends at entry %d, but this broker has already applied entry %d, and keeps its "
                    "metadata. If this persists, ZooKeeper has lost data: restore it",
                    position,
                    self.image.position,
                )
                return
            self._draft = yield from read_image(position)
            newest = yield from read(metadata_log.entry_path(max(0, position)))
            self._draft_birth = newest.birth if isinstance(newest, Node) else (0, 0)
            if (yield from self._catch_up()):
                self._adopt(self._draft)

    def _catch_up(self) -> Script[bool]:
        """Apply the entries after the position of the image, or of the draft. False: one is missing, or cannot be decoded."""
        names = yield from children(znodes.CHANGES, watch=True)
        positions = [position for position in metadata_log.entry_positions(names) if position > self._position]
        # Each entry is applied as soon as it is read, not once all are: if the connection breaks halfway, the image matches a
        # state that existed, and `position` says which.
        for batch in in_batches(positions, _ENTRIES_AT_ONCE):
            nodes = yield from read_all([metadata_log.entry_path(position) for position in batch])
            for position, node in zip(batch, nodes, strict=True):
                if position != self._position + 1 or not isinstance(node, Node):
                    logger.info("the metadata log has a gap after entry %d: reading everything again", self._position)
                    return False
                try:
                    self._advance(position, metadata_log.decode_changes(node.data), node.birth)
                except errors.MalformedNode as error:
                    logger.warning("cannot decode entry %d of the metadata log, reading everything again: %s", position, error)
                    return False
        return True

    @property
    def _position(self) -> int:
        return self.image.position if self._draft is None else self._draft.position

    def _advance(self, position: int, changes: tuple[metadata_image.Change, ...], birth: tuple[int, int]) -> None:
        if self._draft is not None:
            self._draft = replace(metadata_image.apply(self._draft, changes)[0], position=position)
            self._draft_birth = birth
            return
        image, news = metadata_image.apply(self.image, changes)
        self.image = replace(image, position=position)
        self.newest_entry_birth = birth
        if news:
            self._tell(metadata_image.MetadataDelta(changes=news))

    def _adopt(self, draft: metadata_image.MetadataImage) -> None:
        now = self.image
        self.image = replace(draft, brokers=now.brokers, controller=now.controller, leaving=now.leaving)
        self.newest_entry_birth = self._draft_birth
        self._draft = None
        self._must_read_all = False
        was_known = self.is_known
        self._seen(znodes.CHANGES)
        if was_known:
            self._tell(metadata_image.MetadataDelta(is_everything=True))

    def _seen(self, path: str) -> None:
        self._unseen.pop(path, None)
        if not self._unseen and not self.is_known:
            self.is_known = True
            self._tell(metadata_image.MetadataDelta(is_everything=True))

    def _tell(self, news: metadata_image.MetadataDelta) -> None:
        if self.is_known:
            for listener in self._listeners:
                self._tell_one(listener, replace(news, is_everything=news.is_everything or listener in self._owed))

    def _tell_one(self, listener: Listener, news: metadata_image.MetadataDelta) -> None:
        """A listener that fails must not stop the image from being updated, nor the others from being called."""
        try:
            listener(self.image, news)
        except Exception:
            logs.log_bug("a listener to metadata changes failed")
            self._owed[listener] = None
        else:
            self._owed.pop(listener, None)


class _Look:
    """Reads one part of the state, one read at a time."""

    def __init__(self, store: Store, script: Callable[[], Script[None]]) -> None:
        self._store = store
        self._script = script
        self._asking: RunningScript[None] | None = None
        self._is_owed = False
        self.unanswered = ""  # why the last read failed

    def begin(self) -> None:
        """Start over: the connection may be new, and any answers to earlier requests are then out of date."""
        if self._asking is not None:
            self._asking.stop()
        self._is_owed = False
        self._asking = run_script(self._store, self._script(), self._end)

    def look_again(self) -> None:
        if self._asking is None:
            self.begin()
        else:
            self._is_owed = True

    def tick(self) -> None:
        if self._is_owed and self._asking is None:
            self.begin()

    def _end(self, _: None, error: errors.BrokerError | None) -> None:
        self._asking = None
        self.unanswered = "" if error is None else str(error)
        if error is not None:
            self._is_owed = True
            if not isinstance(error, AnswerLost):
                logger.error("%s", error)
        elif self._is_owed:
            self.begin()


def read_image(position: int) -> Script[metadata_image.MetadataImage]:
    """All persistent state, read after the log's newest entry was found to be `position`.

    Other brokers write meanwhile: the entries after that position are applied afterwards, and only then does the image match a
    state that existed."""
    cluster_id = yield from read(znodes.CLUSTER_ID)
    if isinstance(cluster_id, NoNode):
        raise AnswerLost("the cluster has no id yet")
    incarnations = yield from _read_incarnations()
    broker_settings = yield from _read_broker_settings()
    security = yield from _read_security()
    topics: dict[str, metadata_image.ClusterTopic] = {}
    topic_settings: dict[str, metadata_image.Settings] = {}
    unreadable: set[str] = set()
    names = yield from children(znodes.TOPICS)
    for batch in in_batches(names, READS_AT_ONCE):
        # The node of a topic is read before everything else that belongs to it: what is read then belongs to the same topic, or
        # to a later one whose creation is still to come from the log.
        read_topics = yield from _read_topics(batch, unreadable)
        topic_settings |= yield from _read_settings(znodes.TOPIC_SETTINGS, list(read_topics), unreadable)
        topics |= {name: topic for name, topic in read_topics.items() if name not in unreadable}
    deleting = yield from children(znodes.DELETIONS)
    return metadata_image.MetadataImage(
        cluster_id=znodes.decode_cluster_id(cluster_id.data),
        incarnations=incarnations,
        topics=topics,
        topic_settings=topic_settings,
        broker_settings=broker_settings,
        security=security,
        deleting=frozenset(name for name in deleting if name in topics),
        unreadable=frozenset(unreadable),
        position=position,
    )


def _read_incarnations() -> Script[dict[int, int]]:
    ids = [int(name) for name in (yield from children(znodes.INCARNATIONS)) if name.isdecimal()]
    nodes = yield from read_all([znodes.incarnation_path(broker_id) for broker_id in ids])
    return {broker_id: node.version for broker_id, node in zip(ids, nodes, strict=True) if isinstance(node, Node)}


def _read_broker_settings() -> Script[dict[str, metadata_image.Settings]]:
    """These apply to every part of the cluster: if they cannot be read, no new image is accepted."""
    unreadable: set[str] = set()
    settings = yield from _read_settings(znodes.BROKER_SETTINGS, (yield from children(znodes.BROKER_SETTINGS)), unreadable)
    if unreadable:
        raise AnswerLost(f"cannot read the settings of brokers: {', '.join(sorted(unreadable))}")
    return settings


def _read_security() -> Script[metadata_image.Security]:
    """As with the settings of brokers: without one unreadable rule, others might allow what it denies."""
    counter = yield from read(security_store.COUNTER)
    if isinstance(counter, NoNode):
        raise AnswerLost(f"{security_store.COUNTER} does not exist yet")
    nodes: dict[str, SecurityState] = {}
    for parent in security_store.PARENTS:
        paths = [f"{parent}/{name}" for name in (yield from children(parent))]
        for path, node in zip(paths, (yield from read_all(paths)), strict=True):
            if isinstance(node, Node):
                try:
                    nodes[path] = znodes.decode_security(path, node.data)
                except errors.MalformedNode as error:
                    logger.error("restore or delete %s: %s", path, error)
                    raise AnswerLost(f"cannot read {path}") from error
    return metadata_image.Security().after(counter.version, nodes)


def _read_settings(parent: str, names: Sequence[str], unreadable: set[str]) -> Script[dict[str, metadata_image.Settings]]:
    """Unreadable ones are left out and reported, not replaced by defaults: default retention might delete what they protect."""
    settings = {}
    nodes = yield from read_all([f"{parent}/{name}" for name in names])
    for name, node in zip(names, nodes, strict=True):
        if isinstance(node, Node):
            try:
                settings[name] = znodes.decode_settings(node.data, node.version)
            except errors.MalformedNode as error:
                logger.error("cannot read %s/%s, restore it: %s", parent, name, error)
                unreadable.add(name)
    return settings


def _read_topics(names: Sequence[str], unreadable: set[str]) -> Script[dict[str, metadata_image.ClusterTopic]]:
    read_nodes = yield from read_all([znodes.topic_path(name) for name in names])
    nodes = {}
    # A topic or state that cannot be read is logged and left out: it must not keep the other topics from being served. Such a
    # topic still exists, so its name is kept (`MetadataImage.unreadable`): its data on the brokers' disks must not be removed.
    for name, node in zip(names, read_nodes, strict=True):
        if isinstance(node, Node):
            try:
                nodes[name] = znodes.decode_topic(name, node.data, node.version)
            except errors.MalformedNode as error:
                logger.error("ignoring topic %s: %s", name, error)
                unreadable.add(name)
    states = yield from _read_states(nodes)
    return {name: node.with_states(states[name]) for name, node in nodes.items()}


def _read_states(nodes: Mapping[str, metadata_image.TopicNode]) -> Script[dict[str, list[metadata_image.PartitionState]]]:
    states: dict[str, list[metadata_image.PartitionState]] = {name: [] for name in nodes}
    partitions = [(name, index) for name, node in nodes.items() for index in range(len(node.replicas))]
    for batch in in_batches(partitions, READS_AT_ONCE):
        state_nodes = yield from read_all([znodes.state_path(name, index) for name, index in batch])
        for (name, index), node in zip(batch, state_nodes, strict=True):
            states[name].append(_state_of(name, index, node))
    return states


def _state_of(name: str, index: int, node: Node | NoNode) -> metadata_image.PartitionState:
    if isinstance(node, NoNode):
        return metadata_image.NO_STATE
    try:
        return znodes.decode_state(node.data, node.version)
    except errors.MalformedNode as error:
        logger.error("treating partition %s-%d as leaderless: %s", name, index, error)
        return metadata_image.NO_STATE


def read_controller() -> Script[metadata_image.Controller]:
    """The controller, watched. The epoch is read before and after: a controller is set in the transaction that raises it, so if
    it did not move it is that controller's. A deposed one must never be shown with its successor's epoch."""
    while True:
        before = yield from read(znodes.CONTROLLER_EPOCH)
        node = yield from read(znodes.CONTROLLER, watch=True)
        after = yield from read(znodes.CONTROLLER_EPOCH)
        if before == after:
            break
    if isinstance(after, NoNode):
        return metadata_image.Controller()
    epoch = znodes.decode_controller_epoch(after.data)
    if isinstance(node, NoNode):
        return metadata_image.Controller(epoch=epoch)
    return metadata_image.Controller(broker_id=znodes.decode_controller(node.data), epoch=epoch)
