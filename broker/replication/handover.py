"""A planned change of leader, carried out by the old one: nothing is lost by it, not even what was acknowledged with acks=1.

The controller writes `handover_to` into the partition's state. The leader continues until its successor keeps up, then takes no
more records but still answers fetches. As soon as the successor has everything, the leader writes it to the znode as the new
leader, with the next epoch. In Kafka the old leader is informed afterwards, and what was not fetched by then is truncated.

The successor's incarnation is checked in the same transaction: another process of it may have lost what this one had. A request
that leads to nothing is withdrawn by the controller after five seconds. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from broker.replication.isr import Proposal
from broker.replication.progress import FollowerProgress, PartitionProgress

KEEPS_UP_SECONDS = 1.0  # a replica caught up this recently needs one round trip once writes stop


def takes_records(progress: PartitionProgress, now: float) -> bool:
    """Whether producers are still served."""
    heir = _heir(progress)
    if heir is None:
        return True
    return heir.written < progress.end_offset and now - heir.caught_up_at > KEEPS_UP_SECONDS


def propose_handover(progress: PartitionProgress) -> Proposal | None:
    """The state in which the successor leads, once it has everything."""
    state, heir = progress.state, _heir(progress)
    if heir is None or heir.written < progress.end_offset:
        return None
    assert state.handover_to is not None, "there is an heir"
    new = replace(
        state,
        leader=state.handover_to,
        leader_epoch=state.leader_epoch + 1,
        handover_to=None,
        version=state.version + 1,
    )
    return Proposal(state=new, incarnations={state.handover_to: heir.replica_epoch})


def _heir(progress: PartitionProgress) -> FollowerProgress | None:
    """The replica that is to lead; it must be in sync."""
    state = progress.state
    if state.handover_to is None or state.handover_to not in state.isr:
        return None
    return progress.followers.get(state.handover_to)
