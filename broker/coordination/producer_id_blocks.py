"""Producer ids of a cluster: each broker takes blocks of them from /latest_producer_id_block, as Kafka's do.

A block that may or may not have been taken is abandoned: there are 2^63 ids, while two producers with the same id would mix up
their sequences.
"""

from __future__ import annotations

from broker.coordination import znodes
from broker.coordination.asking import AnswerLost, Script, ask, commit, read_twice
from broker.coordination.producer_ids import BLOCK_IDS, ProducerIds
from broker.coordination.store import Committed, NoNode, Set, Store, Unknown
from broker.coordination.znodes import PRODUCER_ID_BLOCK, ProducerIdBlock
from broker.errors import RequestTimedOut

ATTEMPTS = 20  # how often other brokers may be faster in a row


def cluster_producer_ids(store: Store, broker_id: int) -> ProducerIds:
    """Each is assigned once in the life of the cluster."""
    return ProducerIds(lambda reserved: ask(store, take_block(broker_id), reserved))


def take_block(broker_id: int) -> Script[range]:
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
            return range(block.start, block.end)
        if isinstance(outcome, Unknown):
            raise RequestTimedOut("ZooKeeper did not say whether there are more producer ids: ask again")
    raise RequestTimedOut("other brokers took all blocks of producer ids that this one asked for: ask again")
