"""What clients do all day, over plain sockets, remembering what the broker acknowledged: a little of everything in each round.

A round produces to every kind of topic (rolled, compacted, trimmed, cut by DeleteRecords), fetches, searches by time, commits,
joins a group, creates, grows and deletes a topic, changes settings of a topic and of the broker, and requests a producer id. An
answer is either correct or an error, and errors are counted, not raised: `check` then compares what the broker holds with what it
has acknowledged. No value is sent twice, so a record stored twice is detected.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from logbus.waiting import PATIENCE_SECONDS
from logbus_broker.protocol.api import APIS, ApiKey, ErrorCode
from logbus_broker.protocol.batch import read_header
from logbus_broker.protocol.codec import request_class, response_class
from logbus_broker.protocol.records import NewRecord, Record, build_batch, read_records

from benchmarks.costs.wire import whole_batches
from tests.support import admin
from tests.support.group_client import GroupRequests, encode
from tests.support.raw_client import Closed, RawClient
from tests.support.wire import Wanted, fetch_answer, fetch_body, produce_answer, produce_body

PLAIN, KEYED, TRIMMED, CUT, MADE = "plain", "keyed", "trimmed", "cut", "made"
OFFSETS = "__consumer_offsets"
PARTITIONS = 2
KEYS = 3
VALUE_BYTES = 400
SEGMENT_BYTES = 3_000
SMALL_BYTES = 1_000  # segments of compacted and trimmed topics, so that there is always something to do
TOPICS: dict[str, dict[str, str]] = {
    PLAIN: {"segment.bytes": str(SEGMENT_BYTES)},
    KEYED: {"segment.bytes": str(SMALL_BYTES), "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
    TRIMMED: {"segment.bytes": str(SMALL_BYTES), "retention.bytes": str(3 * SMALL_BYTES)},
    CUT: {"segment.bytes": str(SEGMENT_BYTES)},
}
# All background work of the broker runs continually.
BUSY = {
    "logbus.acks.all.waits.for.flush": "true",
    "log.flush.interval.ms": "50",
    "log.flush.offset.checkpoint.interval.ms": "100",
    "log.retention.check.interval.ms": "100",
    "log.cleaner.backoff.ms": "50",
    "producer.id.expiration.check.interval.ms": "100",
    "offsets.retention.check.interval.ms": "100",
    "offsets.topic.segment.bytes": "2000",
    "group.initial.rebalance.delay.ms": "20",
    "group.min.session.timeout.ms": "100",
    "log.index.interval.bytes": "500",
}
GROUP = "workload"
READ_BYTES = 1 << 20
LONG_POLL_MS = 5_000

Place = tuple[str, int]


class Refused(Exception):
    """An answer with an error code."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__(f"{what}: {code}")
        self.what = what
        self.code = code


@dataclass(slots=True)
class Promises:
    """What the broker has promised about one partition."""

    sent: set[bytes] = field(default_factory=set)
    acknowledged: dict[int, bytes] = field(default_factory=dict)  # by offset
    durable_below: int = 0  # acknowledged with acks=all, which waits for the disk here, or seen by a consumer
    start: int = 0  # the highest log start offset seen
    checked_below: int = 0


