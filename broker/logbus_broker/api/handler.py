"""What every handler shares: what it works with, what it returns, how it answers a request that names thousands of things, and
what it does with names that are repeated.

A handler returns the parts of a response's body at once, a Pending to be completed later, or nothing (acks=0). A part is bytes or
a slice of a log file, which the network sends from the page cache without reading it. Fields of a response that have Kafka's own
default are not set: no client is throttled, and without an error the code is 0.

Requests that name thousands of things are answered by background tasks: the loop takes its turns in between. Such a handler is a
generator that returns the response's parts. It starts at once and, if it is short, finishes at once. What the client sends after
such a request waits unread until it is answered: so the answers are those of a broker that handles the requests of a connection
one after another.

Topics, partitions, groups and resources have one row in a response however often a request names them: clients read it into a map
by name, and librdkafka rejects one that has a topic twice. Entries that only read are merged; of entries that change something
none is carried out, since the outcome would depend on their order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence, Sized
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar

from logbus_broker import errors, logs
from logbus_broker.api.authorization import Caller
from logbus_broker.api.produce_turn import ProduceTurn
from logbus_broker.api.purgatory import Deadlines, Purgatory
from logbus_broker.clock import Clock
from logbus_broker.cluster import cluster_view, local_files, security_store
from logbus_broker.cluster.producer_ids import ProducerIds
from logbus_broker.filesystem import FileSlice
from logbus_broker.groups import committed_offsets, coordinator
from logbus_broker.health import Counters, Health
from logbus_broker.log import background_tasks, manager, partition, topic_admin
from logbus_broker.log.flusher import Flusher
from logbus_broker.log.high_watermark import HighWatermark
from logbus_broker.log.thread_pool import ThreadPool
from logbus_broker.protocol import codec, framing
from logbus_broker.security.quotas import ClientQuotas
from logbus_broker.settings import BrokerConfig

if TYPE_CHECKING:
    from logbus_broker.api.authorization import Authorizer
    from logbus_broker.api.metadata import MetadataCache

    # a standalone broker imports none of these
    from logbus_broker.cluster.membership import ClusterMember
    from logbus_broker.replication.leader import Leader


@dataclass(slots=True, kw_only=True)
class Context:
    """What the handlers work with: the packages below, as they see them. Built once by `composition.py`."""

    config: BrokerConfig
    counters: Counters
    health: Health
    clock: Clock
    partitions: manager.PartitionManager
    producer_ids: ProducerIds
    groups: coordinator.GroupCoordinator
    offsets: committed_offsets.OffsetStore
    flusher: Flusher
    high_watermark: HighWatermark
    purgatory: Purgatory
    deadlines: Deadlines
    produce_turn: ProduceTurn
    thread_pool: ThreadPool
    tasks: background_tasks.BackgroundTasks
    topic_changes: topic_admin.TopicAdmin
    checkpoints: local_files.GroupedWrites
    view: cluster_view.ClusterView
    metadata_cache: MetadataCache
    security: security_store.SecurityStore
    quotas: ClientQuotas
    authorizer: Authorizer | None = None  # None: everything is allowed
    # A standalone broker has none of these.
    cluster: ClusterMember | None = None
    leader: Leader | None = None  # the leader's side of replication
    serves_consumers: Callable[[partition.Partition], bool] | None = None


Part = bytes | FileSlice
Parts = list[Part]


def part_size(part: Part) -> int:
    """How many bytes the part takes on the wire."""
    return part.length if isinstance(part, FileSlice) else len(part)


class Pending:
    """A response that is not ready yet. Completed once; cancelled if its connection closes first."""

    __slots__ = ("closes", "is_cancelled", "is_framed", "on_cancel", "on_complete", "parts", "silent", "stops_reading")

    def __init__(self, *, stops_reading: bool = False, silent: bool = False) -> None:
        self.parts: Parts | None = None
        self.on_complete: Callable[[], None] | None = None
        self.on_cancel: Callable[[], None] | None = None
        self.stops_reading = stops_reading  # a waiting fetch: requests pipelined after it wait unread
        self.silent = silent  # acks=0: completing sends nothing
        self.closes: str | None = None  # why the connection is closed instead of an answer: a key of NetworkCounters.closed
        self.is_framed = False  # `parts` are the complete response, frame header included
        self.is_cancelled = False  # the connection is gone: work on the answer may stop

    @property
    def done(self) -> bool:
        return self.parts is not None

    def complete(self, parts: Parts) -> None:
        assert self.parts is None, "completed twice"
        self.parts = parts
        if self.on_complete is not None:
            self.on_complete()

    def complete_with(self, make: Callable[[], Parts]) -> None:
        """Complete with the result of `make`. An answer is built long after its request, at the end of a turn that all clients
        share: if that fails, it must cost its own connection and nothing else."""
        try:
            parts = make()
        except Exception:
            self.fail_as_defect()
            return
        self.complete(parts)

    def fail_as_defect(self) -> None:
        """To be called in an exception handler: closes the connection and logs the traceback, whatever was raised."""
        logs.log_bug("building a response failed")
        if self.parts is None:
            self.close_instead("defect")

    def close_instead(self, reason: str) -> None:
        """Close the connection instead of answering."""
        self.silent, self.closes = True, reason
        self.complete([])

    def cancel(self) -> None:
        self.on_complete = None
        self.is_cancelled = True
        if self.on_cancel is not None:
            self.on_cancel()


# Encoding this many rows takes a millisecond or two. More are encoded by a thread: it alternates with the loop on the interpreter
# lock, half a millisecond each, instead of blocking the loop for the whole encoding.
_ROWS_ENCODED_ON_LOOP_MAX = 500

Answering = Generator[background_tasks.Step, Any, Parts]
Work = Callable[[Any, int, Caller, Context], Answering]  # of a decoded message, its version, and who sent it
Handler = Callable[[framing.Request, Context], Parts | Pending]


def caller_of(request: framing.Request, context: Context) -> Caller:
    """Who sent the request."""
    return Caller(request.api_key, request.origin, context.authorizer, request.client_id)


def in_slices(steps: Answering, context: Context) -> Parts | Pending:
    """Answer with the return value of `steps`."""
    return _answer_with(steps, context.tasks.begin)


def in_turn(steps: Answering, context: Context) -> Parts | Pending:
    """The same for requests that change topics or settings: after all such requests that arrived earlier. In a cluster, other
    brokers change them as well: a queue would be useless, and a request that waits for ZooKeeper would hold up all others."""
    return _answer_with(steps, context.tasks.enqueue if context.cluster is None else context.tasks.begin)


def _answer_with(steps: Answering, begin: Callable[[background_tasks.Steps, Callable[[], None]], None]) -> Parts | Pending:
    pending = Pending(stops_reading=True)

    def complete() -> background_tasks.Steps:
        pending.complete((yield from steps))

    begin(complete(), pending.fail_as_defect)
    return pending if pending.parts is None or pending.closes else pending.parts


def answered_in_slices(work: Work) -> Handler:
    """The handler that decodes a request and has `work` answer it, in slices."""
    return _decoding(work, in_slices)


def answered_in_turn(work: Work) -> Handler:
    """The same, in turn."""
    return _decoding(work, in_turn)


def _decoding(work: Work, begin: Callable[[Answering, Context], Parts | Pending]) -> Handler:
    @wraps(work)
    def handle(request: framing.Request, context: Context) -> Parts | Pending:
        message = codec.decode_request(request.api_key, request.version, request.body)
        return begin(work(message, request.version, caller_of(request, context), context), context)

    return handle


def encode_in_slices(response: Any, version: int, *rows: Sized) -> Answering:
    """The answer's parts; `rows` are its lists that determine how long encoding takes."""
    if sum(map(len, rows)) <= _ROWS_ENCODED_ON_LOOP_MAX:
        return [codec.encode_response(response, version)]
    return [(yield partial(codec.encode_response, response, version))]


K = TypeVar("K")
T = TypeVar("T")


def by_name(entries: Iterable[T], name_of: Callable[[T], K]) -> dict[K, list[T]]:
    """The entries of each name, in the order in which the names first occur."""
    named: dict[K, list[T]] = {}
    for entry in entries:
        named.setdefault(name_of(entry), []).append(entry)
    return named


def by_partition(topics: Iterable[Any]) -> dict[tuple[str, int], list[Any]]:
    """The same for a request's partitions, by topic and index."""
    named: dict[tuple[str, int], list[Any]] = {}
    for topic in topics:
        for part in topic.partitions:
            named.setdefault((topic.name, part.partition_index), []).append(part)
    return named


def only_one(entries: Sequence[T], what: str) -> T:
    """Raises InvalidRequest if there are several entries for `what`."""
    if len(entries) > 1:
        raise errors.InvalidRequest(f"{what} is named more than once in one request: name it once")
    return entries[0]
