"""A group's states and generations: how a generation begins, how it ends, and what timeouts do to it. No I/O, no clock.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable
      ^            |    ^                  |                |
      +------------+    +------------------+----------------+

A group is Empty without members. In PreparingRebalance, members join; when all have (or the longest rebalance timeout is over) a
new generation begins: every member gets the chosen protocol, and the leader also gets the list of members. In
CompletingRebalance, members request their assignment and wait until the leader sends it; the group is Stable once they can get
it. Any change of membership on the way starts the first phase again. Dead is a group that was removed, or that another broker
coordinates now: it is no longer visible here, and its name can be used again.

The assignments are handed out once the log has them, and so is the new id of a static member that has returned: whoever
coordinates the group next, this broker after a restart or another one, goes on with the members that the log has. `begin_store`
returns what is to be written while `is_unstored` holds, and `stored` takes the outcome; there is one write at a time.

Invariants: the generation only increases; all members of a generation get the same protocol; every waiting request is answered,
at the latest when a deadline passes. Step by step this follows Apache Kafka's coordinator: its clients were written against that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from math import inf

from logbus_broker.errors import RebalanceInProgress, RequestError, UnknownMember
from logbus_broker.groups.members import Answer, JoinAnswer, JoinedMember, Member, Members, StoredGroup, SyncAnswer, Ticket


class GroupState(Enum):
    """Kafka's names, as returned by DescribeGroups and ListGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