class Workload:
    """See the module docstring. Uses one connection, reopened when the broker has closed it."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.errors: Counter[str] = Counter()
        self.closed = 0  # connections that the broker ended
        self.promises: dict[Place, Promises] = defaultdict(Promises)
        self.committed = 0
        self.newest: dict[tuple[int, bytes], int] = {}  # by partition and key of KEYED: the number of the newest record
        self.rounds = 0
        self._numbers = itertools.count(1)
        self._connection: RawClient | None = None
        self.groups = GroupRequests(self.ask)

    def __enter__(self) -> Self:
        self.create_topics()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.__exit__(None, None, None)
            self._connection = None

    @property
    def connection(self) -> RawClient:
        if self._connection is None:
            self._connection = RawClient(self.bootstrap, timeout_seconds=PATIENCE_SECONDS)
        return self._connection

    def create_topics(self) -> None:
        for name, config in TOPICS.items():
            with contextlib.suppress(Refused):  # it exists from an earlier run
                self.create(name, PARTITIONS, config)

    # -- a round -----------------------------------------------------------------------------------------------------------------

    def round(self) -> None:
        """Everything once."""
        self.rounds += 1
        for action in self._actions(self.rounds):
            self.attempt(action)

    def works(self) -> bool:
        """Whether a whole round completes without an error."""
        before = self.errors.total() + self.closed
        self.round()
        return self.errors.total() + self.closed == before

    def attempt(self, action: Callable[[], object]) -> None:
        """Run it; an error is counted, a closed connection counted and dropped."""
        try:
            action()
        except Refused as refused:
            self.errors[refused.what] += 1
        except (Closed, ConnectionError):
            self.closed += 1
            self.disconnect()
        except TimeoutError:
            raise AssertionError("a request was neither answered nor its connection closed") from None

    def _actions(self, number: int) -> Iterator[Callable[[], object]]:
        for index in range(PARTITIONS):
            for topic in (PLAIN, TRIMMED, CUT):
                yield lambda topic=topic, index=index: self.produce(topic, index, acks=1)  # type: ignore[misc]
            yield lambda index=index: self.produce(PLAIN, index, acks=-1)  # type: ignore[misc]
            yield lambda index=index: self.produce(KEYED, index, acks=-1, key=b"%d" % (number % KEYS))  # type: ignore[misc]
        yield lambda: self.produce_numbered(PLAIN, number % PARTITIONS)
        yield lambda: self.fetch(PLAIN, number % PARTITIONS)
        yield lambda: self.wait_for_more(PLAIN, number % PARTITIONS)
        yield lambda: self.search(PLAIN, number % PARTITIONS)
        yield lambda: self.cut(number % PARTITIONS)
        yield lambda: self.commit()
        yield lambda: self.join_and_leave(f"{GROUP}-{number}")
        yield lambda: self.create(f"{MADE}.{number}", 1, {})
        yield lambda: self.grow(f"{MADE}.{number}", 2)
        yield lambda: self.delete(f"{MADE}.{number - 1}")
        yield lambda: self.alter(admin.TOPIC, PLAIN, "retention.ms", str(10**9 + number))
        yield lambda: self.alter(admin.BROKER, "", "log.retention.ms", str(10**9 + number))
        yield lambda: self.ask(ApiKey.DESCRIBE_LOG_DIRS, topics=None)
        yield lambda: self.ask(
            ApiKey.METADATA, topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )

    # -- requests ----------------------------------------------------------------------------------------------------------------

    def ask(self, api_key: ApiKey, version: int | None = None, **values: Any) -> Any:
        """Send a request, in the highest version unless one is passed, and decode the answer."""
        version = APIS[api_key].last if version is None else version
        flexible = version >= APIS[api_key].flexible_from
        body = encode(api_key, version, values)
        return response_class(api_key).decode(self.connection.request(api_key, version, body, flexible=flexible), version=version)

    def produce(self, topic: str, index: int, *, acks: int, key: bytes | None = None, **producer: int) -> None:
        number = next(self._numbers)
        value = b"%d " % number + b"." * VALUE_BYTES
        now_ms = time.time_ns() // 1_000_000
        batch = build_batch([NewRecord(timestamp=now_ms, key=key, value=value)], **producer)
        promises = self.promises[topic, index]
        promises.sent.add(value)
        body = bytes(produce_body({(topic, index): bytes(batch)}, acks=acks))
        row = produce_answer(self.connection.request(ApiKey.PRODUCE, 9, body, flexible=True))[topic, index]
        check(f"produce to {topic}-{index}", row.error_code)
        promises.acknowledged[row.base_offset] = value
        if acks == -1:
            promises.durable_below = max(promises.durable_below, row.base_offset + 1)
        if key is not None:
            self.newest[index, key] = number

    def produce_numbered(self, topic: str, index: int) -> None:
        """As an idempotent producer that sends only this batch."""
        answer = self.ask(
            ApiKey.INIT_PRODUCER_ID, transactional_id=None, transaction_timeout_ms=1000, producer_id=-1, producer_epoch=-1
        )
        check("init producer id", answer.error_code)
        self.produce(topic, index, acks=-1, producer_id=answer.producer_id, producer_epoch=answer.producer_epoch, base_sequence=0)

    def fetch(self, topic: str, index: int) -> None:
        """From the last acknowledged offset, and from the log start offset as last seen."""
        promises = self.promises[topic, index]
        for offset in {max(promises.acknowledged, default=0), promises.start}:
            self.records_from(topic, index, offset)

    def wait_for_more(self, topic: str, index: int) -> None:
        """A fetch that waits at the log end offset, and a record that completes it."""
        with RawClient(self.bootstrap, timeout_seconds=PATIENCE_SECONDS) as other:
            end = self.offset_of(topic, index, timestamp=-1)
            body = bytes(fetch_body(Wanted(topic=topic, index=index, offset=end), wait_ms=LONG_POLL_MS))
            other.send_request(ApiKey.FETCH, 12, body, flexible=True)
            self.produce(topic, index, acks=-1)
            other.receive_frame()

    def records_from(self, topic: str, index: int, offset: int) -> tuple[list[Record], int]:
        """The records of one fetch from `offset` on, and the offset for the next: compaction leaves empty batches."""
        body = bytes(fetch_body(Wanted(topic=topic, index=index, offset=offset, bytes_max=READ_BYTES), wait_ms=10))
        answer = fetch_answer(self.connection.request(ApiKey.FETCH, 12, body, flexible=True))
        (row,) = answer.responses[0].partitions
        check(f"fetch {topic}-{index} from {offset}", row.error_code)
        batches = list(whole_batches(row.records or b""))
        records = [record for batch in batches for record in read_records(batch) if record.offset >= offset]
        return records, read_header(batches[-1]).next_offset if batches else offset

    def search(self, topic: str, index: int) -> None:
        self.offset_of(topic, index, timestamp=time.time_ns() // 1_000_000 - 1_000)

    def offset_of(self, topic: str, index: int, *, timestamp: int) -> int:
        (row,) = admin.list_offsets(self, timestamp, index, topic=topic)
        check(f"list offsets of {topic}-{index}", row.error_code)
        return int(row.offset)

    def cut(self, index: int) -> None:
        """DeleteRecords up to the third-last acknowledged record."""
        promises = self.promises[CUT, index]
        offset = sorted(promises.acknowledged)[-3] if len(promises.acknowledged) > 2 else 0
        row = request_class(ApiKey.DELETE_RECORDS).DeleteRecordsTopic
        topic = row(name=CUT, partitions=[row.DeleteRecordsPartition(partition_index=index, offset=offset)])
        answer = self.ask(ApiKey.DELETE_RECORDS, topics=[topic], timeout_ms=5_000)
        part = answer.topics[0].partitions[0]
        check(f"delete records of {CUT}-{index}", part.error_code)
        promises.start = max(promises.start, part.low_watermark)

    def commit(self) -> None:
        offset = self.committed + 1
        check("commit", self.groups.commit(offset, topic=PLAIN, group=GROUP))
        self.committed = offset

    def committed_offset(self) -> int:
        group = self.groups.offsets_of(GROUP, PLAIN)
        check("offset fetch", group.error_code)
        check("offset fetch", group.topics[0].partitions[0].error_code)
        return int(group.topics[0].partitions[0].committed_offset)

    def join_and_leave(self, group: str) -> None:
        """The join completes when its delay is over, the sync by the leader's assignment."""
        self.groups.group = group
        joined = self.groups.enter(rebalance_timeout_ms=1_000)
        check("join", joined.error_code)
        check("sync", self.groups.sync(joined).error_code)
        check("leave", self.groups.leave((joined.member_id, None)).error_code)

    def create(self, name: str, count: int, config: dict[str, str]) -> None:
        check(f"create {name}", admin.create(self, name, count, **config).error_code)

    def grow(self, name: str, count: int) -> None:
        check(f"grow {name}", admin.grow(self, name, count)[0])

    def delete(self, name: str) -> None:
        code = admin.delete(self, name).error_code
        if code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:  # its creation failed, or the answer to its deletion was lost
            check(f"delete {name}", code)

    def alter(self, kind: int, name: str, key: str, value: str) -> None:
        check(f"alter {name or 'the broker'}", admin.alter(self, kind, name, (key, admin.SET, value))[0])

    # -- what is true --------------------------------------------------------------------------------------------------------------

    def offline(self) -> list[Place]:
        """The partitions that answer with a storage error."""
        found = []
        for place in (*itertools.product(TOPICS, range(PARTITIONS)), (OFFSETS, 0)):
            try:
                self.offset_of(*place, timestamp=-1)
            except Refused as refused:
                assert refused.code == ErrorCode.KAFKA_STORAGE_ERROR, refused
                found.append(place)
        return found

    def check(self, *, everything: bool = False, recovered: frozenset[Place] = frozenset()) -> None:
        """AssertionError if the broker does not hold what it has promised. `recovered` are partitions whose disk failed: records
        acknowledged there but neither flushed nor read by a consumer may be gone."""
        for topic, index in itertools.product((PLAIN, TRIMMED, CUT), range(PARTITIONS)):
            self._check_log(topic, index, everything=everything, may_lack=(topic, index) in recovered)
        for index in range(PARTITIONS):
            self._check_keys(index)
        assert self.committed_offset() >= self.committed, "a commit was lost"

    def _check_log(self, topic: str, index: int, *, everything: bool, may_lack: bool) -> None:
        promises = self.promises[topic, index]
        start, stored = self.stored(topic, index, from_offset=0 if everything else promises.checked_below)
        place = f"{topic}-{index}"
        assert topic in (TRIMMED, CUT) or start == 0, f"{place} begins at {start}"
        assert start >= promises.start, f"{place}: records came back: it begins at {start}, and did at {promises.start}"
        values = [value for _, value in stored]
        assert len(values) == len(set(values)), f"{place} holds a record twice"
        assert set(values) <= promises.sent, f"{place} holds what nobody sent"
        found = dict(stored)
        first = max(start, 0 if everything else promises.checked_below)
        for offset, value in list(promises.acknowledged.items()):
            if offset < first or found.get(offset) == value:
                continue
            is_lost_fairly = may_lack and offset >= promises.durable_below and offset not in found
            assert is_lost_fairly, f"{place}: the record at offset {offset} is {'another one' if offset in found else 'gone'}"
            del promises.acknowledged[offset]
        promises.start = start
        if stored:
            promises.checked_below = promises.durable_below = stored[-1][0] + 1

    def _check_keys(self, index: int) -> None:
        """The newest record of a key is the last one acknowledged, or a later one whose answer was lost."""
        newest: dict[bytes, int] = {}
        for record in self._records(KEYED, index, 0):
            if record.key is not None and record.value is not None:
                newest[record.key] = int(record.value.split()[0])
        for (of, key), number in self.newest.items():
            if of == index:
                assert newest.get(key, 0) >= number, f"{KEYED}-{index}: key {key!r} went back from {number} to {newest.get(key)}"

    def stored(self, topic: str, index: int, *, from_offset: int) -> tuple[int, list[tuple[int, bytes]]]:
        """The log start offset, and the offset and value of every record from there or from `from_offset` on."""
        start = self.offset_of(topic, index, timestamp=-2)
        records = self._records(topic, index, max(start, from_offset))
        return self.offset_of(topic, index, timestamp=-2), [(record.offset, record.value or b"") for record in records]

    def _records(self, topic: str, index: int, offset: int) -> list[Record]:
        found: list[Record] = []
        offset = max(offset, self.offset_of(topic, index, timestamp=-2))
        end = self.offset_of(topic, index, timestamp=-1)
        while offset < end:
            try:
                records, offset = self.records_from(topic, index, offset)
            except Refused as refused:
                if refused.code != ErrorCode.OFFSET_OUT_OF_RANGE:  # retention has just moved the log start offset
                    raise
                offset = self.offset_of(topic, index, timestamp=-2)
                continue
            found += records
        return found


def check(what: str, code: int) -> None:
    """Raise Refused if `code` is an error."""
    if code:
        raise Refused(what, code)
