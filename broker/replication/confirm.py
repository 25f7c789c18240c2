"""May this leader acknowledge what only it has written (acks=1), or does another lead by now?

acks=all and readers need no such question: to move what is safe, a stale leader would need a fetch of the new one in the old
epoch, and that sends none. acks=1 needs it: a broker that was stopped, or cut off, would go on acknowledging what nobody will
ever read.

The same goes for what a coordinator says of a group, which is true only as long as no other has taken commits.

Confirmed until three seconds (`logbus.leader.confirm.ms`, half a session at most) after a time at which it was certain that
nobody else led yet:

(a) every other broker that may be a member of the in-sync set still followed us in this epoch. When its fetch arrived says
    nothing, for it may have lain in our sockets while we were stopped: `FetchSession.alive_at` is a time before it was sent.
    Members by now may be those whose addition is proposed, too. It needs that nobody outside of the set is eligible: such a one
    could be elected while all members and we are cut off together;
(b) ZooKeeper accepted a transaction on our version of the state that was *sent* at that time: a change of ours, or a check for
    its own sake, which is sent when a lead begins, and once a second for those that need it, before what holds has run out;
(c) we are the only one who could be elected: then there is no limit.

Clocks only bound how long a stale leader goes on; what is acknowledged by all rests on none.
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
from broker.replication.sessions import Key, Led

CHECK_SECONDS = 1.0  # between two transactions that only ask; where little is believed for long, a third of that time


def confirmed_until(led: Led, alive_at: Callable[[int, Led], float], confirm_seconds: float) -> float:
    """See the file's theory."""
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
        self._ahead_seconds = confirm_seconds / 4  # for the answer to be there in time
        self._check_seconds = min(CHECK_SECONDS, confirm_seconds / 3)
        self._wanted: dict[Key, Led] = {}
        self._sent_at = -inf
        self._is_asking = False

    def is_confirmed(self, led: Led, now: float, *, grace_seconds: float = 0.0) -> bool:
        """Whether nobody else led the partition until very recently. Consumers are served for longer (`grace_seconds`): what they
        see is true, only perhaps old."""
        enough_seconds = grace_seconds - self._ahead_seconds
        if now > led.confirmed_until + enough_seconds:
            led.confirmed_until = confirmed_until(led, self._alive_at, self._confirm_seconds)
            if now > led.confirmed_until + enough_seconds:
                self._wanted[led.key] = led
        return now <= led.confirmed_until + grace_seconds

    def lead_begins(self, led: Led) -> None:
        """Nobody has followed it yet, and nobody knows how old the news is that this broker leads: asked for at once, so that
        its first client need not wait for that."""
        self.is_confirmed(led, self._clock.monotonic())

    def send(self) -> None:
        """At the end of a turn: ask ZooKeeper for those that nothing else confirms."""
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
        topics = list(dict.fromkeys(led.topic_id for led in asked))  # versions begin anew where a topic is made again
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
                # One has changed hands or state, or is gone, and the image will say so. Nothing is known of the others: they ask
                # at once.
                if index < len(topics):
                    left = [led for led in asked if led.topic_id != topics[index]]
                else:
                    left = [led for number, led in enumerate(asked, len(topics)) if number != index]
                self._wanted.update({led.key: led for led in left})
                self._sent_at = -inf
                self.send()
            case _:
                pass  # whoever still needs it asks again

    @property
    def next_question(self) -> float:
        """When `send` has something to do; inf: not before somebody asks."""
        return self._sent_at + self._check_seconds if self._wanted and not self._is_asking else inf
