"""Log files to a topic: every line a record, once, oldest first; a second run sends only what is new.

The topic itself records what was sent: each record carries its file and the byte at which its line began. The state file stores
how far everything is acknowledged (a checkpoint, about once a second). After a clean end that is all. After a kill, the next run
reads back the records after the last checkpoint and leaves out the lines it finds among them. So nothing is lost and nothing is
sent twice, even after kill -9. A topic that ends before the recorded offsets has lost records: their lines are sent again.
Two cases remain: a state file lost or restored from a backup (its lines are sent again), and a network that delivers the
killed run's last requests later than SETTLE_SECONDS after the next run began.

The state file is kept per topic id, so a topic that was deleted and created again starts from nothing. It is written before the
first line is sent and then only after everything sent so far is acknowledged. So a crash leaves a state that may lag behind the
topic, but is never ahead of it: `clean` is false, and `next_offsets` holds the offsets from which to look for lines sent since.
"""

from __future__ import annotations

import fcntl
import json
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from logbus.atomic_write import replace_atomically
from logbus.errors import StateInUse, StateUnusable, TopicMissing, UnreadableLog
from logbus.shipper import line_reader, merged_lines, timestamp_extractor
from logbus.shipper import sources as files_seen
from logbus.shipper.shipment import (
    PRODUCER_DEFAULTS,
    Numbering,
    Progress,
    Sent,
    Shipment,
    TopicClient,
    TopicTruncation,
    open_delivery,
    rewound,
)
from logbus.shipper.sources import FilePart, Fingerprint, Source
from logbus.waiting import Say, say_nothing

PARTITIONS_DEFAULT = 3
BATCH_BYTES_DEFAULT = 1_000_000  # librdkafka's message.max.bytes; a topic's max.message.bytes is a little more
LINE_BYTES_MAX = 900_000  # the rest of the batch is for key, headers and framing
CHECKPOINT_LINES = 100_000  # what a run after a kill may have to read back; about a second of sending
SETTLE_SECONDS = 2.0  # twice the broker's default flush interval: by then a killed run's last records are visible
PARTITIONER = PRODUCER_DEFAULTS["partitioner"]
FILES_MAX = 500  # open at once while merging; a process can usually open 1,024
STATE_VERSION = 1
ANOTHER_STATE = "Without it, or with another one (--state), every line is sent again"
SOURCES_REMEMBERED = 10_000  # years of hourly rotation; the least recently used are forgotten first


@dataclass(slots=True, kw_only=True)
class ShipReport(Sent):
    """What one run did. `lines` and `bytes` were sent and acknowledged; nothing else was."""

    files: int
    seconds: float
    timezone: str = "UTC"  # in which times without a zone were read
    timezone_assumed: bool = True  # it was not named by the user
    lost: int = 0  # records that the topic had acknowledged and no longer holds
    unnamed: tuple[str, ...] = ()  # files that hold some of those and were not named
    rotated: tuple[str, ...] = ()  # rotated files with lines not sent before: this run has sent them too
    rotated_before: tuple[str, ...] = ()  # rotated files of logs that were never sent: left alone
    gone: tuple[FilePart, ...] = ()  # sent up to a byte, and no longer there: what was written after it is not sent


