"""What compression costs the broker and saves on its disk: batches of 50 log lines, uncompressed and with each codec.

The client compresses; the broker stores what it receives. So the log must be, byte for byte, the batches that were sent, except
for the fields that a broker stamps: base offset and leader epoch. Compressing is not the broker's work, and fewer bytes are less
work for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle, islice
from pathlib import Path

from logbus_broker.filesystem import offset_name
from logbus_broker.log.segment import LOG
from logbus_broker.protocol.batch import LENGTH_END, Buffer
from rich.console import Console

from benchmarks.costs.lines import BATCH_RECORDS, batches_of, log_lines
from benchmarks.costs.load import ROUNDS_PER_ROUND, cpu_per_million, create_topic, produce_all
from benchmarks.costs.wire import whole_batches
from benchmarks.figures import Figure, Target, figure
from benchmarks.loads import RECORD_BYTES, Scale
from benchmarks.peers.logbus import LogbusBroker

RECORDS = 150_000
DIFFERENT_LINES = 20_000
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_BASE_OFFSET = slice(0, 8)
_LEADER_EPOCH = slice(LENGTH_END, LENGTH_END + 4)


def figures(directory: Path, scale: Scale, console: Console) -> Iterator[Figure]:
    records, now_ms = scale.records(RECORDS), time.time_ns() // 1_000_000
    lines = log_lines(min(DIFFERENT_LINES, records), seed=3)
    batches = {name: batches_of(lines, now_ms=now_ms, codec=codec) for name, codec in CODECS.items()}
    requests = records // BATCH_RECORDS
    costs: dict[str, list[float]] = {name: [] for name in CODECS}
    sizes, differing = dict.fromkeys(CODECS, 0.0), 0
    with LogbusBroker(directory / "logbus") as broker:
        for number in range(ROUNDS_PER_ROUND * scale.rounds):
            for name, sent in batches.items():
                topic = f"{name}-{number}"
                create_topic(broker.bootstrap, topic)
                work = partial(produce_all, broker.bootstrap, topic, sent, requests=requests)
                costs[name].append(cpu_per_million(broker, requests * BATCH_RECORDS, work))
                os.sync()
                sizes[name] = broker.disk_bytes(f"{topic}-0") / (requests * BATCH_RECORDS)
                differing += differing_bytes(islice(cycle(sent), requests), stored(broker.data / f"{topic}-0"))
                console.print(f"codecs: {name}: {costs[name][-1]:.2f} s CPU a million, {sizes[name]:.0f} B", highlight=False)
    yield from codec_figures(costs, sizes, differing)


def codec_figures(costs: Mapping[str, Sequence[float]], sizes: Mapping[str, float], differing: int) -> Iterator[Figure]:
    against = "logbus, no codec"
    yield figure("bytes stored that are not those sent, all codecs", "B", ours=[differing], target=Target(ours_max=0))
    for name in CODECS:
        peer, title = [sizes["none"]] if name != "none" else [], f"{name}: on disk for a message of {RECORD_BYTES}"
        yield figure(title, "B", ours=[sizes[name]], peer=peer, against=against if peer else "")
    for name in CODECS:
        if name != "none":
            target = Target(ratio_max=1.1)  # no more than none, within the variation between rounds
            yield figure(f"{name}: broker CPU", "s/million", ours=costs[name], peer=costs["none"], target=target, against=against)


def stored(partition: Path) -> Iterator[memoryview]:
    """The batches of a partition that has one segment, in order."""
    return whole_batches((partition / offset_name(0, LOG)).read_bytes())


def differing_bytes(sent: Iterable[bytes], found: Iterable[Buffer]) -> int:
    """How many bytes of the stored batches differ from those that were sent, without the stamped fields; a batch of another
    length differs as a whole. ValueError if their numbers differ."""
    return sum(_differing(expected, batch) for expected, batch in zip(sent, found, strict=True))


def _differing(sent: bytes, found: Buffer) -> int:
    expected, batch = _unstamped(sent), _unstamped(found)
    if expected == batch:
        return 0
    if len(expected) != len(batch):
        return max(len(expected), len(batch))
    return sum(one != other for one, other in zip(expected, batch, strict=True))


def _unstamped(batch: Buffer) -> bytes:
    blank = bytearray(batch)
    blank[_BASE_OFFSET] = bytes(8)
    blank[_LEADER_EPOCH] = bytes(4)
    return bytes(blank)
