"""May this leader acknowledge what only it has written (acks=1), or does another broker lead by now?

acks=all and readers do not need the question: to move what is safe, a stale leader would need a fetch from the new one in the old
epoch, and the new leader sends none. acks=1 needs it: a broker that was suspended, or cut off, would continue to acknowledge
records that no client will ever read.

The same applies to a coordinator's answers about a group, which are true only while no other coordinator has taken commits.

Leadership is confirmed until three seconds (`logbus.leader.confirm.ms`, half a session at most) after a time at which it was
certain that no other broker led yet:

(a) every other broker that may be in sync still followed us in this epoch. The arrival time of its fetch proves nothing, because
    the fetch may have waited in our socket while we were suspended: `FetchSession.alive_at` is a time before it was sent. Brokers
    whose addition is proposed may be members by now, so they count too. This requires that no broker outside the set is eligible:
    it could be elected while we and all members are cut off together;
(b) ZooKeeper accepted a transaction on our version of the state that was *sent* at that time: one of our changes, or a bare
    check, which is sent when leadership begins, and once a second for partitions that need it, before their confirmation expires;
(c) we are the only broker that could be elected: then there is no limit.

Clocks only bound how long a stale leader continues; acks=all depends on no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from uuid import UUID

from broker.clock import Clock
from broker.coordination.journal import STATES_MAX
from broker.coordination.store import Check, Committed, Outcome, Reason, Refused, Store
from broker.coordination.znodes import state_path, topic_id_path
from broker.replication.replica import Key
from broker.replication.sessions import Led

CHECK_SECONDS = 1.0  # between two check-only transactions; at most a third of the confirmation time


def confirmed_until(led: Led, alive_at: Callable[[int, Led], float], confirm_seconds: float) -> float:
    """See the module docstring."""
    progress, state = led.progress, led.progress.state
    followed_at = -inf
    if not state.eligible:
        others = [broker for broker in (*state.isr, *progress.additions) if broker != progress.me]
        if not others:
            return inf
        followed_at = min(alive_at(broker, led) for broker in others)
    return max(followed_at, led.stored_at) + confirm_seconds


class Confirmation:
    """Answers the question for each partition before a turn's write: nearly always by one comparison."""

    def __init__(self, store: Store, clock: Clock, alive_at: Callable[[int, Led], float], *, confirm_seconds: float) -> None:
        self._store = store
        self._clock = clock
        self._alive_at = alive_at
        self._confirm_seconds = confirm_seconds
        self._ahead_seconds = confirm_seconds / 4  # so that the answer arrives in time
        self._check_seconds = min(CHECK_SECONDS, confirm_seconds / 3)
        self._wanted: dict[Key, Led] = {}
        self._sent_at = -inf
        self._is_asking = False

    def is_confirmed(self, led: Led, now: float, *, grace_seconds: float = 0.0) -> bool:
        """Whether it is certain that no other broker led the partition until very recently. Consumers are served for longer
        (`grace_seconds`): what they see is true, only perhaps old."""
        enough_seconds = grace_seconds - self._ahead_seconds
        if now > led.confirmed_until + enough_seconds:
            led.confirmed_until = confirmed_until(led, self._alive_at, self._confirm_seconds)
            if now > led.confirmed_until + enough_seconds:
                self._wanted[led.key] = led
        return now <= led.confirmed_until + grace_seconds

    def lead_begins(self, led: Led) -> None:
        """No follower has fetched yet, and the state that makes this broker the leader may be old: ask at once, so that the
        first client need not wait for the answer."""
        self.is_confirmed(led, self._clock.monotonic())

    def send(self) -> None:
        """At the end of a turn: ask ZooKeeper about the partitions that nothing else confirms."""
        if not self._wanted or self._is_asking:
            return
        now = self._clock.monotonic()
        if now < self._sent_at + self._check_seconds:
            return
        asked = [led for led in self._wanted.values() if not led.is_over][:STATES_MAX]
        self._wanted = {key: led for key, led in self._wanted.items() if not led.is_over and led not in asked}
        if not asked:
            return
        self._sent_at, self._is_asking = now, True
        topics = list(dict.fromkeys(led.topic_id for led in asked))  # versions restart if a topic is recreated
        checks = [
            *(Check(path=topic_id_path(UUID(bytes=topic_id)), version=-1) for topic_id in topics),
            *(Check(path=state_path(led.topic, led.index), version=led.progress.state.version) for led in asked),
        ]
        self._store.commit(checks, partial(self._answered, asked, topics, now))

    def _answered(self, asked: list[Led], topics: list[bytes], sent_at: float, outcome: Outcome) -> None:
        self._is_asking = False
        match outcome:
            case Committed():
                for led in asked:
                    led.stored_at = max(led.stored_at, sent_at)
                if self._wanted and len(asked) == STATES_MAX:  # there was no room for the others
                    self._sent_at = -inf
                    self.send()
            case Refused(index=index, reason=Reason.BAD_VERSION | Reason.NO_NODE):
                # One has changed leader or state, or is gone, and the image will show it. Nothing was learnt about the others:
                # they are asked about again at once.
                if index < len(topics):
                    left = [led for led in asked if led.topic_id != topics[index]]
                else:
                    left = [led for number, led in enumerate(asked, len(topics)) if number != index]
                self._wanted.update({led.key: led for led in left})
                self._sent_at = -inf
                self.send()
            case _:
                pass  # partitions that still need it ask again

    @property
    def next_question(self) -> float:
        """When `send` has something to do; inf: not before `is_confirmed` wants an answer."""
        return self._sent_at + self._check_seconds if self._wanted and not self._is_asking else inf
