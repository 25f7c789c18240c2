"""Any history of one led partition: whatever its leader calls safe is on every electable member."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from logbus_broker.cluster.metadata_image import PartitionState
from logbus_broker.replication.led_partition import PartitionProgress

from tests.support.examples import examples

ME, FOLLOWERS = 0, (1, 2)
FOLLOWER = st.sampled_from(FOLLOWERS)


class LedPartition(RuleBasedStateMachine):
    """The znode, the followers' true logs, and the leader's view of them; messages may be old and answers late."""

    @initialize(insync_min=st.integers(1, 3))
    def begin(self, insync_min: int) -> None:
        self.now = 0.0
        self.insync_min = insync_min
        self.znode = PartitionState(leader=ME, leader_epoch=1, isr=(0, 1, 2), version=0)
        self.progress = PartitionProgress(
            ME, self.znode, (0, 1, 2), insync_min=insync_min, end_offset=0, flushed_offset=0, visible_offset=0, now=0.0
        )
        self.written = dict.fromkeys(FOLLOWERS, 0)
        self.flushed = dict.fromkeys(FOLLOWERS, 0)
        self.incarnation = dict.fromkeys(FOLLOWERS, 1)
        self.messages: list[tuple[int, int, int, int]] = []
        self.proposal: PartitionState | None = None
        self.seen = (0, 0)

    @rule(records=st.integers(1, 5))
    def append(self, records: int) -> None:
        self.now += 1
        self.progress.written(self.progress.end_offset + records, self.now)

    @rule()
    def flush(self) -> None:
        self.progress.flushed(self.progress.end_offset)

    @rule(follower=FOLLOWER, flushes=st.booleans())
    def catch_up(self, follower: int, flushes: bool) -> None:
        """A round: what the last answer held is written, and the next fetch reports it."""
        self.written[follower] = self.progress.end_offset
        if flushes:
            self.flushed[follower] = self.written[follower]
        self.now += 1
        self.progress.fetched(follower, self.incarnation[follower], self.written[follower], self.flushed[follower], self.now)

    @rule(follower=FOLLOWER)
    def send(self, follower: int) -> None:
        self.messages.append((follower, self.incarnation[follower], self.written[follower], self.flushed[follower]))

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.messages) - 1))
        self.now += 1
        self.progress.fetched(*self.messages.pop(index), self.now)

    @rule(follower=FOLLOWER)
    def restart_clean(self, follower: int) -> None:
        """It vouches for its log: nothing is lost."""
        self.incarnation[follower] += 1

    @precondition(lambda self: self.proposal is None)
    @rule(follower=FOLLOWER)
    def propose(self, follower: int) -> None:
        state = self.progress.state
        if follower in state.isr:
            self.proposal = replace(state, isr=tuple(x for x in state.isr if x != follower), version=state.version + 1)
        elif self.progress.may_join(follower):
            self.proposal = replace(state, isr=tuple(sorted((*state.isr, follower))), version=state.version + 1)
            self.progress.propose({follower: self.progress.followers[follower].replica_epoch})
            incarnation = self.progress.followers[follower].replica_epoch
            if incarnation != self.incarnation[follower]:  # the transaction's version check will always fail
                self.proposal = None
                self.progress.withdraw_additions()

    @precondition(lambda self: self.proposal is not None)
    @rule(outcome=st.sampled_from(["stored", "refused"]))
    def commit(self, outcome: str) -> None:
        assert self.proposal is not None
        if outcome == "stored" and self.znode.version == self.proposal.version - 1:
            self.znode = self.proposal

    @rule(follower=FOLLOWER)
    def join_and_answer_late(self, follower: int) -> None:
        """Removed from the set and back in, stored before the leader learns of it."""
        self.controller_removes(follower)
        self.learn()
        self.catch_up(follower, True)
        if self.proposal is None:
            self.propose(follower)
            if self.proposal is not None:
                self.commit("stored")

    @rule(follower=FOLLOWER)
    def controller_removes(self, follower: int) -> None:
        if follower in self.znode.isr:
            isr = tuple(x for x in self.znode.isr if x != follower)
            self.znode = replace(self.znode, isr=isr, version=self.znode.version + 1)

    @rule()
    def learn(self) -> None:
        self.progress.learn(self.znode, (0, 1, 2), self.insync_min, self.now)
        if self.proposal is not None and self.znode.version >= self.proposal.version:
            self.proposal = None

    @invariant()
    def offsets_are_in_order_and_never_fall(self) -> None:
        progress = self.progress
        assert progress.visible_offset <= progress.replicated_offset <= progress.end_offset
        assert progress.visible_offset <= progress.flushed_offset
        assert (progress.replicated_offset, progress.visible_offset) >= self.seen
        assert progress.visible_offset >= self.seen[1]
        self.seen = progress.replicated_offset, progress.visible_offset
        for follower in progress.followers.values():
            assert follower.flushed <= follower.written

    @invariant()
    def what_is_safe_is_on_every_member_of_the_stored_set(self) -> None:
        for member in self.znode.isr:
            if member != ME:
                assert self.written[member] >= self.progress.replicated_offset
                assert self.flushed[member] >= self.progress.visible_offset


TestLedPartition = LedPartition.TestCase
TestLedPartition.settings = settings(max_examples=examples(200), deadline=None)
