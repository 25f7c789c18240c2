"""The five states of a group and the transitions between them.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable
      ^            |    ^                  |                |
      +------------+    +------------------+----------------+

A group is Empty without members, PreparingRebalance while they join, CompletingRebalance while its leader computes the
assignments, and Stable once the members can get them. Dead is a group that was removed, or that another broker coordinates now:
it is no longer visible here, and its name can be used again.
"""

from __future__ import annotations

from enum import Enum


class GroupState(Enum):
    """Kafka's names, as returned by DescribeGroups and ListGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


REACHED_FROM: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(
        {GroupState.EMPTY, GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE, GroupState.STABLE}
    ),
}
