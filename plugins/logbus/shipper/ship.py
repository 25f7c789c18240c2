"""Log files to a topic: every line a record, once, oldest first; a second run sends only what is new.

The topic itself records what was sent: each record carries its file and the byte at which its line began. The state file stores
how far everything is acknowledged (a checkpoint, about once a second). After a clean end that is all. After a kill, the next run
reads back the records after the last checkpoint and leaves out the lines it finds among them. So nothing is lost and nothing is
sent twice, even after kill -9. A topic that ends before the recorded offsets has lost records: their lines are sent again.
Two cases remain: a state file lost or restored from a backup (its lines are sent again), and a network that delivers the
killed run's last requests later than SETTLE_SECONDS after the next run began.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from logbus.errors import TopicMissing, UnreadableLog
from logbus.shipper import line_reader, merged_lines, rotation, timestamp_extractor
from logbus.shipper import sources as files_seen
from logbus.shipper.shipment import PRODUCER_DEFAULTS, Numbering, Progress, Sent, Shipment, open_delivery
from logbus.shipper.sources import FilePart, Source
from logbus.shipper.state import ShippedTopic, open_state
from logbus.shipper.topic_client import TopicClient, TopicTruncation, rewound
from logbus.waiting import Say, say_nothing

PARTITIONS_DEFAULT = 3
BATCH_BYTES_DEFAULT = 1_000_000  # librdkafka's message.max.bytes; a topic's max.message.bytes is a little more
LINE_BYTES_MAX = 900_000  # the rest of the batch is for key, headers and framing
CHECKPOINT_LINES = 100_000  # what a run after a kill may have to read back; about a second of sending
SETTLE_SECONDS = 2.0  # twice the broker's default flush interval: by then a killed run's last records are visible
PARTITIONER = PRODUCER_DEFAULTS["partitioner"]
FILES_MAX = 500  # open at once while merging; a process can usually open 1,024


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
    sent too (rotation.py). `say` is told what is waited for.

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
        mentioned = rotation.never_sent(paths, sent_before)
        rotated, gone = rotation.unsent(paths, sent_before)
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
