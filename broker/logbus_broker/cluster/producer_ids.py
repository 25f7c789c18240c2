"""Producer ids, each assigned once: from blocks that are reserved before the first id of one is used.

The next block is requested when half of one is used, so that a client seldom waits for it. Where blocks come from is passed in: a
standalone broker records them on its disk (`local_producer_ids`), a broker in a cluster takes them from ZooKeeper
(metadata_writes.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from logbus_broker.cluster.local_files import Files, Store, reading
from logbus_broker.logs import log_bug

BLOCK_IDS = 1_000  # as Kafka
PRODUCER_IDS_FILE = "producer-ids.json"  # of a standalone broker

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
        log_bug("a callback with a producer id failed")


def next_local_block(files: Files) -> int:
    """The first id that a standalone broker has not reserved."""
    stored = files.read_json(PRODUCER_IDS_FILE)
    with reading(PRODUCER_IDS_FILE):
        start: int = 1000 if stored is None else stored["next"]
        if start < 0:
            raise ValueError(f"the next id is {start}")
    return start


def local_producer_ids(files: Files, store: Store) -> ProducerIds:
    """Each is assigned once in the life of the data directory."""
    start = next_local_block(files)

    def reserve(then: Reserved) -> None:
        block = range(start, start + BLOCK_IDS)

        def recorded(_: Any, error: BaseException | None) -> None:
            nonlocal start
            if error is None:
                start = block.stop
            then(block if error is None else None, error)

        store(lambda: files.write_json_atomic(PRODUCER_IDS_FILE, {"next": block.stop}), recorded)

    return ProducerIds(reserve)
