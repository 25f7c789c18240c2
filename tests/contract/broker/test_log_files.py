"""Our log files are the same as Apache Kafka's: each side reads what the other wrote."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from logbus_broker.filesystem import FileSystem
from logbus_broker.groups.records import CommittedOffset, GroupKey, OffsetKey, encode_group, encode_key, encode_value
from logbus_broker.log.inspection import dump_file
from logbus_broker.log.producer_state import ProducerStates, encode_producers
from logbus_broker.log.segment import INDEX, LOG, TIME_INDEX
from logbus_broker.protocol.batch import read_header
from logbus_broker.protocol.records import NewRecord, build_batch

from benchmarks.peers.kafka import SMALL_FLAGS, ApacheKafka
from tests.support.batches import NOW_MS, produced
from tests.support.groups import STORED_PAIR
from tests.support.kafka_peer import jvm_tools_or_skip
from tests.support.logs import append, compact, files_with, flush, headers_from, open_log, read_all

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
COMPLAINTS = ("mismatch", "isvalid: false", "out of order", "invalid bytes", "not found", "error")


def test_apache_kafkas_dump_tool_reads_our_segments_and_indexes_without_complaint(tmp_path: Path) -> None:
    tools = jvm_tools_or_skip()
    chance = random.Random(3)
    log = open_log(tmp_path / "t-0", segment_bytes=100_000)
    for number in range(500):
        records = [
            NewRecord(
                timestamp=NOW_MS + number * 100 + chance.randrange(3_000),
                key=b"key",
                value=b"v" * chance.randrange(400),
                headers=(("name", b"value"),),
            )
            for _ in range(chance.randrange(1, 9))
        ]
        append(log, build_batch(records, codec=number % 5))
    end_offset = log.end_offset
    log.close()
    files = [path for suffix in (LOG, INDEX, TIME_INDEX) for path in files_with(tmp_path / "t-0", suffix)]
    assert len(files) > 3
    dump = tools.run("kafka.tools.DumpLogSegments", "--deep-iteration", "--files", ",".join(map(str, files)))
    complaints = [line for line in dump.splitlines() if any(word in line.lower() for word in COMPLAINTS)]
    assert complaints == []
    assert sum(line.startswith("| offset:") for line in dump.splitlines()) == end_offset
    assert dump.count("isvalid: true") == 500


def test_apache_kafkas_dump_tool_reads_compacted_segments_and_the_horizons_of_their_tombstones(tmp_path: Path) -> None:
    tools = jvm_tools_or_skip()
    log = open_log(tmp_path / "t-0", cleanup_policy="compact", segment_bytes=20_000)
    for number in range(500):
        key, value = b"key-%d" % (number % 40), None if number % 7 == 0 else b"v" * 100
        append(log, build_batch([NewRecord(timestamp=NOW_MS + number, key=key, value=value)] * 2, codec=number % 5))
    flush(log)
    compact(log)
    expected = [record.offset for record in read_all(log)]
    log.close()
    files = [path for suffix in (LOG, INDEX, TIME_INDEX) for path in files_with(tmp_path / "t-0", suffix)]
    dump = tools.run("kafka.tools.DumpLogSegments", "--deep-iteration", "--files", ",".join(map(str, files)))
    complaints = [line for line in dump.splitlines() if any(word in line.lower() for word in COMPLAINTS)]
    assert complaints == []
    rows = [line for line in dump.splitlines() if line.startswith("| offset:")]
    assert sorted(int(line.split()[2]) for line in rows) == expected
    assert len(expected) < 1000
    assert f"deleteHorizonMs: OptionalLong[{NOW_MS + 86_400_000}]" in dump


def test_our_dump_prints_what_apache_kafkas_prints(tmp_path: Path) -> None:
    tools = jvm_tools_or_skip()
    log = open_log(tmp_path / "t-0", segment_bytes=5_000, cleanup_policy="compact")
    for number in range(80):
        records = [
            NewRecord(timestamp=NOW_MS + n, key=b"key-%d" % (number % 9) if n else None, value=b"value" if n % 3 else None)
            for n in range(1, 5)
        ]
        append(log, build_batch(records, codec=number % 5, producer_id=number % 2 - 1, producer_epoch=0, base_sequence=number))
    flush(log)
    compact(log)
    log.close()
    files = [path for suffix in (LOG, INDEX, TIME_INDEX) for path in files_with(tmp_path / "t-0", suffix)]
    names = ",".join(map(str, files))
    theirs = tools.run("kafka.tools.DumpLogSegments", "--print-data-log", "--deep-iteration", "--files", names).splitlines()
    ours = [line for path in files for line in dump_file(path, FileSystem(), records=True)]
    assert [" ".join(line.split()) for line in ours] == [" ".join(line.split()) for line in theirs]


def test_apache_kafkas_dump_tool_reads_our_snapshots_of_producers(tmp_path: Path) -> None:
    tools = jvm_tools_or_skip()
    states = ProducerStates()
    for producer_id in (4, 9):
        for number in range(7):
            header = read_header(produced(producer_id, number * 2, 2, epoch=3))
            states.apply(header._replace(base_offset=number * 10 + producer_id))
    path = tmp_path / "00000000000000000080.snapshot"
    path.write_bytes(encode_producers(states.stored()))
    dump = tools.run("kafka.tools.DumpLogSegments", "--files", str(path))
    rows = [line for line in dump.splitlines() if line.startswith("producerId:")]
    assert [row.split()[1] for row in rows] == ["4", "9"]
    assert all("producerEpoch: 3" in row and "lastSequence: 13" in row for row in rows)


def test_apache_kafkas_decoder_reads_our_groups_and_committed_offsets(tmp_path: Path) -> None:
    tools = jvm_tools_or_skip()
    log = open_log(tmp_path / "__consumer_offsets-0")
    group, offset = encode_key(GroupKey("g")), encode_key(OffsetKey("g", "clicks", 1))
    rows = [
        (group, encode_group(STORED_PAIR, NOW_MS)),
        (offset, encode_value(CommittedOffset(7, 2, "note", NOW_MS, 0.0))),
        (group, encode_group(replace(STORED_PAIR, protocol_name="", leader_id=None, members=()), NOW_MS)),
        (group, None),
    ]
    append(log, build_batch([NewRecord(timestamp=NOW_MS, key=key, value=value) for key, value in rows]))
    log.close()
    (path,) = files_with(tmp_path / "__consumer_offsets-0", LOG)
    dump = tools.run("kafka.tools.DumpLogSegments", "--offsets-decoder", "--files", str(path))
    pairs = [line.partition(" key: ")[2].split(" payload: ") for line in dump.splitlines() if line.startswith("| offset:")]
    assert [json.loads(key)["type"] for key, _ in pairs] == ["2", "1", "2", "2"]
    stable, committed, empty = (json.loads(value)["data"] for _, value in pairs[:3])
    assert pairs[3][1] == "<DELETE>"
    assert (committed["offset"], committed["leaderEpoch"], committed["commitTimestamp"]) == (7, 2, NOW_MS)
    head = {"protocolType": "consumer", "generation": 7, "currentStateTimestamp": NOW_MS}
    assert empty == head | {"protocol": None, "leader": None, "members": []}
    members = stable.pop("members")
    assert stable == head | {"protocol": "range", "leader": "m-0"}
    for number, instance in enumerate(("one", "two")):
        subscribed, assigned = members[number].pop("subscription"), members[number].pop("assignment")
        assert subscribed["topics"] == ["clicks"]
        assert assigned["assignedPartitions"] == [{"topic": "clicks", "partitions": [number]}]
        assert members[number] == {
            "memberId": f"m-{number}",
            "groupInstanceId": instance,
            "clientId": "c",
            "clientHost": "/127.0.0.1",
            "rebalanceTimeout": 60_000,
            "sessionTimeout": 45_000,
        }


@pytest.mark.long
def test_what_apache_kafka_wrote_in_every_codec_opens_here_with_every_record(tmp_path: Path) -> None:
    tools = jvm_tools_or_skip()
    lines = {codec: [f"{codec} {number} " + "x" * (number % 200) for number in range(300)] for codec in CODECS}
    with ApacheKafka(tmp_path / "kafka", flags=SMALL_FLAGS, settings={"log.segment.bytes": "1048576"}) as kafka:
        tools.topics(kafka.bootstrap, "--create", "--topic", "t", "--partitions", "1")
        for codec in CODECS:
            arguments = ("--bootstrap-server", kafka.bootstrap, "--topic", "t", "--compression-codec", codec)
            tools.run("org.apache.kafka.tools.ConsoleProducer", *arguments, stdin="\n".join(lines[codec]) + "\n")
    shutil.copytree(tmp_path / "kafka" / "data" / "t-0", tmp_path / "t-0")
    log = open_log(tmp_path / "t-0")
    records = read_all(log)
    assert log.recovery.truncated_bytes == 0
    assert {header.compression for header in headers_from(log, 0)} == set(range(5))
    assert [record.value for record in records] == [line.encode() for codec in CODECS for line in lines[codec]]
    assert [record.offset for record in records] == list(range(1500))
    for record in records[::97]:
        first = next((r.offset, r.timestamp) for r in records if r.timestamp >= record.timestamp)
        assert log.search_by_time(record.timestamp, upto_offset=1500).run() == first