EMPTY, PREPARING, COMPLETING, STABLE, DEAD = GroupState
_REACHED_FROM: dict[GroupState, frozenset[GroupState]] = {
    EMPTY: frozenset({PREPARING}),
    PREPARING: frozenset({EMPTY, COMPLETING, STABLE}),
    COMPLETING: frozenset({PREPARING}),
    STABLE: frozenset({COMPLETING}),
    DEAD: frozenset({EMPTY, PREPARING, COMPLETING, STABLE}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRules:
    """The configured rules for every group."""

    initial_delay_ms: int  # the first members of a group wait for others: one rebalance instead of many
    size_max: int


class Generations:
    """The state of a group and its transitions. `now` is always the monotonic clock, in seconds."""

    def __init__(self, rules: GroupRules, now: float) -> None:
        self.state = EMPTY
        self.generation = 0
        self.members = Members()
        self.protocol_type = ""
        self.protocol_name = ""
        self.empty_since = now
        self.is_in_log = False  # a record of the group was written, or is about to be
        self._rules = rules
        self._answers: list[Answer] = []
        self._join_deadline: float | None = None
        self._sync_deadline: float | None = None
        self._initial_ms_left: int | None = None  # not None: the first members of an empty group wait for others
        self._has_newcomer = False
        self._has_news = False  # for the log
        self._is_storing = False
        # By member id: the answers for static members that have returned to a stable group, to be stored and being stored.
        self._returned: dict[str, JoinAnswer] = {}
        self._returning: dict[str, JoinAnswer] = {}

    # -- the first phase: joining ------------------------------------------------------------------------------------------------

    def _rebalance(self, now: float) -> None:
        """The membership has changed: begin a rebalance, or check whether the current one can continue."""
        if self.state is not PREPARING:
            self._prepare(now)
        self._maybe_complete_join(now)

    def _prepare(self, now: float) -> None:
        wait_ms = self.members.rebalance_timeout_ms
        for member in self.members:
            if member.syncing is not None:
                self.members.touch(member, now)  # it could not send heartbeats while it waited
                self._answer_sync(member, RebalanceInProgress("the group rebalances again"))
        self.members.forget_syncs()
        if self.state is EMPTY:
            delay_ms = self._rules.initial_delay_ms
            self._initial_ms_left, wait_ms = max(wait_ms - delay_ms, 0), delay_ms
            self._has_newcomer = False
        self._sync_deadline = None
        self._join_deadline = now + wait_ms / 1000
        self._has_news = False  # static members that have returned get the next generation
        self._returned, self._returning = {}, {}
        self._enter(PREPARING)

    def _maybe_complete_join(self, now: float) -> None:
        if self.state is not PREPARING:
            return
        if self._initial_ms_left is None:
            if self.members.all_joined:
                self._complete_join(now)
        elif self._join_deadline is not None and self._join_deadline <= now:
            self._pass_join_deadline(now)

    def _pass_join_deadline(self, now: float) -> None:
        if self._initial_ms_left and self._has_newcomer:  # others have joined since: there may be more
            delay_ms = min(self._rules.initial_delay_ms, self._initial_ms_left)
            self._initial_ms_left -= delay_ms
            self._has_newcomer = False
            self._join_deadline = now + delay_ms / 1000
        else:
            self._complete_join(now)

    def _complete_join(self, now: float) -> None:
        """Members that have not joined in time are removed, except static ones: a new generation begins with the others."""
        for member in [member for member in self.members if member.joining is None and not member.is_static]:
            self._remove(member)
        if len(self.members) and not self.members.elect_leader():  # only absent static members: their sessions decide
            self._join_deadline = min(member.deadline for member in self.members)
            return
        self._initial_ms_left = self._join_deadline = None
        self.generation += 1
        if len(self.members):
            self._begin_generation(now)
        else:
            self.protocol_name = ""
            self.empty_since = now
            self._has_news = True
            self._enter(EMPTY)

    def _begin_generation(self, now: float) -> None:
        self.protocol_name = self.members.choose_protocol()
        self._sync_deadline = now + self.members.rebalance_timeout_ms / 1000
        self._enter(COMPLETING)
        for member in self.members:
            self.members.assign(member, b"")
            ticket = self.members.take_joining(member)
            if ticket is not None:
                self.members.touch(member, now)
                self._answer(ticket, self._join_answer(member))

    def _join_answer(self, member: Member, *, leader_id: str | None = None, skip_assignment: bool = False) -> JoinAnswer:
        leader_id = leader_id or self.members.leader_id or ""
        rows = [
            JoinedMember(member_id=other.member_id, instance_id=other.instance_id, metadata=other.metadata(self.protocol_name))
            for other in (self.members if leader_id == member.member_id else ())
        ]
        return JoinAnswer(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader_id=leader_id,
            members=tuple(rows),
            skip_assignment=skip_assignment,
        )

    # -- the second phase: assignments -------------------------------------------------------------------------------------------

    def _hand_out(self, members: Iterable[Member], now: float) -> None:
        """Send the assignments to those of `members` that wait for one."""
        for member in members:
            if member.syncing is not None:
                self.members.touch(member, now)
                self._answer_sync(
                    member,
                    SyncAnswer(protocol_type=self.protocol_type, protocol_name=self.protocol_name, assignment=member.assignment),
                )
        if self.members.all_synced:
            self._sync_deadline = None

    def _pass_sync_deadline(self, now: float) -> None:
        """Members that have not sent a SyncGroup are considered dead, including a leader that sent no assignments."""
        self._sync_deadline = None
        self._lose([member for member in self.members if not member.has_synced], now)

    # -- the log -----------------------------------------------------------------------------------------------------------------

    @property
    def is_unstored(self) -> bool:
        """Whether something is to be written now."""
        return self._has_news and not self._is_storing

    def begin_store(self) -> StoredGroup:
        """What is to be written; `stored` must be called with the outcome. Visits everybody."""
        self._has_news, self._is_storing, self.is_in_log = False, True, True
        self._returned, self._returning = {}, self._returned
        return StoredGroup(
            protocol_type=self.protocol_type,
            generation=self.generation,
            protocol_name=self.protocol_name,
            leader_id=self.members.leader_id,
            members=tuple(member.stored(self.protocol_name) for member in self.members),
        )

    def stored(self, generation: int, error: RequestError | None, now: float) -> list[Answer]:
        """What `begin_store` returned of this generation is in the log for good, or may not be: then those who wait for it get
        `error`, and join again."""
        self._is_storing = False
        returning, self._returning = self._returning, {}
        if self.state is STABLE:
            for member_id, answer in returning.items():
                member = self.members.get(member_id)
                ticket = None if member is None else self.members.take_joining(member)
                if ticket is not None:
                    self._answer(ticket, error or answer)
        elif self.state is COMPLETING and self.generation == generation and not self._has_news:
            if error is None:
                self._enter(STABLE)
                self._hand_out(self.members, now)
            else:
                for member in self.members:
                    self._answer_sync(member, error)
                self._rebalance(now)
        return self._take_answers()

    def restore(self, stored: StoredGroup, now: float) -> None:
        """Be the group that the log has; every session begins anew."""
        self.protocol_type, self.protocol_name = stored.protocol_type, stored.protocol_name
        self.generation, self.is_in_log = stored.generation, True
        for row in stored.members:
            member = Member.restored(row, stored.protocol_type, stored.protocol_name)
            member.touch(now)
            self.members.add(member)
        if stored.leader_id is not None and stored.leader_id in self.members:
            self.members.leader_id = stored.leader_id
        if stored.members:
            self.state = STABLE

    # -- time --------------------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Before then, `expire` has nothing to do if no request arrives. It may be too early, as heartbeats do not move it: then
        `expire` finds the next one."""
        deadlines = [deadline for deadline in (self._join_deadline, self._sync_deadline) if deadline is not None]
        earliest = min((self.members.deadline, *deadlines))
        return None if earliest == inf else earliest

    def expire(self, now: float) -> list[Answer]:
        """Do what is due: remove silent members, withdraw unused ids, end the phases of a rebalance."""
        members = self.members
        for member_id in [member_id for member_id, until in members.expected.items() if until <= now]:
            del members.expected[member_id]
        self._lose([member for member in members if not member.is_waiting and member.deadline <= now], now)
        self._maybe_complete_join(now)
        if self._join_deadline is not None and self._join_deadline <= now:
            self._pass_join_deadline(now)
        if self._sync_deadline is not None and self._sync_deadline <= now:
            self._pass_sync_deadline(now)
        members.find_deadline()
        return self._take_answers()

    # -- pieces ------------------------------------------------------------------------------------------------------------------

    def _lose(self, lost: list[Member], now: float) -> None:
        for member in lost:
            self._remove(member)
        if lost:
            self._rebalance(now)

    def _remove(self, member: Member) -> None:
        self._refuse(member, UnknownMember(f"member {member.member_id!r} was removed"))
        self.members.remove(member)

    def _refuse(self, member: Member, error: RequestError) -> None:
        """Answer whatever the member waits for with this error."""
        ticket = self.members.take_joining(member)
        if ticket is not None:
            self._answer(ticket, error)
        self._answer_sync(member, error)

    def _answer_sync(self, member: Member, outcome: SyncAnswer | RequestError) -> None:
        ticket = self.members.take_syncing(member)
        if ticket is not None:
            self._answer(ticket, outcome)

    def _answer(self, ticket: Ticket, outcome: JoinAnswer | SyncAnswer | RequestError) -> None:
        self._answers.append(Answer(ticket, outcome))

    def _take_answers(self) -> list[Answer]:
        answers, self._answers = self._answers, []
        return answers

    def _enter(self, state: GroupState) -> None:
        assert self.state in _REACHED_FROM[state], f"{self.state} -> {state}"
        self.state = state
