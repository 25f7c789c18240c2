"""Which brokers should have which replicas: the decisions of `logbus cluster plan` and `drain`, without I/O; and a move from its
beginning to its end: throttled, begun, looked on, and cleaned up after.

An assignment names the brokers of each partition, the preferred leader first. A plan changes it in this order, and no further
than needed: replicas leave brokers that are to have none; a rack that a partition uses twice is left while another has a broker
for it; then numbers of replicas are levelled until they differ by one at most; last the leaders, which costs no copying, because
a partition's leader is whoever comes first among its replicas. No step makes a partition's replicas fewer, puts two of them on
one broker, or brings them into fewer racks.

Levelling moves one replica at a time from the fullest broker to the emptiest, which is the least that has to move. Racks may
forbid that; then it goes over others: one replica from the fullest broker to a third, another from there to the emptiest.

Everything is in the cluster: which partitions move, where to, and the throttle. So a command that is interrupted ends nothing,
and whoever runs it again only looks on. When nothing moves any more, the throttle is removed and the preferred leaders of what
has moved are elected; by whichever run sees it first.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from math import inf

from logbus import errors, waiting
from logbus.errors import TopicMissing, UserError
from logbus.formatting import several
from logbus.kafka.client import PartitionId
from logbus.kafka.cluster import ClusterFacts, PartitionReplicas
from logbus.kafka.reassignments import Reassigning, Throttles, throttled_replicas

Replicas = tuple[int, ...]
Assignment = Mapping[PartitionId, Replicas]
Racks = Mapping[int, str | None]  # by broker that may have replicas; None: it has no rack
NAMED_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedReplicas:
    """One partition whose replicas change; `size_bytes` is None where brokers do not report it."""

    topic: str
    partition: int
    before: Replicas
    after: Replicas
    leader: int | None
    size_bytes: int | None

    @property
    def partition_id(self) -> PartitionId:
        return self.topic, self.partition

    @property
    def added(self) -> Replicas:
        return tuple(broker for broker in self.after if broker not in self.before)

    @property
    def removed(self) -> Replicas:
        return tuple(broker for broker in self.before if broker not in self.after)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerShare:
    """What a broker has before and after: replicas, and partitions of which it is the preferred leader; and what it receives and
    sends for that. Leaders send."""

    broker_id: int
    replicas: tuple[int, int]
    leads: tuple[int, int]
    bytes_in: int
    bytes_out: int


# The two kinds of plan


def levelled(current: Assignment, racks: Racks, sizes: Mapping[PartitionId, int] | None = None) -> Assignment:
    """All replicas on the brokers of `racks`, as evenly as possible. `UserError` where these are too few for a partition."""
    placement = _Placement(current, racks, sizes or {})
    placement.evacuate({broker for replicas in current.values() for broker in replicas} - racks.keys())
    placement.spread_over_racks()
    placement.level_replicas()
    placement.level_leaders(current)
    return placement.assignment()


def drained(current: Assignment, racks: Racks, broker: int) -> Assignment:
    """Nothing on this broker, which is not among the `racks`, and everything else where it is. `UserError` as above."""
    placement = _Placement(current, racks, {})
    placement.evacuate({broker})
    placement.level_leaders([key for key, replicas in current.items() if replicas[0] == broker])
    return placement.assignment()


_Candidate = tuple[int, int, PartitionId]  # how many more its topic has at the target, its size, itself


class _Placement:
    """An assignment while it is changed."""

    def __init__(self, current: Assignment, racks: Racks, sizes: Mapping[PartitionId, int]) -> None:
        self._replicas = {key: list(replicas) for key, replicas in sorted(current.items())}
        # As for new topics, racks count if all brokers have one.
        self._racks = {broker: rack or "" for broker, rack in racks.items()} if all(racks.values()) else dict.fromkeys(racks, "")
        self._sizes = sizes
        self._partitions: dict[int, dict[PartitionId, None]] = {broker: {} for broker in sorted(racks)}
        self._of_topic = Counter[tuple[int, str]]()  # by broker and topic
        self._queues: dict[tuple[int, int], list[_Candidate]] = {}  # by source and target, a heap
        for key, replicas in self._replicas.items():
            for broker in replicas:
                self._add(key, broker)

    def assignment(self) -> Assignment:
        return {key: tuple(replicas) for key, replicas in self._replicas.items()}

    def _move(self, key: PartitionId, source: int, target: int) -> None:
        replicas = self._replicas[key]
        replicas[replicas.index(source)] = target
        del self._partitions[source][key]
        self._of_topic[source, key[0]] -= 1
        self._add(key, target)

    def _add(self, key: PartitionId, broker: int) -> None:
        self._partitions.setdefault(broker, {})[key] = None
        self._of_topic[broker, key[0]] += 1

    def _spread(self, replicas: Iterable[int]) -> int:
        """In how many racks these are."""
        return len({self._racks[broker] for broker in replicas if broker in self._racks})

    def _spread_after(self, key: PartitionId, source: int, target: int) -> int:
        return self._spread([target, *(broker for broker in self._replicas[key] if broker != source)])

    # What has to move

    def evacuate(self, leaving: Collection[int]) -> None:
        homeless = []
        for key, replicas in self._replicas.items():
            for source in [broker for broker in replicas if broker in leaving]:
                if self._targets(key):
                    self._move(key, source, self._best_target(key, source))
                else:
                    homeless.append(name_of(key))
        if homeless:
            raise UserError(
                f"too few brokers: {_listed(self._racks)} would be left, not enough for the replicas of "
                f"{several(homeless, NAMED_MAX)}. Add a broker first, or move these to fewer replicas with a file of your own"
            )

    def spread_over_racks(self) -> None:
        rack_count = len(set(self._racks.values()))
        for key, replicas in self._replicas.items():
            while self._spread(replicas) < min(len(replicas), rack_count):
                in_rack = Counter(self._racks[broker] for broker in replicas)
                shared = [broker for broker in replicas if in_rack[self._racks[broker]] > 1]
                source = max(shared, key=lambda broker: len(self._partitions[broker]))
                self._move(key, source, self._best_target(key, source))

    def _targets(self, key: PartitionId) -> list[int]:
        return [broker for broker in self._racks if broker not in self._replicas[key]]

    def _best_target(self, key: PartitionId, source: int) -> int:
        """The emptiest broker of those that leave the partition in the most racks."""
        return min(
            self._targets(key),
            key=lambda target: (
                -self._spread_after(key, source, target),
                len(self._partitions[target]),
                self._of_topic[target, key[0]],
                target,
            ),
        )

    # What is levelled

    def level_replicas(self) -> None:
        _level({broker: len(self._partitions[broker]) for broker in self._racks}, self._movable, self._move)

    def _movable(self, source: int, target: int) -> PartitionId | None:
        """Of the topic that has most more replicas on the one than on the other, the smallest partition that may move."""
        # A move changes the order of one topic's partitions only. So the queue of a pair is kept, an entry is put right when it
        # comes first, and all are looked at again only before it is said that none may move.
        pair = source, target
        for queue in (self._queues.get(pair, []), None):
            if queue is None:
                queue = self._queues[pair] = [self._candidate(key, pair) for key in self._partitions[source]]
                heapify(queue)
            while queue:
                key = queue[0][2]
                if key not in self._partitions[source] or not self._may_move(key, source, target):
                    heappop(queue)
                elif queue[0] == (now := self._candidate(key, pair)):
                    return key
                else:
                    heapreplace(queue, now)
        return None

    def _candidate(self, key: PartitionId, pair: tuple[int, int]) -> _Candidate:
        source, target = pair
        return self._of_topic[target, key[0]] - self._of_topic[source, key[0]], self._sizes.get(key, 0), key

    def _may_move(self, key: PartitionId, source: int, target: int) -> bool:
        replicas = self._replicas[key]
        return target not in replicas and self._spread_after(key, source, target) >= self._spread(replicas)

    def level_leaders(self, keys: Iterable[PartitionId]) -> None:
        """Who leads changes only in these partitions; what the brokers lead of others counts."""
        led: dict[int, dict[PartitionId, None]] = {broker: {} for broker in self._racks}
        counts = dict.fromkeys(self._racks, 0)
        changeable = set(keys)
        for key, replicas in self._replicas.items():
            if replicas[0] in led:  # one that is gone leads nothing, and nobody takes a lead from it or gives it one
                counts[replicas[0]] += 1
                if key in changeable:
                    led[replicas[0]][key] = None

        def electable(source: int, target: int) -> PartitionId | None:
            return next((key for key in led[source] if target in self._replicas[key]), None)

        def elect(key: PartitionId, source: int, target: int) -> None:
            replicas = self._replicas[key]
            replicas.remove(target)
            replicas.insert(0, target)
            del led[source][key]
            led[target][key] = None

        _level(counts, electable, elect)


def _level(
    counts: dict[int, int],
    movable: Callable[[int, int], PartitionId | None],
    move: Callable[[PartitionId, int, int], None],
) -> None:
    """Moves from full brokers to empty ones until no two differ by more than one, or nothing more may move. Each round makes the
    sum of the squares smaller, so there is an end."""
    stuck, has_moved = set[int](), False
    while True:
        fewest = min(counts.values(), default=0)
        fullest = [broker for broker in sorted(counts) if broker not in stuck and counts[broker] - fewest > 1]
        if not fullest:
            if not (stuck and has_moved):
                return
            stuck, has_moved = set(), False  # what has moved since may have opened a way
            continue
        source = max(fullest, key=lambda broker: counts[broker])
        path = _path(source, counts, movable)
        if not path:
            stuck.add(source)
            continue
        for key, begin, end in path:
            move(key, begin, end)
        counts[source] -= 1
        counts[path[-1][2]] += 1
        has_moved = True


Hop = tuple[PartitionId, int, int]


def _path(source: int, counts: Mapping[int, int], movable: Callable[[int, int], PartitionId | None]) -> list[Hop]:
    """The shortest way from a broker to one with at least two fewer; of equal ones to the emptiest. Empty: there is none."""
    came_by: dict[int, list[Hop]] = {source: []}
    waiting = deque([source])
    emptiest_first = sorted(counts, key=lambda broker: (counts[broker], broker))
    while waiting:
        begin = waiting.popleft()
        for end in emptiest_first:
            if end in came_by or (key := movable(begin, end)) is None:
                continue
            came_by[end] = [*came_by[begin], (key, begin, end)]
            if counts[end] <= counts[source] - 2:
                return came_by[end]
            waiting.append(end)
    return []


# The cluster as it is


def proposal(
    facts: ClusterFacts, brokers: Collection[int] | None, topics: Collection[str], sizes: Mapping[PartitionId, int]
) -> Assignment:
    """Of these topics, or of all, over these brokers, or over all that are there. A broker that is gone is not emptied unless
    brokers are named: most come back."""
    racks = {broker.broker_id: broker.rack for broker in facts.brokers}
    if brokers is None and facts.gone:
        raise UserError(
            f"broker {_listed(facts.gone)} is gone: start it again, or, if it is lost for good, say who is to have its replicas: "
            f"--brokers {','.join(map(str, sorted(racks)))}"
        )
    if absent := [broker for broker in brokers or () if broker not in racks]:
        raise UserError(f"broker {_listed(absent)} is not there: the cluster has {_listed(sorted(racks))}")
    if missing := sorted(set(topics) - {part.topic for part in facts.partitions}):
        raise TopicMissing(f"the cluster has no topic {', '.join(missing)}: `logbus topic ls` lists those it has")
    chosen = {broker: racks[broker] for broker in brokers or racks}
    return levelled(current_assignment(facts, topics), chosen, sizes)


def drainage(facts: ClusterFacts, broker: int) -> Assignment:
    """The replicas of this broker, alive or gone, go to the emptiest others."""
    racks = {live.broker_id: live.rack for live in facts.brokers}
    if broker not in racks and broker not in facts.gone:
        raise UserError(f"broker {broker} is not there, and has no replica: the cluster has {_listed(sorted(racks))}")
    racks.pop(broker, None)
    return drained(current_assignment(facts), racks, broker)


def current_assignment(facts: ClusterFacts, topics: Collection[str] = ()) -> dict[PartitionId, Replicas]:
    """What each partition has, or will have once its move has ended; of these topics, or of all."""
    return {part.partition_id: part.targets for part in facts.partitions if not topics or part.topic in topics}


def changes(facts: ClusterFacts, targets: Assignment, sizes: Mapping[PartitionId, int]) -> list[ChangedReplicas]:
    """The partitions whose replicas, or whose order, are not yet the target, in the order of topics and numbers. Sizes are not
    known if none is."""
    return [
        ChangedReplicas(
            topic=part.topic,
            partition=part.partition,
            before=part.targets,
            after=tuple(targets[part.partition_id]),
            leader=part.leader,
            size_bytes=sizes.get(part.partition_id, 0) if sizes else None,
        )
        for part in facts.partitions
        if part.partition_id in targets and part.targets != tuple(targets[part.partition_id])
    ]


def shares(facts: ClusterFacts, planned: Sequence[ChangedReplicas]) -> list[BrokerShare]:
    """By broker, also one that is gone."""
    after = {partition.partition_id: partition.after for partition in planned}
    replicas, leads = [Counter[int](), Counter[int]()], [Counter[int](), Counter[int]()]
    received, sent = Counter[int](), Counter[int]()
    for part in facts.partitions:
        for moment, brokers in enumerate((part.targets, after.get(part.partition_id, part.targets))):
            replicas[moment].update(brokers)
            leads[moment][brokers[0]] += 1
    for partition in planned:
        for broker in partition.added:
            received[broker] += partition.size_bytes or 0
            if partition.leader is not None:
                sent[partition.leader] += partition.size_bytes or 0
    everyone = sorted({*(broker.broker_id for broker in facts.brokers), *replicas[0], *replicas[1]})
    return [
        BrokerShare(
            broker_id=broker,
            replicas=(replicas[0][broker], replicas[1][broker]),
            leads=(leads[0][broker], leads[1][broker]),
            bytes_in=received[broker],
            bytes_out=sent[broker],
        )
        for broker in everyone
    ]


def seconds_at(rate: int, of_brokers: Iterable[BrokerShare]) -> float:
    """How long it takes at so many bytes a second for each broker, in and out."""
    return max((max(share.bytes_in, share.bytes_out) / rate for share in of_brokers), default=0.0)


# What speaks against it


def validate(facts: ClusterFacts, planned: Sequence[ChangedReplicas]) -> None:
    """`UserError` names the partitions that cannot move, or must not: what is planned does not make any of these worse, but it
    might have to wait for ever, or leave a partition that refuses acks=all."""
    live = {broker.broker_id for broker in facts.brokers}
    by_id = {part.partition_id: part for part in facts.partitions}
    absent = sorted({broker for partition in planned for broker in partition.added if broker not in live})
    if absent:
        raise UserError(f"broker {_listed(absent)} is not there: the cluster has {_listed(sorted(live))}")
    leaderless = [name_of(partition.partition_id) for partition in planned if partition.leader is None and partition.added]
    if leaderless:
        raise UserError(
            f"{several(leaderless, NAMED_MAX)} has no leader, so nothing can be copied: start the brokers that have its "
            "replicas (logbus cluster lists them)"
        )
    short = []
    for partition in planned:
        part = by_id[partition.partition_id]
        in_sync = [broker for broker in partition.after if broker in part.in_sync or broker in partition.added]
        minimum = facts.insync_min.get(partition.topic, 1)
        if len(in_sync) < minimum:
            short.append(f"{name_of(partition.partition_id)} ({len(in_sync)} of min.insync.replicas={minimum})")
    if short:
        raise UserError(
            f"too few replicas would be in sync: {several(short, NAMED_MAX)}. Bring back the brokers that are out of sync first: "
            "logbus cluster health names them"
        )


def name_of(key: PartitionId) -> str:
    return f"{key[0]}-{key[1]}"


def _listed(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, brokers)) or "none"


# A move of replicas from its beginning to its end: throttled, begun, looked on, and cleaned up after.


POLL_SECONDS = 1.0  # a question to every broker for what is on its disks


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveProgress:
    """What is left of a move. `bytes_left` is None where brokers do not report what is on their disks."""

    moving: Sequence[PartitionReplicas]
    replicas_left: int
    bytes_left: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """What was done at the end: throttles removed, partitions that keep another leader than the preferred one, and why."""

    throttles: Throttles
    other_leaders: Mapping[PartitionId, str]


def progress(facts: ClusterFacts, scope: Collection[PartitionId] = ()) -> MoveProgress:
    """Of these partitions, or of all that move."""
    sizes = [(directory.broker_id, directory.partition_bytes) for directory in facts.directories]
    moving = [part for part in facts.partitions if part.is_moving and (not scope or part.partition_id in scope)]
    left, replicas_left = 0, 0
    for part in moving:
        on_disk = {broker: bytes_of[part.partition_id] for broker, bytes_of in sizes if part.partition_id in bytes_of}
        whole = max((on_disk.get(broker, 0) for broker in part.in_sync), default=0)
        for broker in part.adding:
            if broker not in part.in_sync:
                replicas_left += 1
                left += max(0, whole - on_disk.get(broker, 0))
    return MoveProgress(moving=moving, replicas_left=replicas_left, bytes_left=left if sizes else None)


class ReplicaMoves:
    """The moves in one cluster."""

    def __init__(
        self, cluster: Reassigning, *, poll_seconds: float = POLL_SECONDS, say: waiting.Say = waiting.say_nothing
    ) -> None:
        self._cluster = cluster
        self._poll_seconds = poll_seconds
        self._say = say

    def begin(self, facts: ClusterFacts, targets: Mapping[PartitionId, Replicas], rate: int | None) -> None:
        """The throttle comes first, or the copying would be ahead of it."""
        if rate is not None:
            self._cluster.throttle(rate, throttled_replicas(facts, targets))
        if targets:
            self._cluster.alter(targets)

    def cancel(self, partitions: Sequence[PartitionId]) -> None:
        """They return to the replicas that they had."""
        self._cluster.alter(dict.fromkeys(partitions))

    def give_leads_away(self, facts: ClusterFacts, broker: int) -> dict[PartitionId, str]:
        """What the broker leads goes to another replica in sync, if there is one, and the broker to the end of the list.
        Returns the partitions that it keeps on leading, with the reason."""
        orders: dict[PartitionId, Replicas] = {}
        if broker not in (live.broker_id for live in facts.brokers):
            return {}  # it leads nothing
        for part in facts.partitions:
            others = [other for other in part.targets if other != broker]
            heir = next((other for other in others if other in part.in_sync), None)
            leads = broker in (part.leader, part.targets[0])
            if leads and broker in part.targets and heir is not None and not part.is_moving:
                orders[part.partition_id] = (heir, *(other for other in others if other != heir), broker)
        if not orders:
            return {}
        self._cluster.alter(orders)
        return self._cluster.elect_preferred(list(orders))

    def watch(self, show: Callable[[MoveProgress], None], scope: Collection[PartitionId] = ()) -> None:
        """Return when nothing of it moves any more, however long that takes: brokers may be restarted meanwhile."""

        def is_over() -> bool:
            facts = waiting.wait_until(
                self._cluster.facts,
                what="a broker that answers",
                not_yet=errors.BrokerUnavailable,
                poll_seconds=self._poll_seconds,
                say=self._say,
            )
            now = progress(facts, scope)
            show(now)
            return not now.moving

        waiting.wait_until(is_over, what="the moves", timeout_seconds=inf, poll_seconds=self._poll_seconds)

    def clear(self, scope: Collection[PartitionId]) -> Cleared | None:
        """What is left to do once these have moved, or all; None while they move. A throttle stays while anything else moves."""
        facts = self._cluster.facts()
        if progress(facts, scope).moving:
            return None
        elsewhere = [
            part.partition_id
            for part in facts.partitions
            if part.partition_id in scope and part.leader not in (None, part.targets[0]) and not part.is_moving
        ]
        other_leaders = self._cluster.elect_preferred(elsewhere) if elsewhere else {}
        throttles = Throttles() if facts.moving else self._cluster.throttles(facts)
        if throttles:
            self._cluster.unthrottle(throttles)
        return Cleared(throttles=throttles, other_leaders=other_leaders)