def ship(
    files: Iterable[Path | str],
    *,
    topic: str,
    client_config: Mapping[str, Any],
    state_path: Path | str,
    progress: Progress | None = None,
    create_topic: bool = True,
    partitions: int = PARTITIONS_DEFAULT,
    producer_config: Mapping[str, Any] | None = None,
    server_name: str | None = None,
    include_partial_line: bool = False,
    zone: ZoneInfo | None = None,
    time_format: str | None = None,
    time_field: str | None = None,
    allow_undated: bool = False,
    accept_times: bool = False,
    join_lines: bool = False,
    line_bytes_max: int = LINE_BYTES_MAX,
    checkpoint_lines: int = CHECKPOINT_LINES,
    accept_loss: bool = False,
    stop: Callable[[], bool] = lambda: False,
    say: Say = say_nothing,
) -> ShipReport:
    """Send what the topic does not yet hold of these files. Returns when all of it, or all up to the stop, is acknowledged.
    `zone` is that of times written without one; UTC by default. `time_format` (strptime's directives) or `time_field` define how
    a line's time is written, if that is not recognised. `accept_times`: a file whose times lie far from its own is sent, too.
    `join_lines`: lines without a time of their own belong to the record of the line before. Rotated files next to a named one are
    sent too (sources.py). `say` is told what is waited for.

    Raises UnreadableLog, UndatedLog, BrokerUnavailable, TopicMissing, StateInUse before anything is sent, DeliveryFailed if the
    broker is lost for good during the run; then, as after a kill, the next run resumes exactly where the topic ends. If a file is
    damaged further on, what precedes the damage and all other files are sent before UnreadableLog is raised.
    """
    started = time.time()
    paths = _checked(files)
    client = TopicClient(topic, client_config, say)
    times = timestamp_extractor.TimeOptions(
        format_of=time_format, field=time_field, zone=zone, allows_undated=allow_undated, accepts_times=accept_times
    )
    reading = merged_lines.LineReading(int(started * 1000), line_bytes_max, include_partial_line, times, joins=join_lines)
    with open_state(Path(state_path)) as state, files_seen.missing_files_as_log_gone():
        if not client.exists():
            if not create_topic:
                raise TopicMissing(f"topic {topic} does not exist: create it first, or leave out --no-create-topic")
            # Checked first: a file that is refused should not leave an empty topic behind.
            _extractors_of_unsent(files_seen.identify(paths, []), reading)
            client.create(partitions=partitions, settings=_topic_settings(line_bytes_max))
        topic_id = client.topic_id()
        noted = state.topic(topic_id, topic)
        before, lost = _recover(noted, client, accept_loss=accept_loss)
        sent_before = list(before.sources.values())
        mentioned = files_seen.never_sent(paths, sent_before)
        rotated, gone = files_seen.unsent(paths, sent_before)
        sources = files_seen.identify([*paths, *rotated], sent_before)
        named = {source.source_id for source in sources}
        gone = [source for source in gone if source.source_id not in named]
        extractors = _extractors_of_unsent(sources, reading)
        sending = {"message.max.bytes": _batch_bytes(line_bytes_max), **client_config, **(producer_config or {})}
        delivery = open_delivery(topic, sending, queued_lines_max=checkpoint_lines, say=say)

        def checkpoint(sources: Sequence[Source], clean: bool, next_offsets: Mapping[int, int] | None = None) -> None:
            ends = client.end_offsets() if next_offsets is None else next_offsets
            state.save(topic_id, _checkpoint(before, sources, gone, clean=clean, next_offsets=ends))

        checkpoint(sources, clean=False, next_offsets=before.next_offsets)  # nothing sent yet: as the topic ended a moment ago
        shipment = Shipment(
            sources={source.source_id: source for source in sources},
            delivery=delivery,
            checkpoint=checkpoint,
            server_name=(server_name or socket.gethostname()).encode(),
            progress=progress or (lambda done, total, lines: None),
            checkpoint_lines=checkpoint_lines,
            # Another partitioner chooses their partitions itself.
            numbering=Numbering(len(before.next_offsets)) if sending.get("partitioner", PARTITIONER) == PARTITIONER else None,
            stop=stop,
        )
        sent = shipment.run(reading._replace(extractors=extractors))
    return ShipReport(
        files=len(paths),
        seconds=time.time() - started,
        timezone=str(zone or UTC),
        timezone_assumed=zone is None,
        rotated=tuple(map(str, rotated)),
        rotated_before=tuple(map(str, mentioned)),
        gone=tuple(FilePart(path=source.path, position=source.position) for source in gone),
        lost=lost.records,
        unnamed=tuple(source.path for source in sent_before if lost.records and source.source_id not in named),
        **{name: getattr(sent, name) for name in Sent.__dataclass_fields__},
    )


def _batch_bytes(line_bytes_max: int) -> int:
    """The size of a batch that holds one line with its key and headers; at least librdkafka's default."""
    return max(BATCH_BYTES_DEFAULT, line_bytes_max + BATCH_BYTES_DEFAULT - LINE_BYTES_MAX)


def _topic_settings(line_bytes_max: int) -> dict[str, str]:
    """Those of a topic that is created: with room for such lines, if Kafka's default is too small. Retention uses the records'
    times, which are the lines' own: Kafka's default of seven days deletes a month-old log at once."""
    needed = _batch_bytes(line_bytes_max)
    return {"retention.ms": "-1"} | ({"max.message.bytes": str(needed)} if needed > BATCH_BYTES_DEFAULT else {})


def _extractors_of_unsent(
    sources: Sequence[Source], reading: merged_lines.LineReading
) -> dict[str, timestamp_extractor.TimestampExtractor]:
    """The extractor of each file that holds anything new. UndatedLog if the records of one would have times that are not theirs,
    unless that is allowed. Times far from the file's own were accepted when the file was first sent."""
    extractors = {}
    for source in sources:
        path = Path(source.path)
        if line_reader.holds_more(path, source.position):
            extractor = extractors[source.source_id] = timestamp_extractor.extractor_for(
                path, reading.line_bytes_max, reading.times
            )
            accepts_times = reading.times.accepts_times or source.position > 0
            options = replace(reading.times, accepts_times=accepts_times)
            timestamp_extractor.validate_timestamps(path, extractor, options, reading.now_ms, joins=reading.joins)
    return extractors


