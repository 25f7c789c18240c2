"""Reads the whole image from its znodes: at the start, in a new session, and when the journal has a gap.

The journal's newest position is read first, the image second. Meanwhile other brokers write; the journal's entries after that
position are applied afterwards, and only then does the image match a state that existed. For that to work, the node of a topic is
read before everything else that belongs to the topic: what is found then belongs to the same topic, or to a later one whose
creation is still to come from the journal.

A topic or state that cannot be read is logged and left out: it must not keep the other topics from being served. So is a topic
whose settings cannot be read. Such a topic still exists, so its name is kept (`Image.unreadable`): its data on the brokers' disks
must not be removed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from broker.coordination import znodes
from broker.coordination.asking import READS_AT_ONCE, AnswerLost, Script, children, read, read_all
from broker.coordination.image import ClusterTopic, Controller, Image, PartitionState, Settings
from broker.coordination.store import Node, NoNode
from broker.coordination.znodes import NO_STATE, TopicNode
from broker.errors import MalformedNode

logger = logging.getLogger("broker.coordination")


def read_image(position: int) -> Script[Image]:
    """All persistent state, read after the journal's newest entry was found to be `position`."""
    cluster_id = yield from read(znodes.CLUSTER_ID)
    if isinstance(cluster_id, NoNode):
        raise AnswerLost("the cluster has no id yet")
    incarnations = yield from _read_incarnations()
    broker_settings = yield from _read_broker_settings()
    topics: dict[str, ClusterTopic] = {}
    topic_settings: dict[str, Settings] = {}
    unreadable: set[str] = set()
    names = yield from children(znodes.TOPICS)
    for begin in range(0, len(names), READS_AT_ONCE):
        found = yield from _read_topics(names[begin : begin + READS_AT_ONCE], unreadable)
        topic_settings |= yield from _read_settings(znodes.TOPIC_SETTINGS, tuple(found), unreadable)
        topics |= {name: topic for name, topic in found.items() if name not in unreadable}
    deleting = yield from children(znodes.DELETIONS)
    return Image(
        cluster_id=znodes.decode_cluster_id(cluster_id.data),
        incarnations=incarnations,
        topics=topics,
        topic_settings=topic_settings,
        broker_settings=broker_settings,
        deleting=frozenset(name for name in deleting if name in topics),
        unreadable=frozenset(unreadable),
        position=position,
    )


def _read_incarnations() -> Script[dict[int, int]]:
    ids = [int(name) for name in (yield from children(znodes.INCARNATIONS)) if name.isdecimal()]
    found = yield from read_all([znodes.incarnation_path(broker_id) for broker_id in ids])
    return {broker_id: node.version for broker_id, node in zip(ids, found, strict=True) if isinstance(node, Node)}


def _read_broker_settings() -> Script[dict[str, Settings]]:
    """These apply to every part of the cluster: if they cannot be read, no new image is accepted."""
    unreadable: set[str] = set()
    settings = yield from _read_settings(znodes.BROKER_SETTINGS, (yield from children(znodes.BROKER_SETTINGS)), unreadable)
    if unreadable:
        raise AnswerLost(f"settings of brokers cannot be read: {', '.join(sorted(unreadable))}")
    return settings


def _read_settings(parent: str, names: tuple[str, ...], unreadable: set[str]) -> Script[dict[str, Settings]]:
    """Unreadable ones are left out and reported, not replaced by defaults: default retention might delete what they protect."""
    settings = {}
    found = yield from read_all([f"{parent}/{name}" for name in names])
    for name, node in zip(names, found, strict=True):
        if isinstance(node, Node):
            try:
                settings[name] = znodes.decode_settings(node.data, node.version)
            except MalformedNode as error:
                logger.error("%s/%s cannot be read, restore it: %s", parent, name, error)
                unreadable.add(name)
    return settings


def _read_topics(names: tuple[str, ...], unreadable: set[str]) -> Script[dict[str, ClusterTopic]]:
    found = yield from read_all([znodes.topic_path(name) for name in names])
    nodes = {}
    for name, node in zip(names, found, strict=True):
        if isinstance(node, Node):
            try:
                nodes[name] = znodes.decode_topic(name, node.data, node.version)
            except MalformedNode as error:
                logger.error("topic %s is left out: %s", name, error)
                unreadable.add(name)
    states = yield from _read_states(nodes)
    return {name: node.with_states(states[name]) for name, node in nodes.items()}


def _read_states(nodes: Mapping[str, TopicNode]) -> Script[dict[str, list[PartitionState]]]:
    states: dict[str, list[PartitionState]] = {name: [] for name in nodes}
    places = [(name, index) for name, node in nodes.items() for index in range(len(node.replicas))]
    for begin in range(0, len(places), READS_AT_ONCE):
        some = places[begin : begin + READS_AT_ONCE]
        found = yield from read_all([znodes.state_path(name, index) for name, index in some])
        for (name, index), node in zip(some, found, strict=True):
            states[name].append(_state_of(name, index, node))
    return states


def _state_of(name: str, index: int, node: Node | NoNode) -> PartitionState:
    if isinstance(node, NoNode):
        return NO_STATE
    try:
        return znodes.decode_state(node.data, node.version)
    except MalformedNode as error:
        logger.error("partition %s-%d is taken for one without a leader: %s", name, index, error)
        return NO_STATE


def read_controller() -> Script[Controller]:
    """The controller, watched. The epoch is read before and after: a controller is set in the transaction that raises it, so if
    it did not move it is that controller's. A deposed one must never be shown with its successor's epoch."""
    while True:
        before = yield from read(znodes.CONTROLLER_EPOCH)
        node = yield from read(znodes.CONTROLLER, watch=True)
        after = yield from read(znodes.CONTROLLER_EPOCH)
        if before == after:
            break
    if isinstance(after, NoNode):
        return Controller()
    epoch = znodes.decode_controller_epoch(after.data)
    if isinstance(node, NoNode):
        return Controller(epoch=epoch)
    return Controller(broker_id=znodes.decode_controller(node.data), epoch=epoch)
