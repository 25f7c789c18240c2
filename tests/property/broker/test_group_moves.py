"""A group whose coordinator moves, at any step and with any part of what it has written: hypothesis plays members, outsiders,
replicas and time.

Whatever was acknowledged is present at the new coordinator: offsets, and generations that members were told to go on with.
Committed offsets reported to clients never go back; who is no member of the present generation commits nothing; every waiting
request is answered; and a coordinator that does not know it has been replaced promises nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from logbus_broker.api.handler import Pending
from logbus_broker.protocol.api import ErrorCode

from tests.support.coordinators import Coordinator, Coordinators, code_of
from tests.support.examples import examples

LOADING, NOT_MINE = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR
FENCED = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.GROUP_ID_NOT_FOUND, LOADING, NOT_MINE)


class GroupMoves(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.both = Coordinators(Path(self.directory.name))
        self.both.begin()
        self.attempts = 0  # each commit uses its number as the offset
        self.waiting: dict[int, tuple[Coordinator, Pending]] = {}
        self.acknowledged = 0
        self.seen = 0
        self.end_when_won = 0
        self.members: list[Any] = []  # the answers to their joins
        self.entering: list[tuple[Coordinator, Pending]] = []  # joins, and requests for an assignment

    @property
    def leader(self) -> Coordinator:
        return self.both.leader

    # -- what clients do -----------------------------------------------------------------------------------------------------------

    @rule()
    def a_stranger_commits(self) -> None:
        if not self._has_members():
            self._commit(self.leader)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def a_member_commits(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.members))
        is_member = self._is_member(member)
        self.attempts += 1
        pending = self.leader.begin_commit(self.attempts, member=member)
        if is_member:
            self.waiting[self.attempts] = self.leader, pending
        else:
            assert code_of(pending) in (*FENCED, ErrorCode.REBALANCE_IN_PROGRESS), "a former member commits nothing"

    @rule()
    def somebody_joins(self) -> None:
        client = self.leader.client
        joined = client.enter()
        if isinstance(joined, Pending):
            self.entering.append((self.leader, joined))
        elif joined.error_code == 0:
            self.members.append(joined)
            answer = client.sync(joined)
            if isinstance(answer, Pending):
                self.entering.append((self.leader, answer))
            else:
                assert answer.error_code == 0
        else:
            assert joined.error_code == LOADING

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def a_member_gives_a_sign_of_life(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.members))
        is_member = self._is_member(member)
        code = self.leader.client.heartbeat(member)
        assert is_member or code in FENCED, "it has to join again"

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def a_member_leaves(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.members))
        self.leader.client.leave((member.member_id, None))

    @rule()
    def somebody_asks(self) -> None:
        code, offset = self.leader.fetch()
        if code == LOADING:
            return
        assert code == 0
        told = max(offset, 0)
        assert self.acknowledged <= told <= self.attempts, "what was acknowledged is there"
        partition = self.leader.partition()
        if partition.replicated_offset >= self.end_when_won:  # otherwise it has served what it read although a replica is missing
            assert told >= self.seen, "what is told does not go back"
            self.seen = told

    # -- what happens to brokers ---------------------------------------------------------------------------------------------------

    @rule()
    def replicas_catch_up(self) -> None:
        self.both.replicate()
        self._look()

    @rule(told=st.booleans())
    def the_lead_moves(self, told: bool) -> None:
        if self.both.is_split:
            self.who_led_is_told()
        former = self.leader
        self.both.move(old_is_told=told)
        self.end_when_won = self.leader.partition().end_offset
        if told:
            self._all_are_told(former)

    @precondition(lambda self: self.both.is_split)
    @rule()
    def who_led_goes_on_without_knowing(self) -> None:
        self._commit(self.both.other)

    @precondition(lambda self: self.both.is_split)
    @rule()
    def who_led_is_told(self) -> None:
        former = self.both.other
        self.both.tell_old()
        self._all_are_told(former)

    @rule(milliseconds=st.sampled_from([100, 5_000, 11_000]))
    def time_passes(self, milliseconds: int) -> None:
        for one in self.both.members:
            one.broker.settle(after_ms=milliseconds)
        self._look()

    # -- what must hold ------------------------------------------------------------------------------------------------------------

    @invariant()
    def nothing_has_failed(self) -> None:
        if hasattr(self, "both"):
            for one in self.both.members:
                assert one.broker.engine.health.defects == 0
            self._look()

    def _commit(self, at: Coordinator) -> None:
        self.attempts += 1
        self.waiting[self.attempts] = at, at.begin_commit(self.attempts)

    def _look(self) -> None:
        for offset, (_, pending) in list(self.waiting.items()):
            code = code_of(pending)
            if code is None:
                continue
            del self.waiting[offset]
            if code == 0:
                self.acknowledged = max(self.acknowledged, offset)

    def _all_are_told(self, former: Coordinator) -> None:
        groups = former.broker.engine.context.groups
        assert (len(groups), groups.held_bytes) == (0, 0)
        self._look()
        assert former not in [at for at, _ in self.waiting.values()], "a commit waits for a lead that is over"
        for at, pending in self.entering:
            assert at is not former or pending.done, "a member waits for a coordinator that is none any more"
        self.entering = [(at, pending) for at, pending in self.entering if not pending.done]

    def _has_members(self) -> bool:
        group = self.leader.broker.engine.context.groups.find("g")
        return group is not None and len(group.members) > 0

    def _is_member(self, joined: Any) -> bool:
        """Whether the leader has it, in its present generation."""
        group = self.leader.broker.engine.context.groups.find("g")
        return group is not None and joined.member_id in group.members and group.generation == joined.generation_id

    def teardown(self) -> None:
        if hasattr(self, "both"):
            self.both.replicate()
            self.both.replicate()
            self._look()
            code, offset = self.leader.fetch()
            assert code == 0
            assert max(offset, 0) >= self.acknowledged
            self.both.move()
            self.both.replicate()
            assert self.leader.fetch() == (0, offset), "both logs say the same"
            self.both.close()
            self.directory.cleanup()


GroupMoves.TestCase.settings = settings(max_examples=examples(25, at_least=25), stateful_step_count=30, deadline=None)
TestGroupMoves = GroupMoves.TestCase