def _recover(before: ShippedTopic, client: TopicClient, *, accept_loss: bool) -> tuple[ShippedTopic, TopicTruncation]:
    """The state, with where the topic ends now and, after an interrupted run, the lines it holds beyond the last checkpoint; and
    what the topic has lost of what was recorded. `accept_loss`: lost lines are not sent again."""
    ends = client.end_offsets()
    if not before.clean:
        ends = _settled_ends(client, ends)
    lost = TopicTruncation.of(before.topic, before.next_offsets, ends)
    if lost.records and not accept_loss:
        starts = client.start_offsets()
        stored = client.positions(starts, ends)
        sources = {name: rewound(source, lost, stored.get(name, {}), starts) for name, source in before.sources.items()}
        return replace(before, next_offsets=ends, sources=sources), lost
    if before.clean:
        return replace(before, next_offsets=ends), lost
    positions = client.positions(before.next_offsets, ends)
    sources = {name: _with_ahead(source, positions.get(name, {})) for name, source in before.sources.items()}
    return replace(before, next_offsets=ends, sources=sources), lost


def _settled_ends(client: TopicClient, ends: dict[int, int]) -> dict[int, int]:
    """Where the topic ends once it no longer grows: requests of a killed run may still arrive."""
    while True:
        time.sleep(SETTLE_SECONDS)
        settled, ends = ends, client.end_offsets()
        if settled == ends:
            return ends


def _with_ahead(source: Source, positions: Mapping[int, set[int]]) -> Source:
    beyond = {position for position in {*source.ahead}.union(*positions.values()) if position >= source.position}
    return replace(source, ahead=tuple(sorted(beyond)))


def _checkpoint(
    before: ShippedTopic, sources: Sequence[Source], gone: Sequence[Source], *, clean: bool, next_offsets: Mapping[int, int]
) -> ShippedTopic:
    """How far the sources are acknowledged, and from which offsets of the topic later lines would be found."""
    latest = {source.source_id: source for source in sources}
    # Until a run has come to its end and reported them, the last ones known under their names: the next run finds them gone.
    last_known = {} if clean else {source.source_id: source for source in gone}
    others = {name: source for name, source in before.sources.items() if name not in latest and name not in last_known}
    return replace(before, clean=clean, next_offsets=next_offsets, sources={**others, **latest, **last_known})


def _checked(files: Iterable[Path | str]) -> list[Path]:
    paths = [Path(file).absolute() for file in files]
    for path in paths:
        files_seen.check_readable(path)
    if len(paths) > FILES_MAX:
        raise UnreadableLog(f"{len(paths)} files at once are more than {FILES_MAX}: ship them in several runs, oldest first")
    return paths


# -- the state file: one JSON file, replaced as a whole, locked by the run that uses it ----------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedTopic:
    """What is known about one topic: its files, and the offsets at which lines sent after the last checkpoint would begin."""

    topic: str
    clean: bool = True
    next_offsets: Mapping[int, int] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict)


class ShipState:
    """The state file while this run holds its lock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._topics: dict[str, Any] = self._load()

    def topic(self, topic_id: str, name: str) -> ShippedTopic:
        """The state of a topic; an empty one if nothing was ever sent to it."""
        stored = self._topics.get(topic_id)
        if stored is None:
            return ShippedTopic(topic=name)
        return ShippedTopic(
            topic=name,
            clean=stored["clean"],
            next_offsets={int(partition): offset for partition, offset in stored["next_offsets"].items()},
            sources={source["source_id"]: _read_source(source) for source in stored["sources"]},
        )

    def save(self, topic_id: str, state: ShippedTopic) -> None:
        """Replace the file; after a crash it holds either the old state or this one."""
        latest = list(state.sources.values())[-SOURCES_REMEMBERED:]
        self._topics[topic_id] = {
            "topic": state.topic,
            "clean": state.clean,
            "next_offsets": dict(state.next_offsets),
            "sources": [asdict(source) for source in latest],
        }
        try:
            content = json.dumps({"version": STATE_VERSION, "topics": self._topics}, indent=1)
            replace_atomically(self._path, content.encode())
        except OSError as error:
            raise StateUnusable(
                f"cannot write the state file {self._path}: {error.strerror}. Give it space, or change its owner. {ANOTHER_STATE}"
            ) from error

    def _load(self) -> dict[str, Any]:
        try:
            stored = json.loads(self._path.read_text())
            if stored["version"] != STATE_VERSION:
                raise StateUnusable(
                    f"the state file {self._path} has format {stored['version']}, this program writes {STATE_VERSION}: use the "
                    f"program that wrote it. {ANOTHER_STATE}"
                )
            topics: dict[str, Any] = stored["topics"]
            return topics
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateUnusable(
                f"cannot read the state file {self._path}: {error}. Restore it from a backup if there is one. {ANOTHER_STATE}"
            ) from error


@contextmanager
def open_state(path: Path) -> Iterator[ShipState]:
    """The state under its lock; StateInUse if another run holds the lock."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(path.name + ".lock").open("w")
    except OSError as error:
        raise StateUnusable(f"cannot store the state in {path}: {error.strerror}. --state names another file") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateInUse(
                f"another run is using the state file {path}: wait for it. Only files that no other run sends may have a state "
                "of their own (--state)"
            ) from None
        yield ShipState(path)


def _read_source(stored: dict[str, Any]) -> Source:
    fingerprints = {name: Fingerprint(**stored[name]) for name in ("head", "last_line")}
    return Source(**{**stored, **fingerprints, "ahead": tuple(stored["ahead"])})
