"""The broker without sockets, for unit tests: the clock moves and background jobs run only when the test says so, and requests are
messages.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest
from logbus_broker.api.handler import Parts, Pending
from logbus_broker.api.metadata_source import MetadataSource
from logbus_broker.cluster.cluster_view import ClusterView
from logbus_broker.engine import Engine
from logbus_broker.filesystem import FileSlice, FileSystem
from logbus_broker.log.flusher import FlushTicket
from logbus_broker.log.high_watermark import Watermarks
from logbus_broker.protocol.api import ApiKey
from logbus_broker.protocol.codec import request_class, response_class
from logbus_broker.protocol.framing import NOWHERE, Request
from logbus_broker.protocol.records import NewRecord, build_batch
from logbus_broker.settings import BrokerConfig, LogConfig

from tests.support import admin
from tests.support.manual_clock import ManualClock
from tests.support.wire import Wanted, fetch_answer, fetch_body, produce_answer, produce_body

_IDS = count(1)  # of topics and members; a directory that is reopened gets other ones


class ManualThreadPool:
    """Jobs wait until `run` is called; their outcomes wait until they are drained. With a `refusal`, no more jobs are accepted:
    it is their outcome."""

    def __init__(self) -> None:
        self.jobs: deque[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = deque()
        self.submitted = 0
        self.refusal: Exception | None = None
        self.flushes_wait = False  # a slow disk: tickets are kept but not run
        self.flushed: list[Path] = []  # directories, in the order in which their flushes started
        self._outcomes: deque[Callable[[], None]] = deque()

    def submit(self, job: Callable[[], Any], outcome: Callable[[Any, BaseException | None], None]) -> None:
        if self.refusal is not None:
            outcome(None, self.refusal)
            return
        self.submitted += 1
        self.jobs.append((job, outcome))

    def store(self, job: Callable[[], Any], outcome: Callable[[Any, BaseException | None], None]) -> None:
        self.submit(job, outcome)

    def flush(self, ticket: FlushTicket, outcome: Callable[[Any, BaseException | None], None]) -> None:
        self.flushed.append(ticket.active.directory)
        if not self.flushes_wait:
            self.submit(ticket.run, outcome)

    def run_together(self, jobs: Sequence[Callable[[], Any]]) -> list[Any]:
        return [job() for job in jobs]

    def run(self) -> None:
        while self.jobs:
            job, outcome = self.jobs.popleft()
            result, error = None, None
            try:
                result = job()
            except Exception as caught:
                error = caught
            self._outcomes.append(lambda outcome=outcome, result=result, error=error: outcome(result, error))  # type: ignore[misc]

    def drain(self) -> None:
        while self._outcomes:
            self._outcomes.popleft()()

    def close(self) -> None:
        self.run()
        self.drain()


class Harness:
    """An engine in a directory; `ask` sends a control request, `dispatch` any."""

    opened: ClassVar[list[Harness] | None] = None  # those that `closed_harnesses` closes

    def __init__(
        self,
        directory: Path,
        *,
        filesystem: FileSystem | None = None,
        log: LogConfig | None = None,
        watermarks: Watermarks | None = None,
        view: ClusterView | None = None,
        metadata_source: MetadataSource | None = None,
        ids: Iterator[int] = _IDS,
        **settings: Any,
    ) -> None:
        self.clock = ManualClock()
        self.origin = NOWHERE  # of the requests from now on
        self.thread_pool = ManualThreadPool()
        config = BrokerConfig(log_dirs=directory, log=log or LogConfig(), **settings)
        self.engine = Engine(
            config,
            clock=self.clock,
            filesystem=filesystem or FileSystem(),
            thread_pool=self.thread_pool,
            ports={"PLAINTEXT": 9092},
            new_id=lambda: uuid.UUID(int=next(ids), version=4),
            watermarks=watermarks,
            view=view,
            metadata_source=metadata_source,
        )
        if Harness.opened is not None:
            Harness.opened.append(self)

    def turn(self, *, after_ms: int = 0) -> None:
        """One turn of the loop, once that time has passed, without letting threads run."""
        self.clock.advance_ms(after_ms)
        self.engine.drain_thread_pool()
        self.engine.end_turn()

    def turns_until_helped(self) -> int:
        """How many turns are taken until a thread gets work, which it does not do yet."""
        turns = 0
        while not self.thread_pool.jobs:
            turns += 1
            self.turn()
        return turns

    def settle(self, *, after_ms: int = 0) -> None:
        """Turns until no thread has any work left."""
        self.turn(after_ms=after_ms)
        while self.thread_pool.jobs or self.engine.tasks.due < self.clock.monotonic():
            self.thread_pool.run()
            self.turn()

    def flush(self) -> None:
        """Let the flush interval pass, so that everything written is on disk and visible."""
        self.turn()
        self.settle(after_ms=LogConfig().flush_interval_ms)

    def dispatch(self, api_key: ApiKey, version: int, body: bytes | bytearray) -> Parts | Pending:
        return self.engine.dispatch(Request(int(api_key), version, 1, "test", memoryview(body), origin=self.origin))

    def begin(self, api_key: ApiKey, version: int, **values: Any) -> Any:
        """Send a request, which may be answered later."""
        return self.dispatch(api_key, version, bytes(request_class(api_key)(**values).encode(version=version)))

    def read(self, answer: Parts | Pending, api_key: ApiKey, version: int) -> Any:
        """The decoded response, after as many turns as it takes."""
        return response_class(api_key).decode(self.bytes_of(answer), version=version)

    def ask(self, api_key: ApiKey, version: int, **values: Any) -> Any:
        """Send a control request and return its decoded response."""
        return self.read(self.begin(api_key, version, **values), api_key, version)

    def produce(self, raw: bytes | None, topic: str = "clicks", index: int = 0, **more: Any) -> Pending:
        """Send one batch."""
        pending = self.dispatch(ApiKey.PRODUCE, 9, produce_body({(topic, index): raw}, **more))
        assert isinstance(pending, Pending)
        return pending

    def fetch(self, *wanted: Wanted, **limits: int) -> Any:
        return self.dispatch(ApiKey.FETCH, 12, fetch_body(*wanted, **limits))

    def fetched(self, answer: Parts | Pending) -> Any:
        """The only row of a fetch's answer, after as many turns as it takes."""
        ((row,),) = [topic.partitions for topic in fetch_answer(self.bytes_of(answer)).responses]
        return row

    def bytes_of(self, answer: Parts | Pending) -> bytes:
        """The response's body, after as many turns as it takes."""
        if isinstance(answer, Pending):
            self.settle()
            assert answer.parts is not None, "still waiting"
            answer = answer.parts
        return b"".join(read_part(part) for part in answer)

    def create(self, name: str, partitions: int = 1, **configs: str) -> Any:
        return admin.create(self, name, partitions, **configs)

    def delete(self, name: str) -> Any:
        return admin.delete(self, name)

    def close(self) -> None:
        self._is_over()
        self.engine.close()

    def crash(self) -> None:
        """As if the process had been killed: its lock is released, nothing else is done."""
        self._is_over()
        self.engine.partitions._directory._lock = None

    def _is_over(self) -> None:
        if Harness.opened is not None and self in Harness.opened:
            Harness.opened.remove(self)


@pytest.fixture(autouse=True)
def closed_harnesses(defects: list[str]) -> Iterator[None]:
    """Every engine that a test leaves open is closed at its end."""
    Harness.opened = []
    yield
    opened, Harness.opened = Harness.opened, None
    for harness in reversed(opened):
        harness.close()


def produced(pending: Pending) -> Any:
    """The only row of the answer to a Produce, which has been answered."""
    (row,) = produce_answer(b"".join(map(read_part, pending.parts or []))).values()
    return row


def read_part(part: bytes | FileSlice) -> bytes:
    if isinstance(part, bytes):
        return part
    import os

    data = os.pread(part.fileno(), part.length, part.position)
    part.release()
    return data


def batch(*values: bytes, timestamp: int = 1_700_000_000_000, **fields: Any) -> bytearray:
    """One v2 batch with a record for each value."""
    return build_batch([NewRecord(timestamp=timestamp + n, value=value) for n, value in enumerate(values)], **fields)
