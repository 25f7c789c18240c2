"""The replication rules on their own, explored by random walks: one partition, three brokers, one znode.

No sockets, files or clock: only what the rules refer to. Brokers lose power and disks, are killed, are wrongly suspected, act on
old states; messages are lost and overtake each other. The controller's elections are the broker's own
(`broker/controller/decide.py`), and so is the rule of eligible leaders; the leader's and the follower's side are written here
once more, as briefly as possible.

Checked: whatever was acknowledged or seen is in the log of every new leader, at its offset, and, with two in-sync replicas
required, not on one disk alone; a replica that joins the in-sync set has on its disk what was seen; no two batches ever have
the same (epoch, offset); no replica truncates below what was visible.

    python -m tests.sim.model --histories 15000            every mode (make model)
    python -m tests.sim.model --without INCARNATION        one rule switched off: some histories must fail, or nothing is proved
    python -m tests.sim.model --mode kills --seed 17       one history, with everything that happened in it

Three terms as in the broker: `written` is the end of a log, `replicated` (R) the smallest written end over the in-sync set,
`visible` (V) the smallest flushed end over it."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from uuid import UUID

from broker.controller.decide import Asked, Presence, Wishes, next_state
from broker.coordination.eligible import eligible_after
from broker.coordination.image import NO_LEADER, ClusterTopic, PartitionState

BROKERS = (0, 1, 2)
STEPS = 800


class Rule(Enum):
    """What can be switched off. The value is the rule."""

    NEW_PROCESS_NEW_EPOCH = "a process never leads in an epoch in which an earlier one led"
    VOUCHING = "who cannot vouch for its log leaves the in-sync set and the eligible ones when it starts"
    DIVERGENCE = "a fetch that diverges is no progress"
    MINIMUM = "V and R move only while the in-sync set has min.insync.replicas members"
    ELIGIBLE_CLEARED = "V and R move only once nobody is eligible any more, also where the minimum was lowered"
    PENDING_COUNTS = "who is being added counts until the image shows the outcome, also when the answer was lost"
    INCARNATION = "who is added must be the process whose fetches were counted"
    EPOCH_START = "who is added has all up to the start of the leader's epoch"
    FLUSHED_AT_START = "who is added has flushed all that the leader had flushed when its lead began"
    VISIBLE_IS_FLUSHED = "V counts what is flushed, not what is written"
    ANSWER_FITS = "an answer counts only where the follower's end and last epoch are still those that it asked with"
    CAS = "a state is replaced only by who knows the one before"


@dataclass(frozen=True, kw_only=True)
class Mode:
    """Which faults occur, and what is promised. Kills and wrong suspicions always occur."""

    minimum: int  # min.insync.replicas
    power: bool = True  # machines lose power: what was not flushed is gone, partly or all
    disk: bool = False  # one disk is lost, once
    waits_for_flush: bool = False  # every acknowledgement waits for V
    eligible: bool = True  # the rule of eligible leaders
    minimum_changes: bool = False  # the topic's minimum is altered, and brokers learn of it one after the other


MODES: dict[str, Mode] = {
    "kills": Mode(minimum=2, power=False),
    "kills-min-1": Mode(minimum=1, power=False),
    "power-and-a-disk": Mode(minimum=2, disk=True),
    "power-min-1": Mode(minimum=1),
    "flush-and-a-disk": Mode(minimum=2, disk=True, waits_for_flush=True),
    "flush-min-1": Mode(minimum=1, waits_for_flush=True),
    "no-eligible": Mode(minimum=2, disk=True, eligible=False),
    "minimum-changes": Mode(minimum=2, power=False, minimum_changes=True),
    "minimum-changes-flush": Mode(minimum=2, waits_for_flush=True, minimum_changes=True),
}


class Violation(AssertionError):
    """A promise was broken."""


Batch = tuple[int, int]  # epoch, and a number that no other batch has


@dataclass(slots=True)
class Progress:
    """What a leader knows about a follower."""

    written: int
    flushed: int
    incarnation: int


@dataclass(slots=True)
class Proposal:
    """A leader's request to change the in-sync set, made when the state had `version`. Neither `added` nor `removed`: the minimum
    was lowered, and the eligible replicas are to be cleared."""

    version: int
    added: int | None = None
    removed: int | None = None
    incarnation: int = 0  # of the added replica's fetches
    is_unknown: bool = False  # sent; the answer was lost


@dataclass(slots=True, kw_only=True)
class Fetch:
    sender: int
    sender_incarnation: int
    leader: int
    leader_incarnation: int
    epoch: int
    written: int
    flushed: int
    last_epoch: int


@dataclass(slots=True, kw_only=True)
class Answer:
    sender: int
    sender_incarnation: int
    follower: int
    follower_incarnation: int
    epoch: int
    position: int
    last_epoch: int  # the follower's last epoch, as in the fetch
    batches: list[Batch]
    visible: int
    diverging: tuple[int, int] | None = None  # the leader's largest epoch up to the follower's last, and its end


@dataclass(slots=True)
class Broker:
    """One replica, and the process that holds it. `epoch` is the one in which it leads or follows; -1: neither."""

    number: int
    minimum: int
    is_up: bool = True
    incarnation: int = 1
    log: list[Batch] = field(default_factory=list)
    flushed: int = 0
    visible: int = 0
    replicated: int = 0
    known: PartitionState | None = None
    leads: bool = False
    epoch: int = -1
    epoch_start: int = 0
    flushed_at_start: int = 0
    progress: dict[int, Progress] = field(default_factory=dict)
    proposal: Proposal | None = None
    boot: int = 0  # how often the machine has booted, and
    boot_at_start: int = 0  # the same when the process started
    is_disk_lost: bool = False

    def takes_records(self) -> bool:
        return self.is_up and self.leads and self.known is not None and self.known.handover_to is None


class World:
    """One history. `without` are the rules that are switched off."""

    def __init__(self, seed: int, mode: Mode, without: Collection[Rule] = (), tell: Callable[[str], None] | None = None) -> None:
        self.random = random.Random(seed)
        self.mode = mode
        self.without = frozenset(without)
        self.tell = tell
        self.minimum = mode.minimum
        self.state = PartitionState(leader=0, leader_epoch=0, isr=BROKERS, version=0)
        self.brokers = [Broker(number, mode.minimum) for number in BROKERS]
        self.registered = dict.fromkeys(BROKERS, 1)  # broker -> incarnation, for those with a live session
        self.incarnations = dict.fromkeys(BROKERS, 1)
        self.messages: list[Fetch | Answer] = []
        self.batch_count = 0
        self.batch_at: dict[tuple[int, int], Batch] = {}  # by epoch and offset
        self.acknowledged_at_r: dict[int, Batch] = {}
        self.acknowledged_at_v: dict[int, Batch] = {}  # and therefore what consumers may have seen
        self.was_power_lost = False
        self.was_disk_lost = False
        self.actions = [(limit, getattr(self, name)) for limit, name in _LIMITS]
        for broker in self.brokers:
            self.learn(broker)

    def has(self, rule: Rule) -> bool:
        return rule not in self.without

    def told(self, what: str) -> None:
        if self.tell is not None:
            state = self.state
            logs = " ".join(f"{b.number}:{len(b.log)}/{b.flushed}/{b.visible}{'' if b.is_up else '!'}" for b in self.brokers)
            self.tell(
                f"{what:42} leader {state.leader} epoch {state.leader_epoch} isr {state.isr} elr {state.eligible} logs {logs}"
            )

    # Promises

    def check_leader(self, broker: Broker) -> None:
        for name, batches in self.promises():
            for offset, batch in batches.items():
                if offset >= len(broker.log) or broker.log[offset] != batch:
                    raise Violation(f"{name}: offset {offset} {batch} is missing at the new leader {broker.number}")

    def check_lost_disk(self, lost: Broker) -> None:
        """One of the two or more disks that must have everything: another broker has it all, whether it may lead or not."""
        if self.mode.minimum < 2 or self.mode.minimum_changes:
            return
        size = len(self.acknowledged_at_v)
        promised = [self.acknowledged_at_v[offset] for offset in range(size)]
        if not any(broker.log[:size] == promised for broker in self.brokers if broker is not lost):
            raise Violation(f"acknowledged at V, or seen: {size} batches were on no disk but that of broker {lost.number}")

    def check_added(self, added: Broker) -> None:
        """What was acknowledged at V, or seen, is on the disk of every member, so also on that of a new one."""
        if added.flushed < len(self.acknowledged_at_v) and not added.is_disk_lost:
            size = len(self.acknowledged_at_v)
            raise Violation(
                f"broker {added.number} is added with {added.flushed} on its disk, {size} were acknowledged at V, or seen"
            )

    def promises(self) -> Iterable[tuple[str, dict[int, Batch]]]:
        yield "acknowledged at V, or seen", self.acknowledged_at_v
        if not self.was_power_lost:
            yield "acknowledged at R", self.acknowledged_at_r

    def append(self, broker: Broker, batch: Batch) -> None:
        if self.batch_at.setdefault((batch[0], len(broker.log)), batch) != batch:
            raise Violation(f"two batches in epoch {batch[0]} at offset {len(broker.log)}")
        broker.log.append(batch)

    # ZooKeeper

    def write(self, version: int, new: PartitionState) -> bool:
        """Compare and set."""
        if self.state.version != version and self.has(Rule.CAS):
            return False
        if not new.isr or not set(new.isr) <= set(BROKERS) or new.leader_epoch < self.state.leader_epoch:
            raise Violation(f"no such state may be written: {new}")
        if not self.mode.eligible:
            new = replace(new, eligible=())
        for number in set(new.isr) - set(self.state.isr):
            self.check_added(self.brokers[number])
        self.state = replace(new, version=self.state.version + 1)
        return True

    def learn(self, broker: Broker) -> None:
        """The broker's image shows the newest state."""
        if not broker.is_up or (broker.known is not None and broker.known.version >= self.state.version):
            return
        state = broker.known = self.state
        if broker.proposal is not None and broker.proposal.version < state.version:
            broker.proposal = None
        if state.leader == broker.number and self.registered.get(broker.number) == broker.incarnation:
            if not broker.leads or broker.epoch != state.leader_epoch:
                broker.leads, broker.epoch = True, state.leader_epoch
                broker.progress = {}
                broker.replicated, broker.epoch_start, broker.flushed_at_start = broker.visible, len(broker.log), broker.flushed
                self.check_leader(broker)
        else:
            broker.leads, broker.progress = False, {}
            broker.epoch = state.leader_epoch if state.leader not in (NO_LEADER, broker.number) else -1
        self.advance(broker)

    # The leader

    def advance(self, broker: Broker) -> None:
        """Move R and V forward, and with them acknowledge and expose records."""
        state = broker.known
        if not broker.leads or state is None:
            return
        if len(state.isr) < broker.minimum and self.has(Rule.MINIMUM):
            return
        if state.eligible and self.has(Rule.ELIGIBLE_CLEARED):
            return
        members = set(state.isr)
        if broker.proposal is not None and broker.proposal.added is not None:
            members.add(broker.proposal.added)
        written, flushed = len(broker.log), broker.flushed
        for member in members:
            if member == broker.number:
                continue
            progress = broker.progress.get(member)
            written = min(written, progress.written if progress else -1)
            flushed = min(flushed, progress.flushed if progress else -1)
        broker.replicated = max(broker.replicated, written)
        broker.visible = max(broker.visible, flushed if self.has(Rule.VISIBLE_IS_FLUSHED) else written)
        if len(state.isr) >= broker.minimum:
            for offset in range(len(self.acknowledged_at_r), broker.replicated):
                self.acknowledged_at_r[offset] = broker.log[offset]
        for offset in range(len(self.acknowledged_at_v), broker.visible):
            self.acknowledged_at_v[offset] = broker.log[offset]

    def end_of(self, broker: Broker, epoch: int) -> tuple[int, int]:
        """The leader's largest epoch not above this one, and where it ends."""
        if epoch == broker.epoch:
            return epoch, len(broker.log)
        end, largest = 0, -1
        for offset, batch in enumerate(broker.log):
            if batch[0] <= epoch:
                end, largest = offset + 1, max(largest, batch[0])
        return largest, end

    def serve(self, leader: Broker, fetch: Fetch) -> None:
        before = leader.progress.get(fetch.sender)
        if not leader.leads or leader.epoch != fetch.epoch:
            return
        if before is not None and fetch.sender_incarnation < before.incarnation:
            return
        diverging = None
        if fetch.last_epoch >= 0:
            epoch, end = self.end_of(leader, fetch.last_epoch)
            if epoch < fetch.last_epoch or end < fetch.written:
                diverging = epoch, end
        is_progress = diverging is None or not self.has(Rule.DIVERGENCE)
        is_older = before is not None and before.incarnation == fetch.sender_incarnation and before.written > fetch.written
        if is_progress and not is_older:
            leader.progress[fetch.sender] = Progress(fetch.written, fetch.flushed, fetch.sender_incarnation)
        size = self.random.randint(1, 3)
        answer = Answer(
            sender=leader.number,
            sender_incarnation=leader.incarnation,
            follower=fetch.sender,
            follower_incarnation=fetch.sender_incarnation,
            epoch=fetch.epoch,
            position=fetch.written,
            last_epoch=fetch.last_epoch,
            batches=[] if diverging else leader.log[fetch.written : fetch.written + size],
            visible=leader.visible,
            diverging=diverging,
        )
        self.messages.append(answer)
        self.advance(leader)

    def change_isr(self, leader: Broker) -> None:
        """Make a proposal, or continue with the pending one."""
        state = leader.known
        if not leader.is_up or not leader.leads or state is None:
            return
        proposal = leader.proposal
        if proposal is None:
            leader.proposal = self.propose(leader, state)
            self.advance(leader)
            return
        if proposal.is_unknown or self.send(leader, state, proposal):
            self.learn(leader)
            leader.proposal = None
            self.advance(leader)

    def propose(self, leader: Broker, state: PartitionState) -> Proposal | None:
        outside = [number for number in BROKERS if number not in state.isr]
        inside = [number for number in state.isr if number != leader.number]
        if state.eligible and len(state.isr) >= leader.minimum:
            return Proposal(state.version)
        if outside and self.random.random() < 0.6:
            number = self.random.choice(outside)
            progress = leader.progress.get(number)
            if (
                progress is not None
                and progress.written >= leader.replicated
                and progress.flushed >= leader.visible
                and (progress.written >= leader.epoch_start or not self.has(Rule.EPOCH_START))
                and (progress.flushed >= leader.flushed_at_start or not self.has(Rule.FLUSHED_AT_START))
            ):
                self.strike_who_joins(self.brokers[number])
                return Proposal(state.version, added=number, incarnation=progress.incarnation)
        elif inside and self.random.random() < 0.3:
            return Proposal(state.version, removed=self.random.choice(inside))
        return None

    def send(self, leader: Broker, state: PartitionState, proposal: Proposal) -> bool:
        """The transaction; returns whether its outcome is known."""
        added = proposal.added
        if added is not None and self.incarnations[added] != proposal.incarnation and self.has(Rule.INCARNATION):
            return True
        if added is not None:
            isr = tuple(sorted({*state.isr, added}))
        else:
            isr = tuple(number for number in state.isr if number != proposal.removed)
        new = replace(state, isr=isr, eligible=eligible_after(state, isr, leader.minimum))
        is_written = self.write(proposal.version, new)
        if is_written and added is not None:
            self.strike_leader(leader)
        if is_written and self.random.random() < 0.3:
            if self.has(Rule.PENDING_COUNTS):
                proposal.is_unknown = True
            else:
                leader.proposal = None
                self.advance(leader)
            return False
        return True

    def hand_over(self, leader: Broker) -> None:
        state = leader.known
        if not leader.is_up or not leader.leads or state is None or state.handover_to is None:
            return
        heir = leader.progress.get(state.handover_to)
        if state.handover_to in state.isr and heir is not None and heir.written == len(leader.log):
            new = replace(state, leader=state.handover_to, leader_epoch=state.leader_epoch + 1, handover_to=None)
            self.write(state.version, new)

    # The follower

    def fetch(self, broker: Broker) -> None:
        if not broker.is_up or broker.leads or broker.epoch < 0 or broker.known is None:
            return
        leader = self.brokers[broker.known.leader]
        self.messages.append(
            Fetch(
                sender=broker.number,
                sender_incarnation=broker.incarnation,
                leader=leader.number,
                leader_incarnation=leader.incarnation,
                epoch=broker.epoch,
                written=len(broker.log),
                flushed=broker.flushed,
                last_epoch=broker.log[-1][0] if broker.log else -1,
            )
        )

    def take(self, broker: Broker, answer: Answer) -> None:
        state = broker.known
        if broker.leads or state is None or broker.epoch != answer.epoch or state.leader != answer.sender:
            return
        last_epoch = broker.log[-1][0] if broker.log else -1
        if len(broker.log) != answer.position or (last_epoch != answer.last_epoch and self.has(Rule.ANSWER_FITS)):
            return
        if answer.diverging is not None:
            epoch, end = answer.diverging
            mine = max((offset + 1 for offset, batch in enumerate(broker.log) if batch[0] <= epoch), default=0)
            cut = min(mine, end)
            if cut < broker.visible:
                raise Violation(f"broker {broker.number} cuts at {cut}, below what was visible, {broker.visible}")
            del broker.log[cut:]
            broker.flushed = min(broker.flushed, cut)
            return
        for batch in answer.batches:
            self.append(broker, batch)
        broker.visible = max(broker.visible, min(answer.visible, broker.flushed))

    # Faults and starts

    def lose_power(self, broker: Broker) -> None:
        """Any part of what was not flushed may have reached the disk; this also hits a machine on which no process runs."""
        self.was_power_lost = True
        broker.is_up = False
        broker.boot += 1
        del broker.log[self.random.randint(broker.flushed, max(broker.flushed, len(broker.log))) :]
        broker.visible = min(broker.visible, len(broker.log))

    def lose_disk(self, broker: Broker) -> None:
        self.was_power_lost = self.was_disk_lost = True
        broker.is_up = False
        broker.is_disk_lost = True
        broker.log, broker.flushed, broker.visible = [], 0, 0
        self.check_lost_disk(broker)

    def start(self, broker: Broker) -> None:
        """A new process: it drops what it cannot vouch for, and does not lead in an old epoch."""
        number = broker.number
        broker.is_up = True
        broker.incarnation += 1
        self.incarnations[number] = broker.incarnation
        broker.known, broker.leads, broker.epoch = None, False, -1
        broker.proposal, broker.progress = None, {}
        broker.minimum = self.minimum
        is_disk_lost, broker.is_disk_lost = broker.is_disk_lost, False
        can_vouch = not is_disk_lost and (broker.boot == broker.boot_at_start or self.mode.waits_for_flush)
        broker.boot_at_start = broker.boot
        broker.flushed = len(broker.log)
        state = new = self.state
        withdraws = not can_vouch and self.has(Rule.VOUCHING)
        others = tuple(member for member in state.isr if member != number)
        if number in state.isr and withdraws:
            if others:
                new = replace(new, isr=others)
            elif is_disk_lost:
                new = replace(new, is_lost=True)
        if withdraws:
            new = replace(new, eligible=tuple(member for member in new.eligible if member != number))
        if state.leader == number and self.has(Rule.NEW_PROCESS_NEW_EPOCH):
            leader = number if new.isr == state.isr and not new.is_lost else NO_LEADER
            new = replace(new, leader=leader, leader_epoch=state.leader_epoch + 1, handover_to=None)
        if new != state:
            self.write(state.version, new)
        self.register(broker)

    def register(self, broker: Broker) -> None:
        self.registered[broker.number] = broker.incarnation
        self.learn(broker)

    def strike_who_joins(self, broker: Broker) -> None:
        """The most critical moment for a replica about to be added: its process is replaced before the transaction."""
        if self.random.random() < 0.1:
            fault = self.random.choice((self.kill, self.cut_power, self.replace_disk))
            fault(broker)
            if not broker.is_up and self.random.random() < 0.7:
                self.start(broker)

    def strike_leader(self, leader: Broker) -> None:
        """And for the others: the new member is all that is left."""
        if self.random.random() < 0.1:
            self.kill(leader)
            self.expire(leader)
            self.control()

    # The controller

    def control(self) -> None:
        """One look at the partition, as the controller sees it: perhaps with a wrong suspicion, or a broker that is being
        stopped."""
        draw = self.random.random
        registered = frozenset(self.registered)
        able = {number for number in self.registered if self.registered[number] == self.incarnations[number]}
        if draw() < 0.2:
            able.discard(self.random.choice(BROKERS))
        there = Presence(
            registered=registered,
            able=frozenset(able),
            leaving=frozenset({self.random.choice(BROKERS)}) if draw() < 0.1 else frozenset(),
            is_settling=draw() < 0.1,
        )
        state, key = self.state, ("t", 0)
        topic = ClusterTopic(name="t", topic_id=_TOPIC_ID, replicas=(BROKERS,), states=(state,), version=0)
        heir = state.handover_to if state.handover_to is not None else 0
        wishes = Wishes(
            preferred={key} if draw() < 0.2 else (),
            handovers={key: Asked(to=heir, epoch=state.leader_epoch, at=-self.random.choice((0.0, 6.0, 70.0)))},
        )
        new = next_state(topic, 0, there, self.minimum, False, 0.0, wishes)
        if new != state:
            self.write(state.version, new)

    # Steps

    def step(self) -> None:
        draw = self.random.random
        broker = self.brokers[int(draw() * len(BROKERS))]
        drawn = draw()
        for limit, action in self.actions:
            if drawn < limit:
                action(broker)
                break
        if self.tell is not None:
            self.told(f"{action.__name__} {broker.number}")

    def produce(self, broker: Broker) -> None:
        if broker.takes_records():
            self.batch_count += 1
            self.append(broker, (broker.epoch, self.batch_count))
            self.advance(broker)

    def flush(self, broker: Broker) -> None:
        if broker.is_up:
            broker.flushed = len(broker.log)
            self.advance(broker)

    def deliver(self, _broker: Broker) -> None:
        """Usually the oldest message. A message whose sender or receiver has since ended is lost."""
        if not self.messages:
            return
        message = self.messages.pop(self.random.randrange(len(self.messages)) if self.random.random() < 0.3 else 0)
        if isinstance(message, Fetch):
            sender, receiver = self.brokers[message.sender], self.brokers[message.leader]
            if self.lives(sender, message.sender_incarnation) and self.lives(receiver, message.leader_incarnation):
                self.serve(receiver, message)
        else:
            sender, receiver = self.brokers[message.sender], self.brokers[message.follower]
            if self.lives(sender, message.sender_incarnation) and self.lives(receiver, message.follower_incarnation):
                self.take(receiver, message)

    @staticmethod
    def lives(broker: Broker, incarnation: int) -> bool:
        return broker.is_up and broker.incarnation == incarnation

    def decide(self, _broker: Broker) -> None:
        self.control()

    def lose_message(self, _broker: Broker) -> None:
        if self.messages:
            self.messages.pop(self.random.randrange(len(self.messages)))

    def kill(self, broker: Broker) -> None:
        broker.is_up = broker.leads = False

    def cut_power(self, broker: Broker) -> None:
        if self.mode.power:
            broker.leads = False
            self.lose_power(broker)

    def replace_disk(self, broker: Broker) -> None:
        if self.mode.disk and not self.was_disk_lost:
            broker.leads = False
            self.lose_disk(broker)

    def expire(self, broker: Broker) -> None:
        """Its session ends: its process is dead, or was only disconnected."""
        if not broker.is_up or self.random.random() < 0.3:
            self.registered.pop(broker.number, None)

    def come_back(self, broker: Broker) -> None:
        if not broker.is_up:
            self.start(broker)
        elif broker.number not in self.registered:
            self.register(broker)

    def change_minimum(self, broker: Broker) -> None:
        """The minimum is altered, or a broker learns of it."""
        if self.mode.minimum_changes:
            if self.random.random() < 0.3:
                self.minimum = 3 - self.minimum
            broker.minimum = self.minimum
            self.advance(broker)


