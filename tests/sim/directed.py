"""Histories that each provoke what one replication rule guards against; only the details are random.

Histories of random faults need a given rule as rarely as real clusters do. These need it nearly always, so a rule that is
switched off, or has become ineffective, is noticed within a few of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from tests.sim.clients import ProducerPlan
from tests.sim.cluster import draw_story
from tests.sim.cluster_faults import FOLLOWER, LEADER, ONE_WAY_OUT, PEERS, ZOOKEEPER
from tests.sim.faults import Fault
from tests.sim.stage import TOPIC
from tests.sim.stage import Story as Drawn
from tests.sim.world import MS, SECOND

Story = Callable[[int], Drawn]
ONE_OF_THEM = 32  # bit of an isolation's amount: not from all peers
THE_MEMBER = 1  # index among the brokers that a fault at a proposal may hit: the one being added


def _story(name: str, faults: Callable[[random.Random], Sequence[Fault]], *, segment_bytes: int = 1 << 20) -> Story:
    """Two in-sync replicas are required, disks are flushed seldom, and there is always something to lose."""

    def of(seed: int) -> Drawn:
        chance = random.Random(f"{seed}/{name}")
        plan = ProducerPlan(topic=TOPIC, partition=0, batches=200, gap=110 * MS, in_flight_max=2, records_max=2)
        return replace(
            draw_story(seed),
            waits_for_flush=False,
            minimum=2,
            segment_bytes=segment_bytes,
            flush_interval_ms=1_000,
            flush_messages=100_000,
            partitions=1,
            makes_topics=False,
            producers=(plan, replace(plan, acks=1, idempotent=False, promise="written")),
            faults=tuple(sorted(faults(chance), key=lambda fault: fault.at)),
        )

    return of


def _stale(chance: random.Random) -> Sequence[Fault]:
    """A leader that only its clients still reach, for longer than it may believe itself to be the leader."""
    return [Fault(chance.randint(2 * SECOND, 3 * SECOND), "isolate", LEADER, PEERS | ZOOKEEPER, lasts=9 * SECOND)]


def _unheard(chance: random.Random) -> Sequence[Fault]:
    """A leader that hears its followers while none of them hears it: they fall behind, and it cannot continue without them."""
    return [Fault(chance.randint(2 * SECOND, 3 * SECOND), "isolate", LEADER, PEERS | ONE_WAY_OUT, lasts=9 * SECOND)]


def _parted(chance: random.Random) -> Sequence[Fault]:
    """A follower that has replicated further than the next leader, so it has records which that leader lacks. Truncating them
    takes it a while."""
    faults = [Fault(2 * SECOND - 1, "slow disk", broker, 150 * MS, lasts=12 * SECOND) for broker in range(3)]
    for at in (2 * SECOND, 5 * SECOND, 8 * SECOND):
        cut, lasts = at + chance.randint(0, SECOND), chance.randint(500, 1_500) * MS
        faults.append(Fault(cut, "isolate", LEADER, PEERS | ONE_WAY_OUT | ONE_OF_THEM, lasts=lasts))
        faults.append(Fault(cut + lasts, "kill", LEADER, lasts=500 * MS))
    return faults


def _unanswered(chance: random.Random) -> Sequence[Fault]:
    """A member is added, and the leader never learns of it."""
    faults = []
    for at in (2 * SECOND, 7 * SECOND):
        faults.append(Fault(at, "cut at join", LEADER, lasts=chance.randint(1_200, 1_900) * MS))
        faults.append(Fault(at + chance.randint(0, SECOND), "kill", FOLLOWER, lasts=chance.randint(600, 1_200) * MS))
    return faults


def _replaced(chance: random.Random) -> Sequence[Fault]:
    """A replica is about to be added, and by the time of the commit has lost what it had not flushed. Nothing new is visible, so
    joining did not require it to have flushed much: another member's disk is slow."""
    faults = [Fault(2 * SECOND, "slow disk", 1, 1_500 * MS, lasts=12 * SECOND)]
    for at in (3 * SECOND, 6 * SECOND, 9 * SECOND):
        faults.append(Fault(at, "cut at proposal", 0, 1, lasts=chance.randint(300, 600) * MS))
        faults.append(Fault(at + chance.randint(0, SECOND), "kill", 2, lasts=chance.randint(520, 700) * MS))
    return faults


def _shown_before(chance: random.Random) -> Sequence[Fault]:
    """A leader exposes records that its successor does not know to be visible, while a third replica flushes even more slowly."""
    return [
        Fault(2_000 * MS, "slow disk", 1, 600 * MS, lasts=12 * SECOND),
        Fault(2_500 * MS, "slow disk", 2, 1_200 * MS, lasts=12 * SECOND),
        Fault(2_600 * MS, "kill", 2, lasts=600 * MS),
        Fault(chance.randint(8_500, 9_500) * MS, "kill at exposure", LEADER, lasts=10 * SECOND),
    ]


