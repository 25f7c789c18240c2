"""What a starting broker must change in the state of partitions for which ZooKeeper lists it as in sync or eligible.

A process never leads in an epoch that an earlier one led in: two records could have the same epoch and offset if something
written had been lost in between. And it stays in sync only if it can vouch for its log: that nothing is missing which the earlier
process had reported to other brokers. After a kill that is certain, since the kernel still had it all; after a power failure only
for partitions where every acknowledgement waited for the flush.

A broker that cannot vouch leaves the set if another is in it. The last one stays: no broker has more than it has, though it may
have less than before. If even its log is gone, no broker may lead until an eligible one returns, or an operator decides. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from broker.coordination.eligible import eligible_after
from broker.coordination.image import NO_LEADER, PartitionState


class Kept(Enum):
    """What is left of a log."""

    WHOLE = "nothing is missing"
    PERHAPS_LESS = "its end may be missing"
    GONE = "there is none"


def state_at_start(me: int, state: PartitionState, kept: Kept, minimum: int) -> PartitionState:
    """The state that the partition should have before this broker registers again; with the version of its current state.
    `minimum` is its min.insync.replicas."""
    if me not in state.isr:
        eligible = state.eligible if kept is Kept.WHOLE else tuple(broker for broker in state.eligible if broker != me)
        return replace(state, eligible=eligible)
    others = tuple(broker for broker in state.isr if broker != me)
    is_leader = state.leader == me
    if kept is not Kept.WHOLE and others:
        eligible = tuple(broker for broker in eligible_after(state, others, minimum) if broker != me)
        heir = None if is_leader or state.handover_to == me else state.handover_to
        left = replace(state, isr=others, eligible=eligible, handover_to=heir)
        return replace(left, leader=NO_LEADER, leader_epoch=state.leader_epoch + 1) if is_leader else left
    if kept is Kept.GONE:
        if state.leader == NO_LEADER:
            return replace(state, is_lost=True)
        return replace(state, leader=NO_LEADER, leader_epoch=state.leader_epoch + 1, is_lost=True, handover_to=None)
    back = replace(state, is_lost=False)
    return replace(back, leader_epoch=state.leader_epoch + 1, handover_to=None) if is_leader else back
