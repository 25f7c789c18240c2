"""Eligible leaders (KIP-966's ELR): who else has all that was acknowledged or seen, once the in-sync set is too small.

Below min.insync.replicas the watermarks stand still. So whoever leaves the in-sync set in the write by which it becomes, or
stays, smaller than that has everything that was ever visible or acknowledged, and goes on having it: nothing is added to that
until the set is large enough again. It may lead if no member of the set lives; without this rule the last member's disk is
everybody's.

The leader (which shrinks the set) and the controller (which takes the dead out of it) must agree on this to the letter.
"""

from __future__ import annotations

from collections.abc import Collection

from broker.coordination.image import PartitionState


def eligible_after(state: PartitionState, isr: Collection[int], minimum: int) -> tuple[int, ...]:
    """Who is eligible once the in-sync set of `state` has become `isr`."""
    if len(isr) >= minimum:
        return ()
    return tuple(sorted({*state.eligible, *state.isr}.difference(isr)))
