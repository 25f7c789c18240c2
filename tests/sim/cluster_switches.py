"""The rules of replication, one by one, and how to switch each off in the real broker: the simulation must notice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from broker.coordination.image import PartitionState
from broker.coordination.store import Outcome, Unknown
from broker.partitions.partition import Partition
from broker.replication import isr, vouching
from broker.replication.isr import Proposals
from broker.replication.progress import PartitionProgress
from broker.replication.serve import ReplicaServer
from broker.replication.vouching import Kept
from tests.sim.switches import yes

POWER = (
    "power cut",
    "power cut within",
    "power cut all",
    "kill",
    "kill at join",
    "kill at election",
    "kill at answer",
    "slow disk",
)
KILLS = ("kill", "kill within", "kill at join", "kill at election", "kill at answer", "pause", "isolate", "expire session")


def epoch_is_kept(
    me: int,
    state: PartitionState,
    kept: Kept,
    minimum: int,
    at_start: Callable[..., PartitionState] = vouching.state_at_start,
) -> PartitionState:
    """A leader that comes back leads on in its epoch."""
    after = at_start(me, state, kept, minimum)
    return replace(after, leader_epoch=state.leader_epoch) if after.leader == me else after


def all_is_whole(*arguments: Any, **named: Any) -> Kept:
    """A start vouches for whatever it finds."""
    return Kept.WHOLE


def diverging_counts(
    server: ReplicaServer, session: Any, part: Any, now: float, take: Callable[..., Any] = ReplicaServer._take
) -> Any:
    """What a follower says that it has is counted before its log is compared with ours."""
    led = server.led.get((part.topic_id, part.partition_index))
    if led is not None and part.leader_epoch == led.progress.epoch:
        led.progress.fetched(session.replica_id, session.replica_epoch, part.fetch_offset, part.flushed_offset, now)
        server.on_moved(led)
    return take(server, session, part, now)


def moves_below_the_minimum(progress: PartitionProgress, count: Callable[..., None] = PartitionProgress._count) -> None:
    """R and V move with however few members."""
    count(progress)
    progress._may_move = True
    progress._advance()


def unknown_is_refused(
    proposals: Proposals,
    batch: Any,
    checked: Any,
    sent_at: float,
    outcome: Outcome,
    answered: Callable[..., None] = Proposals._answered,
) -> None:
    """A proposal of which nothing is known is taken for one that did not happen."""
    if isinstance(outcome, Unknown):
        for pending in batch:
            if proposals._pending.get(pending.led.key) is pending:
                proposals._withdraw(pending.led)
    else:
        answered(proposals, batch, checked, sent_at, outcome)


def whoever_it_is_now(*arguments: Any, propose: Callable[..., Any] = isr.propose_isr) -> Any:
    """A member is added without looking at which of its processes has fetched."""
    proposal = propose(*arguments)
    return None if proposal is None else replace(proposal, incarnations={})


def written_counts_as_flushed(
    progress: PartitionProgress,
    broker: int,
    replica_epoch: int,
    written: int,
    flushed: int,
    now: float,
    fetched: Callable[..., bool] = PartitionProgress.fetched,
) -> bool:
    """V counts what followers have written."""
    return fetched(progress, broker, replica_epoch, written, written, now)


def joins_with_what_was_learnt(
    progress: PartitionProgress, broker: int, may_join: Callable[..., bool] = PartitionProgress.may_join
) -> bool:
    """Who joins needs only what this leader knows to be visible."""
    progress.flushed_at_start = 0
    return may_join(progress, broker)


def joins_below_the_start(progress: PartitionProgress, broker: int) -> bool:
    """Who joins needs not have followed into this epoch."""
    follower = progress.followers.get(broker)
    return follower is not None and broker not in progress.state.isr and follower.written >= progress.replicated_offset


def shown_as_told(partition: Partition, offset: int) -> None:
    """A follower believes its leader, whatever is on its own disk."""
    partition.visible_offset = max(partition.visible_offset, min(offset, partition.log.end_offset))


@dataclass(frozen=True)
class ClusterSwitch:
    """`by` stands in the place of `name`. `kinds`: faults that need the rule; empty: all of them. It is noticed within so many
    histories from the seed `first` on, one in which it was when this was written; None: it takes more histories than a test has
    time for, and the model (model.py) shows what it is for."""

    name: str
    by: Any
    kinds: tuple[str, ...] = ()
    first: int | None = None
    within: int = 10

    def off(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(self.name, self.by)


PROGRESS = "broker.replication.progress.PartitionProgress"
CLUSTER_SWITCHES: Mapping[str, ClusterSwitch] = {
    "a new process leads in a new epoch": ClusterSwitch("broker.replication.start.state_at_start", epoch_is_kept, KILLS, first=0),
    "who cannot vouch leaves": ClusterSwitch("broker.replication.start.Start._kept", all_is_whole, POWER, first=5),
    "a fetch that diverges is no progress": ClusterSwitch(
        "broker.replication.serve.ReplicaServer._take", diverging_counts, (*KILLS, *POWER)
    ),
    "nothing moves below the minimum": ClusterSwitch(f"{PROGRESS}._count", moves_below_the_minimum, (*KILLS, *POWER), first=16),
    "what is pending counts": ClusterSwitch(
        "broker.replication.isr.Proposals._answered", unknown_is_refused, (*KILLS, "lose answers", "lose one answer")
    ),
    "who joins is who has fetched": ClusterSwitch(
        "broker.replication.isr.propose_isr", whoever_it_is_now, (*POWER, "restart storm", "replace disk")
    ),
    "visible is flushed by all": ClusterSwitch(f"{PROGRESS}.fetched", written_counts_as_flushed, POWER, first=0),
    "who joins has flushed what the leader had": ClusterSwitch(f"{PROGRESS}.may_join", joins_with_what_was_learnt, KILLS),
    "who joins has followed into the epoch": ClusterSwitch(f"{PROGRESS}.may_join", joins_below_the_start, (*KILLS, *POWER)),
    "a leader is confirmed": ClusterSwitch(
        "broker.replication.leader.Leader.takes_records", yes, ("isolate", "pause", "expire session", "drop session's connection")
    ),
    "a follower shows what it has flushed": ClusterSwitch(
        "broker.partitions.partition.Partition.learn_visible", shown_as_told, (*KILLS, "slow disk"), first=4
    ),
}
