"""What one client's large request costs all other clients.

A bystander sends ApiVersions every 10 ms while a broker gets one large request after another, each on a new broker. For each
there are rows with: the bystander's longest wait from the request until a second after its end, because files are removed and
checkpoints written after the answer; how long the request took; and by how much the broker's resident memory has grown at the
end, and had grown at most. A wait is fair up to 50 ms, or ten times the longest on an idle broker if the machine itself is slower
than that. Load and bystander are processes on the same machine as the broker, so a wait includes the time until the system lets
the broker run.
"""

from __future__ import annotations

import contextlib
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from logbus.waiting import wait_until
from logbus_broker.protocol.api import APIS, ApiKey
from logbus_broker.protocol.batch import ZSTD
from logbus_broker.protocol.codec import ELEMENTS_MAX, request_class, response_class
from logbus_broker.protocol.records import NewRecord, build_batch
from logbus_broker.protocol.validation import INSPECTED_RECORDS_MAX
from rich.console import Console

from benchmarks.costs.bystander import Bystander
from benchmarks.costs.compaction import said
from benchmarks.costs.load import alter_topic, produce_all
from benchmarks.costs.wire import Connection, Refused, fetch_frame, produce_frame
from benchmarks.figures import Figure, Target, figure
from benchmarks.loads import Scale
from benchmarks.peers.logbus import LogbusBroker
from benchmarks.processes import POLL_SECONDS

WAIT_MS_MAX, IDLE_MAXIMA = 50.0, 10.0
GROWTH_MIB_MAX = 64.0
CREATE_SECONDS_MAX = 5.0
MIB = 1 << 20
IDLE_SECONDS = 10.0
TAIL_SECONDS = 1.0
ANSWER_SECONDS_MAX = 900.0
SETTINGS = {"logbus.partitions.max": "20000", "log.cleaner.backoff.ms": "100"}
TOPICS, WIDE, DELETED, CRASHED = 1_000, 3_000, 2_000, 1_000
PARTITIONS_PER_REQUEST = 50  # of the first append after a crash
EMPTY_BYTES = 100 * MIB - 200
NAMES_REFUSED = 140_000
STREAM_SECONDS = 5.0
RECORDS_REFUSED = 190_000
CLEANED_REQUESTS = 600  # of 100 records

Act = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Something large that a broker is asked to do: `prepare` does the preparation and returns what is measured."""

    name: str
    prepare: Callable[[LogbusBroker, Scale], Act]
    seconds_max: float | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run of a part."""

    wait_ms: float
    seconds: float
    kept_mib: float
    peak_mib: float


def run(console: Console, scale: Scale) -> Sequence[Figure]:
    idle: list[float] = []
    outcomes: dict[str, list[Outcome]] = {part.name: [] for part in PARTS}
    for _ in range(scale.rounds):
        idle.append(_with_broker(Part(name="idle", prepare=lambda broker, scale: _idle(scale)), scale).wait_ms)
        for part in PARTS:
            scale.settle()
            outcome = _with_broker(part, scale)
            outcomes[part.name].append(outcome)
            console.print(
                f"{part.name}: others waited {outcome.wait_ms:.0f} ms, {outcome.seconds:.2f} s, "
                f"{outcome.peak_mib:.0f} MiB more, {outcome.kept_mib:.0f} MiB kept",
                highlight=False,
            )
    return list(part_figures(idle, outcomes, {part.name: part.seconds_max for part in PARTS}))


def part_figures(
    idle: Sequence[float], outcomes: Mapping[str, Sequence[Outcome]], seconds_max: Mapping[str, float | None]
) -> Iterator[Figure]:
    yield figure("nobody asks for anything: others wait at most", "ms", ours=idle)
    limit = max(WAIT_MS_MAX, round(IDLE_MAXIMA * max(idle)))
    for name, found in outcomes.items():
        most = seconds_max.get(name)
        yield figure(f"{name}: others wait at most", "ms", ours=[one.wait_ms for one in found], target=Target(ours_max=limit))
        yield figure(
            f"{name}: takes",
            "s",
            ours=[one.seconds for one in found],
            target=None if most is None else Target(ours_max=most),
        )
        yield figure(f"{name}: memory kept", "MiB", ours=[one.kept_mib for one in found], target=Target(ours_max=GROWTH_MIB_MAX))
        yield figure(f"{name}: memory at its peak", "MiB", ours=[one.peak_mib for one in found])


