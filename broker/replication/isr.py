"""How a leader changes the state of the partitions it leads: which replicas are in sync, which others may be elected, and to
which broker leadership is handed over.

Each change is a proposal: compare-and-set on the version of the partition's znode that the leader knows. One is in flight for
each partition, up to 250 of them in one transaction with one journal entry. Only the image shows the outcome: a proposal is
over when the image shows a newer version than the one it was made from, whichever broker wrote that.

    committed   waits for the image
    refused     because of its version: waits for the image. Because of the incarnation of a broker it adds: certain never to
                happen, since incarnations only rise, so it is withdrawn. The states come before the checks in the transaction, so
                this second reason implies that the versions still matched. All others of that transaction are sent again
    unknown     may have happened, or may yet happen: ZooKeeper may receive it after we stopped waiting. The same is sent again
                until the image moves. Once the version has moved, what is still in flight can never happen

Until then a proposed addition counts for what is safe (progress.py); dropping it when its answer was lost would lose records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from uuid import UUID

from broker.clock import Clock
from broker.coordination.changes import StateChange
from broker.coordination.eligible import eligible_after
from broker.coordination.image import PartitionState
from broker.coordination.journal import STATES_MAX, state_writes
from broker.coordination.store import Check, Committed, Outcome, Reason, Refused, Store
from broker.coordination.znodes import incarnation_path
from broker.replication.progress import Departures, PartitionProgress
from broker.replication.replica import Key
from broker.replication.sessions import Led

RETRY_SECONDS = 0.5  # after an unknown outcome; the store itself waits for a session timeout if ZooKeeper is away


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A state to replace the current one. `additions` are the brokers it makes members; `incarnations` are those of brokers that
    must still be the processes we know."""

    state: PartitionState
    additions: Mapping[int, int] = field(default_factory=dict)
    incarnations: Mapping[int, int] = field(default_factory=dict)


def propose_isr(progress: PartitionProgress, departures: Departures, may_belong: Callable[[int, int], bool]) -> Proposal | None:
    """The in-sync replicas as they should be, or None if they already are. `may_belong(broker, incarnation)`: it is registered
    as this process, connected, and not being stopped."""
    state = progress.state
    leaving = (*departures.behind, *departures.lost)
    additions = {
        broker: follower.replica_epoch
        for broker, follower in progress.followers.items()
        if progress.may_join(broker) and broker not in departures.late and may_belong(broker, follower.replica_epoch)
    }
    isr = (*(broker for broker in state.isr if broker not in leaving), *additions)
    eligible = tuple(broker for broker in eligible_after(state, isr, progress.insync_min) if broker not in departures.lost)
    handover_to = state.handover_to if state.handover_to in isr else None
    # After an unclean election followers may truncate what was visible; those in sync with the new leader have done so.
    is_recovering = state.is_recovering and len(isr) < len(progress.replicas)
    new = replace(state, isr=isr, eligible=eligible, handover_to=handover_to, is_recovering=is_recovering)
    if new == state:
        return None
    new = replace(new, version=state.version + 1)
    return Proposal(state=new, additions=additions, incarnations=additions)


class _Pending:
    """A proposal whose outcome the image does not show yet."""

    __slots__ = ("led", "proposal", "retry_at")

    def __init__(self, led: Led, proposal: Proposal) -> None:
        self.led = led
        self.proposal = proposal
        self.retry_at = -inf  # inf: it is in flight, or answered


