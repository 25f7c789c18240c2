"""The five states of a group and the way between them.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable
      ^            |    ^                  |                |
      +------------+    +------------------+----------------+

A group is Empty without members, prepares while they join, completes while its leader works out who reads what, and is Stable
once everybody may know. Dead is a group that was removed, or that another broker coordinates now: nobody sees one here, its name
can be taken again.
"""

from __future__ import annotations

from enum import Enum


class GroupState(Enum):
    """Kafka's names, as DescribeGroups and ListGroups give them."""

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