def _idle(scale: Scale) -> Act:
    return lambda: time.sleep(max(IDLE_SECONDS * scale.share, 1.0))


def _with_broker(part: Part, scale: Scale) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="logbus-fairness-") as name:
        broker = LogbusBroker(Path(name), settings={**SETTINGS, **part.settings})
        with broker:
            act = part.prepare(broker, scale)
            with Bystander(broker.port) as bystander:
                time.sleep(TAIL_SECONDS)
                return measure(broker, bystander, act)


def measure(broker: LogbusBroker, bystander: Bystander, act: Act) -> Outcome:
    before = memory_mib(broker.pid)
    Path("/proc", str(broker.pid), "clear_refs").write_text("5")  # resets the peak
    bystander.longest_ms()
    began = time.monotonic()
    act()
    ended = time.monotonic()
    time.sleep(TAIL_SECONDS)
    wait_ms = bystander.longest_ms()
    peak = memory_mib(broker.pid, "VmHWM")
    time.sleep(TAIL_SECONDS * 6)  # buffers that are empty for five seconds are freed
    return Outcome(
        wait_ms=wait_ms,
        seconds=ended - began,
        kept_mib=max(memory_mib(broker.pid) - before, 0.0),
        peak_mib=max(peak - before, 0.0),
    )


