"""Eligible leaders (KIP-966's ELR): which other replicas have everything acknowledged or visible.

Below min.insync.replicas the watermarks do not move. So a replica that leaves the in-sync set in the write by which the set gets,
or stays, smaller than that has everything that was ever visible or acknowledged, and keeps having it: nothing is added to that
until the set is large enough again. It may lead if no member of the set is live; without this rule all data would depend on the
last member's disk.

The leader (which shrinks the set) and the controller (which removes dead members) must apply exactly the same rule.
"""

from __future__ import annotations

from collections.abc import Collection

from broker.coordination.image import PartitionState


def eligible_after(state: PartitionState, isr: Collection[int], minimum: int) -> tuple[int, ...]:
    """Which brokers are eligible once the in-sync set of `state` has become `isr`."""
    if len(isr) >= minimum:
        return ()
    return tuple(sorted({*state.eligible, *state.isr}.difference(isr)))