_TOPIC_ID = UUID(int=1)

_WEIGHTS: dict[str, float] = {
    "produce": 16,
    "flush": 12,
    "fetch": 18,
    "deliver": 24,
    "learn": 10,
    "change_isr": 7,
    "decide": 5,
    "lose_message": 0.5,
    "hand_over": 1,
    "kill": 1.5,
    "cut_power": 0.5,
    "replace_disk": 0.2,
    "expire": 0.8,
    "change_minimum": 0.5,
    "come_back": 3.5,
}


def _limits() -> list[tuple[float, str]]:
    total, limits = 0.0, []
    for name, weight in sorted(_WEIGHTS.items(), key=lambda item: -item[1]):
        total += weight
        limits.append((total / sum(_WEIGHTS.values()), name))
    return limits


_LIMITS = _limits()


@dataclass(slots=True)
class Summary:
    """The outcome of the histories: first seed of each kind of failure, and how much happened, so that idle ones are noticed."""

    histories: int = 0
    failures: dict[int, str] = field(default_factory=dict)
    acknowledged: int = 0
    epochs: int = 0


def run(mode: Mode, seeds: Iterable[int], without: Collection[Rule] = (), *, failures_max: int | None = None) -> Summary:
    """Play histories until `failures_max` of them have failed."""
    summary = Summary()
    for seed in seeds:
        world = World(seed, mode, without)
        summary.histories += 1
        try:
            for _ in range(STEPS):
                world.step()
        except Violation as violation:
            summary.failures[seed] = str(violation)
        summary.acknowledged += len(world.acknowledged_at_r)
        summary.epochs += world.state.leader_epoch
        if len(summary.failures) == failures_max:
            break
    return summary


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.model", description="plays the rules of replication at random")
    parser.add_argument("--histories", type=int, default=1000, help="how many of each mode (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--mode", action="append", choices=sorted(MODES), help="only this mode (may be repeated)")
    parser.add_argument("--without", choices=[rule.name for rule in Rule], help="a rule that is switched off")
    parser.add_argument("--seed", type=int, help="only this one, told step by step")
    options = parser.parse_args(arguments)
    without = [Rule[options.without]] if options.without else []
    failed = 0
    for name in options.mode or MODES:
        if options.seed is not None:
            failed += _tell(MODES[name], options.seed, without)
            continue
        began = time.monotonic()
        summary = run(MODES[name], range(options.first, options.first + options.histories), without)
        failed += len(summary.failures)
        example = next(iter(summary.failures.items()), "")
        print(
            f"{name:22} {len(summary.failures):5} of {summary.histories} fail, {summary.acknowledged} batches acknowledged, "
            f"{summary.epochs} epochs, {time.monotonic() - began:.0f} s {example}",
            flush=True,
        )
    return 1 if failed else 0


def _tell(mode: Mode, seed: int, without: Collection[Rule]) -> int:
    world = World(seed, mode, without, tell=print)
    try:
        for _ in range(STEPS):
            world.step()
    except Violation as violation:
        print(violation)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