def memory_mib(pid: int, name: str = "VmRSS") -> float:
    """Resident memory of one process: now, or VmHWM at its peak."""
    lines = Path("/proc", str(pid), "status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


# Requests


def connect(broker: LogbusBroker) -> Connection:
    connection = Connection(broker.bootstrap)
    connection.socket.settimeout(ANSWER_SECONDS_MAX)
    return connection


def frame(api_key: ApiKey, body: bytes, version: int) -> bytes:
    head = struct.pack(">hhih", api_key, version, 0, -1) + (b"\0" if version >= APIS[api_key].flexible_from else b"")
    return struct.pack(">i", len(head) + len(body)) + head + body


def ask(broker: LogbusBroker, api_key: ApiKey, version: int, **values: Any) -> Any:
    """Sends an admin request in a version with the old (not flexible) encoding; returns its answer."""
    with connect(broker) as connection:
        return sent(connection, request_frame(api_key, version, **values), api_key, version)


def request_frame(api_key: ApiKey, version: int, **values: Any) -> bytes:
    message = request_class(api_key)(**values)
    return frame(api_key, bytes(message.encode(version=version)), version)


def sent(connection: Connection, raw: bytes, api_key: ApiKey, version: int) -> Any:
    return response_class(api_key).decode(connection.ask(raw)[4:], version=version)


def require(rows: Sequence[Any], count: int) -> None:
    """Raises Refused unless there are `count` rows, none of them an error."""
    errors = {row.error_code for row in rows if row.error_code}
    if errors or len(rows) != count:
        raise Refused(f"{len(rows)} of {count} rows with errors {errors}")


def create(broker: LogbusBroker, names: Sequence[str], partitions: int, **config: str) -> None:
    row = request_class(ApiKey.CREATE_TOPICS).CreatableTopic
    configs = [row.CreatableTopicConfig(name=name.replace("_", "."), value=value) for name, value in config.items()]
    topics = [row(name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=configs) for name in names]
    asked = {"topics": topics, "timeout_ms": int(ANSWER_SECONDS_MAX * 1000), "validate_only": False}
    require(ask(broker, ApiKey.CREATE_TOPICS, 4, **asked).topics, len(names))


def grow(broker: LogbusBroker, name: str, count: int) -> None:
    row = request_class(ApiKey.CREATE_PARTITIONS).CreatePartitionsTopic(name=name, count=count, assignments=None)
    asked = {"topics": [row], "timeout_ms": int(ANSWER_SECONDS_MAX * 1000), "validate_only": False}
    require(ask(broker, ApiKey.CREATE_PARTITIONS, 1, **asked).results, 1)


def delete(broker: LogbusBroker, name: str) -> None:
    asked = {"topic_names": [name], "timeout_ms": int(ANSWER_SECONDS_MAX * 1000)}
    require(ask(broker, ApiKey.DELETE_TOPICS, 3, **asked).responses, 1)


def delete_records(broker: LogbusBroker, name: str, partitions: int) -> None:
    row = request_class(ApiKey.DELETE_RECORDS).DeleteRecordsTopic
    parts = [row.DeleteRecordsPartition(partition_index=index, offset=-1) for index in range(partitions)]
    asked = {"topics": [row(name=name, partitions=parts)], "timeout_ms": int(ANSWER_SECONDS_MAX * 1000)}
    (topic,) = ask(broker, ApiKey.DELETE_RECORDS, 1, **asked).topics
    require(topic.partitions, partitions)


def produce_frames(name: str, partitions: int, *, each: int) -> list[bytes]:
    """One record for every partition, `each` partitions per request."""
    batch = bytes(build_batch([NewRecord(timestamp=time.time_ns() // 1_000_000, key=None, value=b"v" * 100)]))
    frames = []
    for first in range(0, partitions, each):
        indexes = range(first, min(first + each, partitions))
        rows = b"".join(struct.pack(">ii", index, len(batch)) + batch for index in indexes)
        topic = struct.pack(">ih", 1, len(name)) + name.encode() + struct.pack(">i", len(indexes)) + rows
        frames.append(frame(ApiKey.PRODUCE, struct.pack(">hhi", -1, 1, 30_000) + topic, 7))
    return frames


def produce(broker: LogbusBroker, frames: Sequence[bytes]) -> None:
    with connect(broker) as connection:
        for raw in frames:
            (topic,) = sent(connection, raw, ApiKey.PRODUCE, 7).responses
            require(topic.partition_responses, len(topic.partition_responses))


# What is measured


def _creating(broker: LogbusBroker, scale: Scale) -> Act:
    names = [f"topic-{number}" for number in range(scale.records(TOPICS))]
    return lambda: create(broker, names, 1)


def _creating_wide(broker: LogbusBroker, scale: Scale) -> Act:
    return lambda: create(broker, ["wide"], scale.records(WIDE))


def _growing(broker: LogbusBroker, scale: Scale) -> Act:
    create(broker, ["wide"], 1)
    return lambda: grow(broker, "wide", scale.records(WIDE))


def _deleting(broker: LogbusBroker, scale: Scale) -> Act:
    create(broker, ["wide"], scale.records(WIDE))
    return lambda: delete(broker, "wide")


def _deleting_records(broker: LogbusBroker, scale: Scale) -> Act:
    count = scale.records(DELETED)
    create(broker, ["wide"], count)
    produce(broker, produce_frames("wide", count, each=PARTITIONS_PER_REQUEST))
    return lambda: delete_records(broker, "wide", count)


def _empty_partitions(broker: LogbusBroker, scale: Scale) -> Act:
    create(broker, ["t"], 1)
    count = int(EMPTY_BYTES * scale.share) // 8
    topic = struct.pack(">ih", 1, 1) + b"t" + struct.pack(">i", count)
    body = struct.pack(">hhi", -1, 1, 30_000) + topic + struct.pack(">ii", 0, -1) * count
    raw = frame(ApiKey.PRODUCE, body, 7)
    return lambda: _answered_or_refused(broker, raw)


def _names(count: int) -> Callable[[LogbusBroker, Scale], Act]:
    def prepare(broker: LogbusBroker, scale: Scale) -> Act:
        size = (MIB - 100) // count - 2
        names = b"".join(struct.pack(">h", size) + b"%0*x" % (size, number) for number in range(count))
        raw = frame(ApiKey.METADATA, struct.pack(">i", count) + names + b"\0", 4)
        return lambda: _answered_or_refused(broker, raw)

    return prepare


def _answered_or_refused(broker: LogbusBroker, raw: bytes) -> None:
    with connect(broker) as connection, contextlib.suppress(Refused, ConnectionError):
        connection.ask(raw)


def _streaming(broker: LogbusBroker, scale: Scale) -> Act:
    create(broker, ["idle", "sent"], 1)
    large = frame(ApiKey.PRODUCE, bytes(90 * MIB), 7)

    def act() -> None:
        until = time.monotonic() + max(STREAM_SECONDS * scale.share, 1.0)
        view, place = memoryview(large), 0
        with connect(broker) as connection:
            connection.send(fetch_frame("idle", 0, wait_ms=60_000))
            connection.socket.setblocking(False)
            while time.monotonic() < until:
                try:
                    place = (place + connection.socket.send(view[place : place + (64 << 10)])) % len(view)
                except BlockingIOError:
                    time.sleep(0.001)
                except ConnectionError:
                    return

    return act


def _appending_after_a_crash(broker: LogbusBroker, scale: Scale) -> Act:
    count = scale.records(CRASHED)
    create(broker, ["wide"], count)
    frames = produce_frames("wide", count, each=PARTITIONS_PER_REQUEST)
    produce(broker, frames)
    broker.kill9()
    broker.start()
    return lambda: produce(broker, frames)


def _cleaning(broker: LogbusBroker, scale: Scale) -> Act:
    now_ms = time.time_ns() // 1_000_000
    batches = [
        bytes(
            build_batch([NewRecord(timestamp=now_ms, key=b"%d" % (number * 100 + one), value=b"v" * 500) for one in range(100)])
        )
        for number in range(100)
    ]
    create(broker, ["keyed"], 1, segment_bytes=str(4 * MIB))
    produce_all(broker.bootstrap, "keyed", batches, requests=max(int(CLEANED_REQUESTS * scale.share), 100))

    def act() -> None:
        alter_topic(broker.bootstrap, "keyed", "cleanup.policy", "compact")
        wait_until(lambda: said(broker.log_path, "keyed") is not None, what="the compaction", poll_seconds=POLL_SECONDS)

    return act


def _compressed(count: int) -> Callable[[LogbusBroker, Scale], Act]:
    def prepare(broker: LogbusBroker, scale: Scale) -> Act:
        create(broker, ["keyed"], 1, cleanup_policy="compact")
        now_ms = time.time_ns() // 1_000_000
        records = [NewRecord(timestamp=now_ms, key=b"%d" % number, value=b"") for number in range(count)]
        raw = produce_frame("keyed", build_batch(records, codec=ZSTD))
        return lambda: _answered_or_refused(broker, raw)

    return prepare


PARTS = (
    Part(name="1,000 topics created", prepare=_creating, seconds_max=CREATE_SECONDS_MAX),
    Part(name="3,000 partitions created", prepare=_creating_wide),
    Part(name="a topic grown to 3,000 partitions", prepare=_growing),
    Part(name="3,000 partitions deleted", prepare=_deleting),
    Part(name="records deleted in 2,000 partitions", prepare=_deleting_records),
    Part(name="100 MiB of empty partitions produced", prepare=_empty_partitions),
    Part(name=f"a megabyte of {NAMES_REFUSED:,} names", prepare=_names(NAMES_REFUSED)),
    Part(name=f"a megabyte of {ELEMENTS_MAX:,} names", prepare=_names(ELEMENTS_MAX)),
    Part(name="bytes streamed behind a long poll", prepare=_streaming),
    Part(name="first append to 1,000 partitions after a crash", prepare=_appending_after_a_crash),
    Part(name="a pass of compaction", prepare=_cleaning),
    Part(name=f"a batch of {RECORDS_REFUSED:,} compressed records", prepare=_compressed(RECORDS_REFUSED)),
    Part(name=f"a batch of {INSPECTED_RECORDS_MAX:,} compressed records", prepare=_compressed(INSPECTED_RECORDS_MAX)),
)
