"""Producer ids of a cluster: each broker takes blocks of them from /latest_producer_id_block, as Kafka's do.

The next block is requested when half of one is used, so that a client seldom waits for ZooKeeper. A block that may or may not
have been taken is abandoned: there are 2^63 ids, while two producers with the same id would mix up their sequences.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from broker.coordination import znodes
from broker.coordination.asking import AnswerLost, Script, ask, commit, read_twice
from broker.coordination.store import Committed, NoNode, Set, Store, Unknown
from broker.coordination.znodes import PRODUCER_ID_BLOCK, ProducerIdBlock
from broker.errors import BrokerError, RequestTimedOut

logger = logging.getLogger("broker.coordination")

BLOCK_IDS = 1_000
ATTEMPTS = 20  # how often other brokers may be faster in a row

TakenId = Callable[[int, BaseException | None], None]


class ProducerIdBlocks:
    """Assigns producer ids, each once in the life of the cluster."""

    def __init__(self, store: Store, broker_id: int) -> None:
        self._store = store
        self._broker_id = broker_id
        self._ids: deque[range] = deque()  # of at most two blocks, neither empty
        self._waiting: deque[TakenId] = deque()
        self._is_asking = False

    def take(self, then: TakenId) -> None:
        """Call `then(id, None)` with an unused id, at once if there is one; `then(-1, error)` if ZooKeeper does not
        answer."""
        if self._ids:
            then(self._give(), None)
        else:
            self._waiting.append(then)
        if not self._is_asking and sum(map(len, self._ids)) <= BLOCK_IDS // 2:
            self._is_asking = True
            ask(self._store, take_block(self._broker_id), self._took)

    def _give(self) -> int:
        ids = self._ids[0]
        if len(ids) == 1:
            self._ids.popleft()
        else:
            self._ids[0] = ids[1:]
        return ids[0]

    def _took(self, block: ProducerIdBlock | None, error: BrokerError | None) -> None:
        self._is_asking = False
        if block is not None:
            self._ids.append(range(block.start, block.end))
        waiting, self._waiting = self._waiting, deque()
        for then in waiting:
            if self._ids:
                _tell(then, self._give(), None)
            elif error is not None:
                _tell(then, -1, error)
            else:
                self.take(then)  # more requests waited than one block holds


def _tell(then: TakenId, producer_id: int, error: BrokerError | None) -> None:
    """A callback that fails must not affect the others."""
    try:
        then(producer_id, error)
    except Exception:
        logger.exception("who waited for a producer id could not be told; this is a defect of the broker")


def take_block(broker_id: int) -> Script[ProducerIdBlock]:
    """Reserve a block for this broker alone."""
    for _ in range(ATTEMPTS):
        found = yield from read_twice(PRODUCER_ID_BLOCK)
        if isinstance(found, NoNode):
            raise AnswerLost(f"{PRODUCER_ID_BLOCK} is not there")
        start = znodes.decode_producer_id_block(found.data).end if found.data else 0
        block = ProducerIdBlock(broker_id=broker_id, start=start, end=start + BLOCK_IDS)
        data = znodes.encode_producer_id_block(block)
        outcome = yield from commit([Set(path=PRODUCER_ID_BLOCK, data=data, version=found.version)])
        if isinstance(outcome, Committed):
            return block
        if isinstance(outcome, Unknown):
            raise RequestTimedOut("ZooKeeper did not say whether there are more producer ids: ask again")
    raise RequestTimedOut("other brokers took all blocks of producer ids that this one asked for: ask again")
