"""What the paper's registries show of the groups that this broker coordinates (`coordination/consumer_registry.py`).

A group is shown once its members have their assignments, again with each new generation or member id, and no longer when it is
empty or moves. Only consumer groups can be shown: the bytes that other kinds of members exchange are opaque.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from broker.coordination.consumer_registry import ConsumerRegistry, Shown
from broker.coordination.local import check_topic_name
from broker.errors import InvalidTopic
from broker.groups.committed_offsets import Change
from broker.groups.group import Group
from broker.groups.states import GroupState
from broker.groups.subscription import CONSUMER_PROTOCOL, assigned_partitions, subscribed_topics

_OWNERS_MAX = 1_000  # per group: at 200 writes a second, more would never be up to date

_Seen = tuple[int, int]  # a generation, and which revision of its members


class ConsumerMirror:
    """Notified of each change of a group or of its offsets; writes nothing itself."""

    def __init__(self, registry: ConsumerRegistry) -> None:
        self._registry = registry
        self._shown: dict[str, _Seen] = {}

    def changed(self, group: Group) -> None:
        if group.state is GroupState.EMPTY:
            self.hide(group.group_id)
        elif group.state is GroupState.STABLE and group.protocol_type == CONSUMER_PROTOCOL:
            seen = group.generation, group.members.revision
            if self._shown.get(group.group_id) != seen:
                self._shown[group.group_id] = seen
                self._registry.show(group.group_id, _shown(group))

    def hide(self, group_id: str) -> None:
        if self._shown.pop(group_id, None) is not None:
            self._registry.hide(group_id)

    def committed(self, changes: Iterable[Change]) -> None:
        """Forgotten offsets stay in the registry, as consumers of the paper's time left them there."""
        for key, value in changes:
            if value is not None:
                self._registry.committed(key.group, key.topic, key.partition, value.offset)


def _shown(group: Group) -> Shown:
    name = group.protocol_name
    owners = ((place, one.member_id) for one in group.members for place in assigned_partitions(one.assignment))
    return Shown(
        subscriptions={one.member_id: sorted(subscribed_topics(one.metadata(name)) or ()) for one in group.members},
        owners=dict(islice((owner for owner in owners if _is_name(owner[0][0])), _OWNERS_MAX)),
    )


def _is_name(topic: str) -> bool:
    """Clients may write anything as a topic; a znode needs a valid name."""
    try:
        check_topic_name(topic)
    except InvalidTopic:
        return False
    return True
