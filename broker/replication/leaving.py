"""How a broker leaves its cluster in a controlled shutdown, without losing anything, not even what was acknowledged with acks=1.

1. it announces that it is leaving: it is no longer elected, and joins no in-sync replicas
2. the controller asks it to hand over what it leads; it continues to serve until it leads nothing that another broker could lead
3. it stops fetching, and removes itself from the in-sync replicas of what others lead, so that no leader waits for a
   follower that is gone. Not if the leader is dead: the other members might never come back, and this broker has everything

All of this has a time limit (logbus.controlled.shutdown.max.ms): what is left then is treated as after a kill.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from math import inf

from broker.clock import Clock
from broker.coordination.asking import ask, commit
from broker.coordination.changes import StateChange
from broker.coordination.eligible import eligible_after
from broker.coordination.image import Image
from broker.coordination.image_settings import ImageSettings
from broker.coordination.journal import STATES_MAX, state_writes
from broker.coordination.member import ClusterMember
from broker.errors import BrokerError
from broker.replication.roles import Roles

logger = logging.getLogger("broker.replication")

WITHDRAW_SECONDS = 2.0
RETRY_SECONDS = 0.5


class _Step(Enum):
    HANDING_OVER = "handing over what it leads"
    WITHDRAWING = "leaving in-sync sets"
    OVER = "gone"


class Leaving:
    """See the module docstring. `then` is called once, when the process may stop."""

    def __init__(
        self,
        member: ClusterMember,
        roles: Roles,
        settings: ImageSettings,
        clock: Clock,
        *,
        seconds_max: float,
        then: Callable[[], None],
    ) -> None:
        self._member = member
        self._roles = roles
        self._settings = settings
        self._then = then
        self._step = _Step.HANDING_OVER
        self._is_announced = False
        self._until = clock.monotonic() + seconds_max
        self._asked_of: Image | None = None
        self._ask_again_at = -inf
        member.registration.leave(self._announced)

    @property
    def is_over(self) -> bool:
        return self._step is _Step.OVER

    @property
    def due(self) -> float:
        if self.is_over:
            return inf
        return self._until if self._step is _Step.HANDING_OVER else min(self._until, self._ask_again_at)

    def _announced(self, error: BrokerError | None) -> None:
        self._is_announced = True
        if error is not None:
            logger.error("others could not be told that this broker is leaving: %s", error)
            self._until = -inf

    def work(self, now: float) -> None:
        """At the end of a turn: continue if the current step is done."""
        image = self._member.image
        if self._step is _Step.HANDING_OVER and (now >= self._until or (self._is_announced and not self._has_heirs(image))):
            self._step = _Step.WITHDRAWING
            self._until = now + WITHDRAW_SECONDS
            self._roles.stop_following()
        if self._step is _Step.WITHDRAWING:
            self._withdraw(image, now)

    def _has_heirs(self, image: Image) -> bool:
        """Whether some partition led here has another replica that is registered and not leaving."""
        me = self._member.broker_id
        staying = image.brokers.keys() - image.leaving - {me}
        return any(
            state.leader == me and not staying.isdisjoint(replicas)
            for topic in image.topics.values()
            if topic.name not in image.deleting
            for replicas, state in zip(topic.replicas, topic.states, strict=True)
        )

    def _withdraw(self, image: Image, now: float) -> None:
        if image is self._asked_of and now < min(self._ask_again_at, self._until):
            return
        changes = self._changes(image)
        if not changes or now >= self._until:
            self._step = _Step.OVER
            self._then()
            return
        self._asked_of, self._ask_again_at = image, now + RETRY_SECONDS
        for begin in range(0, len(changes), STATES_MAX):
            ask(self._member.store, commit(state_writes(changes[begin : begin + STATES_MAX])), lambda outcome, error: None)

    def _changes(self, image: Image) -> list[StateChange]:
        me, changes = self._member.broker_id, []
        for topic in image.topics.values():
            if topic.name in image.deleting:
                continue
            minimum = self._settings.insync_min(image, topic.name)
            for index, state in enumerate(topic.states):
                if me not in state.isr or state.leader == me or state.leader not in image.brokers:
                    continue
                isr = tuple(broker for broker in state.isr if broker != me)
                heir = None if state.handover_to == me else state.handover_to
                new = replace(
                    state,
                    isr=isr,
                    eligible=eligible_after(state, isr, minimum),
                    handover_to=heir,
                    version=state.version + 1,
                )
                changes.append(StateChange(topic=topic.name, topic_id=topic.topic_id, index=index, state=new))
        return changes
