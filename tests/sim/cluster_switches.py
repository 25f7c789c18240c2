"""The replication rules, one by one, and how to switch each off in the real broker: the simulation must notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from logbus_broker.cluster.metadata_image import LogEnd, PartitionState
from logbus_broker.cluster.metadata_log import MetadataHistory
from logbus_broker.cluster.store import Outcome, Unknown
from logbus_broker.log.partition import Partition
from logbus_broker.replication import isr, replicas
from logbus_broker.replication.isr import Proposals
from logbus_broker.replication.led_partition import Departures, PartitionProgress
from logbus_broker.replication.replica_server import ReplicaServer
from logbus_broker.replication.replicas import LogIntegrity

from tests.sim.cluster import draw_story
from tests.sim.directed import STORIES
from tests.sim.stage import Story
from tests.sim.switches import Switch, nothing, yes

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
    kept: LogIntegrity,
    minimum: int,
    end: LogEnd | None = None,
    at_start: Callable[..., PartitionState] = replicas.state_at_start,
) -> PartitionState:
    """A returning leader continues to lead in its old epoch."""
    after = at_start(me, state, kept, minimum, end)
    return replace(after, leader_epoch=state.leader_epoch) if after.leader == me else after


def any_history_is_ours(history: MetadataHistory) -> Iterator[Any]:
    """Whatever ZooKeeper holds is obeyed."""
    yield from ()
    history.is_trusted = True
    return ""


def all_is_whole(*arguments: Any, **named: Any) -> LogIntegrity:
    """A start vouches for whatever it finds."""
    return LogIntegrity.WHOLE


def diverging_counts(
    server: ReplicaServer, session: Any, part: Any, now: float, take: Callable[..., Any] = ReplicaServer._take
) -> Any:
    """What a follower claims to have is counted before its log is compared with the leader's."""
    led = server.led.get((part.topic_id, part.partition_index))
    if led is not None and part.leader_epoch == led.progress.epoch and session.replica_id in led.progress.followers:
        server._note_progress(session, part, led, now)
    return take(server, session, part, now)


def moves_below_the_minimum(progress: PartitionProgress, count: Callable[..., None] = PartitionProgress._count) -> None:
    """R and V move however few members there are."""
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
    """A proposal of unknown outcome is treated as one that failed."""
    if isinstance(outcome, Unknown):
        for pending in batch:
            if proposals._pending.get(pending.led.key) is pending:
                proposals._withdraw(pending.led)
    else:
        answered(proposals, batch, checked, sent_at, outcome)


def whoever_it_is_now(*arguments: Any, propose: Callable[..., Any] = isr.propose_isr) -> Any:
    """A member is added without checking which of its processes has fetched."""
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
    **named: Any,
) -> bool:
    """V counts what followers have written."""
    return fetched(progress, broker, replica_epoch, written, written, now, **named)


def joins_without(offset: str) -> Callable[[PartitionProgress, int], bool]:
    """A joining replica need not have what the leader had at `offset`, one of its attributes."""
    may_join = PartitionProgress.may_join

    def joins(progress: PartitionProgress, broker: int) -> bool:
        setattr(progress, offset, 0)
        return may_join(progress, broker)

    return joins


def nobody_is_late(
    *arguments: Any, departures: Callable[..., Departures] = PartitionProgress.departures, **named: Any
) -> Departures:
    """A joining replica need not keep up with the leader either: one that does is past the start of its epoch."""
    return replace(departures(*arguments, **named), late=())


def shown_as_told(partition: Partition, offset: int) -> None:
    """A follower believes its leader, whatever is on its own disk."""
    partition.visible_offset = max(partition.visible_offset, min(offset, partition.log.end_offset))


def nobody(*arguments: Any) -> tuple[Partition, ...]:
    return ()


def impairment_is_not_told(
    progress: PartitionProgress,
    *arguments: Any,
    fetched: Callable[..., bool] = PartitionProgress.fetched,
    **named: Any,
) -> bool:
    """A leader does not listen to a follower that says that it can store nothing."""
    return fetched(progress, *arguments, **{**named, "is_impaired": False})


def ran_last(*arguments: Any, **named: Any) -> tuple[int, bool]:
    """Every data directory is taken for the one that ran last."""
    return 1 << 62, True


def any_of(kinds: tuple[str, ...]) -> Callable[[int], Story]:
    """Histories of faults of these kinds, at any time."""
    return lambda seed: draw_story(seed, kinds)


_rule = partial(Switch, within=10)
PROGRESS = "logbus_broker.replication.led_partition.PartitionProgress"
CLUSTER_SWITCHES: Mapping[str, Switch] = {
    "a new process leads in a new epoch": _rule(
        "logbus_broker.replication.lifecycle.state_at_start", epoch_is_kept, any_of(KILLS)
    ),
    "an older ZooKeeper is not obeyed": _rule(
        "logbus_broker.cluster.metadata_log.MetadataHistory._compare", any_history_is_ours, STORIES["restored"]
    ),
    "a directory from a copy is not vouched for": _rule(
        "logbus_broker.log.log_directory._take_start", ran_last, STORIES["older copies"]
    ),
    "a leader looks for the damage that a follower has met": _rule(
        "logbus_broker.log.storage_watch.StorageWatch.suspect", nothing, STORIES["damaged leaders"]
    ),
    "who cannot vouch leaves": _rule(
        "logbus_broker.replication.lifecycle.ClusterStartup._kept", all_is_whole, STORIES["powerless"]
    ),
    "a fetch that diverges is no progress": _rule(
        "logbus_broker.replication.replica_server.ReplicaServer._take", diverging_counts, STORIES["parted"]
    ),
    "nothing moves below the minimum": _rule(f"{PROGRESS}._count", moves_below_the_minimum, STORIES["alone"]),
    "what is pending counts": _rule(
        "logbus_broker.replication.isr.Proposals._answered", unknown_is_refused, STORIES["unanswered"]
    ),
    "who joins is who has fetched": _rule("logbus_broker.replication.leader.propose_isr", whoever_it_is_now, STORIES["replaced"]),
    "visible is flushed by all": _rule(f"{PROGRESS}.fetched", written_counts_as_flushed, any_of(POWER)),
    "who joins has flushed what the leader had": _rule(
        f"{PROGRESS}.may_join", joins_without("flushed_at_start"), STORIES["shown before"]
    ),
    "who joins has followed into the epoch": _rule(
        f"{PROGRESS}.may_join",
        joins_without("start_offset"),
        STORIES["behind the epoch"],
        too=(f"{PROGRESS}.departures", nobody_is_late),
    ),
    "a leader is confirmed": _rule("logbus_broker.replication.leader.Leader.takes_records", yes, STORIES["stale"]),
    "a leader that can store nothing gives its lead away": _rule(
        "logbus_broker.replication.leader.propose_stepping_down", nothing, STORIES["full leaders"]
    ),
    "a leader whose flush does not end gives its lead away": _rule(
        "logbus_broker.log.flusher.Flusher.overdue", nobody, STORIES["hung leaders"]
    ),
    "a member that can store nothing leaves": _rule(f"{PROGRESS}.fetched", impairment_is_not_told, STORIES["full followers"]),
    "a follower shows what it has flushed": _rule(
        "logbus_broker.log.partition.Partition.learn_visible", shown_as_told, STORIES["shown before"]
    ),
}