class Proposals:
    """See the module docstring."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.on_moved: Callable[[Led], None] = lambda led: None  # a withdrawn addition may let R and V move
        self._store = store
        self._clock = clock
        self._pending: dict[Key, _Pending] = {}
        self._unsent: dict[Key, _Pending] = {}

    def is_pending(self, led: Led) -> bool:
        return led.key in self._pending

    def is_handing_over(self, led: Led) -> bool:
        """Whether another broker may lead by now because we proposed it: nothing more may be written."""
        pending = self._pending.get(led.key)
        return pending is not None and pending.proposal.state.leader != led.progress.me

    def offer(self, led: Led, proposal: Proposal) -> None:
        """Send it with the next transaction."""
        assert led.key not in self._pending, "one for each partition"
        self._pending[led.key] = self._unsent[led.key] = _Pending(led, proposal)
        if proposal.additions:
            led.progress.propose(proposal.additions)
            led.confirmed_until = -inf  # a possible member may be elected: from now on its fetches are needed, too

    def learnt(self, led: Led) -> None:
        """The partition's progress has learnt a state from the image."""
        pending = self._pending.get(led.key)
        if pending is not None and led.progress.state.version >= pending.proposal.state.version:
            self.forget(led)

    def forget(self, led: Led) -> None:
        """Whatever was proposed for it is over, or it is no longer led."""
        self._pending.pop(led.key, None)
        self._unsent.pop(led.key, None)

    def send(self) -> None:
        """At the end of a turn, and when a retry is due."""
        if not self._unsent:
            return
        now = self._clock.monotonic()
        due = [pending for pending in self._unsent.values() if pending.retry_at <= now]
        for start in range(0, len(due), STATES_MAX):
            self._commit(due[start : start + STATES_MAX], now)

    @property
    def next_retry(self) -> float:
        return min([pending.retry_at for pending in self._unsent.values()]) if self._unsent else inf

    def _commit(self, batch: list[_Pending], now: float) -> None:
        changes: list[StateChange] = []
        brokers: dict[tuple[int, int], None] = {}
        for pending in batch:
            led, state = pending.led, pending.proposal.state
            changes.append(StateChange(topic=led.topic, topic_id=UUID(bytes=led.topic_id), index=led.index, state=state))
            brokers.update(dict.fromkeys(pending.proposal.incarnations.items()))
            pending.retry_at = inf
            del self._unsent[led.key]
        checks = [Check(path=incarnation_path(broker), version=incarnation) for broker, incarnation in brokers]
        *writes, entry = state_writes(changes)
        answered = partial(self._answered, batch, list(brokers), now)
        self._store.commit([*writes, *checks, entry], answered)

    def _answered(self, batch: list[_Pending], checked: list[tuple[int, int]], sent_at: float, outcome: Outcome) -> None:
        current = [pending for pending in batch if self._pending.get(pending.led.key) is pending]
        topics = list(dict.fromkeys(pending.led.topic_id for pending in batch))  # whose ids are checked before the states
        first_check = len(topics) + len(batch)
        match outcome:
            case Committed():
                for pending in current:
                    if pending.proposal.state.leader == pending.led.progress.me:
                        pending.led.stored_at = max(pending.led.stored_at, sent_at)
            case Refused(index=index, reason=Reason.BAD_VERSION | Reason.NO_NODE) if index < len(topics):
                self._send_again([pending for pending in current if pending.led.topic_id != topics[index]], -inf)
            case Refused(index=index, reason=Reason.BAD_VERSION | Reason.NO_NODE) if index < first_check:
                self._send_again([pending for pending in current if pending is not batch[index - len(topics)]], -inf)
            case Refused(index=index, reason=Reason.BAD_VERSION | Reason.NO_NODE) if index < first_check + len(checked):
                broker, incarnation = checked[index - first_check]
                is_void = [pending.proposal.incarnations.get(broker) == incarnation for pending in current]
                for pending in (pending for pending, void in zip(current, is_void, strict=True) if void):
                    self._withdraw(pending.led)
                self._send_again([pending for pending, void in zip(current, is_void, strict=True) if not void], -inf)
            case _:
                self._send_again(current, self._clock.monotonic() + RETRY_SECONDS)

    def _send_again(self, batch: list[_Pending], retry_at: float) -> None:
        for pending in batch:
            pending.retry_at = retry_at
            self._unsent[pending.led.key] = pending

    def _withdraw(self, led: Led) -> None:
        self.forget(led)
        led.progress.withdraw_additions()
        self.on_moved(led)
