"""Producer ids, each assigned once: from blocks that are reserved before the first id of one is used.

The next block is requested when half of one is used, so that a client seldom waits for it. Where blocks come from is passed in: a
standalone broker records them on its disk (local.py), a broker in a cluster takes them from ZooKeeper (producer_id_blocks.py).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

logger = logging.getLogger("broker.coordination")

BLOCK_IDS = 1_000  # as Kafka

TakenId = Callable[[int, BaseException | None], None]
Reserved = Callable[[range | None, BaseException | None], None]


class ProducerIds:
    """`reserve` is called with a callback, which gets a block of ids that nobody else has or will get, or the error."""

    def __init__(self, reserve: Callable[[Reserved], object]) -> None:
        self._reserve = reserve
        self._ids: deque[range] = deque()  # of at most two blocks, neither empty
        self._waiting: deque[TakenId] = deque()
        self._is_asking = False

    def take(self, then: TakenId) -> None:
        """Call `then(id, None)` with an unused id, at once if there is one; `then(-1, error)` if no block can be reserved."""
        if self._ids:
            then(self._give(), None)
        else:
            self._waiting.append(then)
        if not self._is_asking and sum(map(len, self._ids)) <= BLOCK_IDS // 2:
            self._is_asking = True
            self._reserve(self._reserved)

    def _give(self) -> int:
        ids = self._ids[0]
        if len(ids) == 1:
            self._ids.popleft()
        else:
            self._ids[0] = ids[1:]
        return ids[0]

    def _reserved(self, block: range | None, error: BaseException | None) -> None:
        self._is_asking = False
        if block is not None:
            self._ids.append(block)
        waiting, self._waiting = self._waiting, deque()
        for then in waiting:
            if self._ids:
                _tell(then, self._give(), None)
            elif error is not None:
                _tell(then, -1, error)
            else:
                self.take(then)  # more requests waited than one block holds


def _tell(then: TakenId, producer_id: int, error: BaseException | None) -> None:
    """A callback that fails must not affect the others."""
    try:
        then(producer_id, error)
    except Exception:
        logger.exception("a request that waited for a producer id could not be answered; this is a defect of the broker")