def _behind_the_epoch(chance: random.Random) -> Sequence[Fault]:
    """A removed replica rejoins under a new leader, part of whose log is neither flushed nor replicated as far as it knows;
    then that leader dies."""
    cut = 4 * SECOND + 2 * chance.randint(0, SECOND) + 1  # odd: cuts it off from the leader, which is the first of the others
    return [
        Fault(2 * SECOND, "slow disk", 1, 2 * SECOND, lasts=12 * SECOND),
        Fault(cut, "isolate", 2, PEERS | ONE_OF_THEM, lasts=4 * SECOND),
        Fault(cut + MS, "reset peers", 2),
        Fault(cut + 600 * MS, "kill at proposal", LEADER, THE_MEMBER, lasts=2 * SECOND),
        Fault(cut + chance.randint(650, 950) * MS, "kill", LEADER, lasts=6 * SECOND),
    ]


def _powerless(chance: random.Random) -> Sequence[Fault]:
    """A member loses what it had not flushed, and is back before its absence is noticed."""
    faults = []
    for at in (2 * SECOND, 5 * SECOND, 8 * SECOND):
        lasts = chance.randint(1_000, 2_500) * MS
        faults.append(Fault(at, "slow disk", 2, 3 * SECOND, lasts=lasts - 1))
        faults.append(Fault(at + lasts, "power cut", 2, lasts=20 * MS))
    return faults


def _alone(chance: random.Random) -> Sequence[Fault]:
    """A leader is left alone, while its followers are still electable in its place."""
    at = 2 * SECOND + chance.randint(0, SECOND)
    return [Fault(at, "kill", 1, lasts=5 * SECOND), Fault(at + chance.randint(0, SECOND), "kill", 2, lasts=5 * SECOND)]


def _restored(chance: random.Random) -> Sequence[Fault]:
    """ZooKeeper comes back from a backup, time and again, and brokers are restarted meanwhile."""
    faults = []
    for at in (3 * SECOND, 6 * SECOND, 9 * SECOND):
        faults.append(Fault(at - SECOND, "kill", LEADER, lasts=300 * MS))  # so that there is something newer
        faults.append(Fault(at, "older zookeeper", 0, chance.randint(0, 20), lasts=2 * SECOND))
        faults.append(Fault(at + chance.randint(100, 600) * MS, "kill", FOLLOWER, lasts=200 * MS))
    return faults


def _full_leaders(chance: random.Random) -> Sequence[Fault]:
    """The disk of a leader is full, and then that of the next one; in the end both at once."""
    at = 2 * SECOND + chance.randint(0, SECOND)
    return [Fault(at + number * 3 * SECOND, "full disk", LEADER, lasts=5 * SECOND) for number in range(3)]


def _full_followers(chance: random.Random) -> Sequence[Fault]:
    """The disk of a follower is full, and soon afterwards that of the other."""
    at = 2 * SECOND + chance.randint(0, SECOND)
    return [Fault(at, "full disk", 1, lasts=5 * SECOND), Fault(at + 3 * SECOND, "full disk", 2, lasts=5 * SECOND)]


def _hung_leaders(chance: random.Random) -> Sequence[Fault]:
    """The disk of a leader takes writes and no flush ends; then that of the next leader, and of a follower of it."""
    at = 2 * SECOND + chance.randint(0, SECOND)
    return [
        Fault(at, "hung disk", LEADER, lasts=6 * SECOND),
        Fault(at + 6500 * MS, "hung disk", LEADER, lasts=6 * SECOND),
        Fault(at + 7 * SECOND, "hung disk", FOLLOWER, lasts=6 * SECOND),
    ]


def _full_everywhere(chance: random.Random) -> Sequence[Fault]:
    """All disks are full: somebody goes on leading, and what is stored can be read."""
    return [Fault(2 * SECOND + chance.randint(0, 2 * SECOND), "full disk", broker, lasts=6 * SECOND) for broker in range(3)]


def _older_copies(chance: random.Random) -> Sequence[Fault]:
    """A data directory is put back from a copy, just before all other brokers are killed: it is the first to be back."""
    at, lasts = 3 * SECOND, chance.randint(3_000, 5_000) * MS
    others = [Fault(at + lasts + 5 * MS, "kill", broker, lasts=1_500 * MS) for broker in (1, 2)]
    return [Fault(at, "older directory", 0, chance.randint(0, 1), lasts), *others]


def _damaged_leaders(chance: random.Random) -> Sequence[Fault]:
    """A byte in an old segment of a leader has changed, and a follower's disk is replaced."""
    return [Fault(chance.randint(6, 9) * SECOND, "damaged byte", LEADER, chance.randrange(1 << 16), lasts=300 * MS)]


STORIES: dict[str, Story] = {
    "older copies": _story("older copies", _older_copies),
    "damaged leaders": _story("damaged leaders", _damaged_leaders, segment_bytes=600),
    "full leaders": _story("full leaders", _full_leaders),
    "full followers": _story("full followers", _full_followers),
    "full everywhere": _story("full everywhere", _full_everywhere),
    "hung leaders": _story("hung leaders", _hung_leaders),
    "powerless": _story("powerless", _powerless),
    "alone": _story("alone", _alone),
    "stale": _story("stale", _stale),
    "unheard": _story("unheard", _unheard),
    "parted": _story("parted", _parted),
    "unanswered": _story("unanswered", _unanswered),
    "replaced": _story("replaced", _replaced),
    "shown before": _story("shown before", _shown_before),
    "restored": _story("restored", _restored),
    "behind the epoch": _story("behind the epoch", _behind_the_epoch),
}
