"""All groups that this broker coordinates: found by name, created by the first join, woken at their deadlines.

Groups live in memory, and each stable generation in the log: `on_unstored` has it written, and `restore` is called for each
group that the log has when its coordinator begins, so that its members go on. A group that becomes empty is kept until the next
sweep, so that it can be described.

In a cluster, `check_mine` checks whether this broker coordinates a group, and can be sure of it. It is called for every
request, and before a group's deadlines are processed: a broker that was suspended for a while must not remove members whose
heartbeats another coordinator has received in the meantime. When a group moves, all requests that wait here are answered at
once, and the group is forgotten: the new coordinator has it from the log.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from logbus_broker import errors, logs
from logbus_broker.groups import members, rebalance
from logbus_broker.groups.group import Group

_GROUP_ID_BYTES_MAX = 249  # fits wherever a topic name fits
_DEFECTIVE_GROUP_PAUSE_SECONDS = 1.0
_DOUBTFUL_GROUP_PAUSE_SECONDS = 0.1  # before checking again whether the group is ours
_INSTANCE_ID = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def check_group_id(group_id: str | None) -> str:
    if not group_id or len(group_id.encode()) > _GROUP_ID_BYTES_MAX:
        raise errors.InvalidGroupId("a group id has 1 to 249 bytes")
    return group_id


def _validate_instance_id(instance_id: str | None) -> None:
    """InvalidRequest if the id could not be sent to other members: what one version can encode, another may not. Kafka's rule is
    the one for topic names."""
    if instance_id is not None and not _INSTANCE_ID.fullmatch(instance_id):
        raise errors.InvalidRequest("a group instance id is 1 to 249 of [a-zA-Z0-9._-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorRules:
    """The configured limits for groups."""

    group: rebalance.GroupRules
    session_ms_min: int
    session_ms_max: int
    groups_max: int
    bytes_max: int


class GroupCoordinator:
    """Passes each request to its group. `now` is always the monotonic clock, in seconds."""

    def __init__(
        self, rules: CoordinatorRules, new_id: Callable[[], str], check_mine: Callable[[str], object] = lambda group_id: None
    ) -> None:
        """`check_mine` raises NotCoordinator or CoordinatorLoadInProgress if the group is not ours, or not yet."""
        self._rules = rules
        self._new_id = new_id
        self._check_mine = check_mine
        self._groups: dict[str, Group] = {}
        self._held: dict[str, int] = {}
        self.held_bytes = 0  # approximate memory used by the members of all groups
        self._timers = _Timers()
        self.due = NEVER  # when `expire` has something to do: the loop checks this in every turn
        # Called for a group of which something is to be written: takes it by `begin_store`, and passes the outcome to `stored`.
        self.on_unstored: Callable[[Group], None] = lambda group: None
        self._former_generations = 0  # of removed groups, less those that restored ones had: a counter must not decrease

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def __len__(self) -> int:
        return len(self._groups)

    def find(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    # -- requests of members -----------------------------------------------------------------------------------------------------

    def join(self, group_id: str, request: members.JoinRequest, ticket: members.Ticket, now: float) -> list[members.Answer]:
        """Group.join, in a group that is created for its first member."""
        self._check_mine(check_group_id(group_id))
        _validate_instance_id(request.name.instance_id)
        rules = self._rules
        if not rules.session_ms_min <= request.session_timeout_ms <= rules.session_ms_max:
            raise errors.InvalidSessionTimeout(
                f"{request.session_timeout_ms} ms is not between group.min.session.timeout.ms={rules.session_ms_min} "
                f"and group.max.session.timeout.ms={rules.session_ms_max}"
            )
        self._check_memory(members.size_of(request.protocols))
        group = self._groups.get(group_id) or self._new_group(group_id, request.name, now)
        try:
            return group.join(request, ticket, now)
        finally:
            self._wake(group)

    def _new_group(self, group_id: str, name: members.MemberName, now: float) -> Group:
        if name.member_id:
            raise errors.UnknownMember(f"group {group_id!r} has no members")
        if len(self._groups) >= self._rules.groups_max:
            raise errors.CoordinatorNotAvailable(f"there are {len(self._groups)} groups already: logbus.groups.max")
        group = self._groups[group_id] = Group(group_id, self._rules.group, self._new_id, now)
        return group

    def _check_memory(self, more_bytes: int) -> None:
        if self.held_bytes + more_bytes > self._rules.bytes_max:
            raise errors.CoordinatorNotAvailable(f"members hold {self.held_bytes} bytes already: logbus.groups.max.bytes")

    def sync(self, group_id: str, request: members.SyncRequest, ticket: members.Ticket, now: float) -> list[members.Answer]:
        group = self._member_group(group_id)
        self._check_memory(sum(map(len, request.assignments.values())))
        try:
            return group.sync(request, ticket, now)
        finally:
            self._wake(group)

    def heartbeat(self, group_id: str, name: members.MemberName, generation: int, now: float) -> None:
        self._member_group(group_id).heartbeat(name, generation, now)

    def leave(self, group_id: str, name: members.MemberName, now: float) -> list[members.Answer]:
        group = self._member_group(group_id)
        try:
            return group.leave(name, now)
        finally:
            self._wake(group)

    def check_commit(self, group_id: str, name: members.MemberName, generation: int, now: float) -> None:
        """Group.check_commit; a group without members accepts commits that claim no membership."""
        self._check_mine(check_group_id(group_id))
        group = self._groups.get(group_id)
        if group is not None:
            group.check_commit(name, generation, now)
        elif generation >= 0:
            raise errors.GroupIdNotFound(f"group {group_id!r} has no generation {generation}")

    def _member_group(self, group_id: str) -> Group:
        self._check_mine(check_group_id(group_id))
        group = self._groups.get(group_id)
        if group is None:
            raise errors.UnknownMember(f"group {group_id!r} has no members")
        return group

    # -- the log -----------------------------------------------------------------------------------------------------------------

    def restore(self, group_id: str, stored: members.StoredGroup, now: float) -> None:
        """The log has this group. Limits do not count: its members were admitted once."""
        group = self._groups[group_id] = Group(group_id, self._rules.group, self._new_id, now)
        group.restore(stored, now)
        self._former_generations -= group.generation
        self._wake(group)

    def stored(self, group: Group, generation: int, error: errors.RequestError | None, now: float) -> list[members.Answer]:
        """Group.stored, unless the group was removed or has moved meanwhile."""
        if self.find(group.group_id) is not group:
            return []
        try:
            return group.stored(generation, error, now)
        finally:
            self._wake(group)

    # -- time --------------------------------------------------------------------------------------------------------------------

    def _wake(self, group: Group) -> None:
        """After each change: update the group's next deadline and its memory use, and have it written."""
        held_bytes = group.members.held_bytes
        self.held_bytes += held_bytes - self._held.get(group.group_id, 0)
        self._held[group.group_id] = held_bytes
        self._timers.schedule(group.group_id, group.next_deadline())
        self.due = self._timers.next_deadline()
        if group.is_unstored:
            self.on_unstored(group)

    def expire(self, now: float, deliver: Callable[[list[members.Answer]], None]) -> None:
        """Let groups whose deadline has passed do what is due; the answers of each are delivered before the next one's turn."""
        for group_id in self._timers.due(now):
            group = self._groups.get(group_id)
            if group is not None:
                self._expire_one(group, now, deliver)
        self.due = self._timers.next_deadline()

    def _expire_one(self, group: Group, now: float, deliver: Callable[[list[members.Answer]], None]) -> None:
        """A group that fails must neither be retried in every turn nor keep the others from being processed."""
        try:
            self._check_mine(group.group_id)
        except errors.BrokerError:
            self._timers.schedule(group.group_id, now + _DOUBTFUL_GROUP_PAUSE_SECONDS)
            return
        try:
            answers = group.expire(now)
            if answers:
                deliver(answers)
            self._wake(group)
        except Exception:
            logs.log_bug("advancing group %s failed", group.group_id)
            self._timers.schedule(group.group_id, now + _DEFECTIVE_GROUP_PAUSE_SECONDS)

    # -- administration ----------------------------------------------------------------------------------------------------------

    def remove(self, group: Group) -> None:
        """Forget an empty group."""
        group.die()
        self._forget(group)

    def lose(self, is_lost: Callable[[str], bool]) -> list[members.Answer]:
        """Forget the groups for which `is_lost` holds: other brokers coordinate them now."""
        answers: list[members.Answer] = []
        for group in [group for group in self if is_lost(group.group_id)]:
            answers += group.move(errors.NotCoordinator(f"this broker coordinates group {group.group_id!r} no longer"))
            self._forget(group)
        return answers

    def _forget(self, group: Group) -> None:
        del self._groups[group.group_id]
        self.held_bytes -= self._held.pop(group.group_id, 0)
        self._former_generations += group.generation

    def is_active(self, group_id: str) -> bool:
        """Whether the group has members, or is about to."""
        group = self._groups.get(group_id)
        return group is not None and group.state is not rebalance.EMPTY

    def empty_since(self, group_id: str) -> float:
        """Since when the group is known to have no members; 0 if it is not in memory: it never had any here."""
        group = self._groups.get(group_id)
        return 0.0 if group is None else group.empty_since

    def reads(self, group_id: str, topic: str) -> bool:
        """Whether a member may be reading the topic: certain only in a consumer group whose members declare what they read."""
        group = self._groups.get(group_id)
        if group is None or not len(group.members):
            return False
        if group.protocol_type != members.CONSUMER_PROTOCOL or not group.protocol_name:
            return True
        subscriptions = [members.subscribed_topics(member.metadata(group.protocol_name)) for member in group.members]
        return any(topics is None or topic in topics for topics in subscriptions)

    # -- for metrics -------------------------------------------------------------------------------------------------------------

    @property
    def groups_by_state(self) -> Counter[str]:
        """How many groups are in each state, by Kafka's name for it."""
        return Counter(group.state.value for group in self)

    @property
    def member_count(self) -> int:
        return sum(len(group.members) for group in self)

    @property
    def rebalance_count(self) -> int:
        """How many rebalances have completed, that is, how many generations have begun."""
        return self._former_generations + sum(group.generation for group in self)


# When each group has something to do even if no request arrives.
#
# A heap with at most one live entry per group: its earliest known deadline. Deadlines that move later (every heartbeat moves one)
# cost nothing here; the entry comes up too early, and the group's deadline is checked again.

NEVER = float("inf")


class _Timers:
    """The earliest deadline of each key."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._earliest: dict[str, float] = {}

    def schedule(self, key: str, deadline: float | None) -> None:
        """Wake `key` at `deadline`, unless it is already scheduled earlier."""
        if deadline is not None and deadline < self._earliest.get(key, NEVER):
            self._earliest[key] = deadline
            heapq.heappush(self._heap, (deadline, key))

    def next_deadline(self) -> float:
        """The earliest of all; entries replaced by an earlier one count too, and cost one check."""
        return self._heap[0][0] if self._heap else NEVER

    def due(self, now: float) -> list[str]:
        """The keys whose deadline has passed; each must be scheduled again."""
        keys = []
        while self._heap and self._heap[0][0] <= now:
            deadline, key = heapq.heappop(self._heap)
            if self._earliest.get(key) == deadline:
                del self._earliest[key]
                keys.append(key)
        return keys
