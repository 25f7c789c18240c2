"""What a broker that starts has to say about the partitions of which ZooKeeper counts it among those that have everything.

A process never leads in an epoch that an earlier one led in: two records would have the same epoch and offset if something that
was written had been lost in between. And it stays in an in-sync set only if it can vouch for its log: that nothing is missing
which the earlier process had told others it had. After a kill that is certain, since the kernel still had it all; after a loss of
power only of what every acknowledgement waited for the flush of.

Who cannot vouch leaves the set while somebody else is in it. The last one stays: nobody has more than it, only perhaps it has
less than it had. Where even its log is gone, nobody may lead until an eligible one comes, or somebody decides. Pure.
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
    """The state that the partition should have before this broker is there again; with the version of the one that it has.
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
