"""The experiments of the paper's section 5, today: producers (figure 4), consumers (figure 5) and the overhead of a message.

Ours against Apache Kafka with the same clients, in the ways of producing that clients use now; ours against RabbitMQ and
ActiveMQ, each with its own client. docs/benchmarks.md lists the settings. The three parts are independent: one that breaks
becomes a row that reports it, and the others continue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rich.console import Console

from benchmarks.consume import consumer_figures
from benchmarks.contest import Contest, contest, topic
from benchmarks.figures import Figure, Target, figure
from benchmarks.loads import BATCH_1, BATCH_50, FLUSHED_LOADS, LOADS, Load, Scale
from benchmarks.peers.generator import Latency
from benchmarks.produce import MEMORY, disk_figure, producer_figures
from benchmarks.sides import (
    ACTIVEMQ,
    KAFKA,
    OPEN_ACTIVEMQ,
    OPEN_KAFKA,
    OPEN_LOGBUS,
    OPEN_LOGBUS_FLUSHING,
    OPEN_RABBITMQ,
    OURS,
    OURS_FLUSHING,
    RABBITMQ,
    RABBITMQ_STREAM,
    LogSide,
    Side,
)  # fmt: skip
from benchmarks.startup import startup_figures
from benchmarks.turns import Cost, Measured, compare, compare_costs, in_one_line

MESSAGES = 200_000  # per round of a queue server, about ten seconds
ROUND_TRIPS = 2_000
QUEUES = (RABBITMQ, ACTIVEMQ)
PRODUCER_OF_QUEUES, CONSUMER_OF_QUEUES = Target(ratio_min=5.0), Target(ratio_min=4.0)


def run(console: Console, scale: Scale) -> Sequence[Figure]:
    return [
        *_guarded("start-up", startup_figures, scale, console),
        *_guarded("against Apache Kafka", _against_kafka, scale, console),
        *_guarded("against RabbitMQ and ActiveMQ", _against_queues, scale, console),
    ]


def _guarded(
    part: str, run_part: Callable[[Scale, Console], Iterable[Figure]], scale: Scale, console: Console
) -> Iterator[Figure]:
    """A long unattended run keeps its results: a part that breaks ends with a figure that was not held."""
    console.rule(part)
    try:
        yield from run_part(scale, console)
    except Exception as error:
        console.print_exception()
        yield figure(part, "", ours=[], target=Target(), against="all", note=in_one_line(error))


def _against_kafka(scale: Scale, console: Console) -> Iterator[Figure]:
    with contest((OPEN_LOGBUS, OPEN_LOGBUS_FLUSHING, OPEN_KAFKA), scale, console) as running:
        for load in LOADS:
            yield from producer_figures(load, running)
        yield from consumer_figures(running)
        yield from latency_figures(_latencies(running, (OURS, KAFKA)), KAFKA)
        yield running.memory(KAFKA, MEMORY)
        flushing = _with_flushing_topics(running)
        for load in FLUSHED_LOADS:
            yield from producer_figures(load, flushing, ours=OURS_FLUSHING)


def _with_flushing_topics(running: Contest) -> Contest:
    """The same warm servers: Kafka's new topics flush each append, ours waits by its broker's setting."""
    kafka = {
        name: side.flushing_each_append() for name, side in running.present.items() if isinstance(side, LogSide) and name == KAFKA
    }
    return Contest(present={**running.present, **kafka}, missing=running.missing, scale=running.scale, console=running.console)


def _against_queues(scale: Scale, console: Console) -> Iterator[Figure]:
    """A queue can be consumed only once, so every round produces into a new one and consumes that."""
    with contest((OPEN_LOGBUS, OPEN_RABBITMQ, OPEN_ACTIVEMQ), scale, console) as running:
        names = (OURS, *QUEUES, RABBITMQ_STREAM)
        produced = running.measure("producer", lambda side, number: _produce(side, BATCH_50, number, scale), names)
        singles = running.measure("producer, batch 1", lambda side, number: _produce(side, BATCH_1, number, scale), (OURS,))
        consumed = running.measure("consumer", lambda side, number: _consume(side, number, scale), names)
        for peer in names[1:]:
            yield from _queue_figures(peer, produced, singles[OURS], consumed)
        latencies = _latencies(running, (OURS, *QUEUES))
        for peer in QUEUES:
            yield from latency_figures(latencies, peer)
            yield running.memory(peer)


def _produce(side: Side, load: Load, number: int, scale: Scale) -> Cost:
    return side.produce(load, topic(load, number), records=_records(side, load, scale))


def _consume(side: Side, number: int, scale: Scale) -> Cost:
    return side.consume(topic(BATCH_50, number), records=_records(side, BATCH_50, scale))


def _records(side: Side, load: Load, scale: Scale) -> int:
    return scale.records(load.records if isinstance(side, LogSide) else MESSAGES)


def _queue_figures(
    peer: str, produced: Mapping[str, Measured[Cost]], singles: Measured[Cost], consumed: Mapping[str, Measured[Cost]]
) -> Sequence[Figure]:
    """Only the queues have targets, and a client without batches: the stream is RabbitMQ's log, which the paper did not have."""
    producer, consumer = (PRODUCER_OF_QUEUES, CONSUMER_OF_QUEUES) if peer in QUEUES else (None, None)
    pair, one_by_one = (produced[OURS], produced[peer]), (singles, produced[peer])
    by_one = "producer, our batch 1, acks=1, their own client"
    return [
        *compare_costs("producer, our batch 50, acks=1, their own client", pair, against=peer, rate=producer),
        *(compare_costs(by_one, one_by_one, against=peer) if peer in QUEUES else ()),
        *compare_costs("consumer, their own client", (consumed[OURS], consumed[peer]), against=peer, rate=consumer),
        disk_figure(pair, against=peer),
    ]


def _latencies(running: Contest, names: Sequence[str]) -> Mapping[str, Measured[Latency]]:
    records = running.scale.records(ROUND_TRIPS)
    return running.measure("latency", lambda side, number: side.latency(f"latency-{number}", records=records), names)


def latency_figures(measured: Mapping[str, Measured[Latency]], peer: str) -> Sequence[Figure]:
    """One record sent, acknowledged and received before the next."""
    pair = measured[OURS], measured[peer]
    return [
        compare("end-to-end latency, median", "ms", lambda one: one.p50_ms, pair, against=peer),
        compare("end-to-end latency, 99th percentile", "ms", lambda one: one.p99_ms, pair, against=peer),
    ]
